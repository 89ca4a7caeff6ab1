//! Lack of descriptors, or of kernel memory for what they stand for: how it is recognised and reported.

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
/// as the cause, and the remedy for what it lacks.
pub(crate) fn shortage(
    transport: &'static str,
    (rank, peer): (u32, Option<u32>),
    to_do: &str,
    error: &io::Error,
) -> Error {
    let detail = format!("rank {rank} cannot {to_do}: {}", lack(error));
    Error::system(transport, peer, detail, io::Error::new(error.kind(), error.to_string()))
}

fn lack(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENFILE) => {
            "its host has no file descriptors left; raise the host's limit (sysctl fs.file-max)"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "the kernel has no memory for it; see the memory limit of its host or container, and for TCP sysctl \
             net.ipv4.tcp_mem"
        }
        _ => "it has no file descriptors left; raise its limit on open files (ulimit -n 65536)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_for_what_is_lacking() {
        let words =
            |code| shortage("tcp", (3, None), "connect", &io::Error::from_raw_os_error(code)).to_string();
        for (code, remedy) in [
            (libc::EMFILE, "ulimit -n"),
            (libc::ENFILE, "fs.file-max"),
            (libc::ENOMEM, "memory"),
            (libc::ENOBUFS, "memory"),
        ] {
            assert!(are_out(&io::Error::from_raw_os_error(code)));
            let words = words(code);
            assert!(words.contains("rank 3 cannot connect") && words.contains(remedy), "{words}");
            assert_eq!(words.contains("ulimit"), code == libc::EMFILE, "{words}");
        }
    }
}
