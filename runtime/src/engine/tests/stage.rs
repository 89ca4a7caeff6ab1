//! Tests of steps on a stage: engines share messages and memory, stepped by one thread.

use std::collections::HashMap;

use kolo_collectives::builder::PlanBuilder;
use kolo_collectives::plan::{Blocks, Plan, Space};
use kolo_collectives::stage::{Members, Payload};
use kolo_transport::shm::{Copier, Stores};
use kolo_transport::{Awaited, Needs, Stage, StageCaps, StageMismatch};

use super::*;

/// Number of rounds for which each member has memory.
const DEPTH: u64 = 2;
const PAYLOAD_MAX: usize = 4096;

pub(super) const CAPS: StageCaps = StageCaps { areas: 16, payload_max: PAYLOAD_MAX };

/// State shared by all members of a test's stage, by area and member.
pub(super) type Areas = HashMap<(u16, usize), Shown>;

/// A member's publications in an area.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Tag and digest of each round, from 1.
    rounds: Vec<(u64, u64)>,
    buffers: [Vec<u8>; DEPTH as usize],
}

impl Shown {
    fn buffer(&mut self, round: u64) -> *mut u8 {
        let buffer = &mut self.buffers[(round % DEPTH) as usize];
        buffer.resize(PAYLOAD_MAX, 0);
        buffer.as_mut_ptr()
    }
}

/// One member's end of the stage.
#[derive(Debug)]
pub(super) struct End {
    members: Vec<u32>,
    member: usize,
    areas: Arc<Mutex<Areas>>,
    copier: Copier,
}

impl End {
    pub(super) fn new(members: Vec<u32>, rank: u32, areas: Arc<Mutex<Areas>>) -> Self {
        let member = members.iter().position(|member| *member == rank).unwrap();
        Self { members, member, areas, copier: Copier::new(Stores::Auto) }
    }

    fn round(&self, area: u16) -> u64 {
        self.round_of(area, self.member)
    }

    fn round_of(&self, area: u16, member: usize) -> u64 {
        let areas = self.areas.lock().unwrap();
        areas.get(&(area, member)).map_or(0, |shown| shown.rounds.len() as u64)
    }

    fn least(&self, area: u16) -> u64 {
        (self.round(area) + 2).saturating_sub(DEPTH)
    }
}

impl Stage for End {
    fn members(&self) -> &[u32] {
        &self.members
    }
    fn member(&self) -> usize {
        self.member
    }
    fn is_free(&mut self, area: u16, _: usize) -> Result<bool, StageMismatch> {
        let least = self.least(area);
        Ok((0..self.members.len()).all(|member| self.round_of(area, member) >= least))
    }
    fn slot(&mut self, area: u16, len: usize) -> *mut u8 {
        assert!(self.is_free(area, len) == Ok(true) && len <= PAYLOAD_MAX);
        let round = self.round(area) + 1;
        self.areas.lock().unwrap().entry((area, self.member)).or_default().buffer(round)
    }
    fn copier(&mut self) -> &mut Copier {
        &mut self.copier
    }
    fn publish(&mut self, area: u16, tag: u64, digest: u64, len: usize) {
        assert_eq!(self.is_free(area, len), Ok(true));
        self.areas.lock().unwrap().entry((area, self.member)).or_default().rounds.push((tag, digest));
    }
    fn has_published(&mut self, area: u16, needs: Needs) -> Result<bool, StageMismatch> {
        let round = self.round(area);
        for member in (0..self.members.len()).filter(|member| needs.include(*member)) {
            if self.round_of(area, member) < round {
                return Ok(false);
            }
            let areas = self.areas.lock().unwrap();
            let of = |member| areas[&(area, member)].rounds[round as usize - 1];
            if of(member) != of(self.member) {
                return Err(StageMismatch { member, tag: of(member).0 });
            }
        }
        Ok(true)
    }
    fn payload(&self, area: u16, member: usize, len: usize) -> *const u8 {
        assert!(len <= PAYLOAD_MAX && self.round_of(area, member) >= self.round(area), "was not awaited");
        let round = self.round(area);
        self.areas.lock().unwrap().entry((area, member)).or_default().buffer(round)
    }
    fn waited_for(&self, area: u16, what: Awaited) -> Vec<usize> {
        let (round, needs) = match what {
            Awaited::Room(_) => (self.least(area), Needs::All),
            Awaited::Payloads(needs) => (self.round(area), needs),
        };
        let is_late = |member: &usize| needs.include(*member) && self.round_of(area, *member) < round;
        (0..self.members.len()).filter(is_late).collect()
    }
}

