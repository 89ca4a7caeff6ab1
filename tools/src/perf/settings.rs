//! Parsed and checked settings of `kolo perf`.

use std::path::PathBuf;
use std::time::Duration;

use super::args::PerfArgs;
use super::choice::{self, NamedOp, NamedType, Unknown};
use super::numbers::{parse_integer, parse_size};
use super::test::Test;
use crate::error::{CliError, Result};
use crate::launch::MAX_RANKS;

/// The step from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Multiply by this, at least 2.
    Factor(u64),
    /// Add this, at least 1.
    Bytes(u64),
}

/// The choice of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// This rank.
    Rank(u32),
    /// All ranks in turn.
    Every,
}

/// The wait after an operation (`-z`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// No wait beyond what the iteration needs.
    No,
    /// Wait and barrier after each operation, timed.
    WaitAndBarrier,
    /// Wait after each operation.
    Wait,
    /// Wait and barrier after each iteration, the barrier not timed.
    UntimedBarrier,
}

/// How the times of the ranks are combined (`-a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Average {
    /// The time of rank 0.
    Rank0,
    /// The mean time.
    Mean,
    /// The least time.
    Least,
    /// The greatest time.
    Greatest,
}

/// Whether single iterations are timed, and how they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerIteration {
    /// Columns in the table and statistics in the JSON file (`-I`).
    pub columns: bool,
    /// A line of percentiles below each row (`--percentiles`).
    pub percentiles: bool,
    /// Iterations left out at the start (`-K`).
    pub skip: usize,
}

impl PerIteration {
    /// Returns whether iterations have to be timed one by one.
    #[must_use]
    pub(crate) const fn wanted(&self) -> bool {
        self.columns || self.percentiles
    }
}

/// Number of ranks to start if neither the user nor a launcher decides. A program of nccl-tests has one.
const DEFAULT_RANKS: u32 = 4;

/// The number of ranks to start if no launcher decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    /// Processes, with this many thread ranks in each.
    Processes {
        /// Number of processes.
        count: u32,
        /// Number of thread ranks in each, at least 1.
        threads_each: u32,
    },
    /// Threads of this process.
    Threads {
        /// Number of ranks.
        count: u32,
    },
}

impl Ranks {
    /// Returns the total number of ranks.
    #[must_use]
    pub(crate) const fn total(self) -> u32 {
        match self {
            Self::Processes { count, threads_each } => count * threads_each,
            Self::Threads { count } => count,
        }
    }
}

/// All settings of `kolo perf`.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each is an option, documented in PerfArgs")]
pub(crate) struct Settings {
    pub test: Test,
    pub program: String,
    pub threads: u32,
    pub gpus: u32,
    pub ranks: Ranks,
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// Whether the user gave the largest size, rather than relying on the default.
    pub size_given: bool,
    /// The same for the smallest size.
    pub least_given: bool,
    pub step: Step,
    pub unalign: u64,
    /// Whether the buffers are symmetric.
    pub symmetric: bool,
    pub ops: Vec<NamedOp>,
    pub types: Vec<NamedType>,
    pub root: Root,
    pub transport: Option<String>,
    pub algorithm: Option<String>,
    pub iterations: usize,
    pub aggregated: usize,
    pub warmups: usize,
    /// Number of sweeps; `None` for ever.
    pub cycles: Option<u64>,
    pub checks: u32,
    pub blocking: Blocking,
    pub timeout: Option<Duration>,
    pub average: Average,
    pub start_time: bool,
    pub timestamps: bool,
    pub json: Option<PathBuf>,
    pub memory: bool,
    pub per_iteration: PerIteration,
    pub plot: Option<PathBuf>,
    pub verbose: bool,
    pub graph: i64,
    pub parallel_init: bool,
    /// Lines to print first: fallbacks and options without effect.
    pub remarks: Vec<String>,
}

