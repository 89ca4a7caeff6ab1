//! Creation of an endpoint, and how the ranks of a host come to share one arena.
//!
//! The lowest rank of the local group is the leader. It creates the arena and hands the descriptor to every rank that
//! asks and proves that it knows both cookies. Ranks may come in any order: a connection waits in the listener's
//! backlog, and the listeners exist before the addresses are distributed. No rank goes on until all have asked: a rank
//! that asks has met all others, and a rank that ended before another met it would pass for one on another host.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use super::address::Address;
use super::arena::{self, Arena, Assembly, MEMBERS_MAX};
use super::endpoint::ShmEndpoint;
use super::hello::{Ends, HELLO_BYTES, Hello, Purpose};
use super::host::{self, Host};
use super::options::{Budget, RING_MAX_BYTES, RING_MIN_BYTES, ShmOptions, SingleCopy};
use super::peer::Peer;
use super::pending::{Caller, EPOLL_PENDING, PendingConnections};
use super::remote::{Beacon, Remote};
use super::ring::{CELLS, INLINE_BYTES};
use super::stage;
use crate::endpoint::{Caps, Reach};
use crate::error::{Error, ErrorKind};
use crate::sys::fences::Fences;
use crate::sys::{credentials, descriptors, unix};

/// Name of the transport in errors and capabilities.
pub(crate) const NAME: &str = "shm";
/// Marks a rank that is no peer of this endpoint.
pub(crate) const NO_PEER: u32 = u32::MAX;
/// Time after which a leader whose backlog is full is asked again; one accept makes room in the backlog.
const RETRY: Duration = Duration::from_millis(1);
/// Time after the deadline in which a leader that gives up says so. Only the leader knows which ranks have not come, and its
/// deadline may be a little later than that of the others.
const VERDICT_GRACE: Duration = Duration::from_millis(500);
/// Time after which a waiting leader checks whether the missing members are still alive, and a waiting member whether
/// the leader is. Members of one host arrive within much less time, and a person takes longer to suspect a hang.
pub(crate) const LOOK_FOR_THE_GONE: Duration = Duration::from_millis(200);

/// How long an endpoint waits for the other ranks of its host.
pub(crate) struct Patience<'a> {
    /// Whether the owner has been told to give up.
    pub(crate) is_aborted: &'a dyn Fn() -> bool,
    pub(crate) deadline: Instant,
}

impl Patience<'_> {
    /// Returns how long to wait before the next look. `late` makes the error for a passed deadline.
    fn left(&self, late: impl FnOnce() -> Error) -> Result<Duration, Error> {
        if (self.is_aborted)() {
            let detail = "the communicator was aborted while the ranks of this host came together".to_owned();
            return Err(Error::new(ErrorKind::Aborted, NAME, None, detail));
        }
        let left = self.deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(|left| left.min(LOOK_FOR_THE_GONE)).ok_or_else(late)
    }
}

/// The sockets through which peers reach an endpoint.
pub(super) struct Sockets {
    pub(super) newcomers: PendingConnections,
    pub(super) bell: unix::Socket,
    pub(super) epoll: OwnedFd,
}

impl Sockets {
    fn open(address: &Address) -> Result<Self, Error> {
        let system = |what: &str, e: io::Error| Error::system(NAME, None, what.to_owned(), e);
        let listener = unix::listen(&address.name).map_err(|e| system("a UNIX socket to listen on", e))?;
        let bell = unix::datagram(&address.bell_name()).map_err(|e| system("a UNIX datagram socket", e))?;
        let epoll = watch(&listener, &bell).map_err(|e| system("epoll", e))?;
        Ok(Self { newcomers: PendingConnections::new(listener, address.uid), bell, epoll })
    }
}

