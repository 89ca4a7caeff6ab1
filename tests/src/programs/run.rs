//! Runs one rank of a program.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kolo::Communicator;

use super::Program;
use super::calls::{Finish, Memory, awaited, burst, delay, run, shards};
use super::data::Call;
use super::failure::{Failure, Members, Result};
use super::loss::{Loss, Manner, REASON};
use super::settings::{Recipe, Setup, vary};
use super::sharing::share;
use super::traffic::{Limits, Traffic};
use super::typed::typed;
use super::windows::windows;
use crate::random::Random;

/// An operation to be waited for after a step.
struct Pending {
    step: usize,
    due: usize,
    members: Members,
    finish: Finish,
}

/// A communicator of a program.
struct Member {
    comm: Communicator,
    members: Members,
    memory: Memory,
}

struct Rank<'a> {
    program: &'a Program,
    setup: &'a Setup,
    rank: u32,
    members: Vec<Option<Member>>,
    loss: Option<Loss>,
    /// Whether this rank is the one that is lost, and the moment has come.
    is_lost: AtomicBool,
}

/// Steps after which communicators change hands among the threads.
const PHASE: usize = 8;

/// Runs one rank of a program.
///
/// # Errors
/// A text that says what is wrong.
pub fn run_rank(program: &Program, comm: Communicator) -> Result<(), String> {
    let (mut program, mut comm) = (program.clone(), comm);
    loop {
        match play(&program, comm) {
            Ok(Some(next)) => {
                program = program.next(next.world_size());
                comm = next;
            }
            Ok(None) | Err(Failure::Left) => return Ok(()),
            Err(failure) => return Err(format!("{program}: {failure}")),
        }
    }
}

/// Runs a program until its end or the loss of a rank. Returns the communicator of the ranks that are left, if one was
/// lost.
fn play(program: &Program, comm: Communicator) -> Result<Option<Communicator>> {
    let setup = &Setup::of(program);
    let world: Members = (0..comm.world_size()).collect();
    let mut rank = Rank {
        program,
        setup,
        rank: comm.rank(),
        loss: Loss::of(program, comm.world_size(), setup.threads, setup.steps.len()),
        members: vec![Some(Member { comm, members: Arc::clone(&world), memory: Memory::default() })],
        is_lost: AtomicBool::new(false),
    };
    for recipe in &setup.recipes {
        let made = match &rank.members[recipe.parent] {
            Some(parent) => make(*recipe, parent)
                .map_err(|failure| failure.among(&parent.members).during(&format!("{recipe:?}")))?,
            None => None,
        };
        rank.members.push(made);
    }
    if rank.loss.is_some() {
        // A loss must not keep a communicator from some of its ranks only: the others would wait for them there.
        let met = rank.members.iter().flatten().next().map_or(Ok(()), |world| world.comm.barrier());
        met.or_else(|error| rank.judge(Failure::from(error).among(&world)))?;
    }
    match rank.phases() {
        Ok(()) => rank.go_on(),
        Err(Failure::Panicked) if rank.is_lost.load(Ordering::SeqCst) => {
            let unwind = std::thread::scope(|scope| {
                scope
                    .spawn(move || {
                        let _dropped_by_the_panic = rank;
                        resume_unwind(Box::new(()));
                    })
                    .join()
            });
            unwind.map_or(Err(Failure::Left), |()| Ok(None))
        }
        Err(failure) => Err(failure),
    }
}

