//! The output of nccl-tests 2.19.6, line by line.

use super::numbers::{fit, general, nccl_bytes};
use super::row::{Iterations, Measurement, Row};
use super::settings::{Blocking, Settings, Step};

/// The version of nccl-tests whose output format this is.
pub(crate) const NCCL_TESTS_VERSION: &str = "2.19.6";

/// One rank, as shown by the "Using devices" lines and the JSON file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Device {
    /// Rank in its group.
    pub rank: u32,
    /// Colour of its group.
    pub group: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the host.
    pub hostname: String,
    /// Number of the rank among those of its host.
    pub device: u32,
    /// All zeros in the form of a PCI address, since host memory has none.
    pub bus_id: String,
    /// The processor's name.
    pub name: String,
}

/// The columns that are shown besides the usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// `cputime` instead of `time`.
    pub start_time: bool,
    /// Statistics of single iterations.
    pub per_iteration: bool,
    /// Wall-clock time.
    pub timestamps: bool,
}

impl Columns {
    /// Returns the columns that the options ask for.
    #[must_use]
    pub(crate) const fn of(settings: &Settings) -> Self {
        Self {
            start_time: settings.start_time,
            per_iteration: settings.per_iteration.columns,
            timestamps: settings.timestamps,
        }
    }
}

/// Returns the text before the devices. `max_bytes` is the requested one.
pub(crate) fn preamble(settings: &Settings, kolo_version: &str) -> Vec<String> {
    let (step, unit) = match settings.step {
        Step::Factor(factor) => (factor, "factor"),
        Step::Bytes(bytes) => (bytes, "bytes"),
    };
    let mut lines = vec![
        // The first line of nccl-tests names the versions of NCCL; this one says which program really runs.
        format!("# kolo version {kolo_version} (output of nccl-tests version {NCCL_TESTS_VERSION})"),
        format!("# Collective test starting: {}", settings.program),
        format!(
            "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} agg \
             iters: {} validation: {} graph: {} unalign: {}",
            settings.threads,
            settings.gpus,
            settings.min_bytes,
            settings.max_bytes,
            settings.warmups,
            settings.iterations,
            settings.aggregated,
            settings.checks,
            settings.graph,
            settings.unalign,
        ),
    ];
    match settings.blocking {
        Blocking::No => {}
        Blocking::WaitAndBarrier => {
            lines.push("# Blocking Enabled: wait for completion and barrier after each collective ".into());
        }
        Blocking::Wait => {
            lines.push("# Blocking Enabled: wait for completion after each collective (no barrier) ".into());
        }
        Blocking::UntimedBarrier => lines.push(
            "# Blocking Enabled: wait for completion and barrier after each iteration (not timed) ".into(),
        ),
    }
    if settings.per_iteration.columns {
        lines.push("# Per-Iteration Report: steady clock; i_* uses max over ranks ".into());
    }
    if settings.parallel_init {
        lines.push("# Parallel Init Enabled: ranks create their communicators concurrently ".into());
    }
    lines.push("#".into());
    lines.push("# Using devices".into());
    lines
}

/// Returns the line of one rank.
pub(crate) fn device(device: &Device) -> String {
    format!(
        "#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}",
        device.rank, device.group, device.pid, device.hostname, device.device, device.bus_id, device.name
    )
}

/// Returns the header of the table.
pub(crate) fn header(columns: Columns) -> Vec<String> {
    let time = if columns.start_time { "cputime" } else { "time" };
    let side = |texts: [&str; 8]| {
        let [t, a, b, w, low, high, p99, cv] = texts;
        let mut side = format!("  {t:>7}  {a:>6}  {b:>6}  {w:>6}");
        if columns.per_iteration {
            side.push_str(&format!("  {low:>7}  {high:>7}  {p99:>7}  {cv:>7}"));
        }
        side
    };
    let keys = |texts: [&str; 5]| {
        let [size, count, kind, op, root] = texts;
        format!("# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}")
    };
    let stamp = |text: &str| if columns.timestamps { format!(" {text:>19}") } else { " ".into() };
    let names = side([time, "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"]);
    let units = side(["(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"]);
    let titles = if columns.per_iteration {
        "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
    } else {
        "           out-of-place                       in-place          "
    };
    vec![
        "#".into(),
        format!("{}{titles}", keys(["", "", "", "", ""])),
        format!("{}{names}{names}{}", keys(["size", "count", "type", "redop", "root"]), stamp("timestamp")),
        format!("{}{units}{units}{}", keys(["(B)", "(elements)", "", "", ""]), stamp("%Y-%m-%d %H:%M:%S")),
    ]
}

