//! One rank of a trial: joins, makes calls, and harms itself as its arguments say. Its reports are lines that begin
//! with "@". Times are those of the machine's clock, in nanoseconds.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use kolo::{Communicator, Error, ReduceOp, Result};
use kolo_tests::system::machine_time;

use crate::acts::{self, Act};
use kolo_tests::random::Random;

/// A rank's command line of `name=value` words.
#[derive(Debug)]
pub(crate) struct Told(HashMap<String, String>);

impl Told {
    /// Parses the arguments.
    pub(crate) fn new(arguments: &[String]) -> Self {
        let pairs = arguments.iter().filter_map(|word| word.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns an argument's text, or an empty one.
    pub(crate) fn word(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns an argument's number, or 0.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.word(name).parse().unwrap_or(0)
    }

    /// Whether this rank is one of those that harm themselves.
    pub(crate) fn is_actor(&self, rank: u32) -> bool {
        self.word("who").split(',').any(|word| word.parse() == Ok(rank))
    }
}

/// Makes the kernel kill this process when its parent ends, so that a stopped run leaves nothing behind.
pub(crate) fn tie_to_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Prints one whole line at once.
pub(crate) fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Reports an error with its kind and the rank that it blames.
pub(crate) fn report_error(error: &Error) {
    let (kind, peer) = match error {
        Error::Usage { .. } => ("Usage", None),
        Error::Configuration { .. } => ("Configuration", None),
        Error::Join { .. } => ("Join", None),
        Error::Mismatch { peer, .. } => ("Mismatch", Some(*peer)),
        Error::PeerLost { peer, .. } => ("PeerLost", Some(*peer)),
        Error::Timeout { .. } => ("Timeout", None),
        Error::Aborted { .. } => ("Aborted", None),
        Error::Unsupported { .. } => ("Unsupported", None),
        Error::Transport { .. } => ("Transport", None),
        Error::System { .. } => ("System", None),
        _ => ("other", None),
    };
    let at = machine_time().as_nanos() as u64;
    let line = serde_json::json!({ "at": at, "kind": kind, "peer": peer, "text": error.to_string() });
    report(&format!("@error {line}"));
}

/// Runs a rank from start to end.
pub(crate) fn main(arguments: &[String]) {
    let told = Told::new(arguments);
    // Ranks that abort on purpose must not leave core files on the disk.
    acts::limit(rustix::process::Resource::Core, 0);
    if told.number("tied") > 0 {
        tie_to_parent();
    }
    let rank: u32 = std::env::var("KOLO_RANK").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if told.is_actor(rank) {
        acts::before_joining(&told);
    }
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return report_error(&error),
    };
    report("@joined");
    match work(comm, &told) {
        Ok(()) => report("@finished"),
        Err(error) => report_error(&error),
    }
    report("@gone");
}

fn work(comm: Communicator, told: &Told) -> Result<()> {
    match told.word("work") {
        "threads" => two_threads(&comm, told),
        "part" => part(comm, told),
        "split" => split(&comm),
        "messages" => messages(&comm),
        "started" => started(&comm),
        "symmetric" => symmetric(&comm),
        "any" => any_source(&comm),
        _ => calls(comm, told),
    }
}

/// A call of a trial, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    AllReduce(usize),
    Broadcast(usize, u32),
    AllGather(usize),
    ReduceScatter(usize),
    AllToAll(usize),
    Reduce(usize, u32),
    Barrier,
}

impl Call {
    fn draw(draw: &mut Random, ranks: u32, longest: u64) -> Self {
        // Most calls are short, as in real programs.
        let longest = draw.pick(&[16, 1000, longest]).min(longest);
        let (count, root) = (draw.between(1, longest) as usize, draw.below(u64::from(ranks)) as u32);
        match draw.below(10) {
            0..4 => Self::AllReduce(count),
            4 => Self::Broadcast(count, root),
            5 => Self::AllGather(count),
            6 => Self::ReduceScatter(count),
            7 => Self::AllToAll(count),
            8 => Self::Reduce(count, root),
            _ => Self::Barrier,
        }
    }

    /// Makes the call and checks its result.
    pub(crate) fn make(self, comm: &Communicator) -> Result<()> {
        let (rank, ranks) = (comm.rank(), comm.world_size() as usize);
        let own = |count: usize| vec![rank as f32 + 1.0; count];
        let sum = (ranks * (ranks + 1) / 2) as f32;
        let by_rank = |data: &[f32], count: usize| {
            data.chunks(count)
                .enumerate()
                .all(|(at, block)| block.iter().all(|value| *value == at as f32 + 1.0))
        };
        let is_right = match self {
            Self::AllReduce(count) => {
                let mut data = own(count);
                comm.all_reduce(&mut data, ReduceOp::Sum)?;
                data.iter().all(|value| *value == sum)
            }
            Self::Broadcast(count, root) => {
                let mut data = own(count);
                comm.broadcast(&mut data, root)?;
                data.iter().all(|value| *value == root as f32 + 1.0)
            }
            Self::AllGather(count) => {
                let mut data = vec![0.0; count * ranks];
                comm.all_gather(&own(count), &mut data)?;
                by_rank(&data, count)
            }
            Self::ReduceScatter(count) => {
                let mut data = vec![0.0; count];
                comm.reduce_scatter(&own(count * ranks), &mut data, ReduceOp::Sum)?;
                data.iter().all(|value| *value == sum)
            }
            Self::AllToAll(count) => {
                let mut data = vec![0.0; count * ranks];
                comm.all_to_all(&own(count * ranks), &mut data)?;
                by_rank(&data, count)
            }
            Self::Reduce(count, root) => {
                let mut data = vec![0.0; count];
                comm.reduce(&own(count), &mut data, ReduceOp::Sum, root)?;
                rank != root || data.iter().all(|value| *value == sum)
            }
            Self::Barrier => {
                comm.barrier()?;
                true
            }
        };
        if !is_right {
            report(&format!("@wrong {self:?}"));
        }
        Ok(())
    }
}

