//! Counts the instructions of the hot paths with valgrind's callgrind, which shows the cost of a change even where
//! times are noisy.
//!
//! `cargo bench -p kolo-benches --bench instructions` starts this program again under valgrind for each case; an
//! argument selects the cases whose names contain it. Only instructions within `counted`, on its own thread, are
//! counted: waiting ranks are left out. Valgrind does not know AVX-512, so programs under it use AVX2. Without valgrind
//! the program prints a message and does nothing.

use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

use kolo::internal::reduce::{Isa, kernel_for};
use kolo::{Cluster, Communicator, Config, DataType, ReduceOp, TransportKind, Transports};
use kolo_collectives::model::Model;
use kolo_collectives::plan::Collective;
use kolo_collectives::select::Request;
use kolo_collectives::task::Task;

/// Variable that names the case for a program under valgrind to run.
const CASE: &str = "KOLO_BENCH_CASE";
/// Repetitions of a case before counting, and while counting.
const WARM: usize = 10;
const COUNTED: usize = 20;

const CASES: [(&str, fn()); 8] = [
    ("all_reduce/8/blocking/2 ranks", || with_a_partner(all_reduce)),
    ("barrier/blocking/2 ranks", || with_a_partner(|comm| comm.barrier().expect("both are there"))),
    ("all_reduce/8/blocking/1 rank", || alone(all_reduce)),
    ("all_reduce/8/started/1 rank", || alone(started)),
    ("select/all_reduce/64 ranks", || {
        let task = Task::new(Collective::AllReduce, 64).in_place();
        repeat(|| drop(black_box(Request::new(&task, 1 << 20, 4).select(&Model::TCP))));
    }),
    ("kernel/sum/f32/1 element", || kernel(DataType::F32, 1)),
    ("kernel/sum/f32/1024 elements", || kernel(DataType::F32, 1024)),
    ("kernel/sum/bf16/1 element", || kernel(DataType::BF16, 1)),
];

fn main() {
    if let Some(wanted) = std::env::var_os(CASE) {
        let case = CASES.iter().find(|(name, _)| *name == wanted);
        return case.expect("a case of this program").1();
    }
    // Cargo passes an option of its own.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        println!("instructions: skipped: valgrind: {error}");
        return;
    }
    for (name, _) in CASES.iter().filter(|(name, _)| name.contains(&filter)) {
        match instructions(name) {
            Ok(count) => println!("{name:40} {:8} instructions", count / COUNTED as u64),
            Err(problem) => {
                eprintln!("{name}: {problem}");
                std::process::exit(1);
            }
        }
    }
}

/// Runs a case under callgrind, and returns the number of instructions counted.
fn instructions(case: &str) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let ended = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--fair-sched=yes"])
        .arg(format!("--toggle-collect={}::counted*", module_path!()))
        .arg(this)
        .env(CASE, case)
        .output()
        .map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&ended.stderr);
    let collected = told.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    match collected {
        Some(count) if ended.status.success() && count > 0 => Ok(count),
        _ => Err(format!("{}\n{told}", ended.status)),
    }
}

/// The function whose instructions are counted, with those it calls, on the calling thread.
#[inline(never)]
fn counted(act: &mut dyn FnMut()) {
    act();
    // This keeps the function a function with a frame of its own.
    black_box(());
}

fn repeat(mut act: impl FnMut()) {
    (0..WARM).for_each(|_| act());
    (0..COUNTED).for_each(|_| counted(&mut act));
}

/// Runs a case on a communicator of one rank: there is no exchange, so the engine runs a plan, and no rank to wait for.
fn alone(act: fn(&Communicator)) {
    Cluster::with_config(1, &Config::default(), |comm| repeat(|| act(&comm))).expect("a rank on its own");
}

/// Runs a case on two ranks. The first calls when the other one is already waiting, so that it finds the data it needs.
fn with_a_partner(act: fn(&Communicator)) {
    let config = Config::default().with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Shm]);
        // The other rank spins all the time, so that it need not be woken.
        config.spin = Some(Duration::from_secs(60));
    });
    let meeting = std::sync::Barrier::new(2);
    let body = |comm: Communicator| {
        for turn in 0..WARM + COUNTED {
            meeting.wait();
            if comm.rank() == 1 {
                act(&comm);
                continue;
            }
            // No call reports that the other rank has arrived; that takes microseconds, or some hundred under valgrind.
            // If this wait were too short, a few instructions of waiting would be counted too.
            std::thread::sleep(Duration::from_millis(5));
            if turn < WARM { act(&comm) } else { counted(&mut || act(&comm)) }
        }
    };
    Cluster::with_config(2, &config, body).expect("two ranks");
}

fn all_reduce(comm: &Communicator) {
    comm.all_reduce(black_box(&mut [1.0_f64]), ReduceOp::Sum).expect("all are there");
}

fn started(comm: &Communicator) {
    let work = comm.all_reduce_start(vec![1.0_f64], ReduceOp::Sum);
    black_box(work.and_then(kolo::Work::wait).expect("all are there"));
}

fn kernel(data_type: DataType, elements: usize) {
    let kernel = kernel_for(Isa::best(), data_type, ReduceOp::Sum).expect("every processor adds these");
    let (mut a, b) =
        (vec![0_u8; elements * kernel.element_bytes()], vec![0_u8; elements * kernel.element_bytes()]);
    // SAFETY: both vectors hold `elements` elements.
    repeat(|| unsafe { kernel.combine(a.as_mut_ptr(), a.as_ptr(), black_box(b.as_ptr()), elements) });
}
