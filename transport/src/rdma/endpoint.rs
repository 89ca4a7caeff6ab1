//! The endpoint of the RDMA transport: the operations that the owner calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::epoll;

use super::NAME;
use super::address::Address;
use super::channel::{BLOCK_BYTES, CHUNK_BYTES, Chan};
use super::device_copiers::DeviceCopiers;
use super::failure::Arrived;
use super::link::{Link, Stage};
use super::memory_watcher::MemoryWatcher;
use super::options::{Keep, RdmaOptions};
use super::progress::{Hands, Pass, pump};
use super::rails::{self, Rail};
use super::reach;
use super::registrations::Registrations;
use super::side::{News, Side};
use super::small::Lockable;
use super::stats::Counters;
use super::wire::{CHANNELS, EAGER_BYTES, GRANTS};
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Caps, Channel, Endpoint, Event, OnMisfit, Piece, Posted, Reach, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::memory::{Backing, DeviceAccess, MemoryCounters, Registered};

/// Maximum length of a message, which is that of a slice: long writes are cut into shorter ones.
pub(super) const MESSAGE_MAX: usize = isize::MAX as usize;

/// Known facts about a rank.
#[derive(Debug, Default)]
pub(super) struct Peer {
    // The queue pairs are dropped before the memory of the channels.
    pub(super) link: Option<Box<Link>>,
    pub(super) channels: Vec<Option<Box<Chan>>>,
    pub(super) address: Option<Address>,
    /// Pairs of rails that reach each other: this side's, the peer's.
    pub(super) pairs: Vec<(u8, u8)>,
    pub(super) started: bool,
    pub(super) probe_by: Option<Instant>,
    /// Bit masks of the channels with pending messages, and of those with news from the peer.
    pub(super) busy: u64,
    pub(super) touched: u64,
    pub(super) down: Option<Error>,
    /// Whether the owner has been told of the loss.
    pub(super) told: bool,
}

/// One rank's end of the RDMA transport.
#[derive(Debug)]
pub struct RdmaEndpoint {
    // Fields are dropped in this order: links, then the objects they were made of. `Peer` has an order of its own.
    pub(super) peers: Vec<Peer>,
    pub(super) registrations: Vec<Registrations>,
    /// Reason why changes of memory go unnoticed although they should be watched.
    pub(super) unwatched: Option<String>,
    pub(super) lockable: Lockable,
    /// `None` until memory is registered that needs them.
    pub(super) device_copiers: Option<Arc<DeviceCopiers>>,
    pub(super) rails: Vec<Rail>,
    pub(super) side: Side,
    pub(super) rank: u32,
    pub(super) options: RdmaOptions,
    passed_over: Vec<String>,
    address: Vec<u8>,
    /// Peers with connected queue pairs.
    pub(super) live: Vec<u32>,
    /// Number of peers that are needed and not connected yet.
    pub(super) connecting: u32,
    pub(super) counters: Counters,
    /// Events that arose outside of a poll.
    pub(super) backlog: Vec<Event>,
    pub(super) news: Vec<News>,
    /// Lost peers from which the owner asked for messages that had arrived.
    pub(super) late: Vec<u32>,
    pub(super) epoll: OwnedFd,
    side_watched: bool,
    pub(super) armed: bool,
    pub(super) side_due: bool,
    pub(super) tick: u32,
    aborted: bool,
    /// Whether the owner wants to know that everything has been acknowledged.
    pub(super) flush_wanted: AtomicBool,
}

const CAPS: Caps = Caps {
    name: NAME,
    channels_max: CHANNELS as u16,
    message_max: MESSAGE_MAX,
    // Before the connection is up, and while all slots are in use, even a short send waits.
    eager_max: 0,
    staging_per_channel: BLOCK_BYTES + GRANTS as usize * CHUNK_BYTES,
    park_word: false,
    park_fd: true,
    can_probe: true,
    can_cancel_recvs: false,
    can_pack: false,
    stage: None,
};

