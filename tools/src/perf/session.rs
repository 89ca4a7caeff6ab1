//! A whole run from the view of one rank: lists the participants, measures the table, and sums up.

use std::fs::File;
use std::time::Instant;

use super::budget::Budget;
use super::buffers::{Buffers, Operation, Placement};
use super::choice::{NamedOp, NamedType};
use super::console::Console;
use super::environment::Environment;
use super::json;
use super::measure::Bench;
use super::results::{Ended, Results};
use super::row::Row;
use super::settings::Settings;
use super::test::Test;
use super::text::{self, Columns, Device};
use super::{numbers, plot};
use crate::backend::{self, Comm};
use crate::clock::local_now;
use crate::error::{CliError, Result};
use crate::info::machine;
use crate::output_file::OutputFile;

/// One combination of the loops around the sizes.
#[derive(Clone, Copy)]
struct Line {
    element: NamedType,
    op: NamedOp,
    root: i64,
}

/// Runs everything on one rank. Returns whether data and bandwidth were right.
pub(crate) fn run(settings: &Settings, environment: &Environment, world: &dyn Comm) -> Result<bool> {
    let mut console = if world.rank() == 0 { Console::stdout() } else { Console::silent() };
    run_on(&mut console, open_json, settings, environment, world)
}

fn run_on(
    console: &mut Console,
    open_json: impl FnOnce(&Settings, &mut Console) -> Result<Option<File>>,
    settings: &Settings,
    environment: &Environment,
    world: &dyn Comm,
) -> Result<bool> {
    let start_time = local_now();
    let resident_at_start = machine::resident_bytes();
    console.lines(&settings.remarks)?;
    let plot = settings.plot.as_ref().filter(|_| console.prints());
    let plot = plot.map(|path| OutputFile::open("plot", path)).transpose()?;
    let json_file = open_json(settings, console)?;
    let colour = environment.split.map(|split| split.colour(world.rank()));
    let split = colour.map(|colour| world.split(colour)).transpose()?;
    let group: &dyn Comm = split.as_deref().unwrap_or(world);
    console.lines(&text::preamble(settings, backend::version()))?;
    let devices = devices(world, colour.unwrap_or(0))?;
    console.lines(&devices.iter().map(text::device).collect::<Vec<_>>())?;
    summarise(settings, world, console)?;

    let mut bench = Bench {
        settings,
        world,
        group,
        buffers: Buffers::new(0, 0)?,
        epoch: Instant::now(),
        checks: 0,
        failed_checks: 0,
    };
    let max_bytes = agree_on_size(&bench, console)?;
    let widest = settings.types.iter().map(|element| element.data_type.size() as u64).max().unwrap_or(1);
    bench.buffers = if settings.symmetric {
        Buffers::symmetric(group, max_bytes, settings.unalign * widest)?
    } else {
        Buffers::new(max_bytes, settings.unalign * widest)?
    };
    let resident_with_buffers = machine::resident_bytes();

    let mut results = Results::new(settings, environment, console.prints());
    if let Some(file) = json_file {
        let head = head(settings, start_time, max_bytes, &devices);
        results.report_to(|verdict, errors| json::Report::begin(file, &head, verdict, errors));
    }
    let swept = sweep(&mut bench, environment, max_bytes, console, &mut results);
    console.end();
    let failed_checks = swept.and_then(|()| bench.sum(bench.failed_checks));
    let Ended { verdict, rows, unwritten } = results.end(failed_checks, &local_now())?;
    let memory = settings.memory.then(|| {
        let grown = |from: u64, to: u64| to.saturating_sub(from) as f64;
        text::memory(
            resident_at_start as f64,
            grown(resident_at_start, resident_with_buffers),
            grown(resident_with_buffers, machine::resident_bytes()),
        )
    });
    if unwritten.is_none() {
        console.lines(&text::trailer(&settings.program, &verdict, memory.as_deref()))?;
    }
    let plot = plot.filter(|_| unwritten.is_none());
    let drawn = plot.map(|file| plot::draw(file, &plot_title(settings, world, &devices), &rows));
    // No rank leaves while others still write their results.
    world.barrier()?;
    drawn.unwrap_or(Ok(()))?;
    unwritten.map_or(Ok(()), Err)?;
    if console.is_unread() { Err(CliError::unread()) } else { Ok(verdict.okay()) }
}

