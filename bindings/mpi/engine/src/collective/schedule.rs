//! Schedules: collectives as lists of message steps. They serve started, persistent and irregular collectives, and those on the program's
//! own types and operators.
//!
//! Steps run in order; a fence waits for all messages before it. A thread that polls advances all active schedules.
//!
//! If the ranks' arguments differ, a message has another length than its receiver expects. The receiver's schedule then ends with an error.
//! It sends an empty message to every other rank, so that those that wait for this rank end with an error too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use kolo_transport::Unpoisoned;

use crate::comm::Comm;
use crate::error::{Class, Fail, Outcome, fail};
use crate::net::{self, Completion, Recv, Sink, Source};
use crate::staging::Staging;

/// Memory that the program has lent or a schedule owns.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// First byte.
    pub at: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

// SAFETY: the program lends its memory until the collective is over; a schedule's own lives as long as the schedule. The steps of
// a schedule run one at a time, under its lock.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the first byte. Takes the whole value, so that closures capture all of it.
    #[must_use]
    pub fn ptr(self) -> *mut u8 {
        self.at
    }

    /// Returns a part of the memory.
    #[must_use]
    pub fn part(self, from: usize, len: usize) -> Self {
        debug_assert!(from + len <= self.len);
        Self { at: self.at.wrapping_add(from), len }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// Nothing writes to them while the slice is in use.
    #[must_use]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the memory is lent or owned, see above; the caller promises that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

type Action = Box<dyn FnMut() -> Outcome + Send>;

enum Step {
    Send(u32, Memory),
    Recv(u32, Memory),
    Fence,
    Run(Action),
    /// An action that calls a function of the program.
    Call(Action),
}

/// A message that a step has begun.
struct Message {
    done: Arc<Completion>,
    /// For a receive, the world rank of the sender, and the number of bytes that it has to send.
    from: Option<(u32, usize)>,
}

impl Message {
    /// Returns why a complete message has failed.
    fn failure(&self) -> Option<Fail> {
        let finished = self.done.get()?;
        if finished.error.is_some() {
            return finished.error.clone();
        }
        let (source, expected) = self.from.filter(|(_, expected)| finished.bytes != *expected)?;
        let text = format!(
            "rank {source} of the world sent {} bytes where this rank expects {expected}, or its call has failed. All ranks \
             of a communicator must make the same calls in the same order, with equal lengths, types, operators and roots",
            finished.bytes
        );
        Some(Fail::new(Class::NotSame, text))
    }
}

/// Steps, and the position of the next one.
pub struct Schedule {
    comm: Arc<Comm>,
    /// The consecutive ranks among which steps are added: the first of them, and their number.
    view: (u32, u32),
    context: u32,
    tag: i32,
    steps: Vec<Step>,
    at: usize,
    waiting: Vec<Message>,
    /// The reason why the schedule ends early.
    failure: Option<Fail>,
    kept: Vec<Box<[u8]>>,
    staged: Vec<Staging>,
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedule").field("tag", &self.tag).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Schedule {
    /// Makes a schedule without steps, with a context and tag that no other schedule uses.
    #[must_use]
    pub fn new(comm: &Arc<Comm>) -> Self {
        let (context, tag) = comm.next_collective();
        Self::tagged(comm, context, tag)
    }

    /// Makes a schedule whose messages have this context and tag.
    #[must_use]
    pub fn tagged(comm: &Arc<Comm>, context: u32, tag: i32) -> Self {
        let (comm, view) = (Arc::clone(comm), (0, comm.size()));
        Self {
            comm,
            view,
            context,
            tag,
            steps: Vec::new(),
            at: 0,
            waiting: Vec::new(),
            failure: None,
            kept: Vec::new(),
            staged: Vec::new(),
        }
    }

    /// Returns this rank's number in the view.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.comm.rank - self.view.0
    }

    /// Returns the number of ranks in the view.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.view.1
    }

    /// Adds steps among `count` consecutive ranks, including this one. In these steps, ranks are numbered from `first` on.
    pub fn among<T>(&mut self, first: u32, count: u32, add: impl FnOnce(&mut Self) -> T) -> T {
        debug_assert!((first..first + count).contains(&self.comm.rank) && first + count <= self.comm.size());
        let before = std::mem::replace(&mut self.view, (first, count));
        let added = add(self);
        self.view = before;
        added
    }

    /// Allocates memory that lives as long as the schedule.
    pub fn keep(&mut self, len: usize) -> Memory {
        // At least one byte, so that empty memory has an address of its own too.
        let mut memory = vec![0; len.max(1)].into_boxed_slice();
        let at = memory.as_mut_ptr();
        self.kept.push(memory);
        Memory { at, len }
    }

    /// Takes memory for packed data, which lives as long as the schedule. Its contents are undefined until it has been written.
    pub fn stage(&mut self, len: usize) -> Memory {
        let mut memory = Staging::new(len);
        let at = memory.ptr();
        self.staged.push(memory);
        Memory { at, len }
    }

    /// Adds a send to a rank.
    pub fn send(&mut self, to: u32, what: Memory) {
        self.steps.push(Step::Send(self.view.0 + to, what));
    }

    /// Adds a receive from a rank.
    pub fn recv(&mut self, from: u32, into: Memory) {
        self.steps.push(Step::Recv(self.view.0 + from, into));
    }

    /// Adds a step that waits for all messages so far.
    pub fn fence(&mut self) {
        self.steps.push(Step::Fence);
    }

    /// Adds an action. It runs once all messages before it are complete.
    pub fn run(&mut self, action: impl FnMut() -> Outcome + Send + 'static) {
        self.steps.push(Step::Run(Box::new(action)));
    }

    /// Adds an action that calls a function of the program.
    pub fn call(&mut self, action: impl FnMut() -> Outcome + Send + 'static) {
        self.steps.push(Step::Call(Box::new(action)));
    }

    /// Adds a copy of bytes, which runs once all messages before it are complete.
    pub fn copy(&mut self, from: Memory, to: Memory) {
        self.run(move || {
            // SAFETY: both are lent for the duration of the collective; they may overlap.
            unsafe { std::ptr::copy(from.ptr(), to.ptr(), from.bytes().len().min(to.bytes().len())) };
            Ok(())
        });
    }

    /// Returns to the first step.
    pub fn rewind(&mut self) {
        self.at = 0;
        self.waiting.clear();
        self.failure = None;
    }

    /// Advances as far as possible without waiting. Returns the outcome once the schedule has ended.
    fn advance(&mut self) -> Option<Outcome> {
        loop {
            if self.failure.is_none()
                && let Some(why) = self.waiting.iter().find_map(Message::failure)
            {
                self.abandon(why);
            }
            if !self.waiting.iter().all(|message| message.done.is_done()) {
                return None;
            }
            self.waiting.clear();
            if let Some(why) = self.failure.take() {
                return Some(Err(why));
            }
            if self.at == self.steps.len() {
                return Some(Ok(()));
            }
            if let Err(why) = self.batch() {
                self.abandon(why);
            }
        }
    }

    /// Leaves out the steps that are left, and tells the other ranks.
    fn abandon(&mut self, why: Fail) {
        let steps = std::mem::replace(&mut self.at, self.steps.len())..;
        if let (false, Ok(mut net)) = (why.is_loss(), net::net()) {
            for message in self.waiting.iter().filter(|message| !message.done.is_done()) {
                net.cancel(&message.done, &why);
                if let (true, Some((source, _))) = (message.done.is_done(), message.from) {
                    self.drop_next(&mut net, source);
                }
            }
            for step in &self.steps[steps] {
                if let Step::Recv(from, _) = step {
                    self.drop_next(&mut net, self.comm.members[*from as usize]);
                }
            }
            self.others().for_each(|other| self.send_nothing(&mut net, other));
        }
        self.failure = Some(why);
    }

    /// Tells the other ranks that this rank does not take part, since its arguments are wrong.
    pub fn refuse(&self, why: &Fail) {
        if let (false, Ok(mut net)) = (why.is_loss(), net::net()) {
            for other in self.others() {
                self.send_nothing(&mut net, other);
                self.drop_next(&mut net, other);
            }
        }
    }

    /// Returns the world ranks of the other members.
    fn others(&self) -> impl Iterator<Item = u32> {
        let own = self.comm.members[self.comm.rank as usize];
        self.comm.members.iter().copied().filter(move |member| *member != own)
    }

    /// Sends a message that fails its receive, unless the receiver expects an empty one.
    fn send_nothing(&self, net: &mut net::Net, to: u32) {
        net.send(to, self.context, self.tag, Source::Kept(Vec::new()), false, &Completion::new());
    }

    /// Receives a message that is of no use, so that its send ends.
    fn drop_next(&self, net: &mut net::Net, source: u32) {
        let sink = Sink::Flat { ptr: std::ptr::NonNull::dangling().as_ptr(), room: 0 };
        let (source, tag, done) = (Some(source), Some(self.tag), Completion::new());
        net.recv(self.context, Recv { source, tag, sink, done });
    }

    /// Takes the messages that are under way.
    fn take_messages(&mut self) -> Vec<Arc<Completion>> {
        std::mem::take(&mut self.waiting).into_iter().map(|message| message.done).collect()
    }

    /// Runs steps up to the next fence. It stops before an action while messages before that action are incomplete.
    fn batch(&mut self) -> Outcome {
        while let Some(step) = self.steps.get_mut(self.at) {
            match step {
                Step::Fence => {
                    self.at += 1;
                    return Ok(());
                }
                Step::Run(_) | Step::Call(_) if !self.waiting.is_empty() => return Ok(()),
                Step::Run(action) | Step::Call(action) => action()?,
                Step::Send(to, what) => {
                    let done = Completion::new();
                    let data = Source::Lent(what.at, what.len);
                    net::net()?.send(
                        self.comm.members[*to as usize],
                        self.context,
                        self.tag,
                        data,
                        false,
                        &done,
                    );
                    self.waiting.push(Message { done, from: None });
                }
                Step::Recv(from, into) => {
                    let done = Completion::new();
                    let sink = Sink::Flat { ptr: into.at, room: into.len };
                    let source = Some(self.comm.members[*from as usize]);
                    net::net()?.recv(
                        self.context,
                        Recv { source, tag: Some(self.tag), sink, done: Arc::clone(&done) },
                    );
                    self.waiting.push(Message { done, from: source.map(|source| (source, into.len)) });
                }
            }
            self.at += 1;
        }
        Ok(())
    }
}

