//! Draws two panels as SVG: bus bandwidth over size, and latency over size.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::row::{Measurement, Row};
use crate::error::{CliError, Result};
use crate::output_file::OutputFile;

const SIZE: (u32, u32) = (1280, 560);
const FONT: &str = "sans-serif";
const AXIS: RGBColor = RGBColor(70, 70, 70);
/// Colours that colour-blind readers can tell apart too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// One curve: its name, and its points as (bytes, GB/s, microseconds).
struct Curve {
    name: String,
    points: Vec<(f64, f64, f64)>,
}

/// Draws the rows to a file.
pub(crate) fn draw(file: OutputFile, title: &str, rows: &[Row]) -> Result<()> {
    let curves = curves(rows);
    let mut svg = String::new();
    render(&mut svg, title, &curves).map_err(|error| {
        CliError::failure(format!("the plot cannot be drawn: {error}"), "Leave out --plot")
    })?;
    file.write(&svg)
}

/// Makes a curve per type, operator, root and placement; repeated sweeps are averaged.
fn curves(rows: &[Row]) -> Vec<Curve> {
    let differs = |key: fn(&Row) -> String| rows.windows(2).any(|pair| key(&pair[0]) != key(&pair[1]));
    let types = differs(|row| row.type_name.into());
    let ops = differs(|row| row.op_name.into());
    let roots = differs(|row| row.root.to_string());
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        for (placement, half) in [("out of place", &row.out_of_place), ("in place", &row.in_place)] {
            let mut name = placement.to_owned();
            for (shown, text) in [
                (types, row.type_name.to_owned()),
                (ops, row.op_name.into()),
                (roots, format!("root {}", row.root)),
            ] {
                if shown {
                    name.push_str(&format!(", {text}"));
                }
            }
            let point = point(row, half);
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, points: vec![point] }),
            }
        }
    }
    for curve in &mut curves {
        average_repeats(&mut curve.points);
    }
    curves
}

fn point(row: &Row, half: &Measurement) -> (f64, f64, f64) {
    (row.bytes as f64, half.bandwidth.bus, (half.seconds * 1e6).max(1e-3))
}

fn average_repeats(points: &mut Vec<(f64, f64, f64)>) {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    *points = points
        .chunk_by(|a, b| a.0 == b.0)
        .map(|same| {
            let mean =
                |value: fn(&(f64, f64, f64)) -> f64| same.iter().map(value).sum::<f64>() / same.len() as f64;
            (same[0].0, mean(|point| point.1), mean(|point| point.2))
        })
        .collect();
}

fn render(svg: &mut String, title: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, (FONT, 24).into_font().color(&BLACK))?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    let x = extent(curves, |point| point.0);
    let fastest = extent(curves, |point| point.1).end;
    let top = if fastest.is_finite() && fastest > 0.0 { fastest * 1.08 } else { 1.0 };
    panel(&left, "bus bandwidth (GB/s)", curves, x.clone(), 0.0..top, |point| (point.0, point.1))?;
    let y = extent(curves, |point| point.2);
    let y = (y.start / 1.3..y.end * 1.3).log_scale();
    panel(&right, "time (µs)", curves, x, y, |point| (point.0, point.2))?;
    root.present()?;
    Ok(())
}

/// Returns the least and greatest value, or a default range if there is nothing to show. It is never empty
/// and never includes zero.
fn extent(curves: &[Curve], value: fn(&(f64, f64, f64)) -> f64) -> Range<f64> {
    let values = || curves.iter().flat_map(|curve| curve.points.iter().map(value));
    let (least, greatest) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    match least < greatest {
        true => least..greatest,
        false if least.is_finite() && least > 0.0 => least / 2.0..least * 2.0,
        false => 1.0..10.0,
    }
}

fn panel<Y>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    label: &str,
    curves: &[Curve],
    x: Range<f64>,
    y: Y,
    place: fn(&(f64, f64, f64)) -> (f64, f64),
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .margin_right(26)
        .x_label_area_size(52)
        .y_label_area_size(78)
        .build_cartesian_2d(Bytes::new(x), y)?;
    let text = |size: i32| (FONT, size).into_font().color(&AXIS);
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(AXIS)
        .x_desc("size (bytes)")
        .y_desc(label)
        .x_labels(12)
        .y_labels(10)
        .x_label_formatter(&|bytes| short_bytes(*bytes))
        .y_label_formatter(&|value| short_number(*value))
        .label_style(text(15))
        .axis_desc_style(text(17))
        .draw()?;
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<_> = curve.points.iter().map(place).collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], colour.stroke_width(3)));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    // A long legend would hide the curves.
    if (1..=12).contains(&curves.len()) {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font((FONT, 15).into_font())
            .draw()?;
    }
    Ok(())
}

