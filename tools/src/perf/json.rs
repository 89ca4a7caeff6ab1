//! Writes the JSON file of nccl-tests, format version 3, with its peculiarities: booleans are the strings
//! "true" and "false", the root is a padded string, doubles have six decimals, `/` is escaped, NaN is "nan".
//!
//! One peculiarity is left out: nccl-tests writes the whole environment into the file, secrets included. This
//! module writes only the variables that Kolo, NCCL and launchers read.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::row::{Measurement, Row};
use super::settings::{Settings, Step};
use super::text::{Device, Verdict};

const FORMAT_VERSION: u64 = 3;

/// The head of the file.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    /// Local time of the start.
    pub start_time: String,
    /// The command line.
    pub args: Vec<String>,
    /// Variables as NAME=VALUE; see [`is_public`].
    pub environment: Vec<String>,
    /// The library's version as one number.
    pub version_code: u64,
    /// The options.
    pub settings: &'a Settings,
    /// The greatest size that was actually measured.
    pub max_bytes: u64,
    /// The first rank of each process.
    pub devices: &'a [Device],
}

/// Creates the file without overwriting another: if the name is taken, `.0`, `.1` and so on are appended.
pub(crate) fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut candidate = path.to_owned();
    for attempt in 0.. {
        match File::create_new(&candidate) {
            Ok(file) => return Ok((file, candidate)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let mut name = path.as_os_str().to_owned();
                name.push(format!(".{attempt}"));
                candidate = name.into();
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the attempts are not bounded")
}

/// Returns whether a variable belongs in the file.
pub(crate) fn is_public(name: &str) -> bool {
    const PREFIXES: [&str; 8] =
        ["KOLO_", "NCCL_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_RANK", "SLURM_", "OMP_", "TORCHELASTIC_"];
    const NAMES: [&str; 8] = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ];
    const SECRET: [&str; 5] = ["KEY", "SECRET", "TOKEN", "PASS", "JWT"];
    // An invitation contains the keys of a group.
    (NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        && name != "KOLO_JOIN"
        && !SECRET.iter().any(|secret| name.contains(secret))
}

/// A file that is written row by row. Each row goes before the end of the file, which is written again behind it, so that
/// a run that is killed leaves a whole file with the rows so far.
pub(crate) struct Report<'a> {
    file: File,
    settings: &'a Settings,
    /// Bytes up to the end of the last row.
    len: u64,
    is_empty: bool,
}

impl<'a> Report<'a> {
    /// Writes a file without rows.
    pub(crate) fn begin(
        file: File,
        head: &Head<'a>,
        verdict: &Verdict,
        errors: &[String],
    ) -> io::Result<Self> {
        let mut report = Self { file, settings: head.settings, len: 0, is_empty: true };
        report.append(&beginning(head), &ending(verdict, errors, &head.start_time))?;
        Ok(report)
    }

    /// Adds a row.
    pub(crate) fn add(
        &mut self,
        row: &Row,
        verdict: &Verdict,
        errors: &[String],
        time: &str,
    ) -> io::Result<()> {
        let mut json = Json::default();
        if !self.is_empty {
            json.text.push(',');
        }
        result(&mut json, row, self.settings);
        self.is_empty = false;
        self.append(&json.text, &ending(verdict, errors, time))
    }

    /// Completes the file.
    pub(crate) fn end(mut self, verdict: &Verdict, errors: &[String], end_time: &str) -> io::Result<()> {
        self.append("", &ending(verdict, errors, end_time))
    }

    fn append(&mut self, text: &str, ending: &str) -> io::Result<()> {
        self.file.write_all_at(format!("{text}{ending}").as_bytes(), self.len)?;
        self.len += text.len() as u64;
        self.file.set_len(self.len + ending.len() as u64)
    }
}

/// Returns the text before the first row.
fn beginning(head: &Head<'_>) -> String {
    let mut json = Json { text: "{".to_owned(), comma: false };
    json.key("version").integer(FORMAT_VERSION);
    json.key("start_time").string(&head.start_time);
    json.key("args").strings(&head.args);
    json.key("env").strings(&head.environment);
    json.key("nccl_version").integer(head.version_code);
    json.key("config").object(|json| config(json, head));
    json.key("results");
    json.text + "["
}

/// Returns the text behind the last row.
fn ending(verdict: &Verdict, errors: &[String], time: &str) -> String {
    let mut json = Json { text: "]".to_owned(), comma: true };
    json.key("out_of_bounds").object(|json| {
        json.key("count").integer(verdict.failed_checks);
        json.key("okay").boolean(verdict.data_okay());
    });
    json.key("average_bus_bandwidth").object(|json| {
        json.key("bandwidth").double(verdict.average_bus_bandwidth);
        match verdict.bandwidth_okay() {
            Some(okay) => json.key("okay").boolean(okay),
            None => json.key("okay").string("unchecked"),
        }
    });
    json.key("errors").strings(errors);
    json.key("end_time").string(time);
    json.text + "}"
}

fn config(json: &mut Json, head: &Head<'_>) {
    let settings = head.settings;
    json.key("nthreads").integer(settings.threads.into());
    json.key("ngpus").integer(settings.gpus.into());
    json.key("minimum_bytes").integer(settings.min_bytes);
    json.key("maximum_bytes").integer(head.max_bytes);
    match settings.step {
        Step::Factor(factor) => json.key("step_factor").integer(factor),
        Step::Bytes(bytes) => json.key("step_bytes").integer(bytes),
    }
    json.key("warmup_iters").integer(settings.warmups as u64);
    json.key("iterations").integer(settings.iterations as u64);
    json.key("aggregated_iterations").integer(settings.aggregated as u64);
    json.key("validation").integer(settings.checks.into());
    json.key("graph").integer(settings.graph.unsigned_abs());
    json.key("blocking_collectives").boolean(settings.blocking != super::settings::Blocking::No);
    json.key("per_iter_timing").boolean(settings.per_iteration.wanted());
    json.key("per_iter_skip").integer(settings.per_iteration.skip as u64);
    json.key("parallel_init").boolean(settings.parallel_init);
    json.key("devices").list(head.devices, |json, device| {
        json.object(|json| {
            json.key("rank").integer(device.rank.into());
            json.key("group").integer(device.group.into());
            json.key("pid").integer(device.pid.into());
            json.key("hostname").string(&device.hostname);
            json.key("device").integer(device.device.into());
            json.key("device_hex").string(&device.bus_id);
            json.key("device_info").string(&device.name);
        });
    });
}

fn result(json: &mut Json, row: &Row, settings: &Settings) {
    json.object(|json| {
        json.key("size").integer(row.bytes);
        json.key("count").integer(row.count);
        json.key("type").string(row.type_name);
        json.key("redop").string(row.op_name);
        json.key("root").string(&format!("{:>6}", row.root));
        for (name, half) in [("out_of_place", &row.out_of_place), ("in_place", &row.in_place)] {
            json.key(name).object(|json| {
                json.key(if settings.start_time { "cpu_time" } else { "time" }).double(half.seconds * 1e6);
                json.key("alg_bw").double(half.bandwidth.algorithm);
                json.key("bus_bw").double(half.bandwidth.bus);
                match half.wrong {
                    Some(wrong) => json.key("nwrong").double(wrong as f64),
                    None => json.key("nwrong").null(),
                }
            });
            if half.iterations.is_some() {
                json.key(&format!("{name}_per_iter")).object(|json| per_iteration(json, half));
            }
        }
        json.key("actual_iterations").integer(row.iterations as u64);
        json.key("experiment_name").string(settings.test.name());
    });
}

fn per_iteration(json: &mut Json, half: &Measurement) {
    let Some(iterations) = &half.iterations else { return };
    let spread = &iterations.spread;
    json.key("skipped_iterations").integer(iterations.skipped as u64);
    for (name, seconds) in [
        ("min_us", spread.least),
        ("max_us", spread.greatest),
        ("avg_us", spread.mean),
        ("p50_us", spread.p50),
        ("p95_us", spread.p95),
        ("p99_us", spread.p99),
        ("stdev_us", spread.deviation),
    ] {
        json.key(name).double(seconds * 1e6);
    }
    json.key("cv_pct").double(spread.variation_percent());
    json.key("times_us").list(&iterations.slowest, |json, seconds| json.double(seconds * 1e6));
    if iterations.per_rank.len() > 1 {
        json.key("per_process_max_times_us").list(&iterations.per_rank, |json, times| {
            json.list(times, |json, seconds| json.double(seconds * 1e6));
        });
    }
}

/// A JSON writer with the peculiarities of nccl-tests, which a general one lacks.
#[derive(Default)]
struct Json {
    text: String,
    /// Whether the next key or element needs a comma before it.
    comma: bool,
}

impl Json {
    fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.text.push('{');
        self.comma = false;
        fill(self);
        self.text.push('}');
        self.comma = true;
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.text.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            each(self, item);
        }
        self.text.push(']');
        self.comma = true;
    }

    fn key(&mut self, name: &str) -> &mut Self {
        if self.comma {
            self.text.push(',');
        }
        self.string(name);
        self.text.push(':');
        self
    }

    fn strings(&mut self, items: &[String]) {
        self.list(items, |json, item| json.string(item));
    }

    fn string(&mut self, value: &str) {
        self.text.push('"');
        for character in value.chars() {
            match character {
                '"' | '\\' | '/' => {
                    self.text.push('\\');
                    self.text.push(character);
                }
                '\t' => self.text.push_str("\\t"),
                '\n' => self.text.push_str("\\n"),
                control if control.is_control() => {
                    let _ = write!(self.text, "\\u{:04x}", control as u32);
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
        self.comma = true;
    }

    fn integer(&mut self, value: u64) {
        let _ = write!(self.text, "{value}");
        self.comma = true;
    }

    fn double(&mut self, value: f64) {
        if value.is_finite() {
            let _ = write!(self.text, "{value:.6}");
            self.comma = true;
        } else {
            self.string(if value.is_nan() { "nan" } else { "inf" });
        }
    }

    fn boolean(&mut self, value: bool) {
        self.string(if value { "true" } else { "false" });
    }

    fn null(&mut self) {
        self.text.push_str("null");
        self.comma = true;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::text::tests::{measured, sample};
    use super::*;
    use crate::cli::parse_perf;

    /// Returns the file after each step: with no row, with each further row, and at the end.
    fn written(rows: &[Row], verdict: &Verdict) -> Vec<String> {
        let args = parse_perf("all_reduce -b 8 -e 16 -f 2".split_whitespace()).unwrap();
        let settings = Settings::new(&args, None).unwrap();
        let device = Device {
            rank: 0,
            group: 0,
            pid: 7,
            hostname: "a\"b".into(),
            device: 0,
            bus_id: "0000:00:00".into(),
            name: "CPU / 2".into(),
        };
        let head = Head {
            start_time: "2026-08-08 12:00:00".into(),
            args: vec!["kolo".into(), "perf".into()],
            environment: vec!["RANK=0".into()],
            version_code: 100,
            settings: &settings,
            max_bytes: 16,
            devices: &[device],
        };
        let directory = tempfile::tempdir().unwrap();
        let (file, path) = create(&directory.path().join("out.json")).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        let unfinished = ["not yet".to_owned()];
        let mut report = Report::begin(file, &head, verdict, &unfinished).unwrap();
        let mut texts = vec![read()];
        for row in rows {
            report.add(row, verdict, &unfinished, &row.timestamp).unwrap();
            texts.push(read());
        }
        report.end(verdict, &[], "2026-08-08 12:00:01").unwrap();
        texts.push(read());
        texts
    }

    #[test]
    fn the_file_is_whole_after_each_row() {
        let verdict = Verdict { failed_checks: 0, average_bus_bandwidth: 1.5, wanted: None };
        let texts = written(&[sample(), sample(), sample()], &verdict);
        for (step, text) in texts.iter().enumerate() {
            let json: Value = serde_json::from_str(text).unwrap();
            assert_eq!(json["results"].as_array().unwrap().len(), step.min(3), "{text}");
            assert_eq!(json["errors"].as_array().unwrap().len(), usize::from(step < 4), "{text}");
        }
    }

    #[test]
    fn reads_back_with_the_habits_of_nccl_tests() {
        let unchecked = Row { in_place: measured(1.0, 2.0, f64::NAN, None), ..sample() };
        let verdict = Verdict { failed_checks: 0, average_bus_bandwidth: 1.5, wanted: None };
        let text = written(&[sample(), unchecked], &verdict).pop().unwrap();
        assert!(text.contains(r#""time":1324.050000"#) && text.contains(r"CPU \/ 2"), "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["version"], 3);
        assert_eq!(json["config"]["step_factor"], 2);
        assert_eq!(json["config"]["parallel_init"], "false");
        assert_eq!(json["config"]["devices"][0]["hostname"], "a\"b");
        assert_eq!(json["results"][0]["root"], "    -1");
        assert_eq!(json["results"][0]["out_of_place"]["nwrong"], 0.0);
        assert_eq!(json["results"][1]["in_place"]["nwrong"], Value::Null);
        assert_eq!(json["results"][1]["in_place"]["bus_bw"], "nan");
        assert_eq!(json["results"][0]["actual_iterations"], 20);
        assert_eq!(json["out_of_bounds"]["okay"], "true");
        assert_eq!(json["average_bus_bandwidth"]["okay"], "unchecked");
        assert_eq!(json["errors"], Value::Array(vec![]));
        assert_eq!(json["end_time"], "2026-08-08 12:00:01");
    }

    #[test]
    fn secrets_stay_out() {
        assert!(is_public("KOLO_TRANSPORT") && is_public("RANK") && is_public("NCCL_DEBUG"));
        for name in ["AWS_SECRET_ACCESS_KEY", "KOLO_AUTH_KEY", "KOLO_JOIN", "SLURM_JWT", "HOME", "PATH"] {
            assert!(!is_public(name), "{name}");
        }
    }

    #[test]
    fn files_are_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.json");
        let names: Vec<_> =
            (0..3).map(|_| create(&path).unwrap().1.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["out.json", "out.json.0", "out.json.1"]);
        assert!(create(&directory.path().join("no/such")).is_err());
    }
}
