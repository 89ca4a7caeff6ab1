//! Shared memory through the conformance suite.

use kolo_transport::conformance::{CountingAllocator, Subject};
use kolo_transport::{Endpoint, ShmEndpoint, ShmOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct Shm(fn() -> ShmOptions);

impl Subject for Shm {
    fn endpoint(&self, rank: u32, world_size: u32, _job: [u8; 16]) -> Box<dyn Endpoint> {
        Box::new(ShmEndpoint::new(rank, world_size, self.0()).expect("endpoint"))
    }
}

mod as_it_comes {
    use super::*;

    kolo_transport::conformance!(Shm(ShmOptions::default));
}

/// Rings of a page: everything waits for room all the time.
mod with_smallest_rings {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions { ring_bytes: 4096, ..ShmOptions::default() }));
}