impl RdmaEndpoint {
    /// Opens the endpoint of `rank` among `world_size` ranks.
    ///
    /// # Errors
    /// If the rank is out of range, or RDMA cannot be used: no library, no device, no port that is up, no such GID,
    /// or too little lockable memory. The error names the cause and the remedy.
    pub fn new(rank: u32, world_size: u32, options: RdmaOptions) -> Result<Self, Error> {
        if rank >= world_size {
            let detail = format!("rank {rank} in a world of {world_size}");
            return Err(Error::new(ErrorKind::Usage, NAME, None, detail));
        }
        let (rails, passed_over) = rails::open(&options)?;
        let lockable = Lockable::of(&options, rails.len())
            .map_err(|words| Error::new(ErrorKind::System, NAME, None, words))?;
        let side = Side::new(rank, world_size, options.side.clone())?;
        let address = Address::of(lockable.peers, &rails, side.address()).encode();
        if address.len() > 1024 {
            let detail =
                "more network interfaces than fit in an address; select some with KOLO_SOCKET_IFNAME";
            return Err(Error::new(ErrorKind::Usage, NAME, None, detail));
        }
        let system = |what: &'static str| {
            move |error: rustix::io::Errno| Error::system(NAME, None, what, error.into())
        };
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("creating an epoll descriptor"))?;
        for rail in &rails {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, &rail.channel, data, epoll::EventFlags::IN)
                .map_err(system("watching a completion channel"))?;
            let data = epoll::EventData::new_u64(2);
            epoll::add(&epoll, rail.context().async_fd(), data, epoll::EventFlags::IN)
                .map_err(system("watching an adapter's events"))?;
        }
        let (watcher, unwatched) = match options.keep {
            Keep::Watched => match MemoryWatcher::shared() {
                Ok(watcher) => (Some(watcher), None),
                Err(because) => (None, Some(because)),
            },
            Keep::Never | Keep::Always => (None, None),
        };
        let registrations = rails
            .iter()
            .map(|rail| Registrations::new(rail.domain.clone(), &options, watcher.clone()))
            .collect();
        let peer = || Peer { channels: (0..CHANNELS).map(|_| None).collect(), ..Peer::default() };
        Ok(Self {
            peers: (0..world_size).map(|_| peer()).collect(),
            registrations,
            unwatched,
            lockable,
            device_copiers: None,
            rails,
            side,
            rank,
            options,
            passed_over,
            address,
            live: Vec::new(),
            connecting: 0,
            counters: Counters::default(),
            backlog: Vec::new(),
            news: Vec::new(),
            late: Vec::new(),
            epoll,
            side_watched: false,
            armed: false,
            side_due: false,
            tick: 0,
            aborted: false,
            flush_wanted: AtomicBool::new(false),
        })
    }

    /// Returns a line for each adapter in use: name, port, address, MTU, rate, NUMA node.
    #[must_use]
    pub fn adapters(&self) -> Vec<String> {
        self.rails.iter().map(Rail::describe).collect()
    }

    /// Returns the adapters that exist and are not used, each with the reason.
    #[must_use]
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }
}

