//! The conformance suite over RDMA. Without an adapter, it is skipped with the reason; tests/softroce provides one on
//! any machine. With `KOLO_REQUIRE_RDMA=1`, a missing adapter is a failure.

use kolo_transport::conformance::{CountingAllocator, Subject};
use kolo_transport::rdma::Keep;
use kolo_transport::{Endpoint, RdmaEndpoint, RdmaOptions, TcpOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct Rdma(fn() -> RdmaOptions);

impl Subject for Rdma {
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint> {
        let side = TcpOptions { cookie: job, ..TcpOptions::default() };
        let options = RdmaOptions { side, ..self.0() };
        Box::new(RdmaEndpoint::new(rank, world_size, options).expect("endpoint"))
    }

    fn absent(&self) -> Option<String> {
        let error = RdmaEndpoint::new(0, 1, self.0()).err()?;
        assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "RDMA is required: {error}");
        Some(error.to_string())
    }
}

mod as_it_comes {
    use super::*;

    kolo_transport::conformance!(Rdma(RdmaOptions::default));
}

/// Registrations outlive their messages only while memory is watched, since the suite unmaps buffers all the time.
mod with_several_queue_pairs {
    use super::*;

    kolo_transport::conformance!(Rdma(|| RdmaOptions {
        queue_pairs: 3,
        keep: Keep::Never,
        in_flight_bytes: 256 << 10,
        ..RdmaOptions::default()
    }));
}
