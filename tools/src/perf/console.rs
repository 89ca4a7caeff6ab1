//! Rank 0's output: lines on standard output, a progress bar on standard error when that is a terminal.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::{CliError, Result};

/// Prints the whole text of a command.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_ref()).and_then(|()| output.flush()).map_err(|error| CliError::unprinted(&error))
}

/// Output of one rank; all ranks but one print nothing.
pub(crate) struct Console {
    sink: Option<Box<dyn Write>>,
    bar: Option<ProgressBar>,
    is_unread: bool,
}

impl Console {
    /// Makes the console of a rank that prints to standard output.
    pub(crate) fn stdout() -> Self {
        Self { sink: Some(Box::new(io::stdout())), bar: None, is_unread: false }
    }

    /// Makes the console of a rank that prints nothing.
    pub(crate) fn silent() -> Self {
        Self { sink: None, bar: None, is_unread: false }
    }

    /// Makes the console of a rank whose lines a test inspects.
    #[cfg(test)]
    pub(crate) fn to(sink: impl Write + 'static) -> Self {
        Self { sink: Some(Box::new(sink)), bar: None, is_unread: false }
    }

    /// Returns whether lines are printed.
    pub(crate) fn prints(&self) -> bool {
        self.sink.is_some()
    }

    /// Shows the progress of `cells` measurements, on a terminal only.
    pub(crate) fn begin(&mut self, cells: usize) {
        if self.prints() && io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(cells as u64), ProgressDrawTarget::stderr());
            let template = "{elapsed_precise} {wide_bar} {pos}/{len} {msg}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            self.bar = Some(bar);
        }
    }

    /// Shows what is being measured.
    pub(crate) fn doing(&self, what: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what());
            bar.tick();
        }
    }

    /// Records the end of one measurement.
    pub(crate) fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Removes the progress bar.
    pub(crate) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Returns whether the reader of the lines has gone. It is no error, since files are still to be written, and since
    /// other ranks must end first.
    pub(crate) const fn is_unread(&self) -> bool {
        self.is_unread
    }

    /// Prints a line and flushes it.
    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        let Some(sink) = self.sink.as_mut().filter(|_| !self.is_unread) else { return Ok(()) };
        let mut print = || writeln!(sink, "{line}").and_then(|()| sink.flush());
        let printed = match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_unread = true,
            printed => printed.map_err(|error| CliError::unprinted(&error))?,
        }
        Ok(())
    }

    /// Prints lines.
    pub(crate) fn lines(&mut self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }
}
