//! Interface to the kernel: TAP devices, namespaces, and commands that start in them. All `unsafe` code of the
//! laboratory is here.

use std::ffi::{OsStr, c_int, c_short, c_uint, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Bytes before each frame: flags, kind of segmentation, length of headers, size of segments, start and offset of the
/// checksum.
pub(crate) const VIRTIO_HEADER: usize = 10;

/// Makes a TAP device in this thread's network namespace. Its frames have a [`VIRTIO_HEADER`], and with `bundles` they
/// come in bundles of up to 64 KiB. Reads do not block.
pub(crate) fn tap(name: &str, bundles: bool) -> io::Result<File> {
    const TUNSETIFF: c_ulong = 0x4004_54ca;
    const TUNSETOFFLOAD: c_ulong = 0x4004_54d0;
    const IFF_TAP: c_short = 2;
    const IFF_NO_PI: c_short = 0x1000;
    const IFF_VNET_HDR: c_short = 0x4000;
    const TUN_F_CSUM: c_uint = 1;
    const TUN_F_TSO4: c_uint = 2;
    const TUN_F_TSO6: c_uint = 4;
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: c_short,
        rest: [u8; 22],
    }
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
    // The last byte stays zero, as the end of the string.
    let len = name.len().min(15);
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: the request is as large as the kernel's ifreq (40 bytes) and outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let offload = TUN_F_CSUM | if bundles { TUN_F_TSO4 | TUN_F_TSO6 } else { 0 };
    // SAFETY: this request takes its argument by value.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, c_ulong::from(offload)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

/// Namespaces of a host. They exist as long as this value, or a process in them.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) net: OwnedFd,
    pub(crate) uts: OwnedFd,
}

impl Namespace {
    /// Moves the calling thread into new namespaces, and keeps them open.
    pub(crate) fn unshare(name: &str) -> io::Result<Self> {
        unshare(UnshareFlags::NEWNET | UnshareFlags::NEWUTS)?;
        rustix::system::sethostname(name.as_bytes())?;
        let open = |which: &str| File::open(format!("/proc/thread-self/ns/{which}")).map(OwnedFd::from);
        Ok(Self { net: open("net")?, uts: open("uts")? })
    }

    /// Moves the calling thread into these namespaces.
    pub(crate) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.net.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(move_into_link_name_space(self.uts.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?)
    }
}

/// Moves the calling thread into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: the only danger is unsharing the descriptor table behind the library's back, which the assertion rules
    // out.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Makes a command that will run in these namespaces.
pub(crate) fn command_in(namespace: &Arc<Namespace>, program: impl AsRef<OsStr>) -> Command {
    let namespace = Arc::clone(namespace);
    let mut command = Command::new(program);
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
    unsafe { command.pre_exec(move || namespace.enter()) };
    command
}

/// Makes the kernel kill a command's process when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    // SAFETY: as above, the closure makes only one system call.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
}

/// Gives the calling thread priority over all ordinary ones, so that packets leave on time.
pub(crate) fn realtime() -> io::Result<()> {
    const PRIORITY: c_int = 2;
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the parameters outlive the call, and 0 means the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