impl Endpoint for RdmaEndpoint {
    fn caps(&self) -> &Caps {
        &CAPS
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error> {
        if peer == self.rank || peer as usize >= self.peers.len() {
            let detail = format!("no such peer in a world of {}", self.peers.len());
            return Err(Error::new(ErrorKind::Usage, NAME, Some(peer), detail));
        }
        let address = Address::decode(address).map_err(|what| {
            Error::new(ErrorKind::Corrupt, NAME, Some(peer), format!("the peer's address: {what}"))
        })?;
        if let Some(because) = self.beyond(peer, &address) {
            return Ok(Reach::No { because });
        }
        if let Reach::No { because } = self.side.introduce(peer, &address.side)? {
            return Ok(Reach::No { because: format!("the TCP connection beside it: {because}") });
        }
        let (pairs, refused) = match reach::pairs(&self.rails, &address.rails) {
            Ok(found) => found,
            Err(because) => return Ok(Reach::No { because }),
        };
        let used = pairs.iter().map(|&(ours, theirs)| {
            let (ours, theirs) = (&self.rails[usize::from(ours)], &address.rails[usize::from(theirs)]);
            let mtu = ours.path.mtu.min(theirs.mtu).bytes();
            format!("{} {} to {}, {}, MTU {mtu}", ours.device, ours.gid, theirs.gid, ours.kind)
        });
        let refused = refused.iter().map(|why| format!("not {why}"));
        let how = used.chain(refused).collect::<Vec<_>>().join("; ");
        let known = &mut self.peers[peer as usize];
        known.address = Some(address);
        known.pairs = pairs;
        self.share_out();
        let known = &self.peers[peer as usize];
        if known.channels.iter().flatten().any(|chan| !chan.is_idle() || chan.probed) {
            self.start(peer)?;
        }
        Ok(Reach::Yes { how })
    }

    fn establish(&mut self, is_aborted: &dyn Fn() -> bool, deadline: Instant) -> Result<(), Error> {
        // Queue pairs are made on first use, or by `try_paths`.
        self.side.establish(is_aborted, deadline)
    }

    /// Connects to these peers now rather than on first use.
    fn try_paths(&mut self, peers: &[u32], deadline: Instant) -> Vec<(u32, Error)> {
        let mut failed = Vec::new();
        let mut events = Vec::new();
        for &peer in peers {
            if let Err(error) = self.start(peer) {
                self.lose(peer, error, &mut events);
            }
        }
        let by = deadline.min(Instant::now() + self.options.probe_timeout);
        let is_open = |peer: &Peer| {
            peer.down.is_none() && peer.link.as_ref().is_none_or(|link| link.stage != Stage::Up)
        };
        while peers.iter().any(|&peer| is_open(&self.peers[peer as usize])) && Instant::now() < by {
            if !self.progress(&mut events) {
                std::thread::yield_now();
            }
        }
        for &number in peers {
            if is_open(&self.peers[number as usize]) {
                let words = format!("no packet came through within {:?}", self.options.probe_timeout);
                let error = Error::new(ErrorKind::Timeout, NAME, Some(number), words);
                self.lose(number, error, &mut events);
            }
            if let Some(error) = &self.peers[number as usize].down {
                failed.push((number, error.clone()));
            }
        }
        failed
    }

    fn device_access(&self) -> Option<DeviceAccess> {
        Some(self.access())
    }

    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_send(on, tag, src, token) }
    }

    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_recv(on, tag, dst, on_misfit, token) }
    }

    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        self.probe_channel(on)
    }

    fn cancel_probe(&mut self, on: Channel) {
        self.cancel_probe_on(on);
    }

    unsafe fn register(&mut self, memory: Piece, backing: Backing<'_>) -> Result<Registered, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.register_backed(memory, backing)? };
        Ok(Registered::Yes)
    }

    fn deregister(&mut self, memory: Piece) {
        self.unpin(memory);
    }

    unsafe fn lend(&mut self, memory: Piece) {
        if memory.len > EAGER_BYTES {
            self.registrations.iter_mut().for_each(|cache| cache.lend(memory.ptr, memory.len));
        }
    }

    fn reclaim(&mut self, memory: Piece) {
        if memory.len > EAGER_BYTES {
            self.registrations.iter_mut().for_each(|cache| cache.reclaim(memory.ptr, memory.len));
        }
    }

    fn memory_counters(&self) -> MemoryCounters {
        let of = self.counters();
        MemoryCounters {
            in_place_bytes: of.sent_in_place_bytes + of.received_in_place_bytes + of.received_eaten_bytes,
            staged_bytes: of.sent_staged_bytes + of.received_staged_bytes,
            registrations: of.cache.misses,
            cache_hits: of.cache.hits,
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.progress(events)
    }

    fn arm(&mut self, _by: ParkBy) -> Armed<'_> {
        let flush = *self.flush_wanted.get_mut();
        let unsettled = |peer: &Peer| {
            peer.link.as_ref().is_some_and(|link| !link.is_settled() || flush && !link.is_flushed())
        };
        let waits = |peer: &Peer| peer.started && peer.down.is_none() && (peer.busy != 0 || unsettled(peer));
        if !self.peers.iter().any(waits) && self.backlog.is_empty() && self.late.is_empty() {
            return Armed::Idle;
        }
        let mut events = std::mem::take(&mut self.backlog);
        for at in 0..self.live.len() {
            let number = self.live[at];
            let peer = &mut self.peers[number as usize];
            let mut hands = Hands {
                rails: &self.rails,
                registrations: &mut self.registrations,
                counters: &mut self.counters,
                options: &self.options,
                events: &mut events,
            };
            if peer.link.as_ref().is_some_and(|link| link.stage == Stage::Up) {
                let due = peer.busy;
                // A poll follows and meets the same error.
                let _ = pump(number, peer, due, Pass::BeforeSleep, &mut hands);
            }
            if let Some(link) = peer.link.as_deref_mut().filter(|_| flush) {
                let _ = link.flush();
            }
            // If the device is gone, the poll that follows reports it.
            let _ = peer.link.as_ref().map(|link| link.wake_for(true));
        }
        self.backlog = events;
        self.armed = true;
        self.side_due = true;
        if let Armed::Fd(fd) = self.side.arm()
            && !self.side_watched
        {
            let data = epoll::EventData::new_u64(1);
            self.side_watched = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).is_ok();
        }
        Armed::Fd(self.epoll.as_fd())
    }

    fn disarm(&mut self) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        for rail in &self.rails {
            while let Ok(Some(_)) = rail.channel.take_event() {}
        }
        self.side.disarm();
        self.side_due = true;
    }

    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        self.close(peer, cause, Arrived::Fails, events);
        self.peers[peer as usize].told = true;
    }

    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        self.aborted = true;
        for peer in 0..self.peers.len() as u32 {
            if peer != self.rank {
                self.close(peer, cause, Arrived::Fails, events);
                self.peers[peer as usize].told = true;
            }
        }
    }

    fn is_sending(&self, peer: u32) -> bool {
        let channels = self.peers.get(peer as usize).into_iter().flat_map(|peer| &peer.channels);
        channels.flatten().any(|channel| !channel.sends.is_empty())
    }

    fn is_flushed(&self) -> bool {
        // The next polls find out the rest.
        self.flush_wanted.store(true, Ordering::Relaxed);
        self.peers.iter().all(|peer| {
            peer.link.as_ref().is_none_or(|link| link.is_flushed())
                && peer.channels.iter().flatten().all(|chan| chan.sends.is_empty())
        })
    }
}

impl Drop for RdmaEndpoint {
    fn drop(&mut self) {
        if !self.aborted && !std::thread::panicking() {
            self.goodbye();
        }
    }
}