/// A schedule that has been started, for which threads may wait.
///
/// 1. Only the thread that has the lock of the schedule advances it, sets `done`, and enters it into [`ACTIVE`] or removes it.
/// 2. It removes the schedule before it sets `done`, since a thread that sees `done` may start the schedule again.
#[derive(Debug)]
pub struct Started {
    /// Whether steps call functions of the program.
    calls: bool,
    schedule: Mutex<Schedule>,
    done: Mutex<Option<Outcome>>,
}

static ACTIVE: Mutex<Vec<Arc<Started>>> = Mutex::new(Vec::new());
/// The length of [`ACTIVE`], to be read without its lock.
static ACTIVES: AtomicUsize = AtomicUsize::new(0);

/// Changes the list of active schedules.
fn change_active(change: impl FnOnce(&mut Vec<Arc<Started>>)) {
    let mut active = ACTIVE.lock().unpoisoned();
    change(&mut active);
    ACTIVES.store(active.len(), Ordering::Release);
}

impl Started {
    /// Starts a schedule.
    #[must_use]
    pub fn start(schedule: Schedule) -> Arc<Self> {
        let started = Self::idle(schedule);
        started.restart();
        started
    }

    /// Makes a schedule that is not started yet.
    #[must_use]
    pub fn idle(schedule: Schedule) -> Arc<Self> {
        let calls = schedule.steps.iter().any(|step| matches!(step, Step::Call(_)));
        Arc::new(Self { calls, schedule: Mutex::new(schedule), done: Mutex::new(Some(Ok(()))) })
    }