/// Makes engines of ranks that all share a stage.
fn staged_engines(ranks: u32) -> Vec<Engine> {
    let queues = Arc::new(Mutex::new(Queues::new()));
    let areas = Arc::new(Mutex::new(Areas::new()));
    let engine = |rank| {
        let mut memory = Memory::new(rank, Arc::clone(&queues));
        memory.stage = Some(End::new((0..ranks).collect(), rank, Arc::clone(&areas)));
        memory.caps.stage = Some(CAPS);
        let endpoint: Box<dyn Endpoint> = Box::new(memory);
        let links = Links::new(vec![endpoint], (0..ranks).map(|peer| (peer != rank).then_some(0)));
        Engine::new(rank, links, 64, 1 << 20)
    };
    (0..ranks).map(engine).collect()
}

/// Makes a plan in which every rank shows its vector and reduces all of them.
fn one_shot(task: &Task, rank: u32) -> Plan {
    let own = own(task);
    let mut plan = PlanBuilder::new(task, Algorithm::OneShot, rank, Cut::Vector { parts: 1 });
    plan.lane(0);
    plan.stage((0..task.world_size).collect::<Vec<_>>(), Space::Output);
    plan.publish(|_| Payload::run(0, 1), [Some(Blocks::one(own, 0)), None], (0, 0));
    plan.await_members(Members::All);
    let reads_back = own == Space::Output && rank >= 2;
    plan.fold(
        Members::All,
        (0, 1),
        (!reads_back).then_some(Blocks::one(own, 0)),
        Blocks::one(Space::Output, 0),
    );
    plan.finish()
}

/// Makes a plan in which every rank shows its vector, reduces one part of all vectors, shows the result, and takes the
/// others' results.
fn two_shot(task: &Task, rank: u32) -> Plan {
    let (own, ranks) = (own(task), task.world_size);
    let mut plan = PlanBuilder::new(task, Algorithm::Direct, rank, Cut::Vector { parts: ranks });
    let part = |space, part| Blocks::one(space, part);
    plan.lane(0);
    plan.stage((0..ranks).collect::<Vec<_>>(), Space::Output);
    let reads_back = own == Space::Output && rank >= 2;
    let except = if reads_back { (0, 0) } else { (rank, 1) };
    plan.publish(|_| Payload::run(0, ranks), [Some(Blocks::range(own, 0, ranks)), None], except);
    plan.await_members(Members::All);
    let operand = (!reads_back).then_some(part(own, rank));
    plan.fold(Members::All, (rank, 1), operand, part(Space::Output, rank));
    plan.publish(|m| Payload::run(u32::from(m), 1), [Some(part(Space::Output, rank)), None], (0, 0));
    plan.await_members(Members::All);
    for other in (0..ranks).filter(|other| *other != rank) {
        plan.copy(part(Space::Stage(other as u16), other), part(Space::Output, other));
    }
    plan.finish()
}

fn own(task: &Task) -> Space {
    if task.placement == kolo_collectives::plan::Placement::InPlace { Space::Output } else { Space::Input }
}

type Generator = fn(&Task, u32) -> Plan;

fn staged_job(plan: Plan, count: usize, buffers: Buffers, op: ReduceOp) -> Job {
    let task = Task::new(Collective::AllReduce, plan.world_size);
    let mut job = job(Algorithm::Ring, &task, plan.rank, count, buffers, op);
    job.plan = Arc::new(plan);
    job
}

#[test]
fn staged_plans_sum_like_the_serial_reference() {
    let ranks = if cfg!(miri) { 3..=3 } else { 2..=9 };
    for (generator, ranks) in ranks.flat_map(|ranks| [(one_shot as Generator, ranks), (two_shot, ranks)]) {
        for count in if cfg!(miri) { [90].as_slice() } else { &[0, 1, 7, 40, 173] } {
            for (op, in_place, canonical) in [
                (ReduceOp::Sum, false, false),
                (ReduceOp::Sum, true, false),
                (ReduceOp::Sum, true, true),
                (ReduceOp::PremulSum(3.0), false, false),
                (ReduceOp::PremulSum(3.0), true, false),
                (ReduceOp::Avg, false, true),
            ] {
                sums(generator, ranks, *count, op, (in_place, canonical));
            }
        }
    }
}

