//! Draws the rates between hosts as a heat map.

use plotters::prelude::*;

use super::report::Report;
use crate::error::{CliError, Result};
use crate::output_file::OutputFile;

/// Pixels of a cell, and of the margin around the map.
const CELL: u32 = 56;
const MARGIN: u32 = 96;
const FONT: &str = "sans-serif";

/// Draws the rates of a report to a file.
pub(crate) fn draw(file: OutputFile, report: &Report) -> Result<()> {
    let mut svg = String::new();
    render(&mut svg, report).map_err(|error| {
        CliError::failure(format!("the heat map cannot be drawn: {error}"), "Leave out --svg")
    })?;
    file.write(&svg)
}

fn render(svg: &mut String, report: &Report) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let hosts = report.hosts.len() as u32;
    let size = (MARGIN + CELL * hosts).max(4 * MARGIN);
    let root = SVGBackend::with_string(svg, (size, size)).into_drawing_area();
    root.fill(&WHITE)?;
    let style = |pixels: u32| (FONT, pixels).into_font().color(&BLACK);
    let at = |host: u32| (MARGIN + CELL * host) as i32;
    let title = "MB/s of one connection, from row to column";
    root.draw(&Text::new(title, (8, 8), style(16)))?;
    let most = report.measured.iter().map(|way| way.bytes_per_second).fold(0.0, f64::max);
    for host in 0..hosts {
        let name = report.hosts[host as usize].facts.hostname.chars().take(12).collect::<String>();
        root.draw(&Text::new(format!("{host} {name}"), (4, at(host) + CELL as i32 / 2 - 6), style(12)))?;
        root.draw(&Text::new(format!("to {host}"), (at(host) + 12, MARGIN as i32 - 18), style(12)))?;
    }
    for way in &report.measured {
        let share = if most > 0.0 { way.bytes_per_second / most } else { 0.0 };
        let (x, y) = (at(way.to), at(way.from));
        let cell = [(x, y), (x + CELL as i32 - 2, y + CELL as i32 - 2)];
        root.draw(&Rectangle::new(cell, colour(share).filled()))?;
        let text = format!("{:.0}", way.bytes_per_second / 1e6);
        root.draw(&Text::new(text, (x + 6, y + CELL as i32 / 2 - 8), style(13)))?;
    }
    root.present()?;
    Ok(())
}

/// Maps a share to a colour from orange (slow) through white to blue (fast), which colour-blind readers can
/// tell apart too.
fn colour(share: f64) -> RGBColor {
    let mix = |from: u8, to: u8, by: f64| (f64::from(from) + (f64::from(to) - f64::from(from)) * by) as u8;
    let (from, to, by) = match share.clamp(0.0, 1.0) {
        low if low < 0.5 => ((230, 159, 0), (250, 250, 250), 2.0 * low),
        high => ((250, 250, 250), (86, 180, 233), 2.0 * high - 1.0),
    };
    RGBColor(mix(from.0, to.0, by), mix(from.1, to.1, by), mix(from.2, to.2, by))
}

#[cfg(test)]
mod tests {
    use super::super::rates::Measured;
    use super::super::report::Host;
    use super::*;

    #[test]
    fn slow_cells_have_another_colour() {
        let way = |from, to, bytes_per_second| Measured {
            from,
            to,
            round_trip_seconds: 1e-4,
            ahead_seconds: 0.0,
            bytes_per_second,
            segments: 0,
            lost: 0,
            late: 0,
        };
        let report = Report {
            hosts: vec![Host::default(); 2],
            measured: vec![way(0, 1, 117e6), way(1, 0, 11e6)],
            ..Report::default()
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map.svg");
        draw(OutputFile::open("heat map", &path).unwrap(), &report).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("117") && svg.contains("to 1"), "{svg}");
        assert_ne!(colour(1.0), colour(0.1));
    }
}
