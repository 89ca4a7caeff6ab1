//! A world of endpoints in one process, stepped by one thread. No state is awaited by sleeping, every wait has a
//! deadline, and every promise about tokens is checked all the time.

use std::time::Instant;

use super::Subject;
use super::message::{Memory, Shape};
use crate::endpoint::{
    Channel, Endpoint, Envelope, Event, Fits, OnMisfit, Piece, Posted, Reach, Short, Token,
};
use crate::error::{Error, ErrorKind};

/// State of an operation.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Pending,
    Done,
    Failed(Error),
    /// The receive was conditional, and came back.
    Returned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Send,
    SendPacked,
    Recv,
    RecvIf,
    Get,
}

#[derive(Debug)]
struct Op {
    rank: u32,
    on: Channel,
    direction: Direction,
    outcome: Outcome,
    memory: Memory,
    /// Fingerprint of the memory, taken when it was given back without a message in it.
    fingerprint: Option<u64>,
}

/// An operation of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(usize);

impl Ticket {
    /// Returns the ticket of the world's n-th post, from 0.
    pub(super) const fn nth(n: usize) -> Self {
        Self(n)
    }
}

/// Added to tokens, which exposes a transport that takes them for small numbers.
const TOKEN_BASE: u64 = 0xfeed_0000_0000_0000;

/// All endpoints of a world, and all operations posted.
#[derive(Debug)]
pub(super) struct World {
    ends: Vec<Option<Box<dyn Endpoint>>>,
    ops: Vec<Op>,
    /// Losses in the order of their reports: the reporting rank, the lost one.
    pub(super) downs: Vec<(u32, u32)>,
    /// Reports of waiting messages, in order: the rank that was told, the envelope.
    pub(super) waiting: Vec<(u32, Envelope)>,
    /// Tickets of the receives that came back, in order.
    pub(super) returned: Vec<Ticket>,
    events: Vec<Event>,
    pending: usize,
    deadline: Instant,
}

/// Makes endpoints of all ranks, introduced and established.
pub(super) fn endpoints(subject: &dyn Subject, world_size: u32) -> Vec<Box<dyn Endpoint>> {
    let mut job = [0; 16];
    getrandom::fill(&mut job).expect("random numbers");
    let mut ends: Vec<_> = (0..world_size).map(|rank| subject.endpoint(rank, world_size, job)).collect();
    let addresses: Vec<Vec<u8>> = ends.iter().map(|end| end.address().to_vec()).collect();
    for (rank, end) in ends.iter_mut().enumerate() {
        for (peer, address) in addresses.iter().enumerate().filter(|&(peer, _)| peer != rank) {
            assert!(address.len() <= 1024, "an address of {} bytes", address.len());
            let reach = end.introduce(peer as u32, address).expect("introduce");
            assert!(matches!(reach, Reach::Yes { .. }), "rank {rank} to {peer}: {reach:?}");
        }
    }
    let deadline = Instant::now() + subject.patience();
    std::thread::scope(|scope| {
        for end in &mut ends {
            scope.spawn(move || end.establish(&|| false, deadline).expect("establish"));
        }
    });
    ends
}

impl World {
    pub(super) fn new(subject: &dyn Subject, world_size: u32) -> Self {
        let ends = endpoints(subject, world_size).into_iter().map(Some).collect();
        let deadline = Instant::now() + subject.patience();
        Self {
            ends,
            ops: Vec::new(),
            downs: Vec::new(),
            waiting: Vec::new(),
            returned: Vec::new(),
            events: Vec::new(),
            pending: 0,
            deadline,
        }
    }

    /// Makes the world as seen from the process of one rank.
    pub(super) fn alone(subject: &dyn Subject, rank: u32, world_size: u32, end: Box<dyn Endpoint>) -> Self {
        let mut ends: Vec<_> = (0..world_size).map(|_| None).collect();
        ends[rank as usize] = Some(end);
        let deadline = Instant::now() + subject.patience();
        Self {
            ends,
            ops: Vec::new(),
            downs: Vec::new(),
            waiting: Vec::new(),
            returned: Vec::new(),
            events: Vec::new(),
            pending: 0,
            deadline,
        }
    }

