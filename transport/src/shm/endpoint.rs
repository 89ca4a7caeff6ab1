//! The endpoint of the shared-memory transport: posting, polling and sleeping.
//!
//! # The two halves of a link
//! Each side makes the half through which it sends. Upon its first post of any kind to a peer, it creates a segment
//! and delivers it over a UNIX stream to the peer's listener. It does not wait for the peer: the connection and the
//! descriptor lie in the listener's backlog until the peer looks there, and messages go into the rings meanwhile. So
//! no rank waits for the other to dial, both may dial at the same time, and a message reported done survives its
//! sender, and needs nothing more from it. If the segment cannot be delivered at once, because the backlog is full or
//! there is no descriptor, messages wait in their lanes until it is. The streams stay open; the end of a stream means
//! that the peer is gone.
//!
//! # The order of a poll
//! 1. Check the mail word in the arena, which peers increment after putting something into this endpoint's sockets.
//!    Look at the sockets themselves only when the word has changed, before and after sleeping, and every
//!    [`LOOK_EVERY`] polls.
//! 2. Advance the channels with pending messages, each by up to a few pieces in turn. Both directions of a flood thus
//!    advance together, and the two processes work on neighbouring pieces at the same time.
//! 3. Check the doorbells of the peers for whom something was published or freed: one fence, then one look each.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::address::{Address, ProcessKey};
use super::arena::{ASLEEP_WORD, Arena};
use super::copier::{Copier, Stores};
use super::cursor::Cursor;
use super::establish::{NAME, NO_PEER, Patience, Sockets, caps};
use super::exchange::Exchange;
use super::lane::{Origin, SendLane};
use super::options::{Budget, SINGLE_COPY_MIN, ShmOptions, SingleCopy, channels_max};
use super::pages::Pages;
use super::peer::{Fate, NO_LANE, Peer};
use super::pending::{Caller, PendingConnections};
use super::recv_lane::RecvLane;
use super::remote::{Beacon, FAR_RUNS};
use super::shuttles::Shuttles;
use super::stage::Area;
use super::tried::Route;
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{
    Caps, Channel, Consumer, Endpoint, Event, Fits, OnMisfit, Packer, Piece, Posted, Reach, Short, Sink,
    Token,
};
use crate::error::{Error, ErrorKind};
use crate::stage::Stage;
use crate::sys::futex;
use crate::sys::unix;

/// Number of polls between two looks at the sockets when there is no other reason to look. A look costs about 0.4 µs
/// and a poll at least 10 ns, so this is 1 % of a spinning owner's time, and a peer's death is seen within about 50
/// µs of spinning.
const LOOK_EVERY: u32 = 4096;

/// One rank's end of the shared-memory transport.
#[derive(Debug)]
pub struct ShmEndpoint {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) options: ShmOptions,
    pub(super) caps: Caps,
    pub(super) identity: Address,
    /// Keeps the memory at the identity's `beacon` address.
    _beacon: Beacon,
    /// Finds out whether memory lies in huge pages, if the options call for it.
    pub(super) pages: Option<Pages>,
    /// The process whose memory this rank tried to read last, and the reason if it cannot.
    pub(super) probed: Option<(ProcessKey, Result<(), String>)>,
    /// The process that this rank tried to connect to last, and the reason if it is not on this host.
    pub(super) visited: Option<(ProcessKey, Result<(), &'static str>)>,
    blob: Vec<u8>,
    pub(super) newcomers: PendingConnections,
    pub(super) callers: Vec<Caller>,
    pub(super) bell: Arc<unix::Socket>,
    pub(super) epoll: OwnedFd,
    pub(super) budget: Budget,

    /// Ranks of the local group, ascending; set by `establish`.
    pub(super) members: Vec<u32>,
    /// This rank's index in `members`.
    pub(super) member: u32,
    pub(super) arena: Option<Arena>,
    pub(super) is_exchange_taken: bool,
    /// Areas of the stage; set by `establish`.
    pub(super) areas: Vec<Area>,
    /// Stores with which this rank copies into memory that others read, and the copier that applies them on the
    /// stage.
    pub(super) stores: Stores,
    pub(super) copier: Copier,

    /// Index into `peers` by rank, or [`NO_PEER`].
    pub(super) by_rank: Box<[u32]>,
    pub(super) peers: Vec<Peer>,
    pub(super) send_lanes: Vec<SendLane>,
    pub(super) recv_lanes: Vec<RecvLane>,
    /// Lanes with pending messages and a ring to move them through.
    pub(super) busy_sends: Vec<u32>,
    pub(super) busy_recvs: Vec<u32>,
    /// Peers whose doorbell is to be checked.
    pub(super) dirty: Vec<u32>,
    /// Peers whose segment could not be delivered yet.
    pub(super) undelivered: Vec<u32>,
    /// Peers in [`Fate::Leaving`](super::peer::Fate::Leaving).
    pub(super) leaving: Vec<u32>,
    /// Scratch list of peers just found to be gone.
    pub(super) gone: Vec<u32>,
    /// Events that posts produced, for the next poll to report.
    pub(super) deferred: VecDeque<Event>,
    /// Number of tokens that wait in lanes.
    pub(super) pending: usize,
    /// Whether there are more ranks than processors.
    pub(super) shares_processors: bool,

    pub(super) last_mail: u32,
    polls: u32,
    pub(super) look_soon: bool,
    /// Sleep method that the owner has announced.
    armed: Option<ParkBy>,
    /// Set by `abort`.
    pub(super) aborted: Option<Error>,
}

