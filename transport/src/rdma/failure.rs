//! How peers are given up, and how this end leaves.

use std::time::{Duration, Instant};

use super::channel::Chan;
use super::endpoint::RdmaEndpoint;
use super::lane::Settled;
use super::link::{Link, Stage};
use super::progress::{Hands, drain};
use super::receiving;
use crate::endpoint::{Channel, Event};
use crate::error::{Error, ErrorKind};

/// Time that leaving may take. It waits for a round trip to each peer's adapter, after which everything has been
/// acknowledged. Soft-RoCE under load needs some ms.
const GOODBYE: Duration = Duration::from_millis(50);

/// Treatment of messages that have arrived when a peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Receives that they fit are completed.
    Counts,
    /// All receives fail.
    Fails,
}

/// Returns the kind of error by which a peer is given up: a loss, unless the peer broke the protocol or this side
/// failed.
pub(super) fn given_up(kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::Corrupt | ErrorKind::Local => kind,
        _ => ErrorKind::PeerLost,
    }
}

impl RdmaEndpoint {
    /// Handles the loss of a peer. Messages that have arrived are still delivered; operations that need more from the
    /// peer fail.
    pub(super) fn lose(&mut self, number: u32, error: Error, events: &mut Vec<Event>) {
        if self.peers[number as usize].down.is_some() {
            return;
        }
        let cause = Error { kind: given_up(error.kind), ..error };
        let answers = number < self.rank;
        let peer = &mut self.peers[number as usize];
        if let Some(link) = peer.link.as_deref_mut() {
            let mut hands = Hands {
                rails: &self.rails,
                registrations: &mut self.registrations,
                counters: &mut self.counters,
                options: &self.options,
                events,
            };
            // An error is expected. Nothing that a peer says after invalid bytes counts.
            if cause.kind != ErrorKind::Corrupt {
                let _ = drain(link, &mut peer.channels, &mut peer.touched, answers, &mut hands);
            }
            for (at, chan) in peer.channels.iter_mut().enumerate() {
                let on = Channel { peer: number, index: at as u16 };
                let _ = chan.as_deref_mut().map(|chan| receiving::pump(chan, on, hands.events));
            }
        }
        let peer = &mut self.peers[number as usize];
        // A peer that has finished may leave. That is news only to an owner that wants something from it, now or
        // later.
        let needed = peer.channels.iter().flatten().any(|chan| !chan.is_idle())
            || peer.link.as_ref().is_some_and(|link| !link.is_settled());
        self.close(number, &cause, Arrived::Counts, events);
        if needed {
            self.tell_down(number, events);
        }
    }

    /// Moves the queue pairs to a peer to their error state, as a device does that gives them up. For tests, which
    /// have no such device.
    ///
    /// # Errors
    /// If there is no connection to the peer, or the device refuses.
    #[doc(hidden)]
    pub fn sever(&mut self, peer: u32) -> Result<(), Error> {
        let none = || Error::new(ErrorKind::Usage, super::NAME, Some(peer), "there is no connection to it");
        let link = self.peers.get(peer as usize).and_then(|peer| peer.link.as_deref()).ok_or_else(none)?;
        link.lanes
            .iter()
            .try_for_each(|lane| lane.sever())
            .map_err(|error| Error::new(ErrorKind::System, super::NAME, Some(peer), error.to_string()))
    }

    /// Reports the loss of a peer, once.
    pub(super) fn tell_down(&mut self, number: u32, events: &mut Vec<Event>) {
        let peer = &mut self.peers[number as usize];
        if let Some(cause) = peer.down.clone().filter(|_| !std::mem::replace(&mut peer.told, true)) {
            events.push(Event::Down { peer: number, cause });
        }
    }

