//! Rank 0's output: lines on standard output, a progress bar on standard error when that is a terminal.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::{CliError, Result};

/// Where one rank prints; all ranks but one print nothing.
pub(crate) struct Console {
    sink: Option<Box<dyn Write>>,
    bar: Option<ProgressBar>,
}

impl Console {
    /// Of a rank that prints to standard output.
    pub(crate) fn stdout() -> Self {
        Self { sink: Some(Box::new(io::stdout())), bar: None }
    }

    /// Of a rank that prints nothing.
    pub(crate) fn silent() -> Self {
        Self { sink: None, bar: None }
    }

    /// Of a rank whose lines a test looks at.
    #[cfg(test)]
    pub(crate) fn to(sink: impl Write + 'static) -> Self {
        Self { sink: Some(Box::new(sink)), bar: None }
    }

    /// Whether lines go anywhere.
    pub(crate) fn prints(&self) -> bool {
        self.sink.is_some()
    }

    /// Shows how far `cells` measurements have come. Only on a terminal.
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

    /// Says what is being measured.
    pub(crate) fn doing(&self, what: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what());
            bar.tick();
        }
    }

    /// One measurement is done.
    pub(crate) fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints a line, at once.
    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        let mut print = || writeln!(sink, "{line}").and_then(|()| sink.flush());
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
        .map_err(|error| CliError::system("standard output cannot be written", &error))
    }

    /// Prints lines.
    pub(crate) fn lines(&mut self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }
}
