//! Tests of the engine over an in-memory transport, stepped by one thread in seeded random order: plans are compared
//! with a serial reference, without sockets or timing.

mod probing;
mod stage;

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use kolo_collectives::generator::Algorithm;
use kolo_collectives::layout::Shape;
use kolo_collectives::plan::{Collective, Cut};
use kolo_collectives::task::Task;
use kolo_transport::{
    Armed, Caps, Channel, Endpoint, Error, ErrorKind, Event, GRAIN_BYTES, OnMisfit, ParkBy, Piece, Posted,
    Reach, Sink, Stage, Token,
};

use super::{Buffers, Engine, GROUPS, Id, Job, Kind, Links, TransferJob};
use crate::call::Form;
use crate::reduce::{Arithmetic, combine_fn};
use crate::types::{DataType, ReduceOp};

type Queues = HashMap<(u32, u32, u16), VecDeque<(u64, Vec<u8>)>>;

/// An endpoint that delivers messages through a shared map. It completes nothing when it is posted, and one thing per
/// poll.
#[derive(Debug)]
struct Memory {
    rank: u32,
    caps: Caps,
    queues: Arc<Mutex<Queues>>,
    receives: VecDeque<(Channel, u64, Destination, Token)>,
    sent: VecDeque<Token>,
    stage: Option<stage::End>,
    polls: Arc<AtomicU32>,
}

#[test]
fn a_transport_that_cannot_look_ahead_is_named() {
    let endpoint: Box<dyn Endpoint> = Box::new(Memory::new(0, Arc::default()));
    let engine = Engine::new(0, Links::new(vec![endpoint], [None, Some(0)]), 64, 0);
    assert_eq!(engine.links().without_probing(), Some("memory"));
    let engine = Engine::new(0, Links::new(Vec::new(), [None]), 64, 0);
    assert_eq!(engine.links().without_probing(), None, "a rank alone has only itself to receive from");
}

#[test]
fn a_rank_that_waits_for_its_host_only_sleeps_on_a_word() {
    let mut near = Memory::new(0, Arc::default());
    near.caps.park_word = true;
    let far = Memory::new(0, Arc::default());
    let mut links = Links::new(vec![Box::new(far), Box::new(near)], [None, Some(1), Some(0)]);
    let armed = |links: &mut Links| {
        let (mut words, mut fds) = (0, 0);
        let by = links.arm(|armed| match armed {
            Armed::Idle => {}
            Armed::Word(..) => words += 1,
            Armed::Fd(_) => fds += 1,
        });
        links.disarm();
        (by, words, fds)
    };
    for (peer, expected) in [(1, (ParkBy::Word, 1, 0)), (2, (ParkBy::Fd, 0, 2))] {
        let on = Channel { peer, index: 0 };
        // SAFETY: an empty list, and no message comes.
        let posted = unsafe {
            links.endpoint(peer).unwrap().post_recv(on, 7, Sink::Place(&[]), OnMisfit::Fail, Token(1))
        };
        assert_eq!(posted.unwrap(), Posted::Pending);
        assert_eq!(armed(&mut links), expected, "something is awaited from rank {peer}");
    }
}

#[derive(Debug)]
enum Destination {
    /// The posted list, kept by pointer as in the real transports, so that Miri sees whether it stays valid.
    Pieces(*const Piece, usize),
    Consumer(usize, kolo_transport::Consumer),
}

