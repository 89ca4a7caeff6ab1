//! The one error of the command line: a paragraph with cause and remedy, and the exit code.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Exit code when the data was wrong or the bandwidth too low.
pub(crate) const EXIT_WRONG_RESULT: u8 = 1;
/// Exit code when the request makes no sense.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code when something failed on the way.
pub(crate) const EXIT_FAILURE: u8 = 3;

/// Why a command ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    /// The paragraph.
    pub message: String,
    /// Exit code of the process.
    pub exit_code: u8,
}

/// The result of everything in this crate.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// The request makes no sense. Sentences without the final full stop.
    pub(crate) fn usage(problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { message: format!("{problem}. {remedy}."), exit_code: EXIT_USAGE }
    }

    /// The request was fine, but could not be carried out. Sentences without the final full stop.
    pub(crate) fn failure(problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { message: format!("{problem}. {remedy}."), exit_code: EXIT_FAILURE }
    }

    /// A message that must stay as it is, because scripts look for it.
    pub(crate) fn verbatim(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit_code: EXIT_USAGE }
    }

    /// The operating system refused.
    pub(crate) fn system(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        Self { message: format!("{doing}: {error}."), exit_code: EXIT_FAILURE }
    }

    /// Tells the user, and returns the exit code of the process.
    pub(crate) fn report(&self) -> u8 {
        // Nobody is left to tell if this fails.
        let _ = writeln!(std::io::stderr(), "kolo: {self}");
        self.exit_code
    }

    /// The exit code, for `main`.
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
