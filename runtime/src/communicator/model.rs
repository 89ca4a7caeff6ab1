//! The constants that the selection goes by: the same on all ranks, so from what all ranks said.

use kolo_collectives::model::{LinkClass, Model};

use crate::profile::{Inside, Profile};

/// Facts that all ranks know of themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Facts {
    /// Whether all have shared memory.
    pub(super) shm: bool,
    /// Whether all have RDMA.
    pub(super) rdma: bool,
    /// Ranks per processor where there are most, at least 1.
    pub(super) oversubscription: f64,
    /// Whether several hosts share processors, which then also run the network between them.
    pub(super) software_network: bool,
}

/// The model for such ranks, from a profile if there is one.
pub(super) fn model_for(facts: Facts, profile: Option<&Profile>) -> Model {
    let Facts { shm, rdma, oversubscription, software_network } = facts;
    let mut model = Model { oversubscription, ..if rdma { Model::RDMA } else { Model::TCP } };
    if rdma && !shm {
        model.intra = LinkClass::RDMA;
    } else if let Some(profile) = profile {
        model = profile.apply(if shm { Inside::Shm } else { Inside::Tcp }, model);
    } else if !shm {
        model.intra = LOOPBACK_TCP;
        model.memory_bytes_per_second = LOOPBACK_KERNEL_BYTES_PER_SECOND;
        model.move_bytes_per_second = LOOPBACK_KERNEL_BYTES_PER_SECOND / 2.0;
        model.copy_bytes_per_second = LOOPBACK_COPY_BYTES_PER_SECOND;
        model.switch_seconds = LOOPBACK_SWITCH_SECONDS;
    }
    if software_network && !rdma {
        model.inter.overhead_seconds = model.inter.overhead_seconds.max(SOFTWARE_NETWORK_OVERHEAD_SECONDS);
    }
    model
}

/// Processor time per message at each end where the hosts are containers of one machine: of round trips of 86 and 122 us on laboratories
/// with delays of 10 and 25 us, that leaves the delays.
const SOFTWARE_NETWORK_OVERHEAD_SECONDS: f64 = 12e-6;

/// TCP between processes of one host: system calls of 2.6 us at each end, wake-ups included, and what the kernel copies per
/// second. From all-gathers of 8 bytes and 512 KiB among 2, 4 and 8 ranks on 2 processors: 6 us; round the ring 47 and 201,
/// direct 38 and 215, in pairs 25 and 75; 36, 135 and 430 us.
const LOOPBACK_TCP: LinkClass =
    LinkClass { latency_seconds: 0.7e-6, overhead_seconds: 2.6e-6, bytes_per_second: 6.5e9 };

/// Wait of a rank for each other one on its processor: they yield, and nobody sleeps. From the same.
const LOOPBACK_SWITCH_SECONDS: f64 = 3.5e-6;

/// The kernel's rate over loopback with two processors, in and out each counted: 13 GB/s measured.
const LOOPBACK_KERNEL_BYTES_PER_SECOND: f64 = 26e9;

/// Copies for the packing of an all-to-all by Bruck, which lie in the nearest caches where that form is of use.
const LOOPBACK_COPY_BYTES_PER_SECOND: f64 = 30e9;
