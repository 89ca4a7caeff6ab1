//! The conformance suite over TCP: both address families, across processes, across network namespaces.

use kolo_transport::conformance::{CountingAllocator, Subject};
use kolo_transport::tcp::Family;
use kolo_transport::{Endpoint, TcpEndpoint, TcpOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct Tcp;

fn endpoint(rank: u32, world_size: u32, job: [u8; 16], family: Family) -> Box<dyn Endpoint> {
    let options = TcpOptions { cookie: job, family, ..Default::default() };
    Box::new(TcpEndpoint::new(rank, world_size, options).expect("endpoint"))
}

impl Subject for Tcp {
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint> {
        endpoint(rank, world_size, job, Family::Both)
    }
}

struct TcpV6;

impl Subject for TcpV6 {
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint> {
        endpoint(rank, world_size, job, Family::V6)
    }
}

kolo_transport::conformance!(Tcp);

#[test]
fn across_namespaces() {
    kolo_transport::conformance::across_namespaces(&Tcp, "tcp::across_namespaces");
}

#[test]
fn across_namespaces_with_ipv6() {
    kolo_transport::conformance::across_namespaces(&TcpV6, "tcp::across_namespaces_with_ipv6");
}