// SAFETY: the test has one thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(rank: u32, queues: Arc<Mutex<Queues>>) -> Self {
        let caps = Caps {
            name: "memory",
            channels_max: 64,
            message_max: usize::MAX,
            eager_max: usize::MAX,
            staging_per_channel: 0,
            park_word: false,
            park_fd: false,
            can_probe: false,
            can_cancel_recvs: false,
            can_pack: false,
            stage: None,
        };
        Self {
            rank,
            caps,
            queues,
            receives: VecDeque::new(),
            sent: VecDeque::new(),
            stage: None,
            polls: Arc::default(),
        }
    }

    fn deliver(&mut self, index: usize) -> Option<Event> {
        let (on, tag, ..) = self.receives[index];
        // Channels are FIFO: an earlier receive of the same channel goes first.
        if self.receives.iter().take(index).any(|earlier| earlier.0 == on) {
            return None;
        }
        let mut queues = self.queues.lock().unwrap();
        let (arrived, data) = queues.get_mut(&(on.peer, self.rank, on.index))?.pop_front()?;
        let (_, _, destination, token) = self.receives.remove(index).unwrap();
        let expected = match &destination {
            Destination::Pieces(first, count) => {
                // SAFETY: the engine keeps the pieces valid until the token completes.
                let pieces = unsafe { std::slice::from_raw_parts(*first, *count) };
                pieces.iter().map(|p| p.len).sum()
            }
            Destination::Consumer(len, _) => *len,
        };
        if arrived != tag || data.len() != expected {
            let kind = ErrorKind::Mismatch {
                expected_tag: tag,
                tag: arrived,
                expected_len: expected as u64,
                len: data.len() as u64,
            };
            return Some(Event::Failed(token, Error::new(kind, "memory", Some(on.peer), "mismatch")));
        }
        match destination {
            Destination::Pieces(first, count) => {
                let mut at = 0;
                // SAFETY: as above.
                for piece in unsafe { std::slice::from_raw_parts(first, count) } {
                    // SAFETY: as above.
                    unsafe { piece.ptr.copy_from(data[at..].as_ptr(), piece.len) };
                    at += piece.len;
                }
            }
            Destination::Consumer(_, consumer) => {
                for (i, chunk) in data.chunks(3 * GRAIN_BYTES).enumerate() {
                    // SAFETY: as above, for the context.
                    unsafe {
                        (consumer.call)(consumer.context, i * 3 * GRAIN_BYTES, chunk.as_ptr(), chunk.len());
                    }
                }
            }
        }
        Some(Event::Done(token))
    }
}

impl Endpoint for Memory {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn address(&self) -> &[u8] {
        &[]
    }
    fn introduce(&mut self, _: u32, _: &[u8]) -> Result<Reach, Error> {
        Ok(Reach::Yes { how: String::new() })
    }
    fn establish(&mut self, _: &dyn Fn() -> bool, _: std::time::Instant) -> Result<(), Error> {
        Ok(())
    }
    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let mut data = Vec::new();
        for piece in src {
            // SAFETY: the piece is valid by the contract.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) });
        }
        let mut queues = self.queues.lock().unwrap();
        queues.entry((self.rank, on.peer, on.index)).or_default().push_back((tag, data));
        self.sent.push_back(token);
        Ok(Posted::Pending)
    }
    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        _: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        let destination = match dst {
            Sink::Place(pieces) => Destination::Pieces(pieces.as_ptr(), pieces.len()),
            Sink::Consume { len, consumer } => Destination::Consumer(len, consumer),
        };
        self.receives.push_back((on, tag, destination, token));
        Ok(Posted::Pending)
    }
    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let delivered = (0..self.receives.len()).rev().find_map(|index| self.deliver(index));
        let event = delivered.or_else(|| self.sent.pop_front().map(Event::Done));
        let moved = event.is_some();
        events.extend(event);
        moved
    }
    fn probe(&mut self, _: Channel) -> Result<(), Error> {
        Ok(())
    }
    fn stage(&self) -> Option<&dyn Stage> {
        self.stage.as_ref().map(|stage| stage as &dyn Stage)
    }
    fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        self.stage.as_mut().map(|stage| stage as &mut dyn Stage)
    }
    fn arm(&mut self, by: ParkBy) -> Armed<'_> {
        match by {
            _ if self.receives.is_empty() => Armed::Idle,
            ParkBy::Word => Armed::Word(&self.polls, 0),
            // SAFETY: the standard input, which stays open; nobody sleeps on it.
            ParkBy::Fd => Armed::Fd(unsafe { BorrowedFd::borrow_raw(0) }),
        }
    }
    fn disarm(&mut self) {}
    fn abandon(&mut self, _: u32, _: &Error, _: &mut Vec<Event>) {}
    fn abort(&mut self, _: &Error, _: &mut Vec<Event>) {
        self.receives.clear();
    }
    fn is_flushed(&self) -> bool {
        true
    }
}