    pub(super) fn end(&mut self, rank: u32) -> &mut dyn Endpoint {
        self.ends[rank as usize].as_deref_mut().expect("an endpoint that was dropped")
    }

    /// Drops a rank's endpoint. Its pending operations are forgotten.
    pub(super) fn drop_end(&mut self, rank: u32) {
        self.ends[rank as usize] = None;
        for op in self.ops.iter_mut().filter(|op| op.rank == rank && matches!(op.outcome, Outcome::Pending)) {
            op.fingerprint = Some(op.memory.fingerprint());
            let cause = Error::new(ErrorKind::Aborted, "suite", None, "endpoint dropped");
            op.outcome = Outcome::Failed(cause);
            self.pending -= 1;
        }
    }

    /// Posts a message from `rank` on the channel to `peer`.
    pub(super) fn send(&mut self, rank: u32, peer: u32, index: u16, tag: u64, shape: Shape) -> Ticket {
        self.post(rank, Channel { peer, index }, tag, Direction::Send, Memory::source(shape))
    }

    /// Posts a receive at `rank` from `peer`.
    pub(super) fn recv(&mut self, rank: u32, peer: u32, index: u16, tag: u64, shape: Shape) -> Ticket {
        self.post(rank, Channel { peer, index }, tag, Direction::Recv, Memory::target(shape))
    }

    /// Posts a receive at `rank` from `peer` that takes no other message.
    pub(super) fn recv_if(&mut self, rank: u32, peer: u32, index: u16, tag: u64, shape: Shape) -> Ticket {
        self.post(rank, Channel { peer, index }, tag, Direction::RecvIf, Memory::target(shape))
    }

    /// Posts a get at `rank` of memory that `peer` has exposed at address `from`.
    pub(super) fn get(&mut self, rank: u32, peer: u32, index: u16, from: u64, shape: Shape) -> Ticket {
        self.post(rank, Channel { peer, index }, from, Direction::Get, Memory::target(shape))
    }

    /// Posts a message from `rank` that a packer makes.
    pub(super) fn send_packed(&mut self, rank: u32, peer: u32, index: u16, tag: u64, shape: Shape) -> Ticket {
        let on = Channel { peer, index };
        self.post(rank, on, tag, Direction::SendPacked, Memory::target(shape.eaten()))
    }

    /// Posts both ends of a message.
    pub(super) fn exchange(&mut self, from: u32, to: u32, index: u16, tag: u64, shape: Shape) -> [Ticket; 2] {
        let recv = self.recv(to, from, index, tag, shape.clone());
        [self.send(from, to, index, tag, shape), recv]
    }

    /// Posts an operation; for a get, `tag` is the address.
    fn post(&mut self, rank: u32, on: Channel, tag: u64, direction: Direction, memory: Memory) -> Ticket {
        let ticket = Ticket(self.ops.len());
        let token = Token(TOKEN_BASE + ticket.0 as u64);
        self.pending += 1;
        self.ops.push(Op { rank, on, direction, outcome: Outcome::Pending, memory, fingerprint: None });
        let op = &mut self.ops[ticket.0];
        let end = self.ends[rank as usize].as_deref_mut().expect("an endpoint that was dropped");
        // SAFETY: the memory lies on the heap behind `op`, which lives as long as the world. The endpoints are
        // dropped before (fields drop in order, and `ends` comes first). Nobody else writes to the memory.
        let posted = unsafe {
            match direction {
                Direction::Send => {
                    let pieces: *const [_] = op.memory.pieces();
                    end.post_send(on, tag, &*pieces, token)
                }
                Direction::SendPacked => {
                    let (len, packer) = op.memory.packer();
                    end.post_send_packed(on, tag, len, packer, token)
                }
                Direction::Recv => end.post_recv(on, tag, op.memory.sink(), OnMisfit::Fail, token),
                Direction::RecvIf => end.post_recv(on, tag, op.memory.sink(), OnMisfit::Return, token),
                Direction::Get => {
                    let pieces: *const [_] = op.memory.pieces();
                    end.post_get(on, tag, &*pieces, token)
                }
            }
        };
        match posted {
            Ok(Posted::Pending) => {}
            Ok(Posted::Done) => self.complete(ticket),
            Err(error) => self.fail(ticket, error),
        }
        ticket
    }