impl Rank<'_> {
    fn phases(&self) -> Result {
        let setup = self.setup;
        let mut own = Random::new(self.program.seed ^ u64::from(self.rank + 1) << 40);
        let mut pending: Vec<Vec<Pending>> = (0..setup.threads).map(|_| Vec::new()).collect();
        for (phase, steps) in setup.steps.chunks(PHASE).enumerate() {
            let results: Vec<Result<Vec<Pending>>> = std::thread::scope(|scope| {
                let start =
                    |(thread, pending)| scope.spawn(move || self.phase(phase, steps, thread, pending));
                let threads: Vec<_> = pending.drain(..).enumerate().map(start).collect();
                let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
                joined.map(|ended| ended.unwrap_or(Err(Failure::Panicked))).collect()
            });
            pending = (0..setup.threads).map(|_| Vec::new()).collect();
            let mut failed = None;
            for result in results {
                match result {
                    Ok(more) => {
                        more.into_iter().for_each(|more| pending[own.index(setup.threads)].push(more))
                    }
                    Err(failure) => failed = failed.or(Some(failure)),
                }
            }
            if let Some(failure) = failed {
                return Err(failure);
            }
        }
        (0..setup.threads).try_for_each(|thread| self.lose(thread, usize::MAX))?;
        self.finish(usize::MAX, pending.into_iter().flatten().collect(), &mut own).map(drop)
    }

    /// Runs one thread's steps of a phase; returns the operations that are not due yet.
    fn phase(
        &self,
        phase: usize,
        steps: &[usize],
        thread: usize,
        mut pending: Vec<Pending>,
    ) -> Result<Vec<Pending>> {
        for step in steps {
            self.lose(thread, *step)?;
            let mut common = Random::new(self.program.seed.wrapping_mul(31) ^ (*step as u64) << 20);
            let at = common.index(self.members.len());
            let kind = common.index(24);
            let is_traffic = (10..=12).contains(&kind);
            let chosen =
                if is_traffic { common.index(self.setup.threads) } else { (at + phase) % self.setup.threads };
            let Some(member) = self.members[at].as_ref().filter(|_| chosen == thread) else { continue };
            let mut own = Random::new(common.clone().number() ^ u64::from(self.rank + 1) << 32);
            delay(&mut own);
            let started = self.step(*step, kind, member, common, &mut own).or_else(|failure| {
                let ranks = member.comm.world_size();
                let what = format!("step {step}, kind {kind}, communicator {at} of {ranks}");
                self.judge(failure.among(&member.members).during(&what)).map(|()| Vec::new())
            })?;
            for finish in started {
                let (due, members) = (step + own.index(10), Arc::clone(&member.members));
                pending.push(Pending { step: *step, due, members, finish });
            }
            pending = self.finish(*step, pending, &mut own)?;
        }
        Ok(pending)
    }

    /// Waits in any order for the operations that are due; returns the others.
    fn finish(&self, step: usize, pending: Vec<Pending>, own: &mut Random) -> Result<Vec<Pending>> {
        let (mut due, rest): (Vec<_>, Vec<_>) = pending.into_iter().partition(|pending| pending.due <= step);
        while !due.is_empty() {
            let next = due.swap_remove(own.index(due.len()));
            (next.finish)(own).or_else(|failure| {
                let what = format!("step {}, waited for after step {step}", next.step);
                self.judge(failure.among(&next.members).during(&what))
            })?;
        }
        Ok(rest)
    }

    /// Lets this rank be lost, if the moment has come.
    fn lose(&self, thread: usize, step: usize) -> Result {
        let Some(loss) = self.loss.filter(|loss| loss.is_due(self.rank, thread, step)) else {
            return Ok(());
        };
        if self.is_lost.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        match loss.manner {
            Manner::Leaves => return Err(Failure::Left),
            Manner::Panics => return Err(Failure::Panicked),
            Manner::Aborts => self.abort(REASON),
            Manner::IsKilled(after) => {
                println!("@killed");
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    let _ = rustix::process::kill_process(
                        rustix::process::getpid(),
                        rustix::process::Signal::KILL,
                    );
                });
            }
        }
        Ok(())
    }

    /// Ignores a failure that the loss of a rank explains. Another one ends the program on all ranks.
    fn judge(&self, failure: Failure) -> Result {
        if self.loss.is_some_and(|loss| loss.explains(&failure)) {
            return Ok(());
        }
        self.abort(&failure.to_string());
        Err(failure)
    }

    fn abort(&self, error: &str) {
        self.members.iter().flatten().for_each(|member| member.comm.abort(error));
    }

    /// Makes a communicator of the ranks that are left, if one was lost, and checks that the old ones have ended.
    fn go_on(self) -> Result<Option<Communicator>> {
        let Some(loss) = self.loss else { return Ok(None) };
        if loss.is_final() && loss.rank == self.rank {
            // The process is about to be killed.
            loop {
                std::thread::park();
            }
        }
        let world = self.members.iter().flatten().next().expect("the communicator of all ranks");
        let mut own = Random::new(self.program.seed ^ u64::from(self.rank + 1) << 24);
        delay(&mut own);
        let next = world.comm.shrink().map_err(|error| {
            Failure::from(error).among(&world.members).during(&format!("shrink after {loss:?}"))
        })?;
        let is_left = |rank: &u32| !loss.is_final() || *rank != loss.rank;
        let left: Vec<Option<u32>> = world.members.iter().copied().filter(is_left).map(Some).collect();
        if next.ranks_before() != left {
            return Err(format!("{:?} are left after {loss:?}", next.ranks_before()).into());
        }
        for member in self.members.iter().flatten().filter(|member| loss.ends(&member.members)) {
            match member.comm.barrier() {
                Ok(()) => return Err(format!("{:?} go on after {loss:?}", member.members).into()),
                Err(error) => self.judge(Failure::from(error).among(&member.members))?,
            }
        }
        self.members.iter().flatten().try_for_each(|member| member.memory.check_remains())?;
        Ok(Some(next))
    }

    fn step(
        &self,
        step: usize,
        kind: usize,
        member: &Member,
        mut common: Random,
        own: &mut Random,
    ) -> Result<Vec<Finish>> {
        let Member { comm, memory, .. } = member;
        let (ranks, halved) = (comm.world_size() as usize, self.program.halved);
        let tag = (step as u32 + 1) * 8;
        let none = |()| Vec::new();
        match kind {
            9 => burst(comm, memory, &mut common, own, halved),
            10..=12 => {
                let buffers_few = comm.config().unexpected_bytes < 1 << 20;
                // After an orderly departure, receives from any source go on as long as some ranks are there.
                let has_any = !self.loss.is_some_and(|loss| loss.manner == Manner::Leaves);
                let limits = Limits { buffers_few, has_any: has_any && !buffers_few };
                Arc::new(Traffic::draw(&mut common, ranks, limits, halved, tag)).run(comm, own)
            }
            13 => shards(comm, &mut common, own, halved).map(none),
            14 => {
                let recipe = Recipe { parent: 0, seed: common.number() };
                let Some(child) = make(recipe, member)? else { return Ok(Vec::new()) };
                child.run_some(&mut common, own, halved).map_err(|failure| failure.among(&child.members))?;
                delay(own);
                Ok(Vec::new())
            }
            15 => {
                let bytes = common.pick(&[70_000, 300_000, 2 << 20]) >> halved;
                memory.put([comm.alloc_raw(bytes)?, comm.alloc_raw(bytes)?]);
                memory.keep(5, own);
                Ok(Vec::new())
            }
            16 => typed(comm, &mut common, own, (halved, tag)),
            17 => share(comm, memory, (&mut common, own), (halved, tag)).map(none),
            18 => windows(comm, memory, (&mut common, own), halved).map(none),
            19 => awaited(comm, &mut common, own, halved).map(none),
            _ => {
                let call = Call::draw(&mut common, ranks, halved);
                let is_started = common.index(2) == 0;
                run(comm, memory, call, is_started, own)
            }
        }
    }
}

