//! The table that all programs about limits print: the possible figure, and Kolo's.

use std::fmt;

/// Head of a table of [`Row`]s, in Markdown.
pub const HEAD: &str = "\
| limit | ranks | size | possible | Kolo | share | target |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |";

/// Unit of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds; less is better.
    Micros,
    /// Units of 10^9 bytes per second; more is better.
    GigabytesPerSecond,
    /// Mebibytes, of which Kolo's figure is a share of its allowance.
    Mebibytes,
}

/// One row of the table: a limit.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The limit, and the part of Kolo that is compared with it.
    pub what: &'a str,
    /// Ranks of the job.
    pub ranks: u32,
    /// Bytes of the vector or the message.
    pub bytes: usize,
    /// Unit of both figures.
    pub unit: Unit,
    /// Figure of the limit, from the same run.
    pub possible: f64,
    /// Figure of Kolo.
    pub kolo: f64,
    /// The target for the share, if there is one: a minimum, except for memory, where it is a maximum. 1 is the limit
    /// itself.
    pub target: Option<f64>,
}

impl Row<'_> {
    /// Returns Kolo's share of the possible figure, or of the memory it may take; 1 is all of it.
    #[must_use]
    pub fn share(&self) -> f64 {
        match self.unit {
            Unit::Micros => self.possible / self.kolo,
            Unit::GigabytesPerSecond | Unit::Mebibytes => self.kolo / self.possible,
        }
    }

    fn meets(&self, target: f64) -> bool {
        match self.unit {
            Unit::Micros | Unit::GigabytesPerSecond => self.share() >= target,
            Unit::Mebibytes => self.share() <= target,
        }
    }
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Micros => "us",
            Unit::GigabytesPerSecond => "GB/s",
            Unit::Mebibytes => "MiB",
        };
        let target = match self.target {
            None => String::new(),
            Some(target) if self.meets(target) => format!("{:.0}%", target * 100.0),
            Some(target) => format!("{:.0}%: missed", target * 100.0),
        };
        write!(
            f,
            "| {} | {} | {} | {} {unit} | {} {unit} | {:.0}% | {target} |",
            self.what,
            self.ranks,
            size(self.bytes),
            figure(self.possible),
            figure(self.kolo),
            self.share() * 100.0
        )
    }
}

/// Formats a figure with three significant digits, or more if its integer part has more.
fn figure(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Returns the median; of two middle values, the upper one.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_tells_how_near_the_limit_is_and_the_target_which_side_is_meant() {
        let row = |unit, possible, kolo| Row {
            what: "all_reduce",
            ranks: 2,
            bytes: 32 << 20,
            unit,
            possible,
            kolo,
            target: Some(0.8),
        };
        assert_eq!(
            row(Unit::GigabytesPerSecond, 10.0, 8.5).to_string(),
            "| all_reduce | 2 | 32 MiB | 10.0 GB/s | 8.50 GB/s | 85% | 80% |"
        );
        assert_eq!(
            row(Unit::Micros, 0.3, 600.0).to_string(),
            "| all_reduce | 2 | 32 MiB | 0.300 us | 600 us | 0% | 80%: missed |"
        );
        assert_eq!(
            row(Unit::Mebibytes, 32.0, 16.0).to_string(),
            "| all_reduce | 2 | 32 MiB | 32.0 MiB | 16.0 MiB | 50% | 80% |"
        );
        assert!(row(Unit::Mebibytes, 32.0, 33.0).to_string().ends_with("80%: missed |"));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
