//! One rank of a job under test: joins as the environment says and performs the action of the first argument. Reports
//! lines that begin with "@"; errors come with the time of the machine's clock in nanoseconds.

use std::io::{BufRead, Write};
use std::time::Instant;

use kolo::{Communicator, ReduceOp, Result};
use kolo_tests::system;

/// Prints one whole line at once.
fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|a| a.parse::<usize>().ok()).unwrap_or(0);
    let started = Instant::now();
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return report(&format!("@error {} {error}", system::machine_time().as_nanos())),
    };
    report(&format!("@joined {}", started.elapsed().as_micros()));
    let task = arguments.first().map_or("", String::as_str);
    let result = match task {
        "loop" => forever(&comm, number(1)),
        "allocate" => allocate(&comm, number(1)),
        "direct" => directly(&comm, number(1)),
        "idle" => idle(&comm, number(1)),
        "exit" => leave_abruptly(&comm, number(1)),
        "early" => leave_early(&comm, number(1)),
        "slow" => send_slowly(&comm, number(1)),
        "memory" => memory(&comm, number(1)),
        "ready" => comm.barrier(),
        "groups" => groups(&comm, number(1)),
        "meet" => meet(&comm, number(1)),
        "ring" => ring(&comm, number(1)),
        "pair" => pair(&comm, number(1)),
        "receives" => receives(&comm, number(1)),
        "child" => child(&comm, number(1)),
        "told" => told(&comm, number(1), false),
        "orphans" => orphans(&comm, number(1), false),
        "orphans-await" => orphans(&comm, number(1), true),
        "async" => asynchronous(&comm, number(1)),
        _ => panic!("unknown task {task:?}"),
    };
    let now = system::machine_time().as_nanos();
    if let Err(error) = result {
        report(&format!("@error {now} {error}"));
    }
    drop(comm);
    report("@gone");
}

/// Sums in `count` communicators, all of which stay until the rank is told to go on.
fn groups(comm: &Communicator, count: usize) -> Result<()> {
    let all: Vec<Communicator> =
        (0..count).filter_map(|_| comm.split(Some(0), 0).transpose()).collect::<Result<_>>()?;
    for group in &all {
        let mut data = [1_u32; 1000];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data, [comm.world_size(); 1000]);
    }
    report("@running");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    comm.barrier()
}

/// All-reduces until something fails.
fn forever(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![1.0_f32; elements];
    for turn in 0.. {
        data.fill(1.0);
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if turn == 3 {
            report("@running");
        }
    }
    Ok(())
}

/// Makes all-reduces in symmetric memory until one fails, and reports the error with its time; after that, its buffer must
/// not change any more.
fn directly(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = comm.alloc::<f32>(elements)?;
    for turn in 0.. {
        data.fill(1.0);
        if let Err(error) = comm.all_reduce(&mut data, ReduceOp::Sum) {
            let now = system::machine_time().as_nanos();
            data.fill(5.0);
            let until = Instant::now() + std::time::Duration::from_millis(20);
            while Instant::now() < until {
                // The check makes no report, since the test waits for one.
                assert!(data.iter().all(|value| *value == 5.0), "written by others after the call");
            }
            report(&format!("@error {now} {error}"));
            return Ok(());
        }
        if turn == 3 {
            report("@running");
        }
    }
    Ok(())
}

/// Makes, uses and drops symmetric buffers repeatedly; reports shared memory in use and mappings of such buffers, early
/// and at the end.
fn allocate(comm: &Communicator, bytes: usize) -> Result<()> {
    let used = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings = maps.lines().filter(|line| line.contains("memfd:kolo-memory")).count();
        (system::resident_bytes().1, mappings)
    };
    let mut before = (0, 0);
    for turn in 0..30 {
        let mut data = comm.alloc::<f32>(bytes / 4)?;
        data.fill(1.0);
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data[bytes / 4 - 1], 2.0, "two ranks");
        drop(data);
        comm.barrier()?;
        if turn == 3 {
            before = used();
        }
        comm.barrier()?;
    }
    let after = used();
    report(&format!("@memory {} {} {} {}", before.0, before.1, after.0, after.1));
    comm.barrier()
}

/// Lets every rank communicate with every other.
fn meet(comm: &Communicator, elements: usize) -> Result<()> {
    let source = vec![1.0_f32; elements * comm.world_size() as usize];
    let mut target = source.clone();
    for _ in 0..3 {
        comm.all_to_all(&source, &mut target)?;
    }
    report("@met");
    comm.barrier()
}

/// Sends to the right and receives from the left until something fails.
fn ring(comm: &Communicator, elements: usize) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut got = vec![1.0_f32; elements];
    for turn in 0.. {
        // Even ranks send first.
        for step in 0..2 {
            if (rank + step) % 2 == 0 {
                comm.send(&got.clone(), (rank + 1) % ranks)?;
            } else {
                comm.recv(&mut got, (rank + ranks - 1) % ranks)?;
            }
        }
        if turn == 3 {
            report("@running");
        }
    }
    Ok(())
}

/// The first two ranks exchange messages until something fails; the others do nothing.
fn pair(comm: &Communicator, elements: usize) -> Result<()> {
    let (mut got, peer) = (vec![1.0_f32; elements], comm.rank() ^ 1);
    for turn in 0.. {
        if peer < 2 {
            comm.send_recv(&got.clone(), peer, &mut got, peer)?;
        }
        if turn == 3 {
            report("@running");
            if peer >= 2 {
                let mut line = String::new();
                let _ = std::io::stdin().lock().read_line(&mut line);
            }
        }
    }
    Ok(())
}