impl ShmEndpoint {
    /// Makes the endpoint of `rank` in a world of `world_size` ranks.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the options are invalid, [`ErrorKind::System`] if this machine does not permit shared
    /// memory between processes: /proc, memory files of the length needed, their seals and mappings, or UNIX sockets.
    pub fn new(rank: u32, world_size: u32, options: ShmOptions) -> Result<Self, Error> {
        let usage = |detail: String| Error::new(ErrorKind::Usage, NAME, None, detail);
        if rank >= world_size {
            return Err(usage(format!("rank {rank} in a world of {world_size}")));
        }
        let ring = options.ring_bytes;
        if !ring.is_multiple_of(RING_MIN_BYTES) || !(RING_MIN_BYTES..=RING_MAX_BYTES).contains(&ring) {
            return Err(usage(format!(
                "a ring of {ring} bytes; choose a multiple of {RING_MIN_BYTES} up to {RING_MAX_BYTES}"
            )));
        }
        if options.piece_bytes == 0 || !options.piece_bytes.is_multiple_of(128) {
            return Err(usage(format!("pieces of {} bytes; choose a multiple of 128", options.piece_bytes)));
        }
        let system = |what: &str, e: io::Error| Error::system(NAME, None, what.to_owned(), e);
        let host =
            Host::current(options.host_key.as_deref()).map_err(|e| system("identity of the host", e))?;
        // A rank that finds this out later could no longer agree with the others on another transport.
        host::check_memory(arena::arena_bytes(world_size.min(MEMBERS_MAX)))
            .map_err(|e| system("memory for other processes", e))?;
        let random = |e| system("random numbers", e);
        let cookie = host::random_bits().map_err(random)?;
        let beacon = Beacon::new(cookie);
        let address = Address {
            host,
            uid: rustix::process::geteuid().as_raw(),
            pid: std::process::id(),
            process: host::process_number().map_err(random)?,
            name: host::random_name().map_err(random)?,
            cookie,
            beacon: beacon.address(),
            is_registered: Fences::register(),
        };
        let sockets = Sockets::open(&address)?;
        Ok(Self::assemble(rank, world_size, options, address, beacon, sockets))
    }

    pub(crate) fn meet(&mut self, rank: u32, address: &[u8]) -> Result<Reach, Error> {
        let usage = |detail: &str| Error::new(ErrorKind::Usage, NAME, Some(rank), detail);
        if rank >= self.world_size || rank == self.rank {
            return Err(usage("introduced to a rank that is not a peer"));
        }
        if self.arena.is_some() {
            return Err(usage("introduced after establish"));
        }
        if self.by_rank[rank as usize] != NO_PEER {
            return Err(usage("introduced twice"));
        }
        let theirs =
            Address::decode(address).map_err(|e| Error::new(ErrorKind::Corrupt, NAME, Some(rank), e))?;
        let no = |because: &str| Ok(Reach::No { because: because.to_owned() });
        if theirs.host.boot != self.identity.host.boot {
            return no("different host");
        }
        if theirs.host.namespace != self.identity.host.namespace {
            return no("different network namespace");
        }
        if theirs.uid != self.identity.uid {
            return no("different user");
        }
        if let Err(because) = self.visit(&theirs) {
            return no(because);
        }
        self.by_rank[rank as usize] = u32::try_from(self.peers.len()).expect("fewer than ranks");
        let remote = match self.options.single_copy {
            SingleCopy::Never => Err("chosen".to_owned()),
            SingleCopy::Auto | SingleCopy::From(_) => self.probe(&theirs),
        };
        let how = match &remote {
            Ok(_) => "same host, memfd, single copy".to_owned(),
            Err(because) => format!("same host, memfd, two copies: {because}"),
        };
        self.peers.push(Peer::new(rank, theirs, remote.ok(), self.caps.channels_max));
        Ok(Reach::Yes { how })
    }

