//! One rank of a job in which a rank forks. Arguments: the action of the child, and the rank that forks. Reports
//! "@child" with the milliseconds that the child took, "@right" for each right result of the ranks, and "@gone" at the
//! end.

use std::io::Write;
use std::time::{Duration, Instant};

use kolo::{
    Cluster, Collective, Communicator, Config, DataType, Error, RawCall, ReduceOp, Result, SymmetricBuffer,
};

/// Seconds after which the system kills a child that hangs.
const CHILD_MOST_S: u32 = 25;

/// Prints one whole line at once.
fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, forks) = (arguments[0].as_str(), arguments[1].parse::<u32>().expect("a rank"));
    let comm = Communicator::from_env()?;
    match task {
        "killed" => return is_killed(&comm, forks),
        "again" => return joins_again(comm, forks),
        _ => {}
    }
    let part = comm.split(Some(0), 0)?.expect("with a color");
    // This creates a helper thread, and shared memory of every kind.
    comm.all_reduce_start(vec![1_i32; 5000], ReduceOp::Sum)?.wait().map(drop)?;
    let mut kept = comm.alloc::<i32>(20_000)?;
    kept.fill(7);
    check(&comm)?;
    if task == "scope" {
        return forks_in_a_scope(&comm, forks);
    }
    let work = comm.all_reduce_start(vec![comm.rank() + 1; 3], ReduceOp::Sum)?;
    if comm.rank() == forks {
        // SAFETY: the child uses memory, the communicator, and functions that glibc allows after a fork of a
        // multithreaded process.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            // SAFETY: only asks the system for a signal.
            unsafe { libc::alarm(CHILD_MOST_S) };
            let begin = Instant::now();
            match task {
                "call" => refused_calls(&comm, work),
                "new" => drop((new_communicators(), work)),
                "exit" => std::process::exit(0),
                _ => drop(work),
            }
            drop((kept, part, comm));
            report(&format!("@child {}", begin.elapsed().as_millis()));
            return Ok(());
        }
        wait_for(child);
    }
    assert_eq!(work.wait()?, [6; 3], "1 + 2 + 3");
    check(&comm)?;
    check(&part)?;
    assert!(kept.iter().all(|value| *value == 7), "the child gave pages away");
    comm.all_reduce(&mut kept, ReduceOp::Sum)?;
    assert!(kept.iter().all(|value| *value == 21), "shared memory is not what it was");
    let mut from_left = [0_u32];
    let (left, right) = ((comm.rank() + 2) % 3, (comm.rank() + 1) % 3);
    comm.send_recv(&[comm.rank()], right, &mut from_left, left)?;
    assert_eq!(from_left, [left]);
    drop((kept, part, comm));
    report("@gone");
    Ok(())
}

/// Makes all-reduces of several lengths, whose results would show a foreign contribution.
fn check(comm: &Communicator) -> Result<()> {
    for count in [1, 1000, 300_000] {
        let mut data = vec![i64::from(comm.rank()) + 1; count];
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|value| *value == 6), "{count} elements: {}", data[0]);
    }
    report("@right");
    Ok(())
}

fn wait_for(child: i32) {
    let mut status = 0;
    // SAFETY: waits for the child that was just made; the system ends it if it hangs.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

fn refused<T>(what: &str, result: Result<T>) {
    match result {
        Err(error @ Error::Usage { .. }) if error.to_string().contains("before a fork") => {}
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} was not refused"),
    }
}

