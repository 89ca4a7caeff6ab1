//! The conformance suite over shared memory.

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

/// The receiver reads nearly every message from its sender's memory. The exceptions are messages of a few bytes whose
/// sends some cases expect to complete before the answer does.
mod with_single_copy {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions {
        single_copy: SingleCopy::From(256),
        ..ShmOptions::default()
    }));
}

/// All messages go through the rings.
mod with_two_copies {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions {
        single_copy: SingleCopy::Never,
        ..ShmOptions::default()
    }));
}

/// Rings have one page, so all messages often wait for room.
mod with_smallest_rings {
    use super::*;

    kolo_transport::conformance!(Shm(|| ShmOptions { ring_bytes: 4096, ..ShmOptions::default() }));
}
