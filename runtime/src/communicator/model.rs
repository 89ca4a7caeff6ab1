//! The constants that the selection uses. They follow from facts of all ranks, so they are the same on all.

use kolo_collectives::model::{LinkClass, Model};

use crate::profile::{Inside, Profile};

/// Facts about all ranks that each rank knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Facts {
    /// Whether all have shared memory.
    pub(super) shm: bool,
    /// Whether all have RDMA.
    pub(super) rdma: bool,
    /// Ranks per processor on the fullest host, at least 1.
    pub(super) oversubscription: f64,
    /// Whether several hosts share processors, which then also run the network between them.
    pub(super) software_network: bool,
}

/// Returns the model for such ranks, from a profile if there is one.
pub(super) fn model_for(facts: Facts, profile: Option<&Profile>) -> Model {
    let Facts { shm, rdma, oversubscription, software_network } = facts;
    let mut model = Model { oversubscription, ..if rdma { Model::RDMA } else { Model::TCP } };
    if rdma && !shm {
        model.intra = LinkClass::RDMA;
    } else {
        model = model_inside(if shm { Inside::Shm } else { Inside::Tcp }, model, profile);
    }
    if software_network && !rdma {
        model.inter.overhead_seconds = model.inter.overhead_seconds.max(SOFTWARE_NETWORK_OVERHEAD_SECONDS);
    }
    model
}

/// Puts the constants of communication inside a host into a model, from a profile if there is one.
#[must_use]
pub fn model_inside(inside: Inside, model: Model, profile: Option<&Profile>) -> Model {
    match (profile, inside) {
        (Some(profile), _) => profile.apply(inside, model),
        (None, Inside::Shm) => model,
        (None, Inside::Tcp) => Model {
            intra: LOOPBACK_TCP,
            memory_bytes_per_second: LOOPBACK_KERNEL_BYTES_PER_SECOND,
            move_bytes_per_second: LOOPBACK_KERNEL_BYTES_PER_SECOND / 2.0,
            copy_bytes_per_second: LOOPBACK_COPY_BYTES_PER_SECOND,
            switch_seconds: LOOPBACK_SWITCH_SECONDS,
            ..model
        },
    }
}

/// Processor time per message at each end where the hosts are containers of one machine. Laboratories with delays of 10
/// and 25 us have round trips of 86 and 122 us; this value accounts for the rest.
const SOFTWARE_NETWORK_OVERHEAD_SECONDS: f64 = 12e-6;

/// TCP between processes of one host: system calls of 2.6 us at each end, including wake-ups, and the kernel's copying
/// rate. From all-gathers among 2, 4 and 8 ranks on 2 processors. With 8 bytes: 6 us; by the ring 47 and 201, direct 38
/// and 215, in pairs 25 and 75. With 512 KiB: 36, 135 and 430 us.
const LOOPBACK_TCP: LinkClass =
    LinkClass { latency_seconds: 0.7e-6, overhead_seconds: 2.6e-6, bytes_per_second: 6.5e9 };

/// Wait of a rank for each other rank on its processor; ranks yield, and none sleeps. From the same measurements.
const LOOPBACK_SWITCH_SECONDS: f64 = 3.5e-6;

/// The kernel's copying rate over loopback with two processors, in and out counted separately: 13 GB/s measured.
const LOOPBACK_KERNEL_BYTES_PER_SECOND: f64 = 26e9;

/// Rate of the copies that pack an all-to-all by Bruck. Where that form is useful, they lie in the nearest caches.
const LOOPBACK_COPY_BYTES_PER_SECOND: f64 = 30e9;