/// Measures all types, operators, roots and sizes, as many times as requested.
fn sweep(
    bench: &mut Bench<'_>,
    environment: &Environment,
    max_bytes: u64,
    console: &mut Console,
    results: &mut Results<'_>,
) -> Result<()> {
    let settings = bench.settings;
    let ranks = bench.group.world_size();
    let fewest = least_group(bench)?;
    let columns = Columns::of(settings);
    console.lines(&text::header(columns))?;
    let mut lines = Vec::new();
    for &element in &settings.types {
        for &op in &settings.ops {
            for &root in &settings.roots(fewest)? {
                lines.push(Line { element, op, root });
            }
        }
    }
    let sizes = settings.sizes(max_bytes);
    console.begin(lines.len() * sizes.len() * settings.cycles.unwrap_or(1) as usize);
    let (mut cycle, mut way) = (0, String::new());
    while settings.cycles.is_none_or(|cycles| cycle < cycles) {
        for &line in &lines {
            let operation = |bytes| operation(settings, environment, line, bytes, ranks);
            bench.world.barrier()?;
            for bytes in settings.warmup_sizes(max_bytes) {
                bench.warm_up(&operation(bytes))?;
            }
            for &bytes in &sizes {
                // All ranks end together, so that none blames another. The one that cannot write reports that at the end.
                match bench.sum(if results.is_unwritten() { 2 } else { u64::from(console.is_unread()) })? {
                    0 => {}
                    1 => return Err(CliError::unread()),
                    _ => return Ok(()),
                }
                console.doing(|| {
                    format!(
                        "{} {} {}",
                        settings.test.name(),
                        numbers::human_bytes(bytes as f64),
                        line.element.name
                    )
                });
                if settings.verbose {
                    tell_way(bench, &operation(bytes), bytes, &mut way, console)?;
                }
                let row = row(bench, &operation(bytes), line)?;
                console.line(&text::row(&row, columns))?;
                if let (true, Some(line)) = (settings.per_iteration.percentiles, text::percentiles(&row)) {
                    console.line(&line)?;
                }
                console.advance();
                results.add(row);
            }
        }
        cycle += 1;
    }
    Ok(())
}

/// Returns the number of ranks in the smallest group, after a check that the test can run in all groups. All ranks get the
/// same result: they measure the same rows, or none.
fn least_group(bench: &Bench<'_>) -> Result<u32> {
    let (test, ranks) = (bench.settings.test, bench.group.world_size());
    let unsuited = bench.least(test.check_ranks(ranks).map_or(u64::from(ranks), |()| u64::MAX))?;
    u32::try_from(unsuited).map_or(Ok(()), |ranks| test.check_ranks(ranks))?;
    Ok(bench.least(ranks.into())? as u32)
}

/// Prints how the library carries an operation out, if that differs from the one before.
fn tell_way(
    bench: &mut Bench<'_>,
    operation: &Operation,
    bytes: u64,
    last: &mut String,
    console: &mut Console,
) -> Result<()> {
    let Some(way) = bench.buffers.way(bench.group, operation) else { return Ok(()) };
    // The text after the colon has lengths and costs, which differ from size to size.
    let kind = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
    if kind(&way) != kind(last) {
        console.line(&format!("# from {} on by {way}", numbers::human_bytes(bytes as f64)))?;
        *last = way;
    }
    Ok(())
}