fn sums(generator: Generator, ranks: u32, count: usize, op: ReduceOp, (in_place, canonical): (bool, bool)) {
    let mut task = Task::new(Collective::AllReduce, ranks);
    if in_place {
        task = task.in_place();
    }
    let mut engines = staged_engines(ranks);
    let mut inputs: Vec<Vec<u32>> =
        (0..ranks).map(|rank| (0..count).map(|i| contribution(rank, i)).collect()).collect();
    let mut outputs = if in_place { inputs.clone() } else { vec![vec![0; count]; ranks as usize] };
    let ids: Vec<Vec<Id>> = (0..ranks as usize)
        .map(|rank| {
            let buffers = Buffers {
                input: inputs[rank].as_mut_ptr().cast(),
                output: outputs[rank].as_mut_ptr().cast(),
            };
            let mut job = staged_job(generator(&task, rank as u32), count, buffers, op);
            job.arithmetic.canonical = canonical;
            // SAFETY: the vectors outlive the run.
            vec![unsafe { begin(&mut engines[rank], job, Form::Blocking) }]
        })
        .collect();
    run(&mut engines, &ids, u64::from(ranks) << 20 | count as u64);
    let sum = |i| {
        let (factor, by) = match op {
            ReduceOp::PremulSum(_) => (3, 1),
            ReduceOp::Avg => (1, ranks),
            _ => (1, 1),
        };
        let add = |sum: u32, rank| sum.wrapping_add(contribution(rank, i).wrapping_mul(factor));
        (0..ranks).fold(0, add) / by
    };
    for output in &outputs {
        for (i, value) in output.iter().enumerate() {
            assert_eq!(*value, sum(i), "{ranks} ranks, {count} elements, {op:?}, {in_place}, element {i}");
        }
    }
}

/// Otherwise a descriptor that has woken the rank stays readable, and ends every further sleep at once.
#[test]
fn a_rank_that_waits_on_the_stage_polls_its_links_after_each_sleep() {
    let mut memory = Memory::new(0, Arc::default());
    memory.stage = Some(End::new(vec![0, 1], 0, Arc::default()));
    memory.caps.stage = Some(CAPS);
    let polls = Arc::clone(&memory.polls);
    let mut engine = Engine::new(0, Links::new(vec![Box::new(memory)], [None, Some(0)]), 64, 1 << 20);
    let task = Task::new(Collective::AllReduce, 2).in_place();
    let mut vector = [1_u32; 8];
    let at: *mut u8 = vector.as_mut_ptr().cast();
    let job = staged_job(one_shot(&task, 0), vector.len(), Buffers { input: at, output: at }, ReduceOp::Sum);
    // SAFETY: the vector outlives the engine's work on it.
    let id = unsafe { begin(&mut engine, job, Form::Blocking) };
    let polled = |engine: &mut Engine| {
        let before = polls.load(Ordering::Relaxed);
        engine.progress();
        polls.load(Ordering::Relaxed) > before
    };
    assert!(polled(&mut engine), "before the first wait");
    assert!(
        !polled(&mut engine),
        "links without traffic are left alone while others are waited for on the stage"
    );
    for _ in 0..3 {
        engine.arm(|_| {});
        assert!(polled(&mut engine), "before sleep");
        engine.disarm();
        assert!(polled(&mut engine), "after sleep");
    }
    assert!(!engine.is_done(id));
    engine.abort(&Error::new(ErrorKind::Usage, "memory", None, "the test is over"));
}

#[test]
fn staged_operations_of_several_groups_progress_together_and_in_order() {
    let (ranks, count, operations) = if cfg!(miri) { (2, 50, 5) } else { (3, 100, 11) };
    let task = Task::new(Collective::AllReduce, ranks).in_place();
    let mut engines = staged_engines(ranks);
    let mut data = vec![vec![vec![1_u32; count]; operations]; ranks as usize];
    let mut ids = vec![Vec::new(); ranks as usize];
    for (rank, engine) in engines.iter_mut().enumerate() {
        for (number, vector) in data[rank].iter_mut().enumerate() {
            let at: *mut u8 = vector.as_mut_ptr().cast();
            let buffers = Buffers { input: at, output: at };
            // With operations over messages in between.
            let job = match number % 3 {
                0 => staged_job(one_shot(&task, rank as u32), count, buffers, ReduceOp::Sum),
                1 => staged_job(two_shot(&task, rank as u32), count, buffers, ReduceOp::Sum),
                _ => job(Algorithm::Ring, &task, rank as u32, count, buffers, ReduceOp::Sum),
            };
            let form = if number == 0 { Form::Blocking } else { Form::Started };
            // SAFETY: the vectors outlive the run.
            ids[rank].push(unsafe { begin(engine, job, form) });
        }
    }
    run(&mut engines, &ids, 42);
    assert!(data.iter().flatten().flatten().all(|value| *value == ranks));
    assert!(engines.iter().all(|engine| engine.outstanding() == 0 && engine.staged.is_empty()));
}

