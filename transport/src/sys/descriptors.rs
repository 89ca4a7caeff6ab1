//! Lack of descriptors in this process: how it is recognised and reported.

use std::io;
use std::time::Duration;

use crate::error::Error;

/// How long an endpoint goes on without a descriptor for a waiting connection; other parts of the process may close
/// some in that time.
pub(crate) const STARVED_FOR: Duration = Duration::from_secs(1);

/// Returns whether an error says that no descriptor can be made now, which may pass once some are closed.
pub(crate) fn are_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns the error of `rank`, which has no descriptor left `to_do` something with a peer. The text names this rank
/// as the cause.
pub(crate) fn shortage(
    transport: &'static str,
    (rank, peer): (u32, Option<u32>),
    to_do: &str,
    error: &io::Error,
) -> Error {
    let detail = format!(
        "rank {rank} cannot {to_do}: it has no file descriptors left; raise its limit on open files (ulimit \
         -n 65536)"
    );
    Error::system(transport, peer, detail, io::Error::new(error.kind(), error.to_string()))
}
