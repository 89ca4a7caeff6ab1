//! Links to peers: how they are made on first use, accepted, found to be broken, and taken down.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::epoll;
use rustix::time::Timespec;

use super::endpoint::ShmEndpoint;
use super::establish::{NAME, NO_PEER};
use super::hello::{Ends, Greeting, Hello, Purpose};
use super::peer::{Fate, Inward, NO_LANE, Outward, Peer};
use super::pending::{Caller, EPOLL_PENDING};
use super::progress::{give_back, received};
use super::recv_lane::Trouble;
use super::segment::{Geometry, Segment};
use crate::endpoint::Event;
use crate::error::{Error, ErrorKind};
use crate::sys::descriptors::{self, STARVED_FOR};
use crate::sys::unix;

/// Number of events taken from epoll at a time. It is level-triggered, so the rest comes next time.
const EPOLL_EVENTS: usize = 32;
/// Number of nudges read from the socket at a time.
const NUDGES: usize = 64;

impl ShmEndpoint {
    /// Makes this side's half of the link, if there is none yet.
    pub(super) fn reach_out(&mut self, peer: usize) -> Result<(), Error> {
        if self.peers[peer].outward.is_some() {
            return Ok(());
        }
        let rank = self.peers[peer].rank;
        let geometry = Geometry { channels: self.caps.channels_max, ring_max: self.options.ring_bytes };
        let (segment, fd) = Segment::create(geometry).map_err(|e| match descriptors::are_out(&e) {
            true => descriptors::shortage(NAME, (self.rank, Some(rank)), "create memory for a peer", &e),
            false => Error::system(NAME, Some(rank), "creating shared memory for a peer", e),
        })?;
        let outward = Outward { segment, parcel: Some(fd), stream: None, hungry_since: None };
        self.peers[peer].outward = Some(outward);
        match self.deliver(peer) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.undelivered.push(peer as u32);
                self.look_soon = true;
                Ok(())
            }
            Err(cause) => {
                let report = !self.has_departed(peer);
                self.start_leaving(peer, cause.clone(), report);
                Err(cause)
            }
        }
    }

    /// Tries to deliver the segment. Returns `false` if the peer cannot take it now, or if this rank has no descriptor for
    /// the connection now.
    fn deliver(&mut self, peer: usize) -> Result<bool, Error> {
        let target = &self.peers[peer];
        let (rank, pid) = (target.rank, target.address.pid);
        let Some(outward) = &target.outward else { return Ok(true) };
        let Some(parcel) = &outward.parcel else { return Ok(true) };
        let hello = Hello {
            purpose: Purpose::Segment {
                channels: self.caps.channels_max.into(),
                ring_max: u32::try_from(self.options.ring_bytes).expect("checked in new"),
            },
            rank: self.rank,
            nonce: [0; 16], // no answer follows
        };
        let ends = Ends { caller: &self.identity.cookie, callee: &target.address.cookie };
        let sent = unix::connect_to(&target.address.name, target.address.uid).and_then(|stream| {
            // The peer takes one segment, so nothing may fail after it is sent.
            let data = epoll::EventData::new_u64(peer as u64);
            epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)?;
            unix::send(&stream, &hello.encode(ends), Some(parcel.as_fd()))?;
            Ok(stream)
        });
        match sent {
            Ok(stream) => {
                if let Some(outward) = &mut self.peers[peer].outward {
                    outward.stream = Some(stream);
                    outward.parcel = None;
                }
                for channel in 0..self.caps.channels_max {
                    self.open_lane(peer, channel);
                }
                self.send_mail(peer);
                Ok(true)
            }
            Err(error) if unix::is_transient(&error) => {
                // There was a descriptor for the attempt.
                if let Some(outward) = &mut self.peers[peer].outward {
                    outward.hungry_since = None;
                }
                Ok(false)
            }
            Err(error) if descriptors::are_out(&error) => self.hunger(peer, &error),
            Err(error) => {
                let gone = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::BrokenPipe
                        | io::ErrorKind::ConnectionReset
                );
                Err(if gone {
                    let detail = format!("its process {pid} is no longer listening: it has ended, or closed");
                    Error::new(ErrorKind::PeerLost, NAME, Some(rank), detail)
                } else {
                    Error::system(NAME, Some(rank), "delivering shared memory to a peer", error)
                })
            }
        }
    }

    /// Gives a lane for sending its ring, if there is such a lane and the peer has the segment. Until then, messages wait
    /// in the lane: nobody would deliver a message that was reported done if this rank's owner did not poll again.
    pub(super) fn open_lane(&mut self, peer: usize, channel: u16) {
        let Peer { send_lanes, outward, .. } = &self.peers[peer];
        let id = send_lanes[usize::from(channel)];
        if let Some(Outward { segment, parcel: None, .. }) = outward
            && id != NO_LANE
        {
            let share = self.budget.take();
            let lane = &mut self.send_lanes[id as usize];
            let ring = segment.producer(channel, share, self.options.piece_bytes, lane.shuttles.clone());
            lane.ring = Some(ring);
        }
    }

    /// Handles a lack of descriptors for the stream to a peer, which may pass. The error says that it has not.
    #[cold]
    fn hunger(&mut self, peer: usize, error: &io::Error) -> Result<bool, Error> {
        let rank = self.peers[peer].rank;
        let Some(outward) = &mut self.peers[peer].outward else { return Ok(true) };
        if outward.hungry_since.get_or_insert_with(Instant::now).elapsed() < STARVED_FOR {
            return Ok(false);
        }
        Err(descriptors::shortage(NAME, (self.rank, Some(rank)), "connect to a peer", error))
    }

    /// Returns the index of the peer that sent a greeting, if the greeting's proof is right.
    pub(super) fn recognise(&self, greeting: &Greeting) -> Option<usize> {
        let index = *self.by_rank.get(greeting.hello.rank as usize).filter(|i| **i != NO_PEER)? as usize;
        let ends = Ends { caller: &self.peers[index].address.cookie, callee: &self.identity.cookie };
        greeting.is_between(ends).then_some(index)
    }

    /// Accepts the half of a link that a peer has made. A greeting without a segment is dropped: it comes from no
    /// peer.
    pub(super) fn welcome(&mut self, peer: usize, caller: Caller) {
        let (Purpose::Segment { channels, ring_max }, Some(fd)) = (caller.greeting.hello.purpose, caller.fd)
        else {
            return;
        };
        if self.peers[peer].inward.is_some() || matches!(self.peers[peer].fate, Fate::Lost(_)) {
            return;
        }
        let fd = match fd {
            Ok(fd) => fd,
            // The peer has sent its descriptor and will not send it again.
            Err(error) => return self.starve(peer, &error),
        };
        let is_fine = matches!(self.peers[peer].fate, Fate::Fine);
        let opened = Geometry::checked(channels, ring_max)
            .ok_or_else(|| io::Error::other(format!("{channels} channels with rings of {ring_max} bytes")))
            .and_then(|geometry| Segment::open(&fd, geometry))
            .and_then(|segment| {
                if !is_fine {
                    return Ok(segment);
                }
                let data = epoll::EventData::new_u64(peer as u64);
                epoll::add(
                    &self.epoll,
                    &caller.stream,
                    data,
                    epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
                )?;
                Ok(segment)
            });
        let segment = match opened {
            Ok(segment) => segment,
            Err(error) => {
                let rank = self.peers[peer].rank;
                let cause = Error::system(NAME, Some(rank), "mapping the memory that a peer shared", error);
                self.start_leaving(peer, cause, true);
                return;
            }
        };
        for channel in 0..segment.channels().min(self.caps.channels_max) {
            let id = self.peers[peer].recv_lanes[usize::from(channel)];
            if id == NO_LANE {
                continue;
            }
            let lane = &mut self.recv_lanes[id as usize];
            lane.ring = Some(segment.consumer(channel, lane.shuttles.clone()));
            if lane.has_work() && !lane.is_listed {
                lane.is_listed = true;
                self.busy_recvs.push(id);
            }
        }
        if self.peers[peer].remote.is_some() {
            segment.allow_rendezvous();
        }
        self.peers[peer].inward = Some(Inward { segment, stream: caller.stream });
    }

    /// Gives up a peer because this rank has no free descriptor for the memory that the peer shares; the error says
    /// so.
    fn starve(&mut self, peer: usize, error: &io::Error) {
        let to_do = "take the memory that a peer shares";
        let cause = descriptors::shortage(NAME, (self.rank, Some(self.peers[peer].rank)), to_do, error);
        self.start_leaving(peer, cause, true);
    }

    /// Handles a lack of descriptors for accepting connections: gives up the peers that are awaited and have not
    /// shared memory yet.
    fn starve_all(&mut self, error: &io::Error) -> bool {
        let awaits = |peer: &Peer| {
            let has_work = |id: &u32| *id != NO_LANE && self.recv_lanes[*id as usize].has_work();
            matches!(peer.fate, Fate::Fine) && peer.inward.is_none() && peer.recv_lanes.iter().any(has_work)
        };
        let awaited: Vec<usize> = (0..self.peers.len()).filter(|i| awaits(&self.peers[*i])).collect();
        awaited.iter().for_each(|peer| self.starve(*peer, error));
        !awaited.is_empty()
    }

    /// Accepts connections, delivers segments, and notices departed peers. Returns whether anything happened.
    #[cold]
    pub(super) fn look_at_sockets(&mut self, events: &mut Vec<Event>) -> bool {
        self.look_soon = false;
        let mut any = self.deliver_again();
        let mut gone = std::mem::take(&mut self.gone);
        // Departures are looked up first: everything that a peer sent before it left is then in the backlog already.
        self.find_departed(&mut gone);
        self.take_epoll_events(&mut gone);
        let mut callers = std::mem::take(&mut self.callers);
        let starved = self.newcomers.receive(&self.epoll, &mut callers);
        for caller in callers.drain(..) {
            let Some(peer) = self.recognise(&caller.greeting) else { continue };
            any = true;
            self.welcome(peer, caller);
        }
        self.callers = callers;
        // The next polls look again until there is a descriptor or the time is over. The number of polls of a busy
        // processor is no measure of time.
        self.look_soon |= self.newcomers.is_hungry();
        if let Err(error) = starved {
            any |= self.starve_all(&error);
        }
        for peer in gone.drain(..) {
            any = true;
            self.part_with(peer as usize);
        }
        self.gone = gone;
        any | self.see_off(events)
    }

    fn deliver_again(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.undelivered.len() {
            let peer = self.undelivered[i] as usize;
            match self.deliver(peer) {
                Ok(false) => {
                    i += 1;
                    self.look_soon = true;
                    continue;
                }
                Ok(true) => any = true,
                Err(cause) => self.start_leaving(peer, cause, true),
            }
            self.undelivered.swap_remove(i);
        }
        any
    }

    /// Returns whether a peer has announced its departure in the arena.
    fn has_departed(&self, peer: usize) -> bool {
        let member = self.peers[peer].member;
        self.arena.as_ref().is_some_and(|a| a.departed(member).load(Ordering::Acquire) != 0)
    }

    /// Collects the linked peers that have announced their departure.
    fn find_departed(&self, gone: &mut Vec<u32>) {
        let has_left = |index: &u32| {
            let peer = &self.peers[*index as usize];
            let is_linked = peer.outward.is_some() || peer.inward.is_some();
            is_linked && matches!(peer.fate, Fate::Fine) && self.has_departed(*index as usize)
        };
        gone.extend((0..self.peers.len() as u32).filter(has_left));
    }

    /// Collects the peers that have a stream that ended, or on which unexpected bytes came.
    fn take_epoll_events(&self, gone: &mut Vec<u32>) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::uninit(); EPOLL_EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&now)) else { return };
        for event in events {
            let data = event.data.u64();
            if data == EPOLL_PENDING {
                // A nudge that finds this endpoint armed must stay: the sender of the nudge has set the doorbell to
                // awake, so no other nudge follows, and the owner may still go to sleep on the state that it saw
                // before.
                if !self.is_armed() {
                    unix::drain(&self.bell, NUDGES);
                }
            } else {
                gone.push(data as u32);
            }
        }
    }

    /// Starts the departure of a peer whose stream has ended or whose departure was seen.
    pub(super) fn part_with(&mut self, peer: usize) {
        let cause = self.parting(peer);
        self.start_leaving(peer, cause, !self.has_departed(peer));
    }

    /// Returns the error that says how a lost peer went.
    fn parting(&self, peer: usize) -> Error {
        let target = &self.peers[peer];
        let (rank, pid) = (target.rank, target.address.pid);
        let detail = if self.has_departed(peer) {
            format!("its process {pid} has closed its end")
        } else {
            format!(
                "the connection to its process {pid} broke: the process has ended, or gave up on this rank"
            )
        };
        Error::new(ErrorKind::PeerLost, NAME, Some(rank), detail)
    }

    /// Stops sending to a peer. Receiving goes on with the contents of its rings.
    pub(super) fn start_leaving(&mut self, peer: usize, cause: Error, report: bool) {
        let target = &mut self.peers[peer];
        if !matches!(target.fate, Fate::Fine) {
            return;
        }
        target.fate = Fate::Leaving { cause, report };
        // A stream at its end stays readable, which would keep waking a sleeping owner.
        if let Some(outward) = &mut target.outward {
            outward.stream = None;
        }
        if let Some(inward) = &target.inward {
            let _ = epoll::delete(&self.epoll, &inward.stream);
        }
        self.leaving.push(peer as u32);
    }

    /// Checks that messages can still be sent to a peer.
    pub(super) fn check_can_send(&mut self, peer: usize) -> Result<(), Error> {
        match &mut self.peers[peer].fate {
            Fate::Fine => Ok(()),
            Fate::Leaving { cause, report } => {
                *report = true;
                Err(cause.clone())
            }
            Fate::Lost(cause) => Err(cause.clone()),
        }
    }

    /// Checks that a peer is present, as far as its stream and the arena show; makes the next poll look at the
    /// stream.
    pub(super) fn presence(&mut self, peer: usize) -> Result<(), Error> {
        self.reach_out(peer)?;
        self.look_soon = true;
        match &self.peers[peer].fate {
            Fate::Fine if self.has_departed(peer) => Err(self.parting(peer)),
            Fate::Fine => Ok(()),
            Fate::Leaving { cause, .. } | Fate::Lost(cause) => Err(cause.clone()),
        }
    }

    /// Checks that messages can still be received from a peer.
    pub(super) fn check_can_receive(&self, peer: usize) -> Result<(), Error> {
        match &self.peers[peer].fate {
            Fate::Fine | Fate::Leaving { .. } => Ok(()),
            Fate::Lost(cause) => Err(cause.clone()),
        }
    }

    /// Serves the receives from leaving peers with the data that is left, and declares a peer lost when none is left.
    pub(super) fn see_off(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        for i in (0..self.leaving.len()).rev() {
            let peer = self.leaving[i] as usize;
            let Fate::Leaving { cause, report } = &self.peers[peer].fate else { continue };
            let (cause, mut report) = (cause.clone(), *report);
            let before = events.len();
            // A message that the peer took before it left counts as delivered.
            self.settle_sends(peer, events);
            report |= self.fail_sends(peer, &cause, events);
            let (waits, corrupt) = self.receive_the_rest(peer, events);
            any |= events.len() > before;
            if waits || corrupt || (report && !self.has_unread(peer)) {
                any = true;
                self.lose(peer, cause, true, events);
            } else if let Fate::Leaving { report: kept, .. } = &mut self.peers[peer].fate {
                *kept = report;
            }
        }
        any
    }

    fn settle_sends(&mut self, peer: usize, events: &mut Vec<Event>) {
        for id in self.peers[peer].send_lanes.iter().filter(|id| **id != NO_LANE) {
            self.send_lanes[*id as usize].settle(|token| {
                self.pending -= 1;
                events.push(Event::Done(token));
            });
        }
    }

    fn fail_sends(&mut self, peer: usize, cause: &Error, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        for id in self.peers[peer].send_lanes.iter().filter(|id| **id != NO_LANE) {
            self.send_lanes[*id as usize].fail_all(|token| events.push(Event::Failed(token, cause.clone())));
        }
        let failed = events.len() - before;
        self.pending -= failed;
        failed > 0
    }

    /// Moves all data that is there for posted receives. Returns whether a receive still waits, and whether the
    /// peer's memory was corrupt.
    fn receive_the_rest(&mut self, peer: usize, events: &mut Vec<Event>) -> (bool, bool) {
        let rank = self.peers[peer].rank;
        let mut waits = false;
        for id in self.peers[peer].recv_lanes.iter().filter(|id| **id != NO_LANE) {
            let lane = &mut self.recv_lanes[*id as usize];
            loop {
                let result = lane.advance(usize::MAX, |token, verdict| {
                    self.pending -= 1;
                    events.push(received(token, verdict, rank));
                });
                match result {
                    Ok(true) => {}
                    // The peer took this memory back, so it cannot be read.
                    Ok(false) | Err(Trouble::Gone) => break,
                    Err(Trouble::Unfit) => {
                        give_back(lane, rank, &mut self.pending, events);
                        break;
                    }
                    Err(Trouble::Corrupt(_)) => return (true, true),
                }
            }
            waits |= !lane.is_idle();
        }
        (waits, false)
    }

    /// Returns whether the peer has left a message that was not received.
    fn has_unread(&mut self, peer: usize) -> bool {
        let target = &self.peers[peer];
        let Some(inward) = &target.inward else { return false };
        for channel in 0..inward.segment.channels().min(self.caps.channels_max) {
            if !inward.segment.is_used(channel) {
                continue;
            }
            let id = target.recv_lanes[usize::from(channel)];
            let there = if id == NO_LANE {
                inward.segment.consumer(channel, self.shuttles(peer, channel)).peek()
            } else {
                self.recv_lanes[id as usize].ring.as_mut().map_or(Ok(None), |ring| ring.peek())
            };
            if matches!(there, Ok(Some(_))) {
                return true;
            }
        }
        false
    }

    /// Fails everything that involves a peer, and releases its memory and streams.
    pub(super) fn lose(&mut self, peer: usize, cause: Error, report: bool, events: &mut Vec<Event>) {
        if matches!(self.peers[peer].fate, Fate::Lost(_)) {
            return;
        }
        self.fail_sends(peer, &cause, events);
        for id in self.peers[peer].recv_lanes.iter().filter(|id| **id != NO_LANE) {
            let lane = &mut self.recv_lanes[*id as usize];
            self.pending -= usize::from(std::mem::take(&mut lane.is_probed));
            lane.fail_all(|token| {
                self.pending -= 1;
                events.push(Event::Failed(token, cause.clone()));
            });
        }
        // The lanes stay, but must not keep the segments mapped.
        let Peer { send_lanes, recv_lanes, .. } = &self.peers[peer];
        for id in send_lanes.iter().filter(|id| **id != NO_LANE) {
            self.send_lanes[*id as usize].shuttles = Arc::default();
        }
        for id in recv_lanes.iter().filter(|id| **id != NO_LANE) {
            self.recv_lanes[*id as usize].shuttles = Arc::default();
        }
        let target = &mut self.peers[peer];
        let was_linked = target.outward.take().is_some() | target.inward.take().is_some();
        let rank = target.rank;
        target.fate = Fate::Lost(cause.clone());
        self.leaving.retain(|p| *p as usize != peer);
        self.undelivered.retain(|p| *p as usize != peer);
        if was_linked {
            // The streams are closed by now, so the peer will see that they ended.
            self.send_mail(peer);
        }
        if report {
            events.push(Event::Down { peer: rank, cause });
        }
    }
}