/// A logarithmic axis of bytes with ticks at powers of two.
struct Bytes {
    range: Range<f64>,
}

impl Bytes {
    fn new(range: Range<f64>) -> Self {
        Self { range: range.start.max(1.0)..range.end.max(2.0) }
    }
}

impl Ranged for Bytes {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (low, high) = (self.range.start.log2(), self.range.end.log2());
        let share = (value.max(1.0).log2() - low) / (high - low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let powers = self.range.start.log2().ceil() as i32..=self.range.end.log2().floor() as i32;
        let every = (powers.clone().count().div_ceil(hint.max_num_points().max(1))).max(1);
        powers.step_by(every).map(|power| 2f64.powi(power)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Bytes {
    fn format(value: &f64) -> String {
        short_bytes(*value)
    }
}

fn short_bytes(bytes: f64) -> String {
    for (unit, letter) in [(1u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit as f64 {
            return format!("{}{letter}", short_number(bytes / unit as f64));
        }
    }
    short_number(bytes)
}

fn short_number(value: f64) -> String {
    let text = match value.abs() {
        large if large >= 1e6 => return format!("{value:.0e}"),
        middle if middle >= 100.0 => format!("{value:.0}"),
        small if small >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::{measured, sample};
    use super::*;

    fn rows() -> Vec<Row> {
        (3..28)
            .map(|power| {
                let bytes = 1u64 << power;
                let microseconds = 8.0 + bytes as f64 / 12_000.0;
                let bus = bytes as f64 / microseconds / 1e3;
                Row {
                    bytes,
                    out_of_place: measured(microseconds, bus, bus, Some(0)),
                    in_place: measured(microseconds * 0.8, bus * 1.25, bus * 1.25, Some(0)),
                    ..sample()
                }
            })
            .collect()
    }

    #[test]
    fn both_panels_are_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        draw(OutputFile::open("plot", &path).unwrap(), "all_reduce, 4 ranks on 1 host", &rows()).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in
            ["all_reduce, 4 ranks", "bus bandwidth (GB/s)", "time (µs)", "out of place", "in place", "128M"]
        {
            assert!(svg.contains(text), "{text}");
        }
        if let Some(copy) = std::env::var_os("KOLO_KEEP_PLOT") {
            std::fs::copy(&path, copy).unwrap();
        }
    }

    #[test]
    fn nothing_to_draw_is_no_reason_to_fail() {
        let directory = tempfile::tempdir().unwrap();
        let file = || OutputFile::open("plot", &directory.path().join("a.svg")).unwrap();
        draw(file(), "nothing", &[]).unwrap();
        draw(file(), "one", &rows()[..1]).unwrap();
        let zero = Row { bytes: 0, ..sample() };
        draw(file(), "zero", &[zero]).unwrap();
    }

    #[test]
    fn curves_are_told_apart_by_what_differs() {
        let mut rows = rows();
        assert_eq!(curves(&rows).len(), 2);
        let doubles: Vec<Row> = rows.iter().map(|row| Row { type_name: "double", ..row.clone() }).collect();
        rows.extend(doubles);
        let names: Vec<_> = curves(&rows).into_iter().map(|curve| curve.name).collect();
        assert_eq!(
            names,
            ["out of place, float", "in place, float", "out of place, double", "in place, double"]
        );
        assert_eq!(curves(&[rows.clone(), rows].concat())[0].points.len(), 25);
    }

    #[test]
    fn short_labels() {
        assert_eq!(
            ["8", "1K", "1.5K", "512M", "2G"],
            [8.0, 1024.0, 1536.0, 536_870_912.0, 2_147_483_648.0].map(short_bytes)
        );
        assert_eq!(["0.25", "10", "120", "0"], [0.25, 10.0, 120.4, 0.0].map(short_number));
    }
}
