//! Polling: completions, notes, channels, and the side connection.

use std::sync::atomic::Ordering;
use std::time::Instant;

use kolo_verbs::{Blame, Completion};

use super::channel::Chan;
use super::endpoint::{Peer, RdmaEndpoint};
use super::hello::Hello;
use super::lane::Request;
use super::link::{Link, Stage};
use super::options::RdmaOptions;
use super::rails::Rail;
use super::receiving::Answer;
use super::registrations::Registrations;
use super::side::{News, two_hellos};
use super::stats::Counters;
use super::trouble::Trouble;
use super::wire::{GRANTS, Grant, Note, SLOTS};
use super::{NAME, receiving, sending};
use crate::endpoint::{Channel, Event};
use crate::error::{Error, ErrorKind};

/// Number of polls between two looks at the side connection, each of which takes some system calls. It reports only
/// that a peer is gone, which the control plane reports too. An idle endpoint looks every 2 ms; a look hardly ever
/// delays a message. A thread looks before it sleeps.
const SIDE_EVERY: u32 = 1 << 16;

/// Number of polls between two looks at channels without news.
const QUIET_EVERY: u32 = 64;

/// Number of completions taken at a time.
const BATCH: usize = 16;

/// Shared resources that both halves of a channel work with.
pub(super) struct Hands<'a> {
    pub(super) rails: &'a [Rail],
    pub(super) registrations: &'a mut [Registrations],
    pub(super) counters: &'a mut Counters,
    pub(super) options: &'a RdmaOptions,
    pub(super) events: &'a mut Vec<Event>,
}

/// A pass over the channels of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Ordinary,
    /// The owner is about to sleep, so the next pass may come late.
    BeforeSleep,
}