    /// Sends a message at once, or posts it if the transport declines. Returns whether it was sent at once.
    pub(super) fn send_now(&mut self, rank: u32, peer: u32, index: u16, tag: u64, shape: &Shape) -> bool {
        let sent = self.send_now_only(rank, peer, index, tag, shape);
        if !sent {
            self.send(rank, peer, index, tag, shape.clone());
        }
        sent
    }

    /// Sends a message at once. Returns whether the transport did so.
    pub(super) fn send_now_only(
        &mut self,
        rank: u32,
        peer: u32,
        index: u16,
        tag: u64,
        shape: &Shape,
    ) -> bool {
        let memory = Memory::source(shape.clone());
        let piece = memory.pieces()[0];
        let piece = if piece.len == 0 { Piece { ptr: std::ptr::null_mut(), len: 0 } } else { piece };
        // SAFETY: the memory lives in this function, and may be reused after the call.
        unsafe { self.end(rank).send_short(Channel { peer, index }, tag, piece) }
    }

    /// Takes a message at once, which must be the one of this shape.
    pub(super) fn take_now(&mut self, rank: u32, peer: u32, index: u16, fits: Fits, shape: &Shape) -> Short {
        let memory = Memory::target(shape.clone());
        let before = memory.fingerprint();
        let to = memory.pieces()[0];
        assert!(to.len >= fits.room);
        let to = if to.len == 0 { std::ptr::null_mut() } else { to.ptr };
        // SAFETY: the memory lives in this function, and has the required room.
        let answer = unsafe { self.end(rank).take_short(Channel { peer, index }, fits, to) };
        let fault = memory.fault();
        match answer {
            Short::Taken { len, .. } if len > 0 => assert_eq!(fault, None, "{len} bytes taken"),
            _ => assert_eq!(memory.fingerprint(), before, "{answer:?}, and memory was touched"),
        }
        answer
    }

    /// Polls every end once. Returns whether anything moved.
    pub(super) fn step(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.ends.len() as u32 {
            moved |= self.poll(rank);
        }
        moved
    }