/// Makes calls until one fails, or as many as requested. Before one of them, this rank may harm itself.
fn calls(comm: Communicator, told: &Told) -> Result<()> {
    let mut draw = Random::new(told.number("seed"));
    let (at, count) = (told.number("at"), told.number("calls"));
    let act = Act::parse(told.word("act"));
    let longest = told.number("longest").max(16);
    let pause = Duration::from_micros(told.number("pause_us"));
    let is_actor = told.is_actor(comm.rank());
    let mut comm = Some(comm);
    for turn in 0.. {
        if turn == 4 {
            report("@running");
        }
        if count > 0 && turn >= count {
            return Ok(());
        }
        let call = Call::draw(&mut draw, comm.as_ref().map_or(1, Communicator::world_size), longest);
        if let (true, Some(act)) = (turn == at && at > 0, act) {
            acts::at_call(act, &mut comm, is_actor, told)?;
        }
        let Some(comm) = &comm else { return wait_for_end() };
        call.make(comm)?;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(())
}

/// Waits without a communicator until the trial is over.
pub(crate) fn wait_for_end() -> Result<()> {
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    Ok(())
}

/// Makes the same blocking calls from two threads on one communicator.
fn two_threads(comm: &Communicator, told: &Told) -> Result<()> {
    let (count, elements) = (told.number("calls"), told.number("longest") as usize);
    report("@running");
    // All threads of all ranks make the same calls, so it does not matter which of a rank's two threads takes part in
    // which sum.
    let one = || -> Result<()> { (0..count).try_for_each(|_| Call::AllReduce(elements).make(comm)) };
    std::thread::scope(|scope| {
        let other = scope.spawn(one);
        let own = one();
        other.join().unwrap_or(Ok(())).and(own)
    })?;
    comm.barrier()
}

/// Lets all ranks but the first use a communicator of their own. The first rank leaves in good order.
fn part(comm: Communicator, told: &Told) -> Result<()> {
    let part = comm.split((comm.rank() > 0).then_some(7), 0)?;
    comm.barrier()?;
    let Some(part) = part else {
        drop(comm);
        return Ok(());
    };
    let elements = told.number("longest").max(1) as usize;
    // The world communicator is kept, as programs do.
    let _world = comm;
    for turn in 0_u64.. {
        if turn == 4 {
            report("@running");
        }
        Call::AllReduce(elements).make(&part)?;
    }
    Ok(())
}

/// Makes communicators and uses them, until something fails.
fn split(comm: &Communicator) -> Result<()> {
    for turn in 0_u64.. {
        if turn == 2 {
            report("@running");
        }
        // Each communicator has all ranks, so that errors number the ranks as the trial does.
        let Some(part) = comm.split(Some(0), 0)? else { continue };
        part.barrier()?;
    }
    Ok(())
}

/// Sends to the right and receives from the left until something fails.
fn messages(comm: &Communicator) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let (sent, mut got) = (vec![1.0_f32; 5000], vec![0.0_f32; 5000]);
    for turn in 0_u64.. {
        comm.send_recv(&sent, (rank + 1) % ranks, &mut got, (rank + ranks - 1) % ranks)?;
        if turn == 4 {
            report("@running");
        }
    }
    Ok(())
}

/// Runs several started operations at a time, until something fails.
fn started(comm: &Communicator) -> Result<()> {
    for turn in 0_u64.. {
        let works: Vec<_> = (0..3)
            .map(|at| comm.all_reduce_start(vec![1.0_f32; 1000 << (2 * at)], ReduceOp::Sum))
            .collect::<Result<_>>()?;
        works.into_iter().try_for_each(|work| work.wait().map(drop))?;
        if turn == 4 {
            report("@running");
        }
    }
    Ok(())
}

/// Runs all-reduces in symmetric memory, until something fails.
fn symmetric(comm: &Communicator) -> Result<()> {
    let mut data = comm.alloc::<f32>(100_000)?;
    for turn in 0_u64.. {
        data.fill(1.0);
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if data.iter().any(|value| *value != comm.world_size() as f32) {
            report("@wrong symmetric");
        }
        if turn == 4 {
            report("@running");
        }
    }
    Ok(())
}

/// Lets rank 0 serve requests from any rank. The others send requests to it.
fn any_source(comm: &Communicator) -> Result<()> {
    let mut data = [0.0_f32; 64];
    for turn in 0_u64.. {
        if comm.rank() == 0 {
            for _ in 1..comm.world_size() {
                let from = comm.recv_any(&mut data)?;
                comm.send(&data, from)?;
            }
        } else {
            comm.send(&[comm.rank() as f32; 64], 0)?;
            comm.recv(&mut data, 0)?;
        }
        if turn == 4 {
            report("@running");
        }
    }
    Ok(())
}

/// Waits, for acts that come late.
pub(crate) fn be_late(millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}
