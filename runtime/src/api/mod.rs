//! The public API: communicators, collectives, messages, groups and symmetric buffers.

// The documentation shows a communicator's methods in the order of these modules.
mod members;

mod collectives;
mod irregular;
mod shards;

mod batch;
mod messages;
mod point_to_point;
mod probe;

mod scope;
mod scope_messages;
mod start;
mod start_messages;
mod work;

mod gpu;
mod registration;
mod stable;
mod symmetric;

mod elastic;
mod grow;
pub mod state;
mod subset;
mod survivors;

mod failures;

mod diagnostics;

mod raw;

#[cfg(feature = "ndarray")]
mod arrays;
mod builder;
mod cluster;
mod network;
#[cfg(feature = "bytemuck")]
mod plain;
mod typed;

#[cfg(test)]
mod at_once_tests;
#[cfg(test)]
mod counts_tests;
#[cfg(test)]
mod elastic_tests;
#[cfg(test)]
mod floats_tests;
#[cfg(test)]
mod helper_tests;
#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod lent_tests;
#[cfg(test)]
mod owner_tests;
#[cfg(test)]
mod single_tests;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "ndarray")]
pub use arrays::DenseArray;
pub use batch::Batch;
pub use builder::CommunicatorBuilder;
pub use cluster::Cluster;
pub use elastic::Agreement;
pub use messages::RawMessage;
#[cfg(feature = "bytemuck")]
pub use plain::Plain;
pub use probe::WaitingMessage;
pub use registration::{RegisteredBuffer, Registration, RegistrationStatus};
pub use scope::Scope;
pub use stable::StableBuffer;
pub use survivors::{Change, Survivors};
pub use symmetric::SymmetricBuffer;
pub use work::{SecondWait, Work};

use crate::call::Member;
use crate::communicator::{Making, Shared, WORLD, leak_in_child};
use crate::drive;
use crate::error::Result;

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order. Several threads may use a communicator, if the
/// program makes sure that this order is the same on all ranks. Blocking and asynchronous collectives do not match each
/// other; blocking and asynchronous messages do.
///
/// A collective blocks until this rank's part is done: its output is complete, and its input may be changed. Its
/// return says nothing about the other ranks, except for [`Communicator::barrier`].
///
/// # Errors of calls
/// [`crate::Error::Usage`] and [`crate::Error::Unsupported`] mean that lengths, root or operator are not valid. They
/// are returned before anything is sent, and the communicator stays usable. After every other error
/// ([`crate::Error::Mismatch`], [`crate::Error::PeerLost`], [`crate::Error::Timeout`], [`crate::Error::Aborted`],
/// [`crate::Error::Transport`]) no rank can use the communicator any more. [`crate::Error::is_fatal`] tells the two
/// kinds apart.
///
/// # Dropping
/// Dropping a communicator waits until all sent data has left, and tells the other ranks. World rank 0, which passes on
/// the goodbyes, also waits for those of the other ranks when it drops its last communicator. Each waits for at most 5
/// seconds in all.
///
/// # Fork
/// A communicator belongs to the process that made it. In a child made by `fork`, calls on the communicator, and on
/// objects made from it, fail with [`crate::Error::Usage`] and do nothing. Questions that have no error, such as
/// [`Communicator::rank`] and [`Communicator::summary`], are answered. [`Communicator::abort`] does nothing there, and
/// dropping has no effect and returns at once. The parent and the other ranks go on. The child may make
/// communicators of its own. See [`Communicator::check_process`].
#[derive(Debug)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
}

/// Longest time for which dropping a communicator waits: for asynchronous operations, for data to leave, and on rank 0
/// for the others' goodbyes.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

impl Communicator {
    /// Makes a communicator. Every member calls it. Blocks until all have, at most until the deadline.
    fn make(making: Making) -> Result<Self> {
        let deadline = making.deadline;
        let communicator = Self { shared: Arc::new(making.connect()?) };
        communicator.shared.world.entered();
        if communicator.shared.is_complete() {
            communicator.publish_members();
        }
        if communicator.shared.group.id == WORLD && !communicator.shared.world.knows_network() {
            communicator.learn_network(deadline)?;
        }
        tracing::info!("{}", communicator.summary());
        Ok(communicator)
    }

    pub(crate) fn member(&self) -> Member {
        self.shared.group.member()
    }

    /// Returns the job's cookie and the communicator's number within the job, which together identify it.
    fn identity(&self) -> (crate::job::Cookie, u64) {
        (self.shared.world.control.job_cookie(), self.shared.group.id)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !leak_in_child(&self.shared) {
            // After a panic, started operations are not waited for, so that the other ranks hear of it at once.
            let limit = if std::thread::panicking() { Duration::ZERO } else { CLOSE_LIMIT };
            let departure = drive::close(&self.shared, limit);
            self.shared.world.left(departure);
        }
    }
}