    /// Checks that the peer's socket is on this host and belongs to the same user. The addresses alone do not prove that:
    /// virtual machines that were restored from one snapshot have one boot ID, and in containers, users of one number may
    /// be different ones. Both ends come to the same answer, unless one has no descriptor for the question. The peer drops
    /// the connection, which stays silent. As in [`ShmEndpoint::probe`], one answer serves all peers of a process.
    fn visit(&mut self, peer: &Address) -> Result<(), &'static str> {
        if let Some((process, visited)) = &self.visited
            && *process == peer.process_key()
        {
            return *visited;
        }
        let visited = match unix::connect(&peer.name) {
            Ok(stream) => match credentials::peer_of(&stream) {
                Ok(user) if user.uid != self.identity.uid => Err("different user, by the user namespaces"),
                // The system tells no user where it has no such call.
                Ok(_) | Err(_) => Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err("its socket is not visible here: different host, or its process has ended")
            }
            // The backlog is full, or this process has no descriptor: nothing is known.
            Err(_) => Ok(()),
        };
        self.visited = Some((peer.process_key(), visited));
        visited
    }

    /// Checks whether the peer's memory can be read. Peers that are threads of one process give the same answer, and
    /// asking for each would take as many system calls as there are pairs of threads.
    fn probe(&mut self, peer: &Address) -> Result<Remote, String> {
        match &self.probed {
            Some((process, probed)) if *process == peer.process_key() => {
                probed.clone().and_then(|()| Remote::of(peer))
            }
            _ => {
                let remote = Remote::probe(peer);
                self.probed = Some((peer.process_key(), remote.as_ref().map(drop).map_err(Clone::clone)));
                remote
            }
        }
    }

    pub(crate) fn share_arena(&mut self, patience: &Patience<'_>) -> Result<(), Error> {
        if self.arena.is_some() {
            return Err(Error::new(ErrorKind::Usage, NAME, None, "established twice"));
        }
        let mut members: Vec<u32> = self.peers.iter().map(|p| p.rank).chain([self.rank]).collect();
        members.sort_unstable();
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if count > MEMBERS_MAX {
            let detail = format!("{count} ranks on one host; at most {MEMBERS_MAX}");
            return Err(Error::new(ErrorKind::Usage, NAME, None, detail));
        }
        let member_of = |rank: u32| members.binary_search(&rank).expect("every rank is listed") as u32;
        self.member = member_of(self.rank);
        for peer in &mut self.peers {
            peer.member = member_of(peer.rank);
        }
        self.members = members;
        self.budget = Budget::new(&self.options, self.world_size, self.peers.len());
        self.caps = caps(&self.options, self.caps.channels_max, &self.budget);
        let arena =
            if self.member == 0 { self.lead(count, patience)? } else { self.follow(count, patience)? };
        self.last_mail = arena.mail(self.member).load(std::sync::atomic::Ordering::Acquire).wrapping_sub(1);
        self.areas = stage::areas(&arena, self.member);
        self.arena = Some(arena);
        Ok(())
    }

    /// Returns the fence scheme, which is the same on all members, since each knows all addresses.
    fn fences(&self) -> Fences {
        let everybody = self.identity.is_registered && self.peers.iter().all(|p| p.address.is_registered);
        if everybody { Fences::Asymmetric } else { Fences::Symmetric }
    }

    /// Creates the arena and serves it until every member has it.
    fn lead(&mut self, members: u32, patience: &Patience<'_>) -> Result<Arena, Error> {
        let (arena, fd) = Arena::create(members, self.fences())
            .map_err(|e| Error::system(NAME, None, "creating the memory shared by this host's ranks", e))?;
        let served = self.serve(members, &fd, patience);
        arena.end_assembly(if served.is_ok() { Assembly::Complete } else { Assembly::GivenUp });
        served.map(|()| arena)
    }

    /// Hands the arena to all members.
    fn serve(&mut self, members: u32, fd: &OwnedFd, patience: &Patience<'_>) -> Result<(), Error> {
        let mut waiting: Vec<u32> = self.peers.iter().map(|p| p.rank).collect();
        let mut looked = Instant::now();
        // Those who have asked and cannot be answered yet.
        let mut refused: Vec<Caller> = Vec::new();
        while !waiting.is_empty() {
            let mut callers = std::mem::take(&mut self.callers);
            callers.append(&mut refused);
            self.newcomers.receive(&self.epoll, &mut callers).map_err(|e| {
                descriptors::shortage(NAME, (self.rank, None), "accept the ranks of its host", &e)
            })?;
            for caller in callers.drain(..) {
                let Some(peer) = self.recognise(&caller.greeting) else { continue };
                if caller.greeting.hello.purpose == Purpose::AskArena {
                    match self.answer(peer, &caller, members, fd) {
                        Ok(_) => waiting.retain(|rank| *rank != self.peers[peer].rank),
                        Err(error) if unix::is_transient(&error) => refused.push(caller),
                        // A member that has gone away meanwhile is missed at the deadline, or asks again.
                        Err(_) => {}
                    }
                } else {
                    self.welcome(peer, caller);
                }
            }
            self.callers = callers;
            if waiting.is_empty() {
                break;
            }
            let left = patience.left(|| {
                let detail =
                    format!("ranks {waiting:?} of this host did not ask for the shared arena in time");
                Error::new(ErrorKind::Timeout, NAME, waiting.first().copied(), detail)
            })?;
            // The clock decides, because the descriptor stays readable once a peer that has already come ends.
            if looked.elapsed() >= LOOK_FOR_THE_GONE {
                self.check_presence(&waiting)?;
                looked = Instant::now();
            }
            let pause = if refused.is_empty() { LOOK_FOR_THE_GONE } else { RETRY };
            wait_readable(&self.epoll, left.min(pause));
        }
        Ok(())
    }

    /// Hands the arena to a member that has asked for it.
    fn answer(&self, peer: usize, caller: &Caller, members: u32, fd: &OwnedFd) -> io::Result<usize> {
        let nonce = caller.greeting.hello.nonce;
        let answer = Hello { purpose: Purpose::Arena { members }, rank: self.rank, nonce };
        let ends = Ends { caller: &self.identity.cookie, callee: &self.peers[peer].address.cookie };
        unix::send(&caller.stream, &answer.encode(ends), Some(fd.as_fd()))
    }

    /// Fails if one of these peers has ended or given up, which shows by its missing socket.
    fn check_presence(&self, ranks: &[u32]) -> Result<(), Error> {
        for peer in self.peers.iter().filter(|peer| ranks.contains(&peer.rank)) {
            // The peer treats the connection as one that stays silent, and drops it.
            let refused = unix::connect_to(&peer.address.name, peer.address.uid)
                .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
            if refused {
                let detail = format!(
                    "process {} of rank {} has ended, or gave up, before it shared memory",
                    peer.address.pid, peer.rank
                );
                return Err(Error::new(ErrorKind::PeerLost, NAME, Some(peer.rank), detail));
            }
        }
        Ok(())
    }

    /// Connects to the leader. `late` makes the error for a passed deadline.
    fn reach(
        &self,
        leader: &Peer,
        patience: &Patience<'_>,
        late: impl Fn() -> Error,
    ) -> Result<unix::Socket, Error> {
        loop {
            match unix::connect_to(&leader.address.name, leader.address.uid) {
                Ok(stream) => return Ok(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = patience.left(&late)?;
                    // The system does not notify when a full backlog has room again.
                    std::thread::sleep(RETRY.min(left));
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    let detail = format!("process {} of rank {} is gone", leader.address.pid, leader.rank);
                    return Err(Error::new(ErrorKind::PeerLost, NAME, Some(leader.rank), detail));
                }
                Err(e) => {
                    let what = "connecting to the leader of this host's ranks".to_owned();
                    return Err(Error::system(NAME, Some(leader.rank), what, e));
                }
            }
        }
    }

    /// Asks the leader for the arena, and waits until all have.
    fn follow(&self, members: u32, patience: &Patience<'_>) -> Result<Arena, Error> {
        let leader = self
            .peers
            .iter()
            .find(|p| p.member == 0)
            .ok_or_else(|| Error::new(ErrorKind::Usage, NAME, None, "a local group without a leader"))?;
        let rank = Some(leader.rank);
        let late = || {
            let detail = format!("rank {} of this host did not share its arena in time", leader.rank);
            Error::new(ErrorKind::Timeout, NAME, rank, detail)
        };
        let system = |what: &str, e: io::Error| Error::system(NAME, rank, what.to_owned(), e);
        let closed = || {
            let detail = format!("rank {} closed its end before sharing its arena", leader.rank);
            Error::new(ErrorKind::PeerLost, NAME, rank, detail)
        };
        // A leader that ends before it has read the request resets the connection.
        let failed = |what: &str, e: io::Error| match e.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => closed(),
            _ => system(what, e),
        };
        let stream = self.reach(leader, patience, late)?;
        let hello = Hello {
            purpose: Purpose::AskArena,
            rank: self.rank,
            nonce: host::random_bits().map_err(|e| system("random numbers", e))?,
        };
        let ends = Ends { caller: &self.identity.cookie, callee: &leader.address.cookie };
        unix::send(&stream, &hello.encode(ends), None)
            .map_err(|e| failed("asking for the shared arena", e))?;
        let mut answer = [0; HELLO_BYTES];
        let (mut filled, mut fd) = (0, None);
        while filled < HELLO_BYTES {
            match unix::receive(&stream, &mut answer[filled..], &mut fd) {
                Ok(0) => return Err(closed()),
                Ok(bytes) => filled += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    wait_readable(&stream, patience.left(late)?);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("waiting for the shared arena", e)),
            }
        }
        let back = Ends { caller: ends.callee, callee: ends.caller };
        let fd = fd.transpose().map_err(|e| {
            descriptors::shortage(NAME, (self.rank, rank), "take the memory shared by this host's ranks", &e)
        })?;
        let is_right = Hello::decode(&answer).is_some_and(|greeting| {
            greeting.is_between(back)
                && greeting.hello.nonce == hello.nonce
                && greeting.hello.purpose == Purpose::Arena { members }
        });
        let (true, Some(fd)) = (is_right, fd) else {
            let detail = format!("rank {} did not answer with an arena for {members} members", leader.rank);
            return Err(Error::new(ErrorKind::Corrupt, NAME, rank, detail));
        };
        let arena =
            Arena::open(&fd, members, self.fences()).map_err(|e| system("mapping the shared arena", e))?;
        let patience = Patience { deadline: patience.deadline + VERDICT_GRACE, ..*patience };
        self.await_assembly(&arena, leader, || patience.left(late))?;
        Ok(arena)
    }

    /// Waits until all members have asked for the arena.
    fn await_assembly(
        &self,
        arena: &Arena,
        leader: &Peer,
        patience: impl Fn() -> Result<Duration, Error>,
    ) -> Result<(), Error> {
        let rank = Some(leader.rank);
        let mut presence = Ok(());
        loop {
            // The state comes after the look for the leader, which may end once it has said that all are there.
            match arena.assembly() {
                Assembly::Complete => return Ok(()),
                Assembly::Incomplete => presence?,
                Assembly::GivenUp => {
                    let detail = format!(
                        "rank {} gave up before all ranks of this host shared its arena",
                        leader.rank
                    );
                    return Err(Error::new(ErrorKind::PeerLost, NAME, rank, detail));
                }
            }
            arena
                .sleep_until_assembled(patience()?)
                .map_err(|e| Error::system(NAME, rank, "waiting for the other ranks of this host", e))?;
            presence = self.check_presence(&[leader.rank]);
        }
    }
}