fn operation(
    settings: &Settings,
    environment: &Environment,
    line: Line,
    bytes: u64,
    ranks: u32,
) -> Operation {
    let element_bytes = line.element.data_type.size() as u64;
    let (counts, blocks) = settings.test.counts_and_blocks(bytes, element_bytes, ranks, environment.skew);
    Operation {
        test: settings.test,
        counts,
        element: line.element,
        op: line.op,
        root: u32::try_from(line.root).unwrap_or(0),
        blocks,
    }
}

fn row(bench: &mut Bench<'_>, operation: &Operation, line: Line) -> Result<Row> {
    let test = operation.test;
    let out_of_place = bench.measure(operation, Placement::OutOfPlace)?;
    let in_place = bench.measure(operation, Placement::InPlace)?;
    Ok(Row {
        bytes: operation.bytes(),
        count: operation.counts.argument,
        type_name: if test == Test::Barrier { "none" } else { line.element.name },
        op_name: if test.shows_op() { line.op.name() } else { "none" },
        root: line.root,
        out_of_place,
        in_place,
        iterations: bench.settings.iterations,
        timestamp: local_now(),
    })
}

/// Returns the greatest size for which all ranks have memory.
fn agree_on_size(bench: &Bench<'_>, console: &mut Console) -> Result<u64> {
    let own = machine::memory().map(|memory| Budget::new(memory, bench.world.local_size()));
    let budget = Budget {
        comfortable: bench.least(own.map_or(u64::MAX, |budget| budget.comfortable))?,
        physical: bench.least(own.map_or(u64::MAX, |budget| budget.physical))?,
    };
    let max_bytes = budget.max_bytes(bench.settings)?;
    if max_bytes < bench.settings.max_bytes && bench.settings.test != Test::Barrier {
        console.line("#")?;
        let least = bench.settings.least(max_bytes);
        if least < bench.settings.min_bytes {
            console.line(&format!("# Reducing minBytes to {least} due to memory limitation"))?;
        }
        console.line(&format!("# Reducing maxBytes to {max_bytes} due to memory limitation"))?;
    }
    Ok(max_bytes)
}

/// Returns all ranks' devices, by rank.
fn devices(world: &dyn Comm, group: u32) -> Result<Vec<Device>> {
    let own = Device {
        rank: world.rank(),
        group,
        pid: std::process::id(),
        hostname: machine::hostname(),
        device: world.local_rank(),
        bus_id: "0000:00:00".into(),
        name: machine::cpu_model(),
    };
    let bytes = serde_json::to_vec(&own).unwrap_or_default();
    let everybody = world.share(&bytes)?;
    everybody
        .iter()
        .enumerate()
        .map(|(rank, bytes)| {
            serde_json::from_slice(bytes).map_err(|error| {
                CliError::failure(
                    format!("rank {rank} described itself in a way that this build cannot read ({error})"),
                    "Run the same version of kolo on all hosts",
                )
            })
        })
        .collect()
}

/// Prints one line on how the ranks are connected; with -v, all details from every rank.
fn summarise(settings: &Settings, world: &dyn Comm, console: &mut Console) -> Result<()> {
    let own = world.summary();
    if !settings.verbose {
        return own.first().map_or(Ok(()), |line| console.line(&format!("# {line}")));
    }
    for lines in world.share(own.join("\n").as_bytes())? {
        for line in String::from_utf8_lossy(&lines).lines() {
            console.line(&format!("# {line}"))?;
        }
    }
    Ok(())
}

fn open_json(settings: &Settings, console: &mut Console) -> Result<Option<File>> {
    let Some(path) = settings.json.as_ref().filter(|_| console.prints()) else { return Ok(None) };
    let (file, name) = json::create(path).map_err(|error| {
        CliError::failure(
            format!("the JSON file {} cannot be created: {error}", path.display()),
            "Name a file in a directory that exists and is writable",
        )
    })?;
    console.line(&format!("# Writing JSON output to {}", name.display()))?;
    Ok(Some(file))
}

