//! Launchers that heed a user's signals, whatever has started the tests.

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