impl RdmaEndpoint {
    /// Makes one round: completions and channels of all links, and now and then the side connection.
    pub(super) fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        self.tick = self.tick.wrapping_add(1);
        let mut moved = !self.backlog.is_empty();
        events.append(&mut self.backlog);
        let quiet = self.tick.is_multiple_of(QUIET_EVERY);
        // An endpoint that waits for the last acknowledgements polls seldom, and those of a peer that has left never
        // come.
        let leaving = quiet && self.flush_wanted.load(Ordering::Relaxed);
        if self.connecting > 0 || self.side_due || leaving || self.tick.is_multiple_of(SIDE_EVERY) {
            self.side_due = false;
            moved |= self.look_aside(events);
        }
        moved |= self.serve_the_late(events);
        let mut at = 0;
        while at < self.live.len() {
            let peer = self.live[at];
            match self.step(peer, quiet, events) {
                Ok(some) => moved |= some,
                Err(trouble) => {
                    // An event of the device says more than the requests that were flushed because of it.
                    self.look_at_devices(events);
                    let error = trouble.words(self.rank, peer, &self.way_to(peer));
                    self.lose(peer, error, events);
                    moved = true;
                }
            }
            // A peer that was lost is no longer in the list.
            if self.live.get(at) == Some(&peer) {
                at += 1;
            }
        }
        moved
    }

    /// Handles the completions of a peer's queues, and pumps its channels.
    fn step(&mut self, number: u32, quiet: bool, events: &mut Vec<Event>) -> Result<bool, Trouble> {
        let answers = number < self.rank;
        let peer = &mut self.peers[number as usize];
        let Some(link) = peer.link.as_deref_mut() else { return Ok(false) };
        let mut hands = Hands {
            rails: &self.rails,
            registrations: &mut self.registrations,
            counters: &mut self.counters,
            options: &self.options,
            events,
        };
        let mut moved = drain(link, &mut peer.channels, &mut peer.touched, answers, &mut hands)?;
        if link.stage == Stage::Probing {
            if link.lanes.iter().all(|lane| lane.probed) {
                link.stage = Stage::Up;
                peer.touched = u64::MAX;
                self.connecting -= 1;
            } else if peer.probe_by.is_some_and(|by| !link.is_settled() && Instant::now() > by) {
                self.connecting -= 1;
                peer.probe_by = None;
                return Err(Trouble::Corrupt(
                    "an acknowledgement of the first packet: it does not get through; check the route, the \
                     GIDs, the switches' MTU, and firewalls on UDP port 4791",
                ));
            }
        }
        if link.stage != Stage::Up {
            return Ok(moved);
        }
        if quiet && self.flush_wanted.load(Ordering::Relaxed) {
            link.flush()?;
        }
        let due = if quiet { peer.busy | peer.touched } else { peer.touched };
        if due != 0 {
            peer.touched = 0;
            moved |= pump(number, peer, due, Pass::Ordinary, &mut hands)?;
        }
        Ok(moved)
    }

    /// Handles news from the side connection and the devices.
    fn look_aside(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = self.look_at_devices(events);
        let mut news = std::mem::take(&mut self.news);
        moved |= self.side.poll(|item| news.push(item));
        for item in news.drain(..) {
            moved = true;
            match item {
                News::Hello(peer, Ok(hello)) => {
                    if let Err(error) = self.meet(peer, &hello) {
                        self.lose(peer, error, events);
                    }
                }
                News::Hello(peer, Err(what)) => {
                    let trouble = Trouble::Corrupt("a hello");
                    let error = trouble.words(self.rank, peer, what);
                    self.lose(peer, error, events);
                }
                News::Gone(peer, error) => self.lose(peer, error, events),
            }
        }
        self.news = news;
        moved
    }

    /// Handles a peer's hello: connects the queue pairs.
    fn meet(&mut self, number: u32, hello: &Hello) -> Result<(), Error> {
        let failed = |kind, words: String| Error::new(kind, NAME, Some(number), words);
        if let Hello::Refusal(words) = hello {
            return Err(failed(
                ErrorKind::System,
                format!("the peer cannot connect its queue pairs: {words}"),
            ));
        }
        // From now on, the end of this connection is news.
        self.side.listen(number)?;
        let peer = &mut self.peers[number as usize];
        if peer.down.is_some() {
            return Ok(());
        }
        // A second link would replace the first with the messages that are on their way.
        if peer.link.as_deref().is_some_and(|link| number < self.rank || link.stage != Stage::Greeted) {
            return Err(two_hellos(number));
        }
        peer.probe_by = Some(Instant::now() + self.options.probe_timeout);
        if number < self.rank {
            let Hello::Link { lanes, .. } = hello else { return Ok(()) };
            match Link::answer(&self.rails, hello, number as usize) {
                Ok(link) => {
                    let answer = link.hello(&self.rails, |at, _| lanes[at].ours);
                    link.wake_for(self.armed)
                        .map_err(|error| failed(ErrorKind::System, error.to_string()))?;
                    peer.link = Some(Box::new(link));
                    self.live.push(number);
                    self.side.greet(number, &answer)?;
                }
                Err(words) => {
                    let refusal = Hello::Refusal(words.clone());
                    self.side.greet(number, &refusal)?;
                    return Err(failed(ErrorKind::System, words));
                }
            }
            return Ok(());
        }
        let Some(link) = peer.link.as_deref_mut() else { return Ok(()) };
        link.connect(&self.rails, hello).map_err(|words| failed(ErrorKind::System, words))?;
        // The owner may be about to sleep, and these queues did not exist when it announced that.
        link.wake_for(self.armed).map_err(|error| failed(ErrorKind::System, error.to_string()))?;
        for lane in 0..link.lanes.len() {
            link.probe(lane).map_err(|error| failed(ErrorKind::System, error.to_string()))?;
        }
        self.live.push(number);
        Ok(())
    }

    /// Starts the connection to a peer, if it is introduced and not connected yet.
    ///
    /// # Errors
    /// The peer is then lost: nothing would start the connection again.
    pub(super) fn start(&mut self, number: u32) -> Result<(), Error> {
        let peer = &mut self.peers[number as usize];
        if peer.started || peer.address.is_none() || peer.down.is_some() {
            return Ok(());
        }
        peer.started = true;
        self.connecting += 1;
        self.make_link(number).inspect_err(|error| {
            let mut events = std::mem::take(&mut self.backlog);
            self.lose(number, error.clone(), &mut events);
            self.backlog = events;
        })
    }

    fn make_link(&mut self, number: u32) -> Result<(), Error> {
        let peer = &mut self.peers[number as usize];
        if number > self.rank {
            let failed = |error: kolo_verbs::Error| {
                Error::new(ErrorKind::System, NAME, Some(number), format!("making queue pairs: {error}"))
            };
            let link = Link::new(&self.rails, &peer.pairs, &self.options, number as usize).map_err(failed)?;
            let pairs = peer.pairs.clone();
            let theirs =
                |_: usize, ours: u8| pairs.iter().find(|pair| pair.0 == ours).map_or(0, |pair| pair.1);
            let hello = link.hello(&self.rails, theirs);
            peer.link = Some(Box::new(link));
            self.side.listen(number)?;
            self.side.greet(number, &hello)?;
        } else {
            self.side.listen(number)?;
        }
        Ok(())
    }

    /// Describes the path to a peer for error texts: "rxe0 10.77.0.1 to 10.77.0.2".
    pub(super) fn way_to(&self, number: u32) -> String {
        let peer = &self.peers[number as usize];
        let Some((ours, theirs)) = peer.pairs.first() else { return "no way".into() };
        let there = peer.address.as_ref().and_then(|address| address.rails.get(usize::from(*theirs)));
        let there = there.map_or_else(String::new, |rail| rail.gid.to_string());
        let rail = &self.rails[usize::from(*ours)];
        format!("{} {} to {there}", rail.device, rail.gid)
    }
}