fn engines(ranks: u32) -> Vec<Engine> {
    let queues = Arc::new(Mutex::new(Queues::new()));
    (0..ranks)
        .map(|rank| {
            let endpoint: Box<dyn Endpoint> = Box::new(Memory::new(rank, Arc::clone(&queues)));
            let links = Links::new(vec![endpoint], (0..ranks).map(|peer| (peer != rank).then_some(0)));
            Engine::new(rank, links, 64, 1 << 20)
        })
        .collect()
}

/// Returns the next pseudo-random number (xorshift), seeded per test.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Steps the engines in random order until all of `ids` are done.
fn run(engines: &mut [Engine], ids: &[Vec<Id>], seed: u64) {
    let mut state = seed | 1;
    for _ in 0..2_000_000 {
        let rank = (next(&mut state) % engines.len() as u64) as usize;
        engines[rank].progress();
        assert!(engines[rank].failure().is_none(), "{:?}", engines[rank].failure());
        if engines.iter().zip(ids).all(|(engine, ids)| ids.iter().all(|id| engine.is_done(*id))) {
            return;
        }
    }
    panic!("no end; rank 0 waits for {:?}", engines[0].waiting_for(ids[0][0]));
}

fn job(algorithm: Algorithm, task: &Task, rank: u32, count: usize, buffers: Buffers, op: ReduceOp) -> Job {
    let plan = Arc::new(algorithm.plan(task, rank));
    let shape = match plan.cut {
        Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
        Cut::PerRank => Shape::Blocks { count },
    };
    Job {
        plan,
        shape,
        buffers,
        gpus: crate::call::GpuBuffers::default(),
        arithmetic: Arithmetic {
            combine: combine_fn(DataType::U32, op),
            data_type: DataType::U32,
            factor: if let ReduceOp::PremulSum(factor) = op { Some(factor) } else { None },
            divisor: matches!(op, ReduceOp::Avg).then_some(task.world_size),
            canonical: false,
        },
        segment_elements: 40,
        window: 2,
        tag: 7,
        lent: super::Lent::default(),
        keep: None,
    }
}

/// Starts an operation.
///
/// # Safety
/// See [`Engine::start`].
unsafe fn begin(engine: &mut Engine, job: Job, form: Form) -> Id {
    let reservation = engine.reserve(form);
    // SAFETY: the caller's promise, passed on.
    unsafe { engine.start(reservation, job) }
}

fn contribution(rank: u32, index: usize) -> u32 {
    (index as u32).wrapping_mul(2_654_435_761).wrapping_add(rank * 977)
}

fn all_reduce(algorithm: Algorithm, ranks: u32, count: usize, op: ReduceOp, expected: impl Fn(usize) -> u32) {
    for in_place in [false, true] {
        let mut task = Task::new(Collective::AllReduce, ranks);
        if in_place {
            task = task.in_place();
        }
        if algorithm.supports(&task).is_err() {
            continue;
        }
        let mut engines = engines(ranks);
        let mut inputs: Vec<Vec<u32>> =
            (0..ranks).map(|rank| (0..count).map(|i| contribution(rank, i)).collect()).collect();
        let originals = inputs.clone();
        let mut outputs = if in_place { inputs.clone() } else { vec![vec![0_u32; count]; ranks as usize] };
        let ids: Vec<Vec<Id>> = (0..ranks as usize)
            .map(|rank| {
                let buffers = Buffers {
                    input: inputs[rank].as_mut_ptr().cast(),
                    output: outputs[rank].as_mut_ptr().cast(),
                };
                let job = job(algorithm, &task, rank as u32, count, buffers, op);
                // SAFETY: the vectors outlive the run.
                vec![unsafe { begin(&mut engines[rank], job, Form::Blocking) }]
            })
            .collect();
        run(&mut engines, &ids, u64::from(ranks) << 20 | count as u64);
        for output in &outputs {
            for (i, value) in output.iter().enumerate() {
                assert_eq!(
                    *value,
                    expected(i),
                    "{algorithm} {ranks} ranks, {count} elements, {op:?}, element {i}"
                );
            }
        }
        assert_eq!(inputs, originals, "the input was written");
    }
}