/// Makes calls in the child, all of which must fail and do nothing.
fn refused_calls(comm: &Communicator, work: kolo::Work<Vec<u32>>) {
    let (mut data, sum) = ([1000_i64; 3], ReduceOp::Sum);
    let call = RawCall {
        collective: Collective::AllReduce,
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
        count: 1,
        data_type: DataType::I64,
        op: sum,
        root: 0,
    };
    refused("check_process", comm.check_process());
    refused("all_reduce", comm.all_reduce(&mut data, sum));
    refused("barrier", comm.barrier());
    refused("all_gather_v", comm.all_gather_v(&[1_u8], &mut [0; 3], &[1; 3]));
    // SAFETY: the buffer outlives the call.
    refused("call_raw", unsafe { comm.call_raw(&call) });
    // SAFETY: as above.
    refused("start_raw", unsafe { comm.start_raw(&call) });
    refused("all_reduce_start", comm.all_reduce_start(vec![1_u8], sum));
    refused("scope", comm.scope(|scope| scope.all_reduce(&mut data, sum)));
    refused("an empty scope", comm.scope(|_| Ok(())));
    refused("send", comm.send(&data, 0));
    refused("recv", comm.recv(&mut data, 0));
    refused("recv_any", comm.recv_any(&mut data));
    refused("send_start", comm.send_start(vec![1_u8], 0));
    refused("batch", comm.batch().send(&[1_u8], 0).recv(&mut [0_u8], 2).run());
    refused("split", comm.split(Some(1), 0));
    refused("group", comm.group(&[0, 1, 2]));
    refused("duplicate", comm.duplicate(Config::default()));
    refused("alloc", comm.alloc::<u8>(10).map(|memory: SymmetricBuffer<u8>| memory.len()));
    refused("register", comm.register(vec![0_u8; 10]));
    refused("explain", comm.explain(&call));
    refused("error", comm.error().map_or(Ok(()), Err));
    comm.abort("a child of fork has no say");
    assert!(work.is_done());
    refused("wait", work.wait());
    let facts = (comm.world_size(), comm.recent().len(), comm.staging_bytes(), comm.summary().is_empty());
    assert_eq!(facts, (3, 0, 0, false), "questions have answers");
}

/// Makes new communicators, which a child may have.
fn new_communicators() {
    let sums = Cluster::local(2, |comm| {
        comm.check_process()?;
        let mut data = [comm.rank() + 1];
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        Ok::<_, Error>(data[0])
    });
    let sums: Result<Vec<u32>> = sums.expect("joins").into_iter().collect();
    assert_eq!(sums.expect("works"), [3, 3]);
}

/// Forks a child that lives until the test closes this process's input.
fn fork_a_child_that_stays() {
    // SAFETY: the child makes system calls only, and ends without running destructors.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            libc::alarm(120);
            let mut byte = 0_u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
}

/// The rank is killed while its child lives. The others report "@lost".
fn is_killed(comm: &Communicator, forks: u32) -> Result<()> {
    check(comm)?;
    if comm.rank() == forks {
        fork_a_child_that_stays();
        // SAFETY: the call takes no pointer. It ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    match comm.all_reduce(&mut [1_i32; 10], ReduceOp::Sum) {
        Err(Error::PeerLost { peer, .. }) if peer == forks => report("@lost"),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// All leave, and join again at the same address, while a child of one of them lives.
fn joins_again(comm: Communicator, forks: u32) -> Result<()> {
    check(&comm)?;
    if comm.rank() == forks {
        fork_a_child_that_stays();
    }
    drop(comm);
    check(&Communicator::from_env()?)?;
    report("@gone");
    Ok(())
}

/// Forks while operations on borrowed buffers are in flight.
fn forks_in_a_scope(comm: &Communicator, forks: u32) -> Result<()> {
    let (mut child, begin) = (-1, Instant::now());
    let mut data = vec![comm.rank() + 1; 1000];
    let outcome = comm.scope(|scope| {
        scope.all_reduce(&mut data, ReduceOp::Sum)?;
        if comm.rank() == forks {
            // SAFETY: as in `main`.
            child = unsafe { libc::fork() };
            assert!(child >= 0, "cannot fork");
        }
        Ok(())
    });
    if child == 0 {
        refused("scope", outcome);
        assert!(begin.elapsed() < Duration::from_secs(20));
        report(&format!("@child {}", begin.elapsed().as_millis()));
        return Ok(());
    }
    outcome?;
    if comm.rank() == forks {
        wait_for(child);
    }
    assert!(data.iter().all(|value| *value == 6));
    check(comm)?;
    report("@gone");
    Ok(())
}