impl Settings {
    /// Checks the options. `program` is the name shown in the output, as nccl-tests would be called.
    pub(crate) fn new(args: &PerfArgs, program: Option<String>) -> Result<Self> {
        let test = Test::parse(&args.test)?;
        // Scripts that call programs of nccl-tests rely on their behaviour.
        let unknown = if program.is_some() { Unknown::Defaults } else { Unknown::Refused };
        let (types, type_remark) = choice::types(&args.datatype, unknown)?;
        let (ops, op_remark) = choice::ops(&args.op, unknown)?;
        let min_bytes = size(args.minbytes.as_deref(), 32 << 20, "minbytes")?;
        let max_bytes = size(args.maxbytes.as_deref(), 32 << 20, "maxbytes")?;
        if min_bytes > max_bytes {
            return Err(CliError::verbatim(format!(
                "invalid sizes for 'minbytes' and 'maxbytes': {min_bytes} > {max_bytes}"
            )));
        }
        let each = |option, text: &Option<String>| {
            text.as_ref().map_or(Ok(1), |text| count(option, text, 1).map(|ranks| ranks as u32))
        };
        let (threads, gpus) = (each("-t", &args.nthreads)?, each("-g", &args.ngpus)?);
        let is_given = args.nthreads.is_some() || args.ngpus.is_some();
        let unasked = if is_given || program.is_some() { None } else { Some(DEFAULT_RANKS) };
        let ranks = ranks(args, threads, gpus, unasked)?;
        let mut remarks: Vec<String> = type_remark.into_iter().chain(op_remark).collect();
        remarks.extend(without_effect(args)?);
        let iterations = count("-n", &args.iters, 1)?;
        let (skip, skip_remark) = skip(args, iterations, unknown)?;
        remarks.extend(skip_remark);
        if test.lies_apart() {
            remarks.push(format!(
                "# The in-place columns are measured out of place: {} cannot receive into its send buffer",
                test.name()
            ));
        }
        Ok(Self {
            test,
            program: program.unwrap_or_else(|| format!("{}_perf", test.name())),
            threads,
            gpus,
            ranks,
            min_bytes,
            max_bytes,
            size_given: args.maxbytes.is_some(),
            least_given: args.minbytes.is_some(),
            step: step(args)?,
            unalign: count("-u", &args.unalign, 0)?,
            symmetric: args.symmetric || one_of("-R", &args.local_register, &[false, false, true])?,
            ops: if test.shows_op() { ops } else { vec![NamedOp::Sum] },
            types,
            root: root(&args.root)?,
            transport: args.transport.clone(),
            algorithm: args.algo.clone(),
            iterations: iterations as usize,
            aggregated: count("-m", &args.agg_iters, 1)? as usize,
            warmups: count("-w", &args.warmup_iters, 0)? as usize,
            cycles: Some(count("-N", &args.run_cycles, 0)?).filter(|cycles| *cycles > 0),
            checks: count("-c", &args.check, 0)? as u32,
            blocking: one_of(
                "-z",
                &args.blocking,
                &[Blocking::No, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::UntimedBarrier],
            )?,
            timeout: Some(Duration::from_secs(count("-T", &args.timeout, 0)?)).filter(|t| !t.is_zero()),
            average: one_of(
                "-a",
                &args.average,
                &[Average::Rank0, Average::Mean, Average::Least, Average::Greatest],
            )?,
            start_time: count("-C", &args.report_cputime, 0)? != 0,
            timestamps: count("-S", &args.report_timestamps, 0)? != 0,
            json: with_suffix(args.output_file.clone(), "json", "-J")?,
            memory: count("-M", &args.memory, 0)? != 0,
            per_iteration: PerIteration {
                columns: count("-I", &args.per_iter_timing, 0)? != 0,
                percentiles: args.percentiles,
                skip,
            },
            plot: with_suffix(args.plot.clone(), "svg", "--plot")?,
            verbose: args.verbose,
            graph: integer("-G", &args.cudagraph)?,
            parallel_init: count("-p", &args.parallel_init, 0)? != 0,
            remarks,
        })
    }

    /// Returns the sizes of a sweep, up to `max_bytes`.
    pub(crate) fn sizes(&self, max_bytes: u64) -> Vec<u64> {
        if self.test == Test::Barrier {
            return vec![0];
        }
        let mut sizes = Vec::new();
        let mut size = self.least(max_bytes);
        while size <= max_bytes {
            sizes.push(size);
            let next = match self.step {
                // A multiple of 0 is 0, so the sweep goes on with 8, the usual first size.
                Step::Factor(_) if size == 0 => Some(8),
                Step::Factor(factor) => size.checked_mul(factor),
                Step::Bytes(bytes) => size.checked_add(bytes),
            };
            let Some(next) = next else { break };
            size = next;
        }
        sizes
    }