impl ShmEndpoint {
    pub(super) fn assemble(
        rank: u32,
        world_size: u32,
        options: ShmOptions,
        identity: Address,
        beacon: Beacon,
        sockets: Sockets,
    ) -> Self {
        let stores = options.stores;
        let budget = Budget::new(&options, world_size, world_size as usize - 1);
        Self {
            rank,
            world_size,
            caps: caps(&options, channels_max(world_size), &budget),
            pages: (options.single_copy == SingleCopy::Auto).then(Pages::open).flatten(),
            options,
            blob: identity.encode(),
            identity,
            _beacon: beacon,
            probed: None,
            visited: None,
            newcomers: sockets.newcomers,
            callers: Vec::new(),
            bell: Arc::new(sockets.bell),
            epoll: sockets.epoll,
            budget,
            members: Vec::new(),
            member: 0,
            arena: None,
            is_exchange_taken: false,
            areas: Vec::new(),
            stores,
            copier: Copier::new(stores),
            by_rank: vec![NO_PEER; world_size as usize].into_boxed_slice(),
            peers: Vec::new(),
            send_lanes: Vec::new(),
            recv_lanes: Vec::new(),
            busy_sends: Vec::new(),
            busy_recvs: Vec::new(),
            dirty: Vec::new(),
            undelivered: Vec::new(),
            leaving: Vec::new(),
            gone: Vec::new(),
            deferred: VecDeque::new(),
            pending: 0,
            shares_processors: false,
            last_mail: 0,
            polls: 0,
            look_soon: true,
            armed: None,
            aborted: None,
        }
    }

    /// Returns the ranks of the local group, this one included, ascending. Empty before [`Endpoint::establish`].
    #[must_use]
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Returns whether the owner has announced that it is about to sleep.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Returns the index of a peer after checking that a post to it is allowed.
    pub(super) fn peer_for_post(&mut self, on: Channel) -> Result<usize, Error> {
        let usage = |detail: &str| Error::new(ErrorKind::Usage, NAME, Some(on.peer), detail);
        if let Some(cause) = &self.aborted {
            return Err(cause.clone());
        }
        let Some(&index) = self.by_rank.get(on.peer as usize).filter(|i| **i != NO_PEER) else {
            return Err(usage("no peer of this transport; was it introduced and reachable?"));
        };
        if self.arena.is_none() {
            return Err(usage("posted before establish"));
        }
        if on.index >= self.caps.channels_max {
            let detail = format!("channel {} of {}", on.index, self.caps.channels_max);
            return Err(usage(&detail));
        }
        Ok(index as usize)
    }

    /// Returns the index of a peer, if no failure of it is known.
    #[inline]
    pub(super) fn peer_at_hand(&self, rank: u32) -> Option<usize> {
        let index = *self.by_rank.get(rank as usize)? as usize;
        matches!(self.peers.get(index)?.fate, Fate::Fine).then_some(index)
    }

