//! Options of `kolo perf`: those of nccl-tests, letter by letter, and Kolo's own.
//!
//! All values stay text here; [`super::settings`] parses them, so that the error messages are those of nccl-tests.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  kolo perf all_reduce -b 8 -e 128M -f 2              four ranks on this machine
  kolo perf all_gather --ranks 8 --threads            eight ranks as threads of one process
  kolo perf broadcast -r -1 -d all -b 1M -e 1M        every root, every type, one size
  kolo perf all_reduce --transport tcp --plot out.svg
  mpirun -np 16 kolo perf all_reduce -e 1G -f 2       joins what the launcher started
  ln -s kolo all_reduce_perf; ./all_reduce_perf -g 4  under the name of a program of nccl-tests

Sizes are a number and optionally K, M or G (powers of 1024). Under a launcher, -t or -g makes each process run \
that many ranks, as threads.

Environment: NCCL_TESTS_MIN_BW fails the run below 0.9 times that bus bandwidth; NCCL_TESTS_SPLIT and \
NCCL_TESTS_SPLIT_MASK run several groups side by side; NCCL_TESTS_ALLTOALLV_SPREAD, from 0 to 1 (the \
default), says how much the blocks of alltoallv depend on the distance of the ranks; KOLO_* as `kolo info` lists them.

The exit code is 0, or 1 when data was wrong or the bandwidth too low, 2 when the request is invalid, 3 \
when something failed, 141 when the output has no reader any more.";