pub(super) fn caps(options: &ShmOptions, channels_max: u16, budget: &Budget) -> Caps {
    Caps {
        name: NAME,
        channels_max,
        message_max: isize::MAX as usize,
        eager_max: eager_max(budget.floor(), options),
        staging_per_channel: options.ring_bytes + super::options::CONTROL_BYTES,
        park_word: true,
        park_fd: true,
        can_probe: true,
        can_cancel_recvs: true,
        can_pack: true,
        stage: Some(stage::STAGE),
    }
}

/// Returns how many bytes an empty ring of `ring` bytes takes at any position. Near the end of the ring, less than 4
/// KiB (or less than half the ring, if that is less) may be skipped, and one piece may be shorter. A message by
/// rendezvous waits for its receiver, so the limit stays below the length of such messages.
fn eager_max(ring: usize, options: &ShmOptions) -> usize {
    let piece = options.piece_bytes.min(ring / 2);
    let fits = (ring / 2).max(ring.saturating_sub(8192)).min((CELLS as usize - 2) * piece);
    fits.min(options.rendezvous_min() - 1)
}

const _: () = assert!(INLINE_BYTES < RING_MIN_BYTES / 2);

/// Makes the epoll set of the descriptors whose readability the owner may sleep on.
fn watch(listener: &unix::Socket, bell: &unix::Socket) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [listener, bell] {
        epoll::add(&epoll, fd, epoll::EventData::new_u64(EPOLL_PENDING), epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

/// Waits until `fd` is readable or the time is over; the caller looks again in either case.
fn wait_readable(fd: &OwnedFd, patience: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    let _ = rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
}