/// Posts receives of every kind for messages that are never sent, and waits for them.
fn receives(comm: &Communicator, elements: usize) -> Result<()> {
    let right = (comm.rank() + 1) % comm.world_size();
    let named = comm.recv_tagged_start(vec![0.0_f32; elements], right, 1)?;
    // The next message is in the way, so the transport has returned the receive before it; another receive is behind
    // it.
    comm.send_tagged_start(vec![1.0_f32; elements], right, 2).map(drop)?;
    let left = (comm.rank() + comm.world_size() - 1) % comm.world_size();
    let mut got = vec![0.0_f32; elements];
    comm.recv_tagged(&mut got, left, 2)?;
    let any = comm.recv_any_tagged_start(got, 3)?;
    comm.barrier()?;
    report("@running");
    any.wait().map(drop)?;
    named.wait().map(drop)
}

/// All ranks but the first use a communicator of their own until something fails.
fn child(comm: &Communicator, elements: usize) -> Result<()> {
    let part = comm.split((comm.rank() > 0).then_some(7), 0)?;
    match part {
        Some(part) => forever(&part, elements),
        None => {
            report("@running");
            let mut line = String::new();
            let _ = std::io::stdin().lock().read_line(&mut line);
            Ok(())
        }
    }
}

/// Rank 0 leaves when told. The others use a communicator of their own, and follow orders.
fn orphans(comm: &Communicator, elements: usize, awaits: bool) -> Result<()> {
    let Some(part) = comm.split((comm.rank() > 0).then_some(7), 0)? else {
        report("@running");
        let _ = std::io::stdin().lock().read_line(&mut String::new());
        return Ok(());
    };
    told(&part, elements, awaits)
}

/// Makes all-reduces until one fails, or until this rank is told to leave, to panic, or to make a different call once. Awaits
/// started calls if it shall.
fn told(comm: &Communicator, elements: usize, awaits: bool) -> Result<()> {
    let (say, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            let _ = say.send(line);
        }
    });
    let mut data = vec![1.0_f32; elements];
    for turn in 0.. {
        data.fill(1.0);
        match told.try_recv().as_deref() {
            Ok("leave") => break,
            Ok("panic") => panic!("as told"),
            Ok("other") => comm.all_reduce(&mut data, ReduceOp::Max)?,
            _ if awaits => {
                let work = comm.all_reduce_start(std::mem::take(&mut data), ReduceOp::Sum)?;
                data = kolo_tests::futures::run(work).0?;
            }
            _ => comm.all_reduce(&mut data, ReduceOp::Sum)?,
        }
        if turn == 3 {
            report("@running");
        }
    }
    Ok(())
}

/// Makes some all-reduces, waits until told, and makes one more.
fn idle(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![1.0_f32; elements];
    for _ in 0..3 {
        comm.all_reduce(&mut data, ReduceOp::Max)?;
    }
    report("@running");
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    let begin = Instant::now();
    let result = comm.all_reduce(&mut data, ReduceOp::Max);
    report(&format!("@took {}", begin.elapsed().as_micros()));
    result
}

/// Every rank ends its process right after its last all-reduce, without dropping anything.
fn leave_abruptly(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![1.0_f32; elements];
    for turn in 1..=20 {
        data.fill(1.0);
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if data.iter().any(|value| *value != comm.world_size() as f32) {
            report(&format!("@wrong {turn}"));
        }
    }
    report("@finished");
    std::process::exit(0);
}

/// Rank 0 broadcasts and ends its process at once; the others make the same call when told, after rank 0 has ended.
fn leave_early(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![comm.rank() as f32 + 5.0; elements];
    comm.barrier()?;
    if comm.rank() > 0 {
        report("@running");
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
    }
    comm.broadcast(&mut data, 0)?;
    if data.iter().any(|value| *value != 5.0) {
        report("@wrong");
    }
    report("@finished");
    std::process::exit(0);
}

/// The last rank ends its process; rank 1 sends to rank 0 only when told. The reports carry the time.
fn send_slowly(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![comm.rank() as f32; elements];
    let now = || system::machine_time().as_nanos();
    comm.barrier()?;
    match comm.rank() {
        0 => {
            report(&format!("@running {}", now()));
            comm.recv(&mut data, 1)?;
            if data.iter().any(|value| *value != 1.0) {
                report("@wrong");
            }
        }
        1 => {
            report(&format!("@running {}", now()));
            let mut line = String::new();
            let _ = std::io::stdin().lock().read_line(&mut line);
            comm.send(&data, 0)?;
        }
        _ => {}
    }
    report(&format!("@finished {}", now()));
    std::process::exit(0);
}

/// Starts several operations that the last rank never starts, and waits.
fn asynchronous(comm: &Communicator, elements: usize) -> Result<()> {
    comm.barrier()?;
    let works: Vec<_> = if comm.rank() + 1 == comm.world_size() {
        Vec::new()
    } else {
        (0..5)
            .map(|_| comm.all_reduce_start(vec![1.0_f32; elements], ReduceOp::Sum))
            .collect::<Result<_>>()?
    };
    report("@running");
    if works.is_empty() {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
    }
    for work in works {
        drop(work.wait()?);
    }
    Ok(())
}

/// Reports the most memory beyond the buffer that a long all-reduce takes.
fn memory(comm: &Communicator, bytes: usize) -> Result<()> {
    comm.barrier()?;
    let (before, _) = system::resident_bytes();
    let mut data = vec![1.0_f32; bytes / 4];
    for _ in 0..2 {
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
    }
    let (private, shared) = system::resident_bytes();
    report(&format!("@peak {} {bytes} {before} {private} {shared}", system::peak_resident_bytes()));
    comm.barrier()
}
