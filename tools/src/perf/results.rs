//! Collects the rows of a run: they are summed up for the verdict, written to the JSON file at once, and kept only if they
//! will be drawn.

use super::environment::Environment;
use super::json::Report;
use super::row::Row;
use super::settings::Settings;
use super::text::Verdict;
use crate::error::{CliError, Result};

/// The error in the JSON file of a run that has not ended, or was killed.
const UNFINISHED: &str = "the run has not ended";

/// The results of one rank so far.
#[derive(Default)]
pub(crate) struct Results<'a> {
    wanted_bandwidth: Option<f64>,
    bus_bandwidths: f64,
    /// Number of measurements, two for each row.
    measurements: usize,
    wrong_measurements: u64,
    keeps: bool,
    kept: Vec<Row>,
    report: Option<Report<'a>>,
    /// The error after which nothing is written to the file any more. It ends no rank by itself, since others would blame
    /// that rank.
    unwritten: Option<CliError>,
}

/// The results of a run that has ended.
pub(crate) struct Ended {
    pub(crate) verdict: Verdict,
    /// The rows to draw.
    pub(crate) rows: Vec<Row>,
    /// The error of a file that is not whole.
    pub(crate) unwritten: Option<CliError>,
}

impl<'a> Results<'a> {
    /// Makes an empty one; rows are kept only on the rank that `draws`.
    pub(crate) fn new(settings: &Settings, environment: &Environment, draws: bool) -> Self {
        // A run without end draws nothing.
        let keeps = draws && settings.plot.is_some() && settings.cycles.is_some();
        Self { wanted_bandwidth: environment.wanted_bandwidth, keeps, ..Self::default() }
    }

    /// Sets the file to which each row goes; `begin` gets the verdict on no rows and the text of the only error.
    pub(crate) fn report_to(
        &mut self,
        begin: impl FnOnce(&Verdict, &[String]) -> std::io::Result<Report<'a>>,
    ) {
        match begin(&self.verdict(0), &[UNFINISHED.to_owned()]) {
            Ok(report) => self.report = Some(report),
            Err(error) => self.unwritten = Some(unwritten(&error)),
        }
    }

    /// Returns whether the file could not be written.
    pub(crate) const fn is_unwritten(&self) -> bool {
        self.unwritten.is_some()
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: Row) {
        for half in [&row.out_of_place, &row.in_place] {
            self.bus_bandwidths += half.bandwidth.bus;
            self.measurements += 1;
            self.wrong_measurements += u64::from(half.wrong.is_some_and(|wrong| wrong > 0));
        }
        let verdict = self.verdict(self.wrong_measurements);
        if let Some(report) = &mut self.report
            && let Err(error) = report.add(&row, &verdict, &[UNFINISHED.to_owned()], &row.timestamp)
        {
            (self.report, self.unwritten) = (None, Some(unwritten(&error)));
        }
        if self.keeps {
            self.kept.push(row);
        }
    }

    /// Returns the verdict, with the mean over all rows and both placements, as nccl-tests does.
    fn verdict(&self, failed_checks: u64) -> Verdict {
        let average_bus_bandwidth = match self.measurements {
            0 => 0.0,
            count => self.bus_bandwidths / count as f64,
        };
        Verdict { failed_checks, average_bus_bandwidth, wanted: self.wanted_bandwidth }
    }

    /// Ends the run: with the number of failed checks over all ranks, or with an error. Completes the file.
    pub(crate) fn end(mut self, failed_checks: Result<u64>, end_time: &str) -> Result<Ended> {
        let verdict = self.verdict(*failed_checks.as_ref().unwrap_or(&self.wrong_measurements));
        if let Some(report) = self.report.take() {
            let errors: Vec<String> =
                failed_checks.as_ref().err().map(ToString::to_string).into_iter().collect();
            self.unwritten = report.end(&verdict, &errors, end_time).err().map(|error| unwritten(&error));
        }
        failed_checks.map(|_| Ended { verdict, rows: self.kept, unwritten: self.unwritten })
    }
}

fn unwritten(error: &std::io::Error) -> CliError {
    CliError::system("the JSON file cannot be written", error)
}