/// Takes all completions of a link. `answers` means that this side answers probes. A failure is returned at the end,
/// since the completions behind it count too: messages that have arrived are still delivered.
pub(super) fn drain(
    link: &mut Link,
    channels: &mut [Option<Box<Chan>>],
    touched: &mut u64,
    answers: bool,
    hands: &mut Hands<'_>,
) -> Result<bool, Trouble> {
    let mut moved = false;
    let mut failures = Failures::default();
    for at in 0..link.queues.len() {
        loop {
            let mut batch = [Completion::default(); BATCH];
            let count = link.queues[at].1.poll(&mut batch).unwrap_or_else(|error| {
                failures.note(error.into());
                0
            });
            for completion in &batch[..count] {
                moved = true;
                match completion.result().map(|()| Request::of(completion.id())) {
                    Err(failure) => failures.note(Trouble::Failed(completion.queue_pair(), failure)),
                    Ok(Request::Send { lane, count }) => {
                        failures.note_err(settle(link, lane, count, hands));
                        *touched = u64::MAX;
                    }
                    // Nothing that a peer says after invalid bytes counts.
                    Ok(Request::Receive { .. }) if failures.corrupt.is_some() => {}
                    Ok(Request::Receive { lane }) => {
                        let lane = usize::from(lane);
                        failures.note_err(link.lanes[lane].receive_taken().map_err(Trouble::from));
                        let note = completion.immediate().and_then(Note::decode);
                        let heard = note.ok_or(Trouble::Corrupt("a note")).and_then(|(note, channel)| {
                            *touched |= 1 << channel;
                            hear(link, channels, lane, note, channel, answers, hands)
                        });
                        failures.note_err(heard);
                    }
                }
            }
            if count < BATCH {
                break;
            }
        }
    }
    failures.worst().map_or(Ok(moved), Err)
}

/// The failures among the completions of a link.
#[derive(Default)]
struct Failures {
    /// Invalid bytes of the peer. They are reported first: the peer is then given up without another look at what it has
    /// sent.
    corrupt: Option<Trouble>,
    first: Option<Trouble>,
    /// The first request that was flushed. Requests behind a failed one are, which says only that something failed;
    /// another completion may say more.
    flushed: Option<Trouble>,
}

impl Failures {
    fn note(&mut self, trouble: Trouble) {
        let place = match &trouble {
            Trouble::Corrupt(_) => &mut self.corrupt,
            Trouble::Failed(_, failure) if failure.status.blame() == Blame::Consequence => &mut self.flushed,
            _ => &mut self.first,
        };
        place.get_or_insert(trouble);
    }

    fn note_err(&mut self, result: Result<(), Trouble>) {
        if let Err(trouble) = result {
            self.note(trouble);
        }
    }

    fn worst(self) -> Option<Trouble> {
        self.corrupt.or(self.first).or(self.flushed)
    }
}

/// Settles all requests up to this one, which have completed.
fn settle(link: &mut Link, lane: u8, count: u64, hands: &mut Hands<'_>) -> Result<(), Trouble> {
    let number = usize::from(lane);
    if !link.lanes.get_mut(number).is_some_and(|lane| lane.reap(count)) {
        return Err(Trouble::Corrupt("a completion"));
    }
    let rail = usize::from(link.lanes[number].rail);
    while let Some(settled) = link.lanes[number].settle() {
        if let Some(held) = settled.held {
            hands.registrations[rail].release(held);
        }
        if let Some((chunk, bounce)) = settled.chunk.zip(link.bounce[number].as_mut()) {
            bounce.free |= 1 << chunk;
        }
        if let Some(token) = settled.token {
            hands.events.push(Event::Done(token));
        }
    }
    Ok(())
}