/// Returns a line of the table.
pub(crate) fn row(row: &Row, columns: Columns) -> String {
    let mut line = format!(
        "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
        row.bytes, row.count, row.type_name, row.op_name, row.root
    );
    for half in [&row.out_of_place, &row.in_place] {
        line.push_str(&measurement(half, columns));
    }
    if columns.timestamps {
        line.push_str(&format!("{:>21}", row.timestamp));
    }
    line
}

fn measurement(half: &Measurement, columns: Columns) -> String {
    let wrong = half.wrong.map_or_else(|| "N/A".to_owned(), |wrong| general(wrong as f64));
    let mut text = format!(
        "  {}  {}  {}  {wrong:>6}",
        fit(half.seconds * 1e6, 7),
        fit(half.bandwidth.algorithm, 6),
        fit(half.bandwidth.bus, 6),
    );
    if let (true, Some(Iterations { spread, .. })) = (columns.per_iteration, &half.iterations) {
        for value in [spread.least * 1e6, spread.greatest * 1e6, spread.p99 * 1e6, spread.variation_percent()]
        {
            text.push_str(&format!("  {}", fit(value, 7)));
        }
    }
    text
}

/// Returns the line below a row with the percentiles of both placements, in microseconds.
pub(crate) fn percentiles(row: &Row) -> Option<String> {
    let side = |half: &Measurement| {
        let spread = half.iterations.as_ref()?.spread;
        let [p50, p90, p99, p999] =
            [spread.p50, spread.p90, spread.p99, spread.p999].map(|seconds| fit(seconds * 1e6, 7));
        Some(format!("p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}"))
    };
    let (out_of_place, in_place) = (side(&row.out_of_place)?, side(&row.in_place)?);
    Some(format!("# {:>10}  percentiles (us): {out_of_place} | in place: {in_place}", row.bytes))
}

/// The result of a run: failed checks, and the bandwidth that was measured and requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// Failed checks, over all ranks.
    pub failed_checks: u64,
    /// Mean of all bus bandwidths.
    pub average_bus_bandwidth: f64,
    /// Value of `NCCL_TESTS_MIN_BW`.
    pub wanted: Option<f64>,
}

impl Verdict {
    /// Returns whether the data was right.
    #[must_use]
    pub(crate) const fn data_okay(&self) -> bool {
        self.failed_checks == 0
    }

    /// Returns whether the bandwidth reaches nine tenths of the requested one; `None` if none was requested.
    #[must_use]
    pub(crate) fn bandwidth_okay(&self) -> Option<bool> {
        self.wanted.map(|wanted| self.average_bus_bandwidth >= wanted * 0.9)
    }

    /// Returns whether the process may report success.
    #[must_use]
    pub(crate) fn okay(&self) -> bool {
        self.data_okay() && self.bandwidth_okay() != Some(false)
    }
}

/// Returns the text after the table. `memory` is the text of the memory line, if requested.
pub(crate) fn trailer(program: &str, verdict: &Verdict, memory: Option<&str>) -> Vec<String> {
    let okay = |okay: bool| if okay { "OK" } else { "FAILED" };
    let mut lines = vec![
        format!("# {:<20} : {} {}", "Out of bounds values", verdict.failed_checks, okay(verdict.data_okay())),
        format!(
            "# {:<20} : {} {}",
            "Avg bus bandwidth",
            general(verdict.average_bus_bandwidth),
            verdict.bandwidth_okay().map_or("", okay)
        ),
        "#".into(),
        format!("# Collective test concluded: {program}"),
    ];
    lines.extend(memory.map(|memory| format!("# {:<20} : {memory}", "Memory usage")));
    lines.push("#".into());
    lines.push(String::new());
    lines
}

