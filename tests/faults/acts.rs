//! Acts by which a rank harms itself or falls out of step.
//!
//! This file uses `unsafe` only for fork, for the end of the forked child, and for closing descriptors that others own.
//! The acts exist to show how the library reacts.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

use kolo::{Communicator, ReduceOp, Result};
use kolo_tests::system::machine_time;
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

use crate::rank::{Told, be_late, report, report_error};

/// An act before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub(crate) enum Act {
    Exit(i32),
    Panic,
    PanicInThread,
    Abort,
    Segv,
    Drop,
    Exec,
    CloseAll,
    ForkCall,
    ForkDrop,
    Late,
    MemoryLimit,
    AllocateTooMuch,
    Differ(Difference),
}

/// How one rank's call differs from the calls of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub(crate) enum Difference {
    Collective,
    Count,
    CountClass,
    Type,
    Operator,
    Root,
    Order,
    Missing,
    Irregular,
    Send,
    Started,
}

impl Difference {
    pub(crate) const ALL: [(&'static str, Self); 11] = [
        ("collective", Self::Collective),
        ("count", Self::Count),
        ("count-class", Self::CountClass),
        ("type", Self::Type),
        ("operator", Self::Operator),
        ("root", Self::Root),
        ("order", Self::Order),
        ("missing", Self::Missing),
        ("irregular", Self::Irregular),
        ("send", Self::Send),
        ("started", Self::Started),
    ];
}

impl Act {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "exit" => Self::Exit(0),
            "fail" => Self::Exit(3),
            "panic" => Self::Panic,
            "panic-in-thread" => Self::PanicInThread,
            "abort" => Self::Abort,
            "segv" => Self::Segv,
            "drop" => Self::Drop,
            "exec" => Self::Exec,
            "close-all" => Self::CloseAll,
            "fork-call" => Self::ForkCall,
            "fork-drop" => Self::ForkDrop,
            "late" => Self::Late,
            "memory-limit" => Self::MemoryLimit,
            "allocate" => Self::AllocateTooMuch,
            _ => Self::Differ(Difference::ALL.iter().find(|(name, _)| *name == word)?.1),
        })
    }
}

/// Applies limits and delays that hold from the start.
pub(crate) fn before_joining(told: &Told) {
    match told.number("files") {
        0 => {}
        files => limit(Resource::Nofile, files),
    }
    match told.number("space_mib") {
        0 => {}
        mib => limit(Resource::As, address_space() + (mib << 20)),
    }
    match told.number("join_late_ms") {
        0 => {}
        millis => be_late(millis),
    }
}

/// Performs the act at the call for which it is set. `is_actor` says whether this rank is the one that acts.
pub(crate) fn at_call(act: Act, comm: &mut Option<Communicator>, is_actor: bool, told: &Told) -> Result<()> {
    let Some(own) = comm.as_ref() else { return Ok(()) };
    match act {
        Act::Differ(difference) => {
            if is_actor {
                report_fault();
            }
            return differ(difference, own, is_actor);
        }
        Act::AllocateTooMuch => return allocate_too_much(own, is_actor),
        _ if !is_actor => return Ok(()),
        _ => report_fault(),
    }
    match act {
        Act::Exit(code) => std::process::exit(code),
        Act::Panic => panic!("a mistake of the program"),
        Act::PanicInThread => {
            let thread = std::thread::spawn(|| panic!("a mistake in a thread"));
            assert!(thread.join().is_err(), "it panics");
        }
        Act::Abort => std::process::abort(),
        // At the first signal, the standard library's handler finds no stack overflow and removes itself.
        Act::Segv => (0..2).for_each(|_| kill_process(getpid(), Signal::SEGV).unwrap_or(())),
        Act::Drop => drop(comm.take()),
        Act::Exec => panic!("no program to become: {}", Command::new("sleep").arg("60").exec()),
        Act::CloseAll => close_all(),
        Act::ForkCall => fork(|| match own.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum) {
            Ok(()) => report("@wrong a call in the child succeeded"),
            Err(error) => report(&format!("@child {error}")),
        }),
        Act::ForkDrop => {
            let inherited = comm.take();
            let began = Instant::now();
            fork(|| {
                // The child drops a copy. The parent's communicator stays as it is.
                drop(copy_in_child(&inherited));
                report(&format!("@child dropped after {} ms", began.elapsed().as_millis()));
            });
            *comm = inherited;
        }
        Act::Late => be_late(told.number("late_ms")),
        Act::MemoryLimit => limit(Resource::As, address_space() + (4 << 20)),
        Act::Differ(_) | Act::AllocateTooMuch => {}
    }
    Ok(())
}