#[test]
fn every_algorithm_sums_like_the_serial_reference() {
    for algorithm in Algorithm::ALL {
        // Miri takes a thousand times as long.
        for ranks in if cfg!(miri) { 3..=3 } else { 1..=9 } {
            for count in if cfg!(miri) { [90].as_slice() } else { &[0, 1, 7, 40, 173] } {
                let count = *count;
                all_reduce(algorithm, ranks, count, ReduceOp::Sum, |i| {
                    (0..ranks).fold(0, |sum: u32, rank| sum.wrapping_add(contribution(rank, i)))
                });
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the same memory as in the sums, and too slow")]
fn factors_and_averages_are_applied_once() {
    let ranks = 4;
    for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Circulant] {
        all_reduce(algorithm, ranks, 173, ReduceOp::PremulSum(3.0), |i| {
            (0..ranks).fold(0, |sum: u32, rank| sum.wrapping_add(contribution(rank, i).wrapping_mul(3)))
        });
        all_reduce(algorithm, ranks, 173, ReduceOp::Avg, |i| {
            (0..ranks).fold(0, |sum: u32, rank| sum.wrapping_add(contribution(rank, i))) / ranks
        });
    }
}

#[test]
fn many_operations_progress_together_and_in_order() {
    let (ranks, count, operations) = if cfg!(miri) { (2, 50, 5) } else { (3, 100, 11) };
    let task = Task::new(Collective::AllReduce, ranks).in_place();
    let mut engines = engines(ranks);
    let mut data = vec![vec![vec![1_u32; count]; operations]; ranks as usize];
    let mut ids = vec![Vec::new(); ranks as usize];
    for (rank, engine) in engines.iter_mut().enumerate() {
        for vector in &mut data[rank] {
            let at: *mut u8 = vector.as_mut_ptr().cast();
            let buffers = Buffers { input: at, output: at };
            let mut job = job(Algorithm::Ring, &task, rank as u32, count, buffers, ReduceOp::Sum);
            job.keep = Some(Box::new(rank));
            // SAFETY: the vectors outlive the run.
            ids[rank].push(unsafe { begin(engine, job, Form::Started) });
        }
    }
    run(&mut engines, &ids, 42);
    assert!(data.iter().flatten().flatten().all(|value| *value == ranks));
    for (rank, engine) in engines.iter_mut().enumerate() {
        assert_eq!(engine.outstanding(), 0);
        for id in &ids[rank] {
            assert_eq!(
                engine.finish(*id).and_then(|keep| keep.downcast::<usize>().ok()),
                Some(Box::new(rank))
            );
        }
    }
}

#[test]
fn calls_that_are_over_at_once_may_be_queued_in_any_number() {
    let (ranks, queued) = (2, if cfg!(miri) { 50 } else { 30_000 });
    let task = Task::new(Collective::AllReduce, ranks).in_place();
    let mut engines = engines(ranks);
    let mut data = vec![[1_u32; 10]; ranks as usize];
    let mut ids = vec![Vec::new(); ranks as usize];
    for (rank, engine) in engines.iter_mut().enumerate() {
        for nth in 0..=queued {
            let at: *mut u8 = data[rank].as_mut_ptr().cast();
            let count = if nth < usize::from(GROUPS) - 1 { 10 } else { 0 };
            let buffers = Buffers { input: at, output: at };
            let job = job(Algorithm::Ring, &task, rank as u32, count, buffers, ReduceOp::Max);
            // SAFETY: the vectors outlive the run. The calls that share one write the same values.
            ids[rank].push(unsafe { begin(engine, job, Form::Started) });
        }
    }
    // On a thread with the stack of a helper.
    std::thread::spawn(move || {
        run(&mut engines, &ids, 42);
        assert!(engines.iter().all(|engine| engine.outstanding() == 0));
    })
    .join()
    .expect("all are over");
    assert_eq!(data, vec![[1_u32; 10]; ranks as usize]);
}

#[test]
fn an_operation_stays_done_when_its_slot_serves_another() {
    let task = Task::new(Collective::AllReduce, 2).in_place();
    let mut engine = engines(2).swap_remove(0);
    let mut data = vec![1_u32; 10];
    let at: *mut u8 = data.as_mut_ptr().cast();
    let start = |engine: &mut Engine| {
        let buffers = Buffers { input: at, output: at };
        let job = job(Algorithm::Ring, &task, 0, 10, buffers, ReduceOp::Sum);
        // SAFETY: the vector outlives the engine.
        unsafe { begin(engine, job, Form::Blocking) }
    };
    let slot = |id: Id| match id {
        Id::Operation { slot, .. } | Id::Transfer { slot, .. } => slot,
    };
    let over = |engine: &mut Engine| {
        let id = engine.admit(None);
        engine.conclude(id);
        engine.finish(id);
        id
    };

    let (first, second) = (over(&mut engine), engine.admit(None));
    assert_eq!(slot(first), slot(second));
    assert!(
        engine.is_done(first) && !engine.is_elsewhere(first),
        "the slot's operation is carried out elsewhere"
    );
    engine.conclude(first);
    assert!(!engine.is_done(second) && engine.is_elsewhere(second));
    engine.conclude(second);
    engine.finish(second);

    let (third, running) = (over(&mut engine), start(&mut engine));
    assert_eq!(slot(third), slot(running));
    assert!(engine.is_done(third) && !engine.is_done(running), "the slot's operation is running");
    let (fourth, queued) = (over(&mut engine), start(&mut engine));
    assert_eq!(slot(fourth), slot(queued));
    assert!(engine.is_done(fourth) && !engine.is_done(queued), "the slot's operation is queued");
}

#[test]
fn a_message_of_another_call_is_a_failure_that_names_the_peer() {
    let task = Task::new(Collective::AllReduce, 2).in_place();
    let mut engines = engines(2);
    let mut data = [vec![1_u32; 100], vec![1_u32; 100]];
    for (rank, tag) in [(0, 7), (1, 8)] {
        let at: *mut u8 = data[rank].as_mut_ptr().cast();
        let buffers = Buffers { input: at, output: at };
        let mut job = job(Algorithm::Ring, &task, rank as u32, 100, buffers, ReduceOp::Sum);
        job.tag = tag;
        // SAFETY: the vectors outlive the run.
        unsafe { begin(&mut engines[rank], job, Form::Blocking) };
    }
    for rank in [0, 1] {
        while engines[rank].progress() && engines[rank].failure().is_none() {}
        let failure = engines[rank].failure().unwrap();
        assert_eq!(failure.peer, Some(1 - rank as u32));
        assert!(matches!(failure.kind, ErrorKind::Mismatch { .. }));
    }
}

#[test]
fn messages_come_in_the_order_in_which_they_were_sent() {
    let mut engines = engines(2);
    let count = 70;
    let mut sent: Vec<Vec<u8>> = (0..30_u8).map(|i| vec![i; if i % 7 == 3 { 0 } else { count }]).collect();
    let mut got: Vec<Vec<u8>> = sent.iter().map(|message| vec![255; message.len()]).collect();
    let mut ids = vec![Vec::new(), Vec::new()];
    let post = |engine: &mut Engine, kind, peer, memory: &mut Vec<u8>| {
        let memory = Piece { ptr: memory.as_mut_ptr(), len: memory.len() };
        let job = TransferJob { kind, peer, tag: 9 << 32, labels: None, memory, gpu: None, keep: None };
        // SAFETY: the vectors outlive the run.
        unsafe { engine.transfer(job) }.unwrap()
    };
    // More receives at once than there were slots, so that slots move while messages are posted; and messages to
    // oneself.
    for (message, place) in sent.iter_mut().zip(&mut got) {
        ids[0].push(post(&mut engines[0], Kind::Recv, 1, place));
        ids[1].push(post(&mut engines[1], Kind::Send, 0, message));
        engines[0].progress();
    }
    let (mut own, mut back) = (vec![7; count], vec![0; count]);
    ids[0].push(post(&mut engines[0], Kind::Recv, 0, &mut back));
    ids[0].push(post(&mut engines[0], Kind::Send, 0, &mut own));
    run(&mut engines, &ids, 5);
    assert_eq!((got, back), (sent, own));
}
