//! A process that has run out of descriptors: what is concluded from it, and what is said.

use std::io;
use std::time::Duration;

use crate::error::Error;

/// How long an endpoint goes on without a descriptor for whoever waits for it: others of this process may close some.
pub(crate) const STARVED_FOR: Duration = Duration::from_secs(1);

/// Whether an error says that no descriptor can be made now, which passes once some are closed.
pub(crate) fn are_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// The error of `rank`, which has none left `to_do` something with a peer: it is the cause, and says so.
pub(crate) fn shortage(
    transport: &'static str,
    (rank, peer): (u32, Option<u32>),
    to_do: &str,
    error: &io::Error,
) -> Error {
    let detail = format!(
        "rank {rank} cannot {to_do}: it has no descriptor left; raise its limit of open files (ulimit -n 65536)"
    );
    Error::system(transport, peer, detail, io::Error::new(error.kind(), error.to_string()))
}
