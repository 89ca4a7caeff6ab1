//! The reasons for giving up a peer, and the rank at fault.

use kolo_verbs::{Blame, Failure, MemoryLock, Status};

use super::NAME;
use crate::error::{Error, ErrorKind};

/// Reason for giving up a peer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A call of the library failed.
    Verbs(kolo_verbs::Error),
    /// The endpoint itself needs memory of this length, and no more may be locked.
    Short(usize, kolo_verbs::Error),
    /// A request failed on the queue pair of this number.
    Failed(u32, Failure),
    /// The peer sent bytes that no peer of this version sends.
    Corrupt(&'static str),
    /// A message could not be copied from where it is. Before it is posted, this concerns only the message, and not the
    /// peer.
    Message(Error),
}

impl From<kolo_verbs::Error> for Trouble {
    fn from(error: kolo_verbs::Error) -> Self {
        Self::Verbs(error)
    }
}

impl Trouble {
    /// Returns the error in plain words: the rank at fault, the queue pair, the adapters, and the remedy.
    pub(super) fn words(self, rank: u32, peer: u32, way: &str) -> Error {
        let (kind, detail) = match self {
            Self::Verbs(error) => (ErrorKind::Local, format!("rank {rank}'s adapter: {error} ({way})")),
            Self::Short(bytes, error) => (
                ErrorKind::Local,
                format!(
                    "rank {rank} may not lock any more memory, but needs {} KiB more for its messages with \
                     rank {peer} ({way}: {error}); rank {peer} is healthy. {}, or do without RDMA \
                     (KOLO_TRANSPORT=shm,tcp)",
                    bytes.div_ceil(1024),
                    MemoryLock::remedy()
                ),
            ),
            Self::Message(error) => (ErrorKind::Local, format!("rank {rank}: {}", error.detail)),
            Self::Failed(number, Failure { status: Status::Flushed, .. }) => (
                ErrorKind::Local,
                format!(
                    "rank {rank}'s queue pair {number} ({way}) is out of service although none of its \
                     requests failed: the adapter or its driver took it out of service (a reset, a device \
                     error); see that host's kernel log"
                ),
            ),
            Self::Failed(number, failure) => {
                let kind = match failure.status.blame() {
                    Blame::Path => ErrorKind::PeerLost,
                    Blame::Local | Blame::Device | Blame::Consequence => ErrorKind::Local,
                    Blame::Remote => ErrorKind::System,
                };
                (kind, format!("rank {rank}'s queue pair {number} ({way}) failed: {failure}"))
            }
            Self::Corrupt(what) => (ErrorKind::Corrupt, format!("the peer sent something other than {what}")),
        };
        Error::new(kind, NAME, Some(peer), detail)
    }
}