fn report_fault() {
    report(&format!("@fault {}", machine_time().as_nanos()));
}

pub(crate) fn limit(resource: Resource, value: u64) {
    let limit = Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(resource, limit).expect("a limit can be lowered");
}

/// Returns the bytes of address space in use.
fn address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn close_all() {
    for descriptor in 3..4096 {
        // SAFETY: no memory is touched. The trial tests how the descriptors' owners react, and this process opens no
        // others before it ends.
        unsafe { libc::close(descriptor) };
    }
}

fn fork(child: impl FnOnce()) {
    // SAFETY: the child allocates and prints, which glibc permits after a process with threads has forked. No other
    // thread of this program prints. The child ends without running destructors.
    match unsafe { libc::fork() } {
        0 => {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_err() {
                report("@wrong a panic in the child");
            }
            // SAFETY: this only ends the process.
            unsafe { libc::_exit(0) }
        }
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        pid => {
            let pid = rustix::process::Pid::from_raw(pid).expect("a process");
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// Copies the communicator in the child of a fork, so that its destructor runs there.
fn copy_in_child(comm: &Option<Communicator>) -> Option<Communicator> {
    // SAFETY: this is called in the child of a fork, which ends without running the original's destructor.
    unsafe { std::ptr::read(comm) }
}

/// Allocates memory when one rank's process cannot map as much as all request. That must give an error on all ranks,
/// and do no harm.
fn allocate_too_much(comm: &Communicator, is_actor: bool) -> Result<()> {
    if is_actor {
        limit(Resource::As, address_space() + (32 << 20));
        report_fault();
    }
    match comm.alloc::<u8>(48 << 20) {
        Ok(_) => report("@wrong the memory was granted"),
        Err(error) => report_error(&error),
    }
    Ok(())
}

fn differ(difference: Difference, comm: &Communicator, is_actor: bool) -> Result<()> {
    let ranks = comm.world_size() as usize;
    let (mut floats, mut doubles) = (vec![1.0_f32; 3000], vec![1.0_f64; 1500]);
    let sum = || comm.all_reduce(&mut vec![1.0_f32; 3000], ReduceOp::Sum);
    if !is_actor {
        return match difference {
            Difference::Root => comm.broadcast(&mut floats, 0),
            Difference::Order | Difference::Missing => sum().and_then(|()| comm.broadcast(&mut doubles, 0)),
            Difference::Irregular => comm.all_gather(&floats[..100], &mut vec![0.0; 100 * ranks]),
            _ => sum(),
        };
    }
    match difference {
        Difference::Collective => comm.all_gather(&floats, &mut vec![0.0; 3000 * ranks]),
        Difference::Count => comm.all_reduce(&mut floats[..2999], ReduceOp::Sum),
        Difference::CountClass => comm.all_reduce(&mut vec![1.0_f32; 1_000_000], ReduceOp::Sum),
        Difference::Type => comm.all_reduce(&mut doubles, ReduceOp::Sum),
        Difference::Operator => comm.all_reduce(&mut floats, ReduceOp::Max),
        Difference::Root => comm.broadcast(&mut floats, 1),
        Difference::Order => comm.broadcast(&mut doubles, 0).and_then(|()| sum()),
        Difference::Missing => comm.broadcast(&mut doubles, 0),
        Difference::Irregular => {
            comm.all_gather_v(&floats[..100], &mut vec![0.0; 100 * ranks], &vec![100; ranks])
        }
        Difference::Send => {
            comm.send(&floats, (comm.rank() + 1) % comm.world_size()).and_then(|()| comm.barrier())
        }
        Difference::Started => comm.all_reduce_start(floats, ReduceOp::Sum)?.wait().map(drop),
    }
}