    /// Returns the first size of a sweep up to `max_bytes`: the default gives way if memory is short.
    pub(crate) fn least(&self, max_bytes: u64) -> u64 {
        if self.least_given { self.min_bytes } else { self.min_bytes.min(max_bytes) }
    }

    /// Returns the sizes that warm up: doubling, whatever the step.
    pub(crate) fn warmup_sizes(&self, max_bytes: u64) -> Vec<u64> {
        Self { step: Step::Factor(2), ..self.clone() }.sizes(max_bytes)
    }

    /// Returns the roots for `world_size` ranks; -1 stands for none.
    pub(crate) fn roots(&self, world_size: u32) -> Result<Vec<i64>> {
        if !self.test.has_root() {
            return Ok(vec![-1]);
        }
        match self.root {
            Root::Every => Ok((0..i64::from(world_size)).collect()),
            Root::Rank(rank) if rank < world_size => Ok(vec![i64::from(rank)]),
            Root::Rank(rank) => Err(CliError::usage(
                format!(
                    "root {rank} (-r) is out of range: there are {world_size} ranks, 0 to {}",
                    world_size - 1
                ),
                "Choose one of them, -1 for all in turn, or start more ranks with --ranks",
            )),
        }
    }
}

/// Returns the ranks to start; `unasked` is their number if no option tells it.
fn ranks(args: &PerfArgs, threads: u32, gpus: u32, unasked: Option<u32>) -> Result<Ranks> {
    let per_process = threads.checked_mul(gpus).filter(|ranks| *ranks <= MAX_RANKS).ok_or_else(|| {
        CliError::usage(
            format!("-t {threads} and -g {gpus} make more than {MAX_RANKS} ranks in one process"),
            "Use fewer",
        )
    })?;
    let given = match &args.ranks {
        None => None,
        Some(text) => match parse_integer(text) {
            Some(count) if (1..=i64::from(MAX_RANKS)).contains(&count) => Some(count as u32),
            _ => {
                return Err(CliError::usage(
                    format!("--ranks is '{text}', but a cluster has 1 to {MAX_RANKS} ranks on one machine"),
                    "Give the number of ranks to start, for example --ranks 4",
                ));
            }
        },
    };
    Ok(match (given, args.threads) {
        (None, true) => Ranks::Threads { count: unasked.unwrap_or(per_process) },
        // nccl-tests runs all of -t and -g in one process, and ranks that share a process must be threads.
        (None, false) if threads > 1 => Ranks::Threads { count: per_process },
        (None, false) => Ranks::Processes { count: unasked.unwrap_or(gpus), threads_each: 1 },
        (Some(count), true) => Ranks::Threads { count },
        (Some(count), false) if count * per_process > MAX_RANKS => {
            return Err(CliError::usage(
                format!("{count} processes with {per_process} ranks each are more than {MAX_RANKS} ranks"),
                "Use fewer",
            ));
        }
        (Some(count), false) => Ranks::Processes { count, threads_each: per_process },
    })
}

/// Returns the number of iterations to skip, and the line to print if nccl-tests would ignore it.
fn skip(args: &PerfArgs, iterations: u64, unknown: Unknown) -> Result<(usize, Option<String>)> {
    let skip = count("-K", &args.per_iter_skip, 0)?;
    if skip < iterations {
        return Ok((skip as usize, None));
    }
    let most = iterations - 1;
    if unknown == Unknown::Defaults {
        let remark = format!("per-iteration skip (-K) must be between 0 and {most}. Disabling.");
        return Ok((0, Some(remark)));
    }
    Err(CliError::usage(
        format!("-K {skip} leaves none of the {iterations} iterations (-n)"),
        format!("Skip at most {most}, or time more iterations"),
    ))
}

fn step(args: &PerfArgs) -> Result<Step> {
    let factor = integer("-f", &args.stepfactor)?;
    if factor > 1 {
        return Ok(Step::Factor(factor as u64));
    }
    match size(args.stepbytes.as_deref(), 1 << 20, "stepBytes")? {
        0 => {
            Err(CliError::usage("a step of 0 bytes (-i) never ends", "Give at least 1, or a factor with -f"))
        }
        bytes => Ok(Step::Bytes(bytes)),
    }
}

