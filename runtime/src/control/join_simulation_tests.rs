//! Joining thousands of ranks, simulated: the coordinator and the forwarding tree of real jobs, on links with a rate and a delay.
//! docs/measurements.md, *Joining many ranks*, has the figures.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::tests::coordinator;
use super::*;
use crate::control::forwarding;
use crate::control::wire::{GatherKey, PeerInfo, Round, decode};
use crate::job::limits::Liveness;

/// Bits per second of each rank's link.
const RATE: f64 = 1e9;
const ONE_WAY: Duration = Duration::from_micros(100);
/// Round trips before the first message on a connection: TCP's own, and the two of the handshake.
const ROUND_TRIPS_TO_CONNECT: u32 = 3;
/// Bytes that a rank contributes to the table of addresses, as measured with 256 processes over TCP.
const CARD_BYTES: usize = 450;
const KEY: GatherKey = GatherKey { communicator: 1, round: Round::Introductions };

enum Event {
    Told { rank: u32, message: Rc<Message>, hops: u32 },
    Heard { rank: u32, message: Box<ToCoordinator> },
    Tick,
}

/// A message from the coordinator, read once for all its receivers.
struct Message {
    text: FromCoordinator,
    /// The message that a forwarded one holds, and its length.
    inner: Option<(Rc<Self>, usize)>,
}

impl Message {
    fn read(payload: &[u8]) -> Rc<Self> {
        let text = decode(payload).expect("a message");
        let inner = match &text {
            FromCoordinator::Forward { message, .. } => Some((Self::read(message), message.len())),
            _ => None,
        };
        Rc::new(Self { text, inner })
    }
}

/// A job that joins, at a virtual time.
struct Job {
    coordinator: CoordinatorState,
    began: Instant,
    /// Times of events to come, and their places in `all`.
    events: BinaryHeap<Reverse<(Instant, usize)>>,
    all: Vec<Option<Event>>,
    /// When the link of a rank is free again. The coordinator has that of rank 0.
    free: Vec<Instant>,
    sent: Vec<u64>,
    /// Time at which a rank had all addresses, and the most hops of the messages to it.
    joined: Vec<Option<(Instant, u32)>>,
}

impl Job {
    fn new(ranks: u32) -> Self {
        let began = Instant::now();
        let count = ranks as usize;
        let mut job = Self {
            coordinator: coordinator(ranks, began),
            began,
            events: BinaryHeap::new(),
            all: Vec::new(),
            free: vec![began; count],
            sent: vec![0; count],
            joined: vec![None; count],
        };
        job.at(began + Liveness::default().heartbeat, Event::Tick);
        for rank in 0..ranks {
            let peer = PeerInfo {
                rank,
                hostname: format!("node-{:04}.cluster.example", rank / 8),
                pid: 10_000 + rank,
                local_rank: Some(rank % 8),
                version: "0.2.0".into(),
                host_key: u64::from(rank / 8),
                relayed_by: None,
            };
            let listener = Some(ListenerAddress::sample(rank));
            let hello = Hello {
                peer,
                world_size: ranks,
                job: String::new(),
                source: String::new(),
                listener,
                ends: None,
            };
            job.tell_coordinator(
                rank,
                ToCoordinator::Hello(hello),
                began + ONE_WAY * 2 * ROUND_TRIPS_TO_CONNECT,
            );
        }
        job
    }

    fn at(&mut self, time: Instant, event: Event) {
        self.events.push(Reverse((time, self.all.len())));
        self.all.push(Some(event));
    }

    /// Sends over the link of `from`; returns the time of arrival.
    fn transmit(&mut self, from: u32, bytes: usize, now: Instant) -> Instant {
        let from = from as usize;
        self.sent[from] += bytes as u64;
        self.free[from] = self.free[from].max(now) + Duration::from_secs_f64(bytes as f64 * 8.0 / RATE);
        self.free[from] + ONE_WAY
    }

    fn tell_coordinator(&mut self, rank: u32, message: ToCoordinator, now: Instant) {
        let arrives = if rank == 0 { now } else { self.transmit(rank, encode(&message).len(), now) };
        self.at(arrives, Event::Heard { rank, message: Box::new(message) });
    }

