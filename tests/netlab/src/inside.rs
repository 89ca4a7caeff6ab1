//! The laboratory's own namespaces. The laboratory runs as the first process of a PID namespace, so the kernel ends all
//! its processes with it, and with them the unnamed network namespaces. Nothing is left, even if the laboratory is
//! killed.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use crate::lab::Lab;
use crate::system;

/// Variable that is set for the process inside.
const INSIDE: &str = "KOLO_NETLAB_INSIDE";

/// Where the caller of [`enter`] is.
#[derive(Debug)]
pub enum Entry {
    /// Inside the namespaces, where laboratories can be made.
    Inside,
    /// Outside, after the process inside has ended with this code.
    Ended(ExitCode),
    /// The machine does not permit the namespaces, for this reason.
    Unavailable(String),
}

/// Starts this program again inside namespaces of its own. In the outer process, waits until the inner one ends, and
/// reports its exit code. Must be called at the beginning of `main`, while the process has only one thread. Root needs
/// nothing else. Other users need a kernel that lets them make user namespaces, and access to /dev/net/tun.
#[must_use]
pub fn enter() -> Entry {
    if rustix::process::getpid().is_init() && std::env::var_os(INSIDE).is_some() {
        return match mount_proc() {
            Err(error) => Entry::Unavailable(format!("/proc cannot be mounted in a namespace: {error}")),
            Ok(()) => Lab::probe().map_or_else(Entry::Unavailable, |()| Entry::Inside),
        };
    }
    if let Err(error) = unshare() {
        return Entry::Unavailable(format!("namespaces are not permitted here: {error}"));
    }
    match start() {
        Ok(code) => Entry::Ended(code),
        Err(error) => Entry::Unavailable(format!("this program does not start in a namespace: {error}")),
    }
}

fn unshare() -> io::Result<()> {
    let own = UnshareFlags::NEWPID | UnshareFlags::NEWNS;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if user == 0 && system::unshare(own).is_ok() {
        return Ok(());
    }
    system::unshare(UnshareFlags::NEWUSER | own)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

fn start() -> io::Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(INSIDE, "1");
    system::die_with_parent(&mut command);
    let status = command.status()?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Mounts /proc for this PID namespace, invisible outside.
fn mount_proc() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}
