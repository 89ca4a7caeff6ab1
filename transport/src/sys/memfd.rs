//! Anonymous files for shared memory: no name to leak, no limit of /dev/shm, gone with their last user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Without these a peer could truncate the file under a mapping, and an access would raise SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a sparse file of zeroes whose size nobody can change.
pub(crate) fn create_sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, base | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 the flag is not known.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, base)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Checks that a file from somebody else is of the given size and will stay so.
pub(crate) fn check_sealed(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(io::Error::other("the shared memory handed over is not sealed"));
    }
    let actual = rustix::fs::fstat(&fd)?.st_size;
    if u64::try_from(actual).ok() != Some(bytes as u64) {
        return Err(io::Error::other(format!(
            "the shared memory handed over has {actual} bytes, not {bytes}"
        )));
    }
    Ok(())
}