/// Returns the memory line: the bytes that each phase added on one rank.
pub(crate) fn memory(initialization: f64, user: f64, collective: f64) -> String {
    format!(
        "Initialization {} | User-Allocated {} | Collective {} | Total  {}",
        nccl_bytes(initialization),
        nccl_bytes(user),
        nccl_bytes(collective),
        nccl_bytes(initialization + user + collective)
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::stats::Spread;
    use super::super::test::Bandwidth;
    use super::*;
    use crate::cli::parse_perf;

    const PLAIN: Columns = Columns { start_time: false, per_iteration: false, timestamps: false };

    pub(crate) fn measured(microseconds: f64, algorithm: f64, bus: f64, wrong: Option<u64>) -> Measurement {
        Measurement {
            seconds: microseconds / 1e6,
            bandwidth: Bandwidth { algorithm, bus },
            wrong,
            iterations: None,
        }
    }

    pub(crate) fn sample() -> Row {
        Row {
            bytes: 268_435_456,
            count: 67_108_864,
            type_name: "float",
            op_name: "sum",
            root: -1,
            out_of_place: measured(1324.05, 202.74, 202.74, Some(0)),
            in_place: measured(1330.90, 201.69, 201.69, Some(0)),
            iterations: 20,
            timestamp: "2026-08-08 12:00:00".into(),
        }
    }

    #[test]
    fn a_row_is_that_of_nccl_tests() {
        assert_eq!(
            row(&sample(), PLAIN),
            "   268435456      67108864     float     sum      -1  1324.05  202.74  202.74       0  1330.90  \
             201.69  201.69       0"
        );
        let unchecked = Row { in_place: measured(9.27, 0.0, 0.0, None), ..sample() };
        assert!(row(&unchecked, PLAIN).ends_with("     9.27    0.00    0.00     N/A"));
        let wrong = Row { in_place: measured(9.27, 0.0, 0.0, Some(1_234_567)), ..sample() };
        assert!(row(&wrong, PLAIN).ends_with("    0.00  1.23457e+06"));
        assert_eq!(row(&sample(), PLAIN).split_whitespace().count(), 13);
    }

    #[test]
    fn a_row_with_a_timestamp_and_statistics() {
        let columns = Columns { timestamps: true, per_iteration: true, ..PLAIN };
        let mut sample = sample();
        for half in [&mut sample.out_of_place, &mut sample.in_place] {
            half.iterations = Some(Iterations {
                slowest: vec![0.001, 0.003],
                per_rank: vec![],
                spread: Spread::of(&[0.001, 0.003]).unwrap(),
                skipped: 0,
            });
        }
        assert_eq!(
            row(&sample, columns),
            "   268435456      67108864     float     sum      -1  1324.05  202.74  202.74       0  1000.00  \
             3000.00  3000.00    50.00  1330.90  201.69  201.69       0  1000.00  3000.00  3000.00    50.00  \
             2026-08-08 12:00:00"
        );
        assert!(
            percentiles(&sample).unwrap().starts_with("#  268435456  percentiles (us): p50 3000.00  p90")
        );
    }

    #[test]
    fn the_header_is_that_of_nccl_tests() {
        assert_eq!(
            header(PLAIN),
            [
                "#",
                "#                                                              out-of-place                       in-place          ",
                "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
                "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
            ]
        );
        let stamped = header(Columns { timestamps: true, start_time: true, ..PLAIN });
        assert!(stamped[2].ends_with("  #wrong           timestamp"));
        assert!(stamped[2].contains("  cputime   algbw"));
        let detailed = header(Columns { per_iteration: true, ..PLAIN });
        assert!(detailed[2].contains("#wrong    i_min    i_max    i_p99    i_cv%     time"));
    }

    #[test]
    fn the_preamble_and_the_devices() {
        let args = parse_perf("all_reduce -b 8 -e 256M -f 2 -z 1 -p 1".split_whitespace()).unwrap();
        let settings = Settings::new(&args, None).unwrap();
        assert_eq!(
            preamble(&settings, "0.1.0"),
            [
                "# kolo version 0.1.0 (output of nccl-tests version 2.19.6)",
                "# Collective test starting: all_reduce_perf",
                "# nThread 1 nGpus 1 minBytes 8 maxBytes 268435456 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0",
                "# Blocking Enabled: wait for completion and barrier after each collective ",
                "# Parallel Init Enabled: ranks create their communicators concurrently ",
                "#",
                "# Using devices",
            ]
        );
        let line = device(&Device {
            rank: 1,
            group: 0,
            pid: 4242,
            hostname: "node-a".into(),
            device: 1,
            bus_id: "0000:00:00".into(),
            name: "AMD EPYC 9654".into(),
        });
        assert_eq!(line, "#  Rank  1 Group  0 Pid   4242 on     node-a device  1 [0000:00:00] AMD EPYC 9654");
    }

    #[test]
    fn the_trailer_is_that_of_nccl_tests() {
        let verdict = Verdict { failed_checks: 0, average_bus_bandwidth: 87.436, wanted: None };
        assert_eq!(
            trailer("all_reduce_perf", &verdict, None),
            [
                "# Out of bounds values : 0 OK",
                "# Avg bus bandwidth    : 87.436 ",
                "#",
                "# Collective test concluded: all_reduce_perf",
                "#",
                "",
            ]
        );
        assert!(verdict.okay());
        let verdict = Verdict { failed_checks: 2, average_bus_bandwidth: 8.9, wanted: Some(10.0) };
        let lines = trailer("all_reduce_perf", &verdict, Some(&memory(1024.0, 2048.0, 0.0)));
        assert_eq!(lines[0], "# Out of bounds values : 2 FAILED");
        assert_eq!(lines[1], "# Avg bus bandwidth    : 8.9 FAILED");
        assert!(
            lines[4]
                .starts_with("# Memory usage         : Initialization 1.00 KB | User-Allocated 2.00 KB |")
        );
        assert!(!verdict.okay());
        assert_eq!(Verdict { average_bus_bandwidth: 9.0, ..verdict }.bandwidth_okay(), Some(true));
    }
}