/// Options of `kolo perf`.
#[derive(Args, Debug, Clone)]
#[command(args_override_self = true, infer_long_args = true, allow_negative_numbers = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PerfArgs {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, alltoall, alltoallv, sendrecv,
    /// hypercube or barrier
    #[arg(value_name = "TEST")]
    pub test: String,

    /// Ranks as threads per process [default: 1]
    #[arg(short = 't', long = "nthreads", value_name = "N", help_heading = SHAPE)]
    pub nthreads: Option<String>,
    /// Ranks per thread (GPUs in nccl-tests) [default: 1]
    #[arg(short = 'g', long = "ngpus", value_name = "N", help_heading = SHAPE)]
    pub ngpus: Option<String>,
    /// Ranks to start on this machine if no launcher did [default: the number given by -t and -g; without them 4, or 1 under
    /// the name of a program of nccl-tests]
    #[arg(long, value_name = "N", help_heading = SHAPE)]
    pub ranks: Option<String>,
    /// Start the ranks as threads of one process instead of as processes
    #[arg(long, help_heading = SHAPE)]
    pub threads: bool,
    /// Set by the process that starts the ranks: how many of them this process is
    #[arg(long, hide = true)]
    pub ranks_per_process: Option<u32>,

    /// Smallest size [default: 32M]
    #[arg(short = 'b', long, value_name = "SIZE", help_heading = SIZES)]
    pub minbytes: Option<String>,
    /// Largest size, inclusive [default: 32M]
    #[arg(short = 'e', long, value_name = "SIZE", help_heading = SIZES)]
    pub maxbytes: Option<String>,
    /// Add this much from one size to the next [default: 1M]
    #[arg(short = 'i', long, value_name = "SIZE", help_heading = SIZES)]
    pub stepbytes: Option<String>,
    /// Multiply by this from one size to the next, if above 1; overrides -i
    #[arg(short = 'f', long, value_name = "N", default_value = "1", help_heading = SIZES)]
    pub stepfactor: String,
    /// Shift the buffers by this many elements
    #[arg(short = 'u', long, value_name = "N", default_value = "0", help_heading = SIZES)]
    pub unalign: String,

    /// sum, prod, min, max, avg, mulsum or all
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum", help_heading = WHAT)]
    pub op: String,
    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16 or all
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "float", help_heading = WHAT)]
    pub datatype: String,
    /// Root rank; -1 for all in turn
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0", help_heading = WHAT)]
    pub root: String,
    /// auto, or a list such as shm,tcp: the transports that may be used
    #[arg(long, value_name = "LIST", help_heading = WHAT)]
    pub transport: Option<String>,
    /// Algorithm to use instead of the selected one, as `kolo explain` names them
    #[arg(long, value_name = "NAME", help_heading = WHAT)]
    pub algo: Option<String>,

    /// Timed iterations
    #[arg(short = 'n', long, value_name = "N", default_value = "20", help_heading = HOW)]
    pub iters: String,
    /// Operations started together per iteration
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value = "1", help_heading = HOW)]
    pub agg_iters: String,
    /// Warm-up iterations per size
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value = "1", help_heading = HOW)]
    pub warmup_iters: String,
    /// Number of times that the whole sweep runs; 0 repeats it for ever
    #[arg(short = 'N', long = "run_cycles", value_name = "N", default_value = "1", help_heading = HOW)]
    pub run_cycles: String,
    /// Checked iterations; 0 for no check
    #[arg(short = 'c', long, value_name = "N", default_value = "1", help_heading = HOW)]
    pub check: String,
    /// 1: wait and barrier after each operation; 2: wait only; 3: barrier after each iteration, not timed
    #[arg(short = 'z', long, value_name = "0..3", default_value = "0", help_heading = HOW)]
    pub blocking: String,
    /// 2: symmetric buffers, which ranks of a host reach directly; 1: accepted, transports register buffers automatically
    #[arg(short = 'R', long = "local_register", value_name = "0..2", default_value = "0", help_heading = HOW)]
    pub local_register: String,
    /// The same as -R 2
    #[arg(long, help_heading = HOW)]
    pub symmetric: bool,
    /// Seconds before an operation is given up; 0 for the library's own limit
    #[arg(short = 'T', long, value_name = "SECONDS", default_value = "0", help_heading = HOW)]
    pub timeout: String,
    /// How the ranks' times are combined: 0 rank 0's time, 1 average, 2 minimum, 3 maximum
    #[arg(short = 'a', long, value_name = "0..3", default_value = "1", help_heading = HOW)]
    pub average: String,

    /// 1: report the time that starting an operation takes (with -z, the wait too); bandwidths do not change
    #[arg(short = 'C', long = "report_cputime", value_name = "0/1", default_value = "0", help_heading = OUTPUT)]
    pub report_cputime: String,
    /// 1: wall-clock time on each row
    #[arg(short = 'S', long = "report_timestamps", value_name = "0/1", default_value = "0", help_heading = OUTPUT)]
    pub report_timestamps: String,
    /// Write a JSON file; its name ends in .json
    #[arg(short = 'J', long = "output_file", value_name = "FILE", help_heading = OUTPUT)]
    pub output_file: Option<PathBuf>,
    /// 1: print the memory line
    #[arg(short = 'M', long, value_name = "0/1", default_value = "0", help_heading = OUTPUT)]
    pub memory: String,
    /// 1: time each iteration and report the spread of the times
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0/1", default_value = "0", help_heading = OUTPUT)]
    pub per_iter_timing: String,
    /// Leave the first iterations, fewer than -n, out of these statistics
    #[arg(short = 'K', long = "per_iter_skip", value_name = "N", default_value = "0", help_heading = OUTPUT)]
    pub per_iter_skip: String,
    /// Print p50, p90, p99 and p99.9 of the iterations below each row
    #[arg(long, help_heading = OUTPUT)]
    pub percentiles: bool,
    /// Draw bus bandwidth and latency over size
    #[arg(long, value_name = "FILE.svg", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
    /// Print which transport serves each peer, and why
    #[arg(short = 'v', long, help_heading = OUTPUT)]
    pub verbose: bool,

    /// Accepted: communicators are always created concurrently
    #[arg(short = 'p', long = "parallel_init", value_name = "0/1", default_value = "0", help_heading = CUDA)]
    pub parallel_init: String,
    /// Accepted: there are no streams
    #[arg(short = 'y', long = "stream_null", value_name = "0/1", default_value = "0", help_heading = CUDA)]
    pub stream_null: String,
    /// Accepted: there are no CUDA graphs
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value = "0", help_heading = CUDA)]
    pub cudagraph: String,
    /// Accepted: there are no thread blocks
    #[arg(short = 'x', long = "cta_policy", value_name = "0..2", help_heading = CUDA)]
    pub cta_policy: Option<String>,
    /// Accepted: there are no device kernels
    #[arg(
        short = 'D', long = "device_implementation", value_name = "N", default_value = "0", help_heading = CUDA
    )]
    pub device_implementation: String,
    /// Accepted: there are no thread blocks
    #[arg(short = 'V', long = "device_cta_count", value_name = "N", default_value = "16", help_heading = CUDA)]
    pub device_cta_count: String,
}

const SHAPE: &str = "Ranks";
const SIZES: &str = "Sizes";
const WHAT: &str = "What to measure";
const HOW: &str = "How to measure";
const OUTPUT: &str = "What to report";
const CUDA: &str = "Options of nccl-tests without a meaning here";