    /// Starts the schedule again.
    pub fn restart(self: &Arc<Self>) {
        let mut schedule = self.schedule.lock().unpoisoned();
        schedule.rewind();
        let outcome = schedule.advance();
        if outcome.is_none() {
            change_active(|active| active.push(Arc::clone(self)));
        }
        *self.done.lock().unpoisoned() = outcome;
    }

    /// Returns the outcome if the schedule has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.done.lock().unpoisoned().clone()
    }

    /// Ends the schedule, since a wait for it has failed. Returns its messages, which the caller must give up.
    pub fn give_up(self: &Arc<Self>, why: &Fail) -> Vec<Arc<Completion>> {
        let mut schedule = self.schedule.lock().unpoisoned();
        if self.outcome().is_some() {
            return Vec::new();
        }
        change_active(|active| active.retain(|other| !Arc::ptr_eq(other, self)));
        *self.done.lock().unpoisoned() = Some(Err(why.clone()));
        schedule.take_messages()
    }

    /// Advances an active schedule. Returns whether this call has ended it.
    fn advance(self: &Arc<Self>) -> bool {
        let mut schedule = match self.schedule.try_lock() {
            Ok(schedule) => schedule,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread advances it, or this thread does and has called an operator of the program that calls MPI.
            Err(TryLockError::WouldBlock) => return false,
        };
        if self.outcome().is_some() {
            return false;
        }
        let Some(outcome) = schedule.advance() else { return false };
        change_active(|active| active.retain(|other| !Arc::ptr_eq(other, self)));
        *self.done.lock().unpoisoned() = Some(outcome);
        true
    }
}

/// Advances all active schedules. Returns whether one of them has ended.
pub fn advance_all() -> bool {
    advance_those(|_| true)
}

/// Advances the active schedules that call no function of the program. Returns whether one of them has ended.
pub fn advance_without_calls() -> bool {
    advance_those(|started| !started.calls)
}

fn advance_those(which: impl Fn(&Started) -> bool) -> bool {
    if ACTIVES.load(Ordering::Acquire) == 0 {
        return false;
    }
    let all = ACTIVE.lock().unpoisoned().clone();
    // Every schedule is advanced, not only those up to the first that ends.
    all.iter().filter(|started| which(started) && started.outcome().is_none() && started.advance()).count()
        > 0
}

/// Runs a schedule to its end.
///
/// # Errors
/// The first error of a step.
pub fn complete(mut schedule: Schedule) -> Outcome {
    let mut outcome = None;
    net::wait_until(|| {
        outcome = schedule.advance();
        outcome.is_some()
    })
    .inspect_err(|why| net::forsake(&schedule.take_messages(), why))?;
    outcome.unwrap_or_else(|| fail(Class::Intern, "a collective has no end"))
}
