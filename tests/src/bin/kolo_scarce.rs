//! One rank of a job in which a rank runs out of descriptors. Arguments: the point at which that happens, the
//! rank, and how many descriptors it has left. Reports lines that begin with "@".

use std::io::Write;
use std::time::Duration;

use kolo::state::{Part, State};
use kolo::{Communicator, ReduceOp, Result, Survivors};
use kolo_tests::system;
use rustix::process::{Resource, Rlimit, setrlimit};

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Leaves this process `left` descriptors from now on.
fn starve(left: usize) {
    let folder = std::fs::read_dir("/proc/self/fd").expect("its descriptors");
    let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let limit = Some(numbers.max().unwrap_or_default() + 1);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("it can be lowered");
    // The limit applies to numbers of descriptors, and lower numbers may be free.
    let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len().saturating_sub(left));
    std::mem::forget(taken);
}

fn sum(comm: &Communicator, elements: usize) -> Result<()> {
    let mut data = vec![1.0_f32; elements];
    comm.all_reduce(&mut data, ReduceOp::Sum)?;
    if data.iter().any(|value| *value != comm.world_size() as f32) {
        report(&format!("@wrong {}", data[0]));
    }
    Ok(())
}

/// Starts a newcomer in this process, beside rank 0.
fn newcomer(comm: &Communicator) -> Result<std::thread::JoinHandle<Result<()>>> {
    let invitation = comm.accept()?;
    Ok(std::thread::spawn(move || {
        let comm =
            Communicator::builder().invitation(invitation).wait_at_most(Duration::from_secs(20)).connect()?;
        share(&comm, &mut vec![0_u8; 5 << 20])?;
        sum(&comm, 1000)
    }))
}

fn share(comm: &Communicator, memory: &mut [u8]) -> Result<()> {
    State::of(comm).share(comm, &mut [Part::new("memory", memory)]).map(drop)
}

/// Runs this rank's part of the case.
fn run(point: &str, starve: &dyn Fn()) -> Result<()> {
    if point == "join" {
        starve();
    }
    let comm = Communicator::from_env()?;
    sum(&comm, 8)?;
    comm.barrier()?;
    match point {
        "collective" => {
            starve();
            sum(&comm, 1_000_000)?;
            comm.all_to_all(&vec![1.0_f32; 4000], &mut vec![0.0; 4000])
        }
        "split" => {
            starve();
            comm.split(Some(0), 0)?.map_or(Ok(()), |part| sum(&part, 1000))
        }
        "shrink" => {
            if comm.rank() + 1 == comm.world_size() {
                system::end_by_kill(Duration::ZERO);
            }
            starve();
            let mut group = Survivors::new(comm);
            group.run(|comm| sum(comm, 1000))?;
            group.run(|comm| sum(comm, 1000))
        }
        "grow" | "state" => {
            let joining = if comm.rank() == 0 { Some(newcomer(&comm)?) } else { None };
            while comm.agree(u64::from(comm.rank() != 0 || comm.waiting() > 0))?.flags == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            if point == "grow" {
                starve();
            }
            let grown = comm.grow(comm.world_size() + 1)?;
            if point == "state" {
                starve();
            }
            share(&grown, &mut vec![1_u8; 5 << 20])?;
            sum(&grown, 1000)?;
            joining.map_or(Ok(()), |thread| thread.join().expect("it does not panic"))
        }
        "close" => {
            starve();
            drop(comm);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let rank = std::env::var("KOLO_RANK").ok().and_then(|text| text.parse::<u64>().ok());
    let starve = || {
        if rank == Some(number(1)) {
            starve(number(2) as usize);
        }
    };
    match run(arguments.first().map_or("", String::as_str), &starve) {
        Ok(()) => report("@end ok"),
        Err(error) => report(&format!("@end {error}")),
    }
}