    /// Fails everything that involves a peer, and releases all its resources.
    pub(super) fn close(&mut self, number: u32, cause: &Error, arrived: Arrived, events: &mut Vec<Event>) {
        let peer = &mut self.peers[number as usize];
        if peer.down.is_some() {
            return;
        }
        peer.down = Some(cause.clone());
        if peer.started
            && peer.link.as_ref().is_none_or(|link| link.stage != Stage::Up)
            && peer.probe_by.is_some()
            || peer.started && peer.link.as_ref().is_none_or(|link| link.stage == Stage::Greeted)
        {
            self.connecting = self.connecting.saturating_sub(1);
        }
        self.live.retain(|&live| live != number);
        let fail = |token| Event::Failed(token, cause.clone());
        let mut loose: Vec<(u8, Settled)> = Vec::new();
        let mut long_rails = Vec::new();
        if let Some(mut link) = peer.link.take() {
            long_rails =
                (0..peer.channels.len()).map(|at| link.lanes[link.long_lane(at as u8)].rail).collect();
            for lane in &mut link.lanes {
                let rail = lane.rail;
                loose.extend(lane.take_all().into_iter().map(|settled| (rail, settled)));
            }
            // From here on the adapter touches none of the peer's memory.
            drop(link);
        }
        for (rail, settled) in loose {
            if let Some(held) = settled.held {
                self.registrations[usize::from(rail)].release(held);
            }
            events.extend(settled.token.map(fail));
        }
        for (at, entry) in peer.channels.iter_mut().enumerate() {
            let Some(chan) = entry.as_deref_mut() else { continue };
            let rail = long_rails.get(at).copied().map_or(0, usize::from);
            for op in chan.sends.drain(..) {
                if let Some((held, ..)) = op.held {
                    self.registrations[rail].release(held);
                }
                events.push(fail(op.token));
            }
            for granted in chan.granted.drain(..) {
                if let Some(held) = granted.held {
                    self.registrations[rail].release(held);
                }
            }
            if arrived == Arrived::Counts {
                let on = Channel { peer: number, index: at as u16 };
                receiving::serve_late(chan, on, cause, events);
            }
            events.extend(chan.recvs.drain(..).map(|op| fail(op.token)));
            (chan.probed, chan.unfit) = (false, false);
            // The owner may still ask for messages that have arrived.
            if !has_arrivals(chan) {
                *entry = None;
            }
        }
        self.side.abandon(number, cause);
    }

    /// Serves the receives and probes that were posted after their peer was lost: messages that had arrived before
    /// are still delivered.
    pub(super) fn serve_the_late(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        while let Some(number) = self.late.pop() {
            any = true;
            let peer = &mut self.peers[number as usize];
            let Some(cause) = peer.down.clone() else { continue };
            let before = events.len();
            for (at, chan) in peer.channels.iter_mut().enumerate() {
                let on = Channel { peer: number, index: at as u16 };
                if let Some(chan) = chan.as_deref_mut() {
                    receiving::serve_late(chan, on, &cause, events);
                }
            }
            if events[before..].iter().any(|event| matches!(event, Event::Failed(..))) {
                self.tell_down(number, events);
            }
        }
        any
    }

    /// Waits until every peer's adapter has answered once more. All that this end had sent before, and its answers to
    /// what it received, have then left this host. Otherwise a peer that is a little behind would find this end's
    /// departure premature.
    pub(super) fn goodbye(&mut self) {
        let mut asked: Vec<u32> = Vec::new();
        for &number in &self.live {
            let Some(link) = self.peers[number as usize].link.as_deref_mut() else { continue };
            if link.stage == Stage::Up && ask(link) {
                asked.push(number);
            }
        }
        let deadline = Instant::now() + GOODBYE;
        let mut events = Vec::new();
        while !asked.is_empty() && Instant::now() < deadline {
            asked.retain(|&number| {
                let peer = &mut self.peers[number as usize];
                let Some(link) = peer.link.as_deref_mut() else { return false };
                let mut hands = Hands {
                    rails: &self.rails,
                    registrations: &mut self.registrations,
                    counters: &mut self.counters,
                    options: &self.options,
                    events: &mut events,
                };
                let done = drain(link, &mut peer.channels, &mut peer.touched, false, &mut hands);
                done.is_ok() && !link.is_settled()
            });
            std::thread::yield_now();
        }
    }
}

/// Makes the peer's adapter acknowledge on every lane. Returns `false` if that cannot be requested.
fn ask(link: &mut Link) -> bool {
    let to = link.nowhere();
    link.lanes.iter_mut().all(|lane| {
        // SAFETY: the write involves no memory.
        lane.has_room() && unsafe { lane.write(to, None, None, Some(Settled::default())) }.is_ok()
    })
}

/// Returns whether slots hold messages that the owner has not asked for yet.
fn has_arrivals(chan: &Chan) -> bool {
    chan.arrived != chan.freed && chan.block.is_some()
}