    fn run_actions(&mut self, now: Instant) {
        for action in self.coordinator.take_actions() {
            let Action::Send { connection, frame } = action else { continue };
            let message = Message::read(&frame[4..]);
            let rank = connection as u32;
            // The coordinator is in rank 0's process.
            let arrives = if rank == 0 { now } else { self.transmit(0, frame.len(), now) };
            self.at(arrives, Event::Told { rank, message, hops: 1 });
        }
    }

    /// Has a rank act on a message, as `member` does.
    fn told(&mut self, rank: u32, message: &Rc<Message>, hops: u32, now: Instant) {
        let ranks = self.joined.len();
        match &message.text {
            FromCoordinator::Forward { key, .. } => {
                let (inner, bytes) = message.inner.as_ref().expect("a message inside");
                for to in forwarding::next(Some(rank as usize), ranks) {
                    let arrives = self.transmit(rank, *bytes, now + ONE_WAY * 2 * ROUND_TRIPS_TO_CONNECT);
                    let message = message.clone();
                    self.at(arrives, Event::Told { rank: to as u32, message, hops: hops + 1 });
                }
                self.tell_coordinator(rank, ToCoordinator::Received { key: *key }, now);
                self.told(rank, inner, hops, now);
            }
            FromCoordinator::Welcome { peers, listeners, .. } => {
                assert_eq!((peers.len(), listeners.len()), (ranks, ranks));
                let members = (0..ranks as u32).collect();
                let card = ToCoordinator::AllGather { key: KEY, members, blob: vec![1; CARD_BYTES] };
                self.tell_coordinator(rank, card, now);
            }
            FromCoordinator::Gathered { key: KEY, blobs } => {
                assert_eq!(blobs.len(), ranks);
                let again = self.joined[rank as usize].replace((now, hops));
                assert_eq!(again, None, "rank {rank} got the table twice");
            }
            FromCoordinator::Waiting { .. } | FromCoordinator::Heartbeat => {}
            other => panic!("{other:?}"),
        }
    }

    /// Runs until all ranks have joined.
    fn run(mut self) -> Joined {
        while self.joined.iter().any(Option::is_none) {
            let Reverse((now, number)) = self.events.pop().expect("something is under way");
            match self.all[number].take().expect("its event") {
                Event::Told { rank, message, hops } => self.told(rank, &message, hops, now),
                Event::Heard { rank, message } => match *message {
                    ToCoordinator::Hello(hello) => {
                        self.coordinator.hello(rank.into(), None, hello, OnSilence::Fail, now);
                    }
                    message => {
                        self.coordinator.message(rank.into(), message, now).expect("a message in its place");
                    }
                },
                Event::Tick => {
                    self.coordinator.tick(now);
                    self.at(now + Liveness::default().heartbeat, Event::Tick);
                }
            }
            self.run_actions(now);
        }
        let last = self.joined.iter().flatten().max().expect("ranks");
        Joined {
            seconds: (last.0 - self.began).as_secs_f64(),
            hops: self.joined.iter().flatten().map(|(_, hops)| *hops).max().expect("ranks"),
            coordinator: self.sent[0],
            busiest_other: self.sent[1..].iter().copied().max().expect("other ranks"),
        }
    }
}

#[derive(Debug)]
struct Joined {
    seconds: f64,
    hops: u32,
    /// Bytes that left rank 0, and the rank that sent the most after it.
    coordinator: u64,
    busiest_other: u64,
}

#[test]
fn thousands_of_ranks_join_by_a_tree() {
    for ranks in [64, 256, 1024, 4096] {
        let joined = Job::new(ranks).run();
        println!("{ranks} ranks: {joined:?}");
        // The table, to three others as the coordinator and to four as a rank, and little else.
        let per_rank = joined.coordinator as f64 / f64::from(ranks);
        assert!(per_rank < 7.0 * 650.0, "rank 0 sent {per_rank:.0} bytes for each rank");
        assert!(joined.busiest_other < joined.coordinator + 4096, "{joined:?}");
        // The bytes of the table take most of the time.
        assert!(joined.seconds < 120e-6 * f64::from(ranks), "{joined:?}");
        let levels = f64::from(3 * ranks + 4).log(4.0).ceil() as u32;
        assert!(joined.hops <= levels, "{} hops for {ranks} ranks", joined.hops);
    }
}
