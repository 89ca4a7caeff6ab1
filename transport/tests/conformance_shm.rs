//! Shared memory through the conformance suite.

use kolo_transport::conformance::{CountingAllocator, Subject};
use kolo_transport::shm::SingleCopy;
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

/// Nearly every message is read from its sender's memory. Not the words of a few bytes that some cases expect to be
/// over before the answer is.
mod with_single_copy {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions {
        single_copy: SingleCopy::From(256),
        ..ShmOptions::default()
    }));
}

/// Everything goes through the rings.
mod with_two_copies {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions {
        single_copy: SingleCopy::Never,
        ..ShmOptions::default()
    }));
}

/// Rings of a page: everything waits for room all the time.
mod with_smallest_rings {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions { ring_bytes: 4096, ..ShmOptions::default() }));
}
