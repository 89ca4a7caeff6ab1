//! Runs one rank of a program.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kolo::internal::Unpoisoned;
use kolo::internal::verify::Problem;
use kolo::{Collective, Communicator, DataType, RawCall, ReduceOp, SymmetricBuffer, Work};

use super::data::{Call, Prepared, length};
use super::traffic::Traffic;
use super::typed::typed;
use super::{Program, Recipe, Setup, vary};
use crate::futures;
use crate::random::Random;

/// Waits for a started operation, and checks its result.
pub(super) type Finish = Box<dyn FnOnce(&mut Random) -> Result<(), String> + Send>;

/// An operation to be waited for after a step.
struct Pending {
    step: usize,
    due: usize,
    finish: Finish,
}

/// A communicator of a program, with symmetric buffers that are in no call.
struct Member {
    comm: Communicator,
    pool: Pool,
}

type Pool = Arc<Mutex<Vec<SymmetricBuffer<u8>>>>;

struct Rank<'a> {
    program: &'a Program,
    setup: &'a Setup,
    rank: u32,
    members: Vec<Option<Member>>,
}

/// Steps after which communicators change hands among the threads.
const PHASE: usize = 8;

/// Runs one rank of a program.
///
/// # Errors
/// A text that says what is wrong.
pub fn run_rank(program: &Program, comm: Communicator) -> Result<(), String> {
    let setup = &Setup::of(program);
    let mut rank = Rank { program, setup, rank: comm.rank(), members: vec![Some(Member::new(comm))] };
    for recipe in &setup.recipes {
        let made = match &rank.members[recipe.parent] {
            Some(parent) => make(*recipe, &parent.comm).map_err(|error| format!("{recipe:?}: {error}"))?,
            None => None,
        };
        rank.members.push(made.map(Member::new));
    }
    let mut own = Random::new(program.seed ^ u64::from(rank.rank + 1) << 40);
    let mut pending: Vec<Vec<Pending>> = (0..setup.threads).map(|_| Vec::new()).collect();
    for (phase, steps) in setup.steps.chunks(PHASE).enumerate() {
        let results: Vec<Result<Vec<Pending>, String>> = std::thread::scope(|scope| {
            let start = |(thread, pending)| {
                let rank = &rank;
                scope.spawn(move || rank.phase(phase, steps, thread, pending))
            };
            let threads: Vec<_> = pending.drain(..).enumerate().map(start).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".to_owned())))
                .collect()
        });
        pending = (0..setup.threads).map(|_| Vec::new()).collect();
        let mut failed = None;
        for result in results {
            match result {
                Ok(more) => more.into_iter().for_each(|more| pending[own.index(setup.threads)].push(more)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            std::mem::forget(pending);
            return Err(error);
        }
    }
    let rest = pending.into_iter().flatten().collect();
    rank.finish(usize::MAX, rest, &mut own).map(drop)
}

impl Member {
    fn new(comm: Communicator) -> Self {
        Self { comm, pool: Pool::default() }
    }
}

impl Rank<'_> {
    /// Runs one thread's steps of a phase; returns the operations that are not due yet.
    fn phase(
        &self,
        phase: usize,
        steps: &[usize],
        thread: usize,
        mut pending: Vec<Pending>,
    ) -> Result<Vec<Pending>, String> {
        for step in steps {
            let mut common = Random::new(self.program.seed.wrapping_mul(31) ^ (*step as u64) << 20);
            let at = common.index(self.members.len());
            let kind = common.index(19);
            let is_traffic = (10..=12).contains(&kind);
            let chosen =
                if is_traffic { common.index(self.setup.threads) } else { (at + phase) % self.setup.threads };
            let Some(member) = self.members[at].as_ref().filter(|_| chosen == thread) else { continue };
            let mut own = Random::new(common.clone().number() ^ u64::from(self.rank + 1) << 32);
            delay(&mut own);
            let started = match self.step(*step, kind, member, common, &mut own) {
                Ok(started) => started,
                Err(error) => {
                    let ranks = member.comm.world_size();
                    let error = format!("step {step}, kind {kind}, communicator {at} of {ranks}: {error}");
                    self.abort(&error);
                    // Operations may still use their memory.
                    std::mem::forget(pending);
                    return Err(error);
                }
            };
            for finish in started {
                pending.push(Pending { step: *step, due: step + own.index(10), finish });
            }
            pending = self.finish(*step, pending, &mut own)?;
        }
        Ok(pending)
    }

    /// Waits in any order for the operations that are due; returns the others.
    fn finish(&self, step: usize, pending: Vec<Pending>, own: &mut Random) -> Result<Vec<Pending>, String> {
        let (mut due, rest): (Vec<_>, Vec<_>) = pending.into_iter().partition(|pending| pending.due <= step);
        while !due.is_empty() {
            let next = due.swap_remove(own.index(due.len()));
            if let Err(error) = (next.finish)(own) {
                let error = format!("step {}, waited for after step {step}: {error}", next.step);
                self.abort(&error);
                std::mem::forget((due, rest));
                return Err(error);
            }
        }
        Ok(rest)
    }

    /// Ends the program on all ranks.
    fn abort(&self, error: &str) {
        self.members.iter().flatten().for_each(|member| member.comm.abort(error));
    }

    fn step(
        &self,
        step: usize,
        kind: usize,
        member: &Member,
        mut common: Random,
        own: &mut Random,
    ) -> Result<Vec<Finish>, String> {
        let Member { comm, pool } = member;
        let (ranks, halved) = (comm.world_size() as usize, self.program.halved);
        match kind {
            9 => burst(comm, pool, &mut common, own, halved),
            10..=12 => {
                let tags = (step as u32 + 1) * 8;
                let buffers_few = comm.config().unexpected_bytes < 1 << 20;
                Arc::new(Traffic::draw(&mut common, (ranks, buffers_few), halved, tags)).run(comm, own)
            }
            13 => shards(comm, &mut common, own, halved).map(|()| Vec::new()),
            14 => {
                let recipe = Recipe { parent: 0, seed: common.number() };
                let Some(child) = make(recipe, comm).map_err(text)? else { return Ok(Vec::new()) };
                for _ in 0..1 + common.index(3) {
                    let call = Call::draw(&mut common, child.world_size() as usize, halved);
                    let is_started = common.index(2) == 0;
                    for finish in run(&child, &Pool::default(), call, is_started, own)? {
                        finish(own)?;
                    }
                }
                delay(own);
                Ok(Vec::new())
            }
            15 => {
                let bytes = common.pick(&[70_000, 300_000, 2 << 20]) >> halved;
                for _ in 0..2 {
                    let buffer = comm.alloc_raw(bytes).map_err(text)?;
                    let mut pool = pool.lock().unpoisoned();
                    pool.push(buffer);
                    if pool.len() > 4 {
                        drop(pool.remove(0));
                    }
                }
                Ok(Vec::new())
            }
            16 => typed(comm, &mut common, own, (halved, (step as u32 + 1) * 8)),
            _ => {
                let call = Call::draw(&mut common, ranks, halved);
                let is_started = common.index(2) == 0;
                run(comm, pool, call, is_started, own)
            }
        }
    }
}

/// Makes a communicator from another one, if this rank is in it.
fn make(recipe: Recipe, parent: &Communicator) -> kolo::Result<Option<Communicator>> {
    let mut random = Random::new(recipe.seed);
    let (rank, ranks) = (parent.rank(), parent.world_size());
    match random.index(3) {
        0 => parent.duplicate(vary(parent.config().clone(), &mut random)).map(Some),
        1 => {
            let colors: Vec<Option<u32>> =
                (0..ranks).map(|_| [Some(0), Some(0), Some(1), None][random.index(4)]).collect();
            let sign = if random.index(2) == 0 { 1 } else { -1 };
            parent.split(colors[rank as usize], sign * i64::from(rank))
        }
        _ => {
            let mut list: Vec<u32> = (0..ranks).collect();
            (1..list.len()).for_each(|at| list.swap(at, random.index(at + 1)));
            list.truncate(1 + random.index(list.len()));
            if list.contains(&rank) { parent.group(&list).map(Some) } else { Ok(None) }
        }
    }
}

/// Runs or starts a call.
fn run(
    comm: &Communicator,
    pool: &Pool,
    call: Call,
    is_started: bool,
    own: &mut Random,
) -> Result<Vec<Finish>, String> {
    let mut prepared = {
        let mut pool = pool.lock().unpoisoned();
        let (none, uses_pool) = (&mut Vec::new(), own.index(8) > 0);
        call.prepare(comm.rank() as usize, own, if uses_pool { &mut pool } else { none })
    };
    let counts = prepared.counts();
    let back = {
        let pool = Arc::clone(pool);
        move |prepared: Prepared| prepared.check().map(|buffers| pool.lock().unpoisoned().extend(buffers))
    };
    if !is_started {
        // SAFETY: the memory is this rank's own, and as long as the call says.
        let result = unsafe {
            if call.is_even() {
                comm.call_raw(&prepared.raw())
            } else {
                comm.call_raw_v(&prepared.raw_v(&counts))
            }
        };
        result.map_err(|error| format!("{call:?}: {error}"))?;
        return back(prepared).map(|()| Vec::new());
    }
    if call.is_even() && own.index(5) == 0 {
        // SAFETY: as above.
        unsafe { comm.start_raw_and_wait(&prepared.raw(), LONG) }
            .map_err(|error| format!("{call:?}: {error}"))?;
        return back(prepared).map(|()| Vec::new());
    }
    let describe = move |error: kolo::Error| format!("{call:?}: {error}");
    let work = if prepared.call.is_even() {
        let raw = prepared.raw();
        // SAFETY: as above; the operation keeps the memory, which does not move.
        unsafe { comm.start_raw_keeping(&raw, prepared) }
    } else {
        let raw = prepared.raw_v(&counts);
        // SAFETY: as above.
        unsafe { comm.start_raw_v_keeping(&raw, prepared) }
    };
    let work = work.map_err(&describe)?;
    Ok(vec![Box::new(move |own: &mut Random| match wait(work, own).map_err(describe)? {
        Some(prepared) => back(prepared),
        None => Ok(()),
    })])
}

const LONG: Duration = Duration::from_secs(40);

/// Makes many short calls, more than there are buffers for.
fn burst(
    comm: &Communicator,
    pool: &Pool,
    common: &mut Random,
    own: &mut Random,
    halved: u32,
) -> Result<Vec<Finish>, String> {
    let calls: Vec<Call> = (0..1 + common.index(3))
        .map(|_| Call::draw(common, comm.world_size() as usize, halved + common.clone().index(12) as u32))
        .collect();
    let (number, is_started) = (common.index(120), common.index(3));
    let mut all = Vec::new();
    for number in 0..number {
        let is_started = is_started == 0 || (is_started == 1 && common.index(2) == 0);
        all.extend(run(comm, pool, calls[number % calls.len()].again(number as u64), is_started, own)?);
        if all.len() > 40 {
            all.swap_remove(own.index(40))(own)?;
        }
    }
    Ok(all)
}

/// Reduces shards.
fn shards(comm: &Communicator, common: &mut Random, own: &mut Random, halved: u32) -> Result<(), String> {
    let shards = 1 + common.index(20) as u32;
    let data_type = common.pick(&DataType::ALL);
    let op =
        common.pick(&[ReduceOp::Sum, ReduceOp::Min, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::LogicalXor]);
    let op = if op.supports(data_type) { op } else { ReduceOp::Max };
    let count = length(common, data_type.size(), halved + 1);
    let problem = Problem::new(data_type, op, shards, common.number()).map_err(|error| error.to_string())?;
    let (block, shift) = (count * data_type.size(), own.index(3));
    let run = comm.own_shards(shards);
    let mut input = vec![0; shift + run.len() * block];
    for (at, shard) in run.enumerate() {
        problem.fill(shard, 0, &mut input[shift + at * block..][..block]);
    }
    let mut output = vec![0xA5; block];
    let (from, to) = (input[shift..].as_ptr(), output.as_mut_ptr());
    let collective = Collective::AllReduce;
    let call = RawCall { collective, input: from, output: to, count, data_type, op, root: 0 };
    // SAFETY: the memory is this rank's own, and as long as the call says.
    unsafe { comm.call_raw_shards(&call, shards, None) }.map_err(text)?;
    match problem.count_wrong(shards, 0, &output) {
        0 => Ok(()),
        wrong => Err(format!("{wrong} of {count} wrong, {shards} shards, {data_type}, {op:?}")),
    }
}

/// Waits for an operation in one of many ways; returns nothing if the handle was dropped.
pub(super) fn wait<B: 'static>(mut work: Work<B>, own: &mut Random) -> kolo::Result<Option<B>> {
    let poll = |work: &mut Work<B>| {
        let waker = Waker::from(futures::unpark());
        Pin::new(work).poll(&mut Context::from_waker(&waker))
    };
    match own.index(24) {
        0 => return Ok(None),
        1..=4 => {
            while !work.is_done() {
                std::thread::yield_now();
            }
        }
        5..=8 => return futures::run(work).0.map(Some),
        9..=11 => {
            if let Poll::Ready(result) = poll(&mut work) {
                return result.map(Some);
            }
        }
        12 => {
            let result = poll(&mut work);
            return if let Poll::Ready(result) = result { result.map(Some) } else { Ok(None) };
        }
        _ => {}
    }
    work.wait().map(Some)
}

/// Comes late: mostly not, sometimes by a moment, rarely by so much that others sleep.
pub(super) fn delay(own: &mut Random) {
    let micros = own.pick(&[0, 0, 0, 0, 0, 0, 20, 100, 800, 5000]);
    let micros = if own.index(300) == 0 { 400_000 } else { micros };
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

fn text(error: kolo::Error) -> String {
    error.to_string()
}