fn head<'a>(
    settings: &'a Settings,
    start_time: String,
    max_bytes: u64,
    devices: &'a [Device],
) -> json::Head<'a> {
    json::Head {
        start_time,
        args: std::env::args_os()
            .map(|argument| argument.to_string_lossy().into_owned())
            .filter(|argument| !argument.starts_with("--ranks-per-process"))
            .collect(),
        environment: public_environment(),
        version_code: version_code(backend::version()),
        settings,
        max_bytes,
        devices,
    }
}

fn public_environment() -> Vec<String> {
    let all = std::env::vars_os();
    let text = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut public: Vec<String> = text
        .filter(|(name, _)| json::is_public(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    public.sort();
    public
}

/// Packs a version into a number as NCCL does: major, minor and patch, the latter two with two digits each.
fn version_code(version: &str) -> u64 {
    version.split('.').map(|part| part.parse::<u64>().unwrap_or(0)).fold(0, |code, part| code * 100 + part)
}

fn plot_title(settings: &Settings, world: &dyn Comm, devices: &[Device]) -> String {
    let mut hosts: Vec<_> = devices.iter().map(|device| device.hostname.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let transport = settings.transport.as_deref().map_or(String::new(), |list| format!(", transport {list}"));
    let algorithm = settings.algorithm.as_deref().map_or(String::new(), |name| format!(", {name}"));
    format!(
        "{}, {} on {}{transport}{algorithm}",
        settings.test.name(),
        plural(world.world_size() as usize, "rank"),
        plural(hosts.len(), "host"),
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::cli::parse_perf;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Runs on one rank. Returns whether everything was right, and the output.
    fn run_alone(line: &str) -> Result<(bool, String)> {
        let settings = Settings::new(&parse_perf(line.split_whitespace()).unwrap(), None)?;
        let environment = Environment::read(|_| None)?;
        let output = Shared::default();
        let okay = Mutex::new(None);
        backend::threads(1, &backend::Request::default(), &|comm| {
            let mut console = Console::to(output.clone());
            let ended = run_on(&mut console, open_json, &settings, &environment, comm.as_ref())?;
            *okay.lock().unwrap() = Some(ended);
            Ok(())
        })?;
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        Ok((okay.into_inner().unwrap().unwrap(), text))
    }

    #[test]
    fn every_test_runs_and_its_data_is_right() {
        for test in Test::ALL {
            for more in ["", "-m 3", "-C 1 -z 1", "-I 1 -K 1 --percentiles -z 3", "-u 1 -d all -o all -r -1"]
            {
                let line = format!("{} -b 8 -e 64 -f 2 -n 3 -c 2 {more}", test.name());
                assert!(run_alone(&line).unwrap().0, "{line}");
            }
        }
    }

    #[test]
    fn parsers_in_the_wild_find_their_columns() {
        let (_, text) = run_alone("all_reduce -b 8 -e 64 -f 2 -n 2").unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        // Four sizes, and the empty line at the end.
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [13, 13, 13, 13, 0]);
        assert_eq!(rows[3][..5], ["64", "16", "float", "sum", "-1"]);
        assert!(text.contains("\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0 \n#\n"));
    }

    /// Returns the time in microseconds and the algorithm bandwidth of the first row.
    fn time_and_bandwidth(line: &str) -> (f64, f64) {
        let (_, text) = run_alone(line).unwrap();
        let row: Vec<&str> =
            text.lines().find(|line| !line.starts_with('#')).unwrap().split_whitespace().collect();
        (row[5].parse().unwrap(), row[6].parse().unwrap())
    }

    #[test]
    fn a_start_with_waits_lasts_until_the_operation_is_complete() {
        let line = "alltoall -b 1M -e 1M -n 5 -c 0";
        let bytes = f64::from(1 << 20);
        for blocking in 1..4 {
            let (time, bandwidth) = time_and_bandwidth(&format!("{line} -C 1 -z {blocking}"));
            // The columns are rounded.
            assert!((bytes / time / 1e3 / bandwidth - 1.0).abs() < 0.1, "-z {blocking}: {time} {bandwidth}");
        }
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        assert!(run_alone("reduce -b 8 -e 8 -r 1").unwrap_err().message.contains("out of range"));
    }

    /// Ranks 0 and 2 are a group, and rank 1 is one of its own.
    #[test]
    fn groups_of_unequal_size_measure_the_same_rows() {
        let ended = |line: &str| {
            let settings = Settings::new(&parse_perf(line.split(' ')).unwrap(), None).unwrap();
            let split = |name: &str| (name == "NCCL_TESTS_SPLIT").then(|| "MOD 2".to_owned());
            let environment = Environment::read(split).unwrap();
            let (ended, output) = (Mutex::new(Vec::new()), Shared::default());
            backend::threads(3, &backend::Request::default(), &|comm| {
                let is_first = comm.rank() == 0;
                let mut console = if is_first { Console::to(output.clone()) } else { Console::silent() };
                let result = run_on(&mut console, open_json, &settings, &environment, comm.as_ref());
                ended.lock().unwrap().push(result.map_err(|error| error.message));
                Ok(())
            })
            .unwrap();
            let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
            (ended.into_inner().unwrap(), text.lines().filter(|line| line.starts_with(' ')).count())
        };
        // The root that both groups have.
        assert_eq!(ended("reduce -b 8 -e 8 -n 2 -r -1"), (vec![Ok(true); 3], 1));
        for (line, because) in
            [("reduce -b 8 -e 8 -n 2 -r 1", "root 1"), ("broadcast -b 8 -e 8 -n 2 -r 2", "root 2")]
        {
            let (ended, _) = ended(line);
            assert!(
                ended.iter().all(|it| it.as_ref().is_err_and(|error| error.contains(because))),
                "{ended:?}"
            );
        }
    }

    #[test]
    fn files_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let (json, svg) = (directory.path().join("a.json"), directory.path().join("a.svg"));
        let line = format!(
            "all_reduce -b 8 -e 1K -f 2 -n 2 -I 1 -M 1 -S 1 -v -J {} --plot {}",
            json.display(),
            svg.display()
        );
        run_alone(&line).unwrap();
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(json["results"].as_array().unwrap().len(), 8);
        assert_eq!(json["results"][0]["in_place_per_iter"]["times_us"].as_array().unwrap().len(), 2);
        assert!(std::fs::read_to_string(svg).unwrap().contains("<svg"));
    }

    /// The rank that writes reports the error, and the others do not miss it.
    #[test]
    fn a_file_that_cannot_be_written_ends_all_ranks() {
        let settings =
            Settings::new(&parse_perf("all_reduce -b 8 -e 8 -n 1 -N 0".split(' ')).unwrap(), None).unwrap();
        let environment = Environment::read(|_| None).unwrap();
        let ended = Mutex::new(Vec::new());
        let output = Shared::default();
        backend::threads(3, &backend::Request::default(), &|comm| {
            let full = |_: &Settings, console: &mut Console| {
                let full = || File::options().write(true).open("/dev/full").unwrap();
                Ok(console.prints().then(full))
            };
            let rank = comm.rank();
            let mut console = if rank == 0 { Console::to(output.clone()) } else { Console::silent() };
            let result = run_on(&mut console, full, &settings, &environment, comm.as_ref());
            ended.lock().unwrap().push((rank, result.map_err(|error| error.message)));
            Ok(())
        })
        .unwrap();
        let mut ended = ended.into_inner().unwrap();
        ended.sort_by_key(|(rank, _)| *rank);
        let (_, first) = ended.remove(0);
        assert!(first.unwrap_err().contains("the JSON file cannot be written: No space left"));
        assert_eq!(ended, [(1, Ok(true)), (2, Ok(true))]);
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains("Avg bus bandwidth"), "{text}");
    }

    #[test]
    fn versions_as_numbers() {
        assert_eq!(version_code("2.19.6"), 21906);
        assert_eq!(version_code("0.1.0"), 100);
    }
}