    /// Returns the lane for sending on a channel. The first use makes the lane, and the segment if necessary.
    pub(super) fn send_lane(&mut self, peer: usize, channel: u16) -> Result<u32, Error> {
        let known = self.peers[peer].send_lanes[usize::from(channel)];
        if known != NO_LANE {
            return Ok(known);
        }
        self.reach_out(peer)?;
        let id = u32::try_from(self.send_lanes.len()).expect("fewer than channels");
        let lane = SendLane::new(peer, self.stores, self.shuttles(peer, channel));
        self.send_lanes.push(lane);
        self.peers[peer].send_lanes[usize::from(channel)] = id;
        self.open_lane(peer, channel);
        Ok(id)
    }

    /// Returns the shuttles of a channel to a peer, which both its lanes use.
    pub(super) fn shuttles(&self, peer: usize, channel: u16) -> Arc<Shuttles> {
        let Peer { send_lanes, recv_lanes, .. } = &self.peers[peer];
        let at = usize::from(channel);
        match (send_lanes[at], recv_lanes[at]) {
            (NO_LANE, NO_LANE) => Arc::default(),
            (NO_LANE, lane) => self.recv_lanes[lane as usize].shuttles.clone(),
            (lane, _) => self.send_lanes[lane as usize].shuttles.clone(),
        }
    }

    /// Returns the route of a message that is long enough for rendezvous.
    fn route(&mut self, lane: u32, src: &[Piece], total: usize) -> Route {
        let lane = &mut self.send_lanes[lane as usize];
        if src.len() > FAR_RUNS || !lane.may_rendezvous() {
            return Route::RING;
        }
        let is_huge = || self.pages.as_ref().is_some_and(|pages| pages.hold(src, total));
        match self.options.single_copy {
            SingleCopy::Never => Route::RING,
            SingleCopy::From(_) => Route::RENDEZVOUS,
            SingleCopy::Auto => {
                let route = lane.tried.route(total);
                let goes_anyway = !route.by_rendezvous && total >= SINGLE_COPY_MIN && is_huge();
                if goes_anyway { Route::RENDEZVOUS } else { route }
            }
        }
    }

    /// Lists a lane that has work as busy, once it has a ring.
    pub(super) fn list_recv(&mut self, id: u32) {
        let lane = &mut self.recv_lanes[id as usize];
        if !lane.is_listed && lane.ring.is_some() {
            lane.is_listed = true;
            self.busy_recvs.push(id);
        }
    }

    /// Returns the lane for receiving on a channel. The first use makes it.
    pub(super) fn recv_lane(&mut self, peer: usize, channel: u16) -> Result<u32, Error> {
        let known = self.peers[peer].recv_lanes[usize::from(channel)];
        if known != NO_LANE {
            return Ok(known);
        }
        // Reaching out also shows whether the peer is alive, which nothing else would show if it never sends. If the
        // peer is gone, its messages may still lie in the backlog: the next poll looks there before it gives the peer
        // up.
        match self.reach_out(peer) {
            Err(error) if error.kind == ErrorKind::PeerLost => self.look_soon = true,
            other => other?,
        }
        let shuttles = self.shuttles(peer, channel);
        let mut lane = RecvLane::new(peer, channel, self.peers[peer].remote, shuttles);
        if let Some(inward) = &self.peers[peer].inward {
            lane.ring = (channel < inward.segment.channels())
                .then(|| inward.segment.consumer(channel, lane.shuttles.clone()));
        }
        let id = u32::try_from(self.recv_lanes.len()).expect("fewer than channels");
        self.recv_lanes.push(lane);
        self.peers[peer].recv_lanes[usize::from(channel)] = id;
        Ok(id)
    }
}

/// Returns the total length of the pieces, or `None` if it exceeds the limit.
pub(super) fn total(pieces: &[Piece]) -> Option<usize> {
    let sum = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len))?;
    (sum <= isize::MAX as usize).then_some(sum)
}

pub(super) fn too_long(peer: u32) -> Error {
    Error::new(ErrorKind::Usage, NAME, Some(peer), "a message of more bytes than memory can have")
}

