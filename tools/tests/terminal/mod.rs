//! Launchers that heed a user's signals, whatever has started the tests, and that write to a terminal.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the program start with the usual handling of signals, as from a terminal. Otherwise it inherits that some are
/// ignored, as under nohup or in the background of a script.
pub(crate) fn as_from_a_terminal(command: &mut Command) -> &mut Command {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: the call sets the handling to the default one, which needs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec, the closure only makes calls that are safe in signal handlers.
    unsafe { command.pre_exec(reset) }
}

/// Makes a terminal. Returns the end that shows what is written to it, and the end for programs.
pub(crate) fn terminal() -> (File, File) {
    let (mut screen, mut program) = (-1, -1);
    let unset = std::ptr::null_mut();
    // SAFETY: the call writes two numbers to variables of this function, and accepts null for what is not set.
    let made = unsafe { libc::openpty(&raw mut screen, &raw mut program, unset, unset.cast(), unset.cast()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptors are open, since the call has succeeded, and nothing else owns them.
    unsafe { (File::from_raw_fd(screen), File::from_raw_fd(program)) }
}
