//! The reasons for giving up a peer, and the rank at fault.

use kolo_verbs::{Blame, Failure, MemoryLock, Status};

use super::NAME;
use crate::error::{Error, ErrorKind};

/// Why a peer is given up.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A call failed.
    Verbs(kolo_verbs::Error),
    /// Memory of our own of this length is needed, and no more may be locked.
    Short(usize, kolo_verbs::Error),
    /// A request failed, on a queue pair.
    Failed(u32, Failure),
    /// The peer sent what no peer of this version sends.
    Corrupt(&'static str),
    /// A message could not be copied from where it is: its own affair, and not the peer's.
    Message(Error),
}

impl From<kolo_verbs::Error> for Trouble {
    fn from(error: kolo_verbs::Error) -> Self {
        Self::Verbs(error)
    }
}

impl Trouble {
    /// In plain words: who, which queue pair, between which adapters, and what to do.
    pub(super) fn words(self, rank: u32, peer: u32, way: &str) -> Error {
        let (kind, detail) = match self {
            Self::Verbs(error) => (ErrorKind::Local, format!("rank {rank}'s adapter: {error} ({way})")),
            Self::Short(bytes, error) => (
                ErrorKind::Local,
                format!(
                    "rank {rank} may lock no more memory, and needs {} KiB more for its messages with rank {peer} ({way}: \
                     {error}); rank {peer} is well. {}, or do without RDMA (KOLO_TRANSPORT=shm,tcp)",
                    bytes.div_ceil(1024),
                    MemoryLock::remedy()
                ),
            ),
            Self::Message(error) => return error,
            Self::Failed(number, Failure { status: Status::Flushed, .. }) => (
                ErrorKind::Local,
                format!(
                    "rank {rank}'s queue pair {number} ({way}) is out of service, and none of its requests failed: the \
                     adapter or its driver gave it up (a reset, an error of the device); see the kernel's log of that host"
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
            Self::Corrupt(what) => (ErrorKind::Corrupt, format!("the peer sent something else than {what}")),
        };
        Error::new(kind, NAME, Some(peer), detail)
    }
}