impl Member {
    /// Makes some calls, and waits for them.
    fn run_some(&self, common: &mut Random, own: &mut Random, halved: u32) -> Result {
        for _ in 0..1 + common.index(3) {
            let call = Call::draw(common, self.comm.world_size() as usize, halved);
            let is_started = common.index(2) == 0;
            for finish in run(&self.comm, &self.memory, call, is_started, own)? {
                finish(own)?;
            }
        }
        Ok(())
    }
}

/// Makes a communicator from another one, if this rank is in it. Half of them share the other's symmetric buffers.
fn make(recipe: Recipe, parent: &Member) -> Result<Option<Member>> {
    let mut random = Random::new(recipe.seed);
    let (comm, rank) = (&parent.comm, parent.comm.rank());
    let mut list: Vec<u32> = (0..comm.world_size()).collect();
    let made = match random.index(3) {
        0 => Some(comm.duplicate(vary(comm.config().clone(), &mut random))?),
        1 => {
            let colors: Vec<Option<u32>> =
                list.iter().map(|_| [Some(0), Some(0), Some(1), None][random.index(4)]).collect();
            let sign = if random.index(2) == 0 { 1 } else { -1 };
            let color = colors[rank as usize];
            list.retain(|other| colors[*other as usize] == color);
            list.sort_by_key(|other| sign * i64::from(*other));
            comm.split(color, sign * i64::from(rank))?
        }
        _ => {
            (1..list.len()).for_each(|at| list.swap(at, random.index(at + 1)));
            list.truncate(1 + random.index(list.len()));
            if list.contains(&rank) { Some(comm.group(&list)?) } else { None }
        }
    };
    let members: Members = list.iter().map(|rank| parent.members[*rank as usize]).collect();
    let memory = if random.index(2) == 0 { parent.memory.clone() } else { Memory::default() };
    Ok(made.map(|comm| Member { comm, members, memory }))
}