fn root(text: &str) -> Result<Root> {
    match parse_integer(text) {
        Some(-1) => Ok(Root::Every),
        Some(rank) if (0..=i64::from(u32::MAX)).contains(&rank) => Ok(Root::Rank(rank as u32)),
        _ => Err(CliError::usage(
            format!("root '{text}' (-r) is not a rank"),
            "Give a rank, or -1 for all in turn",
        )),
    }
}

fn size(text: Option<&str>, default: u64, name: &str) -> Result<u64> {
    match text {
        None => Ok(default),
        Some(text) => {
            parse_size(text).ok_or_else(|| CliError::verbatim(format!("invalid size specified for '{name}'")))
        }
    }
}

fn integer(option: &str, text: &str) -> Result<i64> {
    parse_integer(text).ok_or_else(|| {
        CliError::usage(
            format!("{option} is '{text}', which is not an integer"),
            "Give a number, for example 1",
        )
    })
}

/// Parses an integer between `least` and the maximum of an `int`.
fn count(option: &str, text: &str, least: i64) -> Result<u64> {
    match integer(option, text)? {
        value if (least..=i64::from(i32::MAX)).contains(&value) => Ok(value as u64),
        value => Err(CliError::usage(
            format!("{option} is {value}"),
            format!("It must be between {least} and {}", i32::MAX),
        )),
    }
}

fn one_of<T: Copy>(option: &str, text: &str, choices: &[T]) -> Result<T> {
    let value = integer(option, text)?;
    usize::try_from(value).ok().and_then(|index| choices.get(index).copied()).ok_or_else(|| {
        CliError::usage(format!("{option} is {value}"), format!("It must be 0 to {}", choices.len() - 1))
    })
}

fn with_suffix(path: Option<PathBuf>, suffix: &str, option: &str) -> Result<Option<PathBuf>> {
    match path {
        Some(path) if path.extension().is_none_or(|found| found != suffix) => Err(CliError::usage(
            format!("{option} names '{}', which does not end in .{suffix}", path.display()),
            format!("Give it a name such as result.{suffix}"),
        )),
        path => Ok(path),
    }
}

