//! Anonymous files for shared memory. They have no name to leak, do not count against /dev/shm, and vanish with their
//! last user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Resource;

/// Seals without which a peer could truncate the file under a mapping, so that an access would raise SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates a sparse file of zeroes whose size cannot be changed.
pub(crate) fn create_sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    // The system would end a process that exceeds its limit, by SIGXFSZ.
    let limit = rustix::process::getrlimit(Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| bytes as u64 > *limit) {
        let text = format!("{bytes} bytes exceed this process's limit on files of {limit} (ulimit -f)");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, base | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, base)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Checks that a file from another process has the given size and cannot change it.
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