/// Acts on a note.
fn hear(
    link: &mut Link,
    channels: &mut [Option<Box<Chan>>],
    lane: usize,
    note: Note,
    channel: u8,
    answers: bool,
    hands: &mut Hands<'_>,
) -> Result<(), Trouble> {
    if note == Note::Probe {
        if answers && !link.lanes[lane].probed {
            link.probe(lane)?;
        }
        link.lanes[lane].probed = true;
        return Ok(());
    }
    let entry = &mut channels[usize::from(channel)];
    if note == Note::Open {
        let chan = entry.get_or_insert_with(|| Box::new(Chan::new(channel)));
        chan.remote = Some(link.entry(channel));
        return Ok(());
    }
    let Some(chan) = entry.as_deref_mut().filter(|chan| chan.opened) else {
        return Err(Trouble::Corrupt("a note of a channel that it knows"));
    };
    match note {
        Note::Slot => {
            if chan.arrived.wrapping_sub(chan.freed) >= SLOTS {
                return Err(Trouble::Corrupt("as many messages as there is room for"));
            }
            // The count is taken now rather than with the message, so that counts of freed slots are processed in
            // order.
            let header = chan.header(chan.arrived).ok_or(Trouble::Corrupt("the header of a message"))?;
            receiving::free_slots(chan, header.freed)?;
            chan.arrived = chan.arrived.wrapping_add(1);
        }
        Note::Grant => {
            let mut bytes = [0; Grant::BYTES];
            chan.block().read(super::channel::grant_at(chan.grants_seen), &mut bytes);
            let grant = Grant::decode(&bytes).ok_or(Trouble::Corrupt("a grant"))?;
            if chan.grants.len() >= GRANTS as usize {
                return Err(Trouble::Corrupt("as many grants as there is room for"));
            }
            chan.grants_seen = chan.grants_seen.wrapping_add(1);
            chan.grants.push_back(grant);
        }
        Note::Filled => receiving::answered(link, chan, Answer::Filled, hands)?,
        Note::Refused(sequence) => chan.refused = Some(sequence),
        Note::Returned => receiving::answered(link, chan, Answer::Returned, hands)?,
        Note::Freed(count) => receiving::free_slots(chan, count)?,
        Note::Open | Note::Probe => {}
    }
    Ok(())
}

/// Moves the channels in `due`, and notes which of them still have pending messages.
pub(super) fn pump(
    number: u32,
    peer: &mut Peer,
    due: u64,
    pass: Pass,
    hands: &mut Hands<'_>,
) -> Result<bool, Trouble> {
    let Some(link) = peer.link.as_deref_mut() else { return Ok(false) };
    let mut moved = false;
    let mut left = due;
    while left != 0 {
        let channel = left.trailing_zeros() as u8;
        left &= left - 1;
        let Some(chan) = peer.channels[usize::from(channel)].as_deref_mut() else { continue };
        moved |= sending::open(link, chan, hands)?;
        moved |= receiving::pump(chan, Channel { peer: number, index: channel.into() }, hands.events)?;
        moved |= receiving::grant(link, chan, hands)?;
        moved |= sending::pump(link, chan, pass, hands)?;
        moved |= receiving::tell(link, chan)?;
        let pending = !chan.is_idle() || chan.probed || !chan.opened || !chan.grants.is_empty();
        peer.busy = peer.busy & !(1 << channel) | u64::from(pending) << channel;
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use kolo_verbs::{Failure, Status};

    use super::*;

    /// The peer is then given up without another look at what it has sent.
    #[test]
    fn invalid_bytes_are_the_worst_failure() {
        let failed = |status| Trouble::Failed(1, Failure { status, vendor_code: 0 });
        let worst = |troubles: [Trouble; 2]| {
            let mut failures = Failures::default();
            troubles.into_iter().for_each(|trouble| failures.note(trouble));
            failures.worst()
        };
        let corrupt = worst([failed(Status::LocalAccess), Trouble::Corrupt("a note")]);
        assert!(matches!(corrupt, Some(Trouble::Corrupt(_))), "{corrupt:?}");
        let cause = worst([failed(Status::Flushed), failed(Status::LocalAccess)]);
        assert!(
            matches!(&cause, Some(Trouble::Failed(_, failure)) if failure.status == Status::LocalAccess),
            "{cause:?}"
        );
    }
}