/// Returns a line for each option of nccl-tests that was set but has no effect here.
fn without_effect(args: &PerfArgs) -> Result<Vec<String>> {
    let mut remarks = Vec::new();
    for (option, text, neutral, why) in [
        ("-G", &args.cudagraph, 0, "there are no CUDA graphs on host memory"),
        ("-y", &args.stream_null, 0, "there are no streams on host memory"),
        ("-D", &args.device_implementation, 0, "there are no device kernels on host memory"),
        ("-V", &args.device_cta_count, 16, "there are no thread blocks on host memory"),
    ] {
        if integer(option, text)? != neutral {
            remarks.push(format!("# {option} {text} has no effect: {why}"));
        }
    }
    if integer("-R", &args.local_register)? == 1 {
        remarks.push("# -R 1 has no effect: transports register buffers automatically".to_owned());
    }
    if let Some(text) = &args.cta_policy {
        remarks.push(format!("# -x {text} has no effect: there are no thread blocks on host memory"));
    }
    Ok(remarks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse_perf;

    fn settings(line: &str) -> Result<Settings> {
        Settings::new(&parse_perf(line.split_whitespace()).unwrap(), None)
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let settings = settings("all_reduce").unwrap();
        assert_eq!((settings.min_bytes, settings.max_bytes), (32 << 20, 32 << 20));
        assert_eq!(settings.step, Step::Bytes(1 << 20));
        assert_eq!((settings.iterations, settings.aggregated, settings.warmups), (20, 1, 1));
        assert_eq!((settings.checks, settings.cycles), (1, Some(1)));
        assert_eq!(settings.average, Average::Mean);
        assert_eq!(settings.program, "all_reduce_perf");
        assert_eq!(settings.ranks, Ranks::Processes { count: 4, threads_each: 1 });
        assert_eq!(settings.roots(4).unwrap(), [-1]);
    }

    #[test]
    fn options_in_all_their_forms() {
        let settings =
            settings("broadcast -b8 -e 0.5K --stepfactor=2 --agg_iters 2 -n 0x10 -r -1 -d half -z3 --warm 7")
                .unwrap();
        assert_eq!(settings.sizes(512), [8, 16, 32, 64, 128, 256, 512]);
        assert_eq!((settings.aggregated, settings.iterations, settings.warmups), (2, 16, 7));
        assert_eq!(settings.roots(3).unwrap(), [0, 1, 2]);
        assert_eq!(settings.types[0].name, "half");
        assert_eq!(settings.blocking, Blocking::UntimedBarrier);
        assert_eq!(self::settings("all_reduce -n 3 -n 4").unwrap().iterations, 4);
    }

    #[test]
    fn invalid_sizes_are_named_as_nccl_tests_names_them() {
        for (line, expected) in [
            ("all_reduce -b 1T", "invalid size specified for 'minbytes'"),
            ("all_reduce -e x", "invalid size specified for 'maxbytes'"),
            ("all_reduce -i x", "invalid size specified for 'stepBytes'"),
            ("all_reduce -b 2K -e 1K", "invalid sizes for 'minbytes' and 'maxbytes': 2048 > 1024"),
        ] {
            let error = settings(line).unwrap_err();
            assert_eq!(error.message, expected);
            assert_ne!(error.exit_code, 0);
        }
    }

    #[test]
    fn bad_input_is_a_paragraph() {
        for line in [
            "all_reduce --ranks 0",
            "all_reduce --ranks -1",
            "all_reduce --ranks many",
            "all_reduce -n x",
            "all_reduce -n 0",
            "all_reduce -i 0",
            "all_reduce -a 4",
            "all_reduce -R 3",
            "all_reduce -R -1",
            "all_reduce -n 3 -K 3",
            "all_reduce -J out.txt",
            "all_reduce --plot out.png",
            "nothing",
        ] {
            let error = settings(line).unwrap_err();
            assert_eq!(error.exit_code, crate::error::EXIT_USAGE);
            assert!(error.message.ends_with('.') && !error.message.contains('\n'), "{}", error.message);
        }
        let error = settings("reduce -r 4").unwrap().roots(4).unwrap_err();
        assert!(error.message.contains("0 to 3"), "{}", error.message);
    }

    #[test]
    fn a_program_of_nccl_tests_runs_one_rank_unless_asked() {
        for (line, count) in [("all_reduce", 1), ("all_reduce -t 1 -g 1", 1), ("all_reduce -g 2", 2)] {
            let args = parse_perf(line.split_whitespace()).unwrap();
            let settings = Settings::new(&args, Some("all_reduce_perf".into())).unwrap();
            assert_eq!(settings.ranks, Ranks::Processes { count, threads_each: 1 }, "{line}");
        }
    }

    #[test]
    fn the_programs_of_nccl_tests_ignore_a_skip_of_everything() {
        let args = parse_perf("all_reduce -n 3 -K 3".split_whitespace()).unwrap();
        let settings = Settings::new(&args, Some("all_reduce_perf".into())).unwrap();
        assert_eq!(settings.per_iteration.skip, 0);
        assert_eq!(settings.remarks, ["per-iteration skip (-K) must be between 0 and 2. Disabling."]);
    }

    #[test]
    fn ranks_follow_the_options() {
        for (line, expected) in [
            ("all_reduce --threads", Ranks::Threads { count: 4 }),
            ("all_reduce -g 1", Ranks::Processes { count: 1, threads_each: 1 }),
            ("all_reduce -t 1 -g 1", Ranks::Processes { count: 1, threads_each: 1 }),
            ("all_reduce -t 1 --threads", Ranks::Threads { count: 1 }),
            ("all_reduce -g 8", Ranks::Processes { count: 8, threads_each: 1 }),
            ("all_reduce -t 3", Ranks::Threads { count: 3 }),
            ("all_reduce -t 2 -g 2", Ranks::Threads { count: 4 }),
            ("all_reduce --ranks 3", Ranks::Processes { count: 3, threads_each: 1 }),
            ("all_reduce --ranks 3 --threads", Ranks::Threads { count: 3 }),
            ("all_reduce --ranks 3 -t 2", Ranks::Processes { count: 3, threads_each: 2 }),
        ] {
            assert_eq!(settings(line).unwrap().ranks, expected, "{line}");
        }
    }

    #[test]
    fn a_sweep_from_nothing_ends() {
        let settings = settings("all_reduce -b 0 -e 32 -f 2").unwrap();
        assert_eq!(settings.sizes(32), [0, 8, 16, 32]);
        assert_eq!(self::settings("barrier").unwrap().sizes(1 << 20), [0]);
        assert_eq!(self::settings("all_reduce").unwrap().sizes(1 << 20), [1 << 20], "memory is short");
    }
}