/// Starts a call on each of these ranks, with its tag.
fn started(engines: &mut [Engine], data: &mut [Vec<u32>], tags: &[(usize, u64)]) -> Vec<Id> {
    let task = Task::new(Collective::AllReduce, engines.len() as u32).in_place();
    let start = |(rank, tag): &(usize, u64)| {
        let at: *mut u8 = data[*rank].as_mut_ptr().cast();
        let buffers = Buffers { input: at, output: at };
        let mut job = staged_job(one_shot(&task, *rank as u32), data[*rank].len(), buffers, ReduceOp::Sum);
        job.tag = *tag;
        // SAFETY: the vectors outlive the engines.
        unsafe { begin(&mut engines[*rank], job, Form::Blocking) }
    };
    tags.iter().map(start).collect()
}

#[test]
fn whoever_has_not_published_is_waited_for_by_name() {
    let (mut engines, mut data) = (staged_engines(4), vec![vec![1; 100]; 4]);
    let ids = started(&mut engines, &mut data, &[(0, 7), (1, 7), (3, 7)]);
    for (rank, id) in [0, 1, 3].into_iter().zip(ids) {
        while engines[rank].progress() {}
        assert_eq!(engines[rank].waiting_for(id), [2], "rank {rank}");
        assert!(!engines[rank].is_done(id) && engines[rank].failure().is_none());
    }
}

#[test]
fn another_call_on_the_stage_is_a_failure_that_names_the_peer() {
    let (mut engines, mut data) = (staged_engines(2), vec![vec![1; 100]; 2]);
    started(&mut engines, &mut data, &[(0, 7), (1, 8)]);
    for rank in [0, 1] {
        while engines[rank].progress() && engines[rank].failure().is_none() {}
        let failure = engines[rank].failure().unwrap();
        assert_eq!(failure.peer, Some(1 - rank as u32));
        assert!(matches!(failure.kind, ErrorKind::Mismatch { .. }), "{failure}");
    }
}

#[test]
fn nothing_touches_the_buffers_after_an_abort() {
    let (mut engines, mut data) = (staged_engines(2), vec![vec![1; 100]; 2]);
    let ids = started(&mut engines, &mut data, &[(0, 7)]);
    engines[0].progress();
    assert!(!engines[0].is_done(ids[0]));
    engines[0].abort(&Error::new(ErrorKind::Aborted, "test", None, "on purpose"));
    started(&mut engines, &mut data, &[(1, 7)]);
    for _ in 0..10 {
        for engine in &mut engines {
            let _ = engine.progress();
        }
    }
    assert!(data[0].iter().all(|value| *value == 1));
}

#[test]
fn plans_that_the_stage_does_not_fit_are_refused() {
    let task = Task::new(Collective::AllReduce, 2).in_place();
    let refusal = |engine: &mut Engine, count: usize| {
        let mut vector = vec![1_u32; count];
        let at: *mut u8 = vector.as_mut_ptr().cast();
        let buffers = Buffers { input: at, output: at };
        let mut job = staged_job(one_shot(&task, 0), count, buffers, ReduceOp::Sum);
        job.segment_elements = count;
        // SAFETY: the job is refused.
        unsafe { begin(engine, job, Form::Blocking) };
        engine.failure().expect("refused").to_string()
    };
    let of_three = refusal(&mut staged_engines(3)[0], 10);
    assert!(of_three.contains("for ranks [0, 1], but memory is shared by ranks [0, 1, 2]"), "{of_three}");
    let too_long = refusal(&mut staged_engines(2)[0], 2000);
    assert!(too_long.contains("payloads of 8000 bytes; at most 4096"), "{too_long}");
    let none = refusal(&mut engines(2)[0], 10);
    assert!(none.contains("there is none"), "{none}");
}