    /// Polls one end.
    pub(super) fn poll(&mut self, rank: u32) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let Some(end) = self.ends[rank as usize].as_deref_mut() else {
            self.events = events;
            return false;
        };
        let moved = end.poll(&mut events);
        assert!(moved || events.is_empty(), "a poll that brings events says that nothing moved");
        self.absorb(rank, &mut events);
        self.events = events;
        moved
    }

    /// Takes back the conditional receives of a channel, if the transport can.
    pub(super) fn cancel_recvs(&mut self, rank: u32, on: Channel) -> bool {
        let mut events = Vec::new();
        let is_free = self.end(rank).cancel_recvs(on, &mut events);
        self.absorb(rank, &mut events);
        is_free
    }

    /// Processes the events that an endpoint of `rank` has reported.
    pub(super) fn absorb(&mut self, rank: u32, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match event {
                Event::Done(token) => {
                    let ticket = self.ticket(rank, token);
                    self.complete(ticket);
                }
                Event::Failed(token, error) => {
                    let ticket = self.ticket(rank, token);
                    self.fail(ticket, error);
                }
                Event::Returned(token) => {
                    let ticket = self.ticket(rank, token);
                    self.take_back(ticket);
                }
                Event::Waiting(envelope) => self.waiting.push((rank, envelope)),
                Event::Down { peer, cause } => {
                    assert!(!self.downs.contains(&(rank, peer)), "{rank} reports {peer} down twice: {cause}");
                    let open = self.ops.iter().any(|op| {
                        op.rank == rank && op.on.peer == peer && matches!(op.outcome, Outcome::Pending)
                    });
                    assert!(!open, "{rank} reports {peer} down before its tokens have failed");
                    self.downs.push((rank, peer));
                }
                Event::Warning(words) => println!("{rank} warns: {words}"),
            }
        }
    }

    fn ticket(&self, rank: u32, token: Token) -> Ticket {
        let number = token.0.wrapping_sub(TOKEN_BASE) as usize;
        assert!(number < self.ops.len(), "an event for a token that was never posted: {token:?}");
        assert_eq!(self.ops[number].rank, rank, "an event of another rank: {token:?}");
        Ticket(number)
    }

    fn complete(&mut self, ticket: Ticket) {
        let op = &mut self.ops[ticket.0];
        let pending = matches!(op.outcome, Outcome::Pending);
        assert!(pending, "operation {} completes twice: {:?}, then done", ticket.0, op.outcome);
        op.outcome = Outcome::Done;
        self.pending -= 1;
        if op.direction != Direction::Send
            && let Some(fault) = op.memory.fault()
        {
            panic!("rank {}, {:?}, operation {}: {fault}", op.rank, op.on, ticket.0);
        }
        if !matches!(op.direction, Direction::Send | Direction::SendPacked) {
            // Large messages of long suites would add up. A source is kept, since a late read of it would be a
            // mistake and must show.
            op.memory = Memory::target(Shape::new(0, 0));
        }
    }

    fn take_back(&mut self, ticket: Ticket) {
        let op = &mut self.ops[ticket.0];
        let pending = matches!(op.outcome, Outcome::Pending);
        assert!(pending, "operation {} comes back after its end: {:?}", ticket.0, op.outcome);
        assert_eq!(op.direction, Direction::RecvIf, "operation {} was not posted on condition", ticket.0);
        assert!(op.memory.is_blank(), "operation {} comes back, and its memory was touched", ticket.0);
        op.outcome = Outcome::Returned;
        op.fingerprint = Some(op.memory.fingerprint());
        self.pending -= 1;
        self.returned.push(ticket);
    }

    fn fail(&mut self, ticket: Ticket, error: Error) {
        let op = &mut self.ops[ticket.0];
        let pending = matches!(op.outcome, Outcome::Pending);
        assert!(pending, "operation {} completes twice: {:?}, then {error}", ticket.0, op.outcome);
        op.outcome = Outcome::Failed(error);
        self.pending -= 1;
        op.fingerprint = Some(op.memory.fingerprint());
        assert_eq!(op.memory.guard_fault(), None, "operation {}", ticket.0);
    }

    /// Fails if memory of failed operations has changed since they failed.
    pub(super) fn assert_untouched(&self) {
        for (number, op) in self.ops.iter().enumerate() {
            if let Some(fingerprint) = op.fingerprint {
                assert_eq!(
                    op.memory.fingerprint(),
                    fingerprint,
                    "operation {number} touched after it failed"
                );
            }
        }
    }

    pub(super) fn outcome(&self, ticket: Ticket) -> &Outcome {
        &self.ops[ticket.0].outcome
    }

    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        matches!(self.outcome(ticket), Outcome::Done)
    }

    pub(super) fn is_pending(&self, ticket: Ticket) -> bool {
        matches!(self.outcome(ticket), Outcome::Pending)
    }

    /// Returns the error of a failed operation.
    pub(super) fn error(&self, ticket: Ticket) -> &Error {
        match self.outcome(ticket) {
            Outcome::Failed(error) => error,
            other => panic!("operation {} should have failed: {other:?}", ticket.0),
        }
    }

    /// Steps until `condition` holds, or fails with `what`.
    pub(super) fn wait(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        while !condition(self) {
            let moved = self.step();
            self.check_deadline(what);
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    /// Steps until no operation is pending, and checks that all are done or came back.
    pub(super) fn finish(&mut self, what: &str) {
        self.wait(what, |world| world.pending == 0);
        for (number, op) in self.ops.iter().enumerate() {
            assert!(
                matches!(op.outcome, Outcome::Done | Outcome::Returned),
                "operation {number}: {:?}",
                op.outcome
            );
        }
    }

    pub(super) fn check_deadline(&self, what: &str) {
        if Instant::now() < self.deadline {
            return;
        }
        let pending: Vec<String> = self
            .ops
            .iter()
            .enumerate()
            .filter(|(_, op)| matches!(op.outcome, Outcome::Pending))
            .take(8)
            .map(|(number, op)| {
                format!("{number}: {:?} of rank {} on {}/{}", op.direction, op.rank, op.on.peer, op.on.index)
            })
            .collect();
        panic!("stuck: {what}; pending, the first few: [{}]; ends: {:#?}", pending.join(", "), self.ends);
    }
}