impl Endpoint for ShmEndpoint {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn address(&self) -> &[u8] {
        &self.blob
    }

    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error> {
        self.meet(peer, address)
    }

    fn establish(&mut self, is_aborted: &dyn Fn() -> bool, deadline: Instant) -> Result<(), Error> {
        self.share_arena(&Patience { is_aborted, deadline })
    }

    fn share_processors(&mut self) {
        self.shares_processors = true;
        if self.stores == Stores::Auto {
            self.stores = Stores::Ordinary;
            self.copier = Copier::new(self.stores);
        }
    }

    fn exchange(&mut self) -> Option<Exchange> {
        self.make_exchange()
    }

    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let peer = self.peer_for_post(on)?;
        let Some(total) = total(src) else { return Err(too_long(on.peer)) };
        self.check_can_send(peer)?;
        let id = self.send_lane(peer, on.index)?;
        let is_long = total >= self.options.rendezvous_min();
        let route = if is_long { self.route(id, src, total) } else { Route::RING };
        // SAFETY: the caller's promise.
        Ok(unsafe {
            self.hand_send((peer, id), tag, (Origin::Pieces(Cursor::new(src)), total), token, route)
        })
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
        unsafe { self.hand_recv(on, tag, dst, on_misfit, token) }
    }

    unsafe fn send_short(&mut self, on: Channel, tag: u64, src: Piece) -> bool {
        let Some(peer) = self.peer_at_hand(on.peer) else { return false };
        let target = &self.peers[peer];
        let id = target.send_lanes.get(usize::from(on.index)).copied().unwrap_or(NO_LANE);
        let Some(lane) = self.send_lanes.get_mut(id as usize) else { return false };
        // SAFETY: the caller's promise.
        let sent = unsafe { lane.put_whole(tag, src.ptr, src.len) };
        if sent {
            self.ring_doorbell(peer);
        }
        sent
    }

    unsafe fn take_short(&mut self, on: Channel, fits: Fits, to: *mut u8) -> Short {
        // SAFETY: the caller's promise: `to` is writable for as many bytes as fit.
        self.take_with(on, |lane| unsafe {
            lane.take_whole(fits, |from, len| from.copy_to_nonoverlapping(to, len))
        })
    }

    unsafe fn consume_short(&mut self, on: Channel, fits: Fits, consumer: Consumer) -> Short {
        // SAFETY: the caller's promise.
        let consume = |from, len| unsafe { (consumer.call)(consumer.context, 0, from, len) };
        self.take_with(on, |lane| lane.take_whole(fits, consume))
    }

    unsafe fn post_send_packed(
        &mut self,
        on: Channel,
        tag: u64,
        len: usize,
        packer: Packer,
        token: Token,
    ) -> Result<Posted, Error> {
        let peer = self.peer_for_post(on)?;
        self.check_can_send(peer)?;
        let id = self.send_lane(peer, on.index)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.hand_send((peer, id), tag, (Origin::Packer(packer), len), token, Route::RING) })
    }

    fn exposes(&mut self, on: Channel) -> bool {
        self.is_read_on(on)
    }

    fn prefers_get(&mut self, on: Channel, len: usize) -> bool {
        self.chooses_get(on, len)
    }

    unsafe fn post_get(
        &mut self,
        on: Channel,
        from: u64,
        dst: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.hand_get(on, from, dst, token) }
    }

    fn cancel_recvs(&mut self, on: Channel, events: &mut Vec<Event>) -> bool {
        let Ok(peer) = self.peer_for_post(on) else { return false };
        let id = self.peers[peer].recv_lanes[usize::from(on.index)];
        let Some(lane) = self.recv_lanes.get_mut(id as usize) else { return true };
        if !lane.can_return() {
            return false;
        }
        lane.take_back(&mut self.pending, events);
        true
    }

    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        let peer = self.peer_for_post(on)?;
        self.check_can_receive(peer)?;
        let id = self.recv_lane(peer, on.index)?;
        let lane = &mut self.recv_lanes[id as usize];
        self.pending += usize::from(!std::mem::replace(&mut lane.is_probed, true));
        self.list_recv(id);
        Ok(())
    }

    fn cancel_probe(&mut self, on: Channel) {
        let Ok(peer) = self.peer_for_post(on) else { return };
        let id = self.peers[peer].recv_lanes[usize::from(on.index)];
        if id != NO_LANE {
            let lane = &mut self.recv_lanes[id as usize];
            self.pending -= usize::from(std::mem::take(&mut lane.is_probed));
        }
    }

    fn stage(&self) -> Option<&dyn Stage> {
        self.arena.is_some().then_some(self as &dyn Stage)
    }

    fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        self.arena.is_some().then_some(self as &mut dyn Stage)
    }

    /// Makes this side's half of the link, if there is none yet. Its stream ends when the peer ends, and the next
    /// poll notices that.
    fn look_for(&mut self, peer: u32) -> Result<(), Error> {
        let index = self.peer_for_post(Channel { peer, index: 0 })?;
        self.presence(index)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let Some(arena) = &self.arena else { return false };
        let mut any = false;
        if !self.deferred.is_empty() {
            events.extend(self.deferred.drain(..));
            any = true;
        }
        self.polls = self.polls.wrapping_add(1);
        let mail = arena.mail(self.member).load(Ordering::Acquire);
        if mail != self.last_mail || self.look_soon || self.polls.is_multiple_of(LOOK_EVERY) {
            self.last_mail = mail;
            any |= self.look_at_sockets(events);
        }
        any |= if self.is_armed() { self.pass_before_sleep(events) } else { self.pass(events) };
        if !self.leaving.is_empty() {
            any |= self.see_off(events);
        }
        any
    }

    /// Until [`Endpoint::disarm`], further calls return the same and change nothing for the peers. With "arm, poll,
    /// arm, sleep", a wake-up between the last poll and the sleep is therefore not lost.
    fn arm(&mut self, by: ParkBy) -> Armed<'_> {
        let Some(arena) = &self.arena else { return Armed::Idle };
        if self.armed != Some(by) {
            if self.pending == 0 && self.deferred.is_empty() && !self.waits_on_stage() {
                return Armed::Idle;
            }
            self.armed = Some(by);
            self.look_soon = true;
            arena.fall_asleep(self.member, by);
        }
        match by {
            ParkBy::Word => Armed::Word(arena.doorbell(self.member), ASLEEP_WORD),
            ParkBy::Fd => Armed::Fd(self.epoll.as_fd()),
        }
    }

    fn disarm(&mut self) {
        if let (Some(_), Some(arena)) = (self.armed.take(), &self.arena) {
            arena.rise(self.member);
            self.look_soon = true;
        }
    }

    fn rouse(&mut self) {
        self.wake_owner();
        if let Some(arena) = &self.arena {
            // Some threads may sleep on the word though the last one to arm did so by descriptor.
            futex::wake_all(arena.doorbell(self.member));
        }
    }

    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        if let Some(&index) = self.by_rank.get(peer as usize).filter(|i| **i != NO_PEER) {
            self.lose(index as usize, cause.clone(), false, events);
        }
    }

    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        events.extend(self.deferred.drain(..));
        self.aborted = Some(cause.clone());
        for index in 0..self.peers.len() {
            self.lose(index, cause.clone(), false, events);
        }
    }

    fn is_sending(&self, peer: u32) -> bool {
        let lanes = self.peers.get(peer as usize).map_or(&[][..], |peer| &peer.send_lanes);
        lanes.iter().any(|id| self.send_lanes.get(*id as usize).is_some_and(|lane| !lane.is_idle()))
    }

    fn is_flushed(&self) -> bool {
        // Bytes in a delivered segment stay readable for the peer after this endpoint is dropped.
        self.undelivered.is_empty() && self.send_lanes.iter().all(SendLane::is_idle)
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.send_lanes.iter().for_each(SendLane::withdraw);
        let Some(arena) = &self.arena else { return };
        if self.aborted.is_none() {
            arena.departed(self.member).store(1, Ordering::Release);
        }
        for index in 0..self.peers.len() {
            if self.peers[index].outward.is_some() || self.peers[index].inward.is_some() {
                self.send_mail(index);
            }
        }
    }
}
