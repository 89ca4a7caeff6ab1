//! The error type of the command line: a paragraph with cause and remedy, and the exit code.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Exit code when the data was wrong or the bandwidth too low.
pub(crate) const EXIT_WRONG_RESULT: u8 = 1;
/// Exit code when the request is invalid.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code when something failed on the way.
pub(crate) const EXIT_FAILURE: u8 = 3;

/// Exit code when standard output has no reader any more, as in `kolo perf | head`: that of a program that SIGPIPE ended.
pub(crate) const EXIT_NO_READER: u8 = 128 + 13;

/// The reason why a command ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    /// The paragraph for the user.
    pub message: String,
    /// Exit code of the process.
    pub exit_code: u8,
}

/// The result type of this crate.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// Makes an error for a request that makes no sense. Both sentences come without the final full stop.
    pub(crate) fn usage(problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { message: format!("{problem}. {remedy}."), exit_code: EXIT_USAGE }
    }

    /// Makes an error for a valid request that failed. Both sentences come without the final full stop.
    pub(crate) fn failure(problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { message: format!("{problem}. {remedy}."), exit_code: EXIT_FAILURE }
    }

    /// Makes an error with a message that must stay as it is, because scripts look for it.
    pub(crate) fn verbatim(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: EXIT_USAGE }
    }

    /// Makes an error for a failure of the operating system.
    pub(crate) fn system(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        Self { message: format!("{doing}: {error}."), exit_code: EXIT_FAILURE }
    }

    /// Makes an error for a failure to write to standard output.
    pub(crate) fn unprinted(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::unread(),
            _ => Self::system("standard output cannot be written", error),
        }
    }

    /// Makes the error of a command whose output nobody reads any more.
    pub(crate) fn unread() -> Self {
        Self { message: "standard output has no reader any more.".to_owned(), exit_code: EXIT_NO_READER }
    }

    /// Prints the error, unless it is that nobody reads the output, and returns the exit code of the process.
    pub(crate) fn report(&self) -> u8 {
        if self.exit_code == EXIT_NO_READER {
            return self.exit_code;
        }
        // If this fails, nobody is left to tell.
        let _ = writeln!(std::io::stderr(), "kolo: {self}");
        self.exit_code
    }

    /// Returns the exit code, for `main`.
    pub(crate) fn exit(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl From<kolo::Error> for CliError {
    fn from(error: kolo::Error) -> Self {
        let exit_code = match error {
            kolo::Error::Usage { .. } | kolo::Error::Configuration { .. } => EXIT_USAGE,
            _ => EXIT_FAILURE,
        };
        Self { message: error.to_string(), exit_code }
    }
}
