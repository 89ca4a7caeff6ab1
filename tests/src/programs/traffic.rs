//! Random messages between the ranks of a communicator.
//!
//! Every message is sent in one round and received in one, and every rank goes through the rounds in order. A send or
//! receive whose other end belongs to a later round is started; the others may block. Such a program cannot deadlock.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo::internal::verify::{count_wrong_bytes, fill_bytes};
use kolo::{Communicator, DataType, RawMessage, Work};

use super::calls::{Finish, delay, wait};
use super::data::length;
use super::failure::Result;
use crate::random::Random;

/// The tag whose messages are received from any source. They all have the same length.
const ANY: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    to: u32,
    tag: u32,
    data_type: DataType,
    bytes: usize,
    sent: usize,
    received: usize,
}

/// Limits of the messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Whether few may be buffered, so that they are received in the order in which they are sent.
    pub(super) buffers_few: bool,
    /// Whether some are received from any source.
    pub(super) has_any: bool,
}

/// Messages among the ranks of a communicator.
#[derive(Debug)]
pub(super) struct Traffic {
    messages: Vec<Message>,
    rounds: usize,
    first_tag: u32,
    seed: u64,
}

/// A message's memory at one end.
#[derive(Debug)]
struct Body {
    message: usize,
    memory: Vec<u8>,
    at: usize,
}

impl Body {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.at..]
    }
}

/// One end of a message.
#[derive(Clone, Copy, Debug)]
struct End {
    message: usize,
    is_send: bool,
}

impl Traffic {
    /// Draws the messages.
    pub(super) fn draw(
        random: &mut Random,
        ranks: usize,
        Limits { buffers_few, has_any }: Limits,
        halved: u32,
        first_tag: u32,
    ) -> Self {
        let is_flood = random.index(3) == 0;
        let number = if is_flood { random.index(250) >> halved.min(5) } else { 1 + random.index(8) };
        let rounds = 1 + random.index(12);
        let any_length = length(random, 1, halved).min(if is_flood { 9000 } else { 1 << 20 });
        let mut messages: Vec<Message> = (0..number)
            .map(|_| {
                let tag = random.index(if has_any { 4 } else { 3 }) as u32;
                let data_type = if tag == ANY { DataType::U8 } else { random.pick(&DataType::ALL) };
                let most = if is_flood { 8000 } else { 1 << 20 };
                let count = length(random, data_type.size(), halved).min(most);
                let sent = random.index(rounds);
                let received = if random.index(3) > 0 || buffers_few { sent } else { random.index(rounds) };
                let bytes = if tag == ANY { any_length } else { count * data_type.size() };
                let (from, to) = (random.index(ranks) as u32, random.index(ranks) as u32);
                Message { from, to, tag, data_type, bytes, sent, received }
            })
            .collect();
        messages.sort_by_key(|message| message.sent);
        // The receives of a stream come in the order of its messages.
        let mut streams = BTreeMap::<_, Vec<usize>>::new();
        for (at, Message { from, to, tag, .. }) in messages.iter().enumerate() {
            let source = (*tag != ANY).then_some(*from);
            streams.entry((source, *to, *tag)).or_default().push(at);
        }
        for stream in streams.values() {
            let mut received: Vec<usize> = stream.iter().map(|at| messages[*at].received).collect();
            received.sort_unstable();
            stream.iter().zip(received).for_each(|(at, received)| messages[*at].received = received);
        }
        Self { messages, rounds, first_tag, seed: random.number() }
    }

    fn body(&self, End { message, is_send }: End, own: &mut Random) -> Body {
        let Message { from, bytes, .. } = self.messages[message];
        let at = own.pick(&[0, 0, 1, 8, 13]);
        let mut memory = vec![0; at + bytes];
        if is_send {
            fill_bytes(self.seed ^ message as u64, from, 0, &mut memory[at..]);
        }
        Body { message, memory, at }
    }

    fn raw(&self, body: &mut Body) -> RawMessage {
        let Message { tag, data_type, bytes, .. } = self.messages[body.message];
        let data = body.memory.as_mut_ptr().wrapping_add(body.at);
        RawMessage { data, bytes, data_type, tag: self.first_tag + tag }
    }

    fn is_any(&self, end: End) -> bool {
        !end.is_send && self.messages[end.message].tag == ANY
    }

    fn is_right(&self, message: usize, bytes: &[u8]) -> bool {
        count_wrong_bytes(self.seed ^ message as u64, self.messages[message].from, 0, bytes) == 0
    }

    fn check(&self, body: &Body) -> Result {
        let Body { message, .. } = body;
        if self.is_right(*message, body.bytes()) {
            return Ok(());
        }
        let other = (0..self.messages.len()).find(|other| {
            self.messages[*other].bytes == body.bytes().len() && self.is_right(*other, body.bytes())
        });
        let text = format!("message {message} is wrong (it is {other:?}): {:?}", self.messages[*message]);
        Err(text.into())
    }

    /// Sends and receives this rank's messages; returns what remains to be waited for.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(super) fn run(self: Arc<Self>, comm: &Communicator, own: &mut Random) -> Result<Vec<Finish>> {
        let rank = comm.rank();
        let mut later: Vec<Finish> = Vec::new();
        // Results of receives from any source: by the position among them, the source and the message.
        let mut anys: BTreeMap<usize, (u32, Body)> = BTreeMap::new();
        let mut works = Vec::new();
        for round in 0..self.rounds {
            let ends = self.ends(rank, round);
            if ends.is_empty() {
                continue;
            }
            delay(own);
            let may_block = ends.iter().all(|end| self.may_block(*end));
            let is_alone =
                ends.len() == 1 && self.messages[ends[0].message].from != self.messages[ends[0].message].to;
            if may_block && is_alone && !ends[0].is_send && own.index(2) == 0 {
                let (source, body) = self.probed(comm, ends[0], own)?;
                if self.is_any(ends[0]) {
                    anys.insert(body.message, (source, body));
                } else {
                    self.check(&body)?;
                }
            } else if may_block && own.index(3) > 0 {
                for (source, body) in self.together(comm, &ends, own)? {
                    anys.insert(body.message, (source, body));
                }
            } else if own.index(2) == 0 && !ends.iter().any(|end| self.is_any(*end)) {
                later.push(self.started_together(comm, &ends, own)?);
            } else {
                for end in ends {
                    self.start(comm, end, own, &mut later, &mut works)?;
                }
            }
        }
        while !works.is_empty() {
            let (body, source) = works.swap_remove(own.index(works.len())).wait()?;
            anys.insert(body.message, (source, body));
        }
        self.check_anys(rank, &anys)?;
        Ok(later)
    }

    /// Starts one send or receive.
    fn start(
        self: &Arc<Self>,
        comm: &Communicator,
        end: End,
        own: &mut Random,
        later: &mut Vec<Finish>,
        anys: &mut Vec<Work<(Body, u32)>>,
    ) -> Result {
        let mut body = self.body(end, own);
        let raw = self.raw(&mut body);
        let Message { from, to, .. } = self.messages[end.message];
        if end.is_send {
            // SAFETY: the body owns the memory, and nobody touches it.
            let work = unsafe { comm.send_raw_keeping(&raw, to, body) }?;
            later.push(Box::new(move |own: &mut Random| Ok(wait(work, own).map(drop)?)));
            return Ok(());
        }
        let source = (!self.is_any(end)).then_some(from);
        // SAFETY: as above.
        let work = unsafe { comm.recv_raw_keeping(&raw, source, body) }?;
        if source.is_none() {
            anys.push(work);
            return Ok(());
        }
        let traffic = Arc::clone(self);
        later.push(Box::new(move |own: &mut Random| match wait(work, own)? {
            Some((body, source)) if source == from => traffic.check(&body),
            Some((_, source)) => Err(format!("from {source} instead of {from}").into()),
            None => Ok(()),
        }));
        Ok(())
    }

    /// Returns whether the other end comes in this round at the latest. A message to a receive from any source may have
    /// to wait for the last of these receives, since the others' messages may come before it.
    fn may_block(&self, end: End) -> bool {
        let Message { to, tag, sent, received, .. } = self.messages[end.message];
        let rivals = self.messages.iter().filter(|other| (other.to, other.tag) == (to, ANY) && tag == ANY);
        match end.is_send {
            true => rivals.map(|other| other.received).fold(received, usize::max) <= sent,
            false => sent <= received,
        }
    }

    fn ends(&self, rank: u32, round: usize) -> Vec<End> {
        let all = self.messages.iter().enumerate();
        let sends = all.clone().filter(|(_, m)| m.from == rank && m.sent == round);
        let receives = all.filter(|(_, m)| m.to == rank && m.received == round);
        let sends = sends.map(|(message, _)| End { message, is_send: true });
        sends.chain(receives.map(|(message, _)| End { message, is_send: false })).collect()
    }

    fn probed(&self, comm: &Communicator, end: End, own: &mut Random) -> Result<(u32, Body)> {
        let Message { from, tag, data_type, bytes, .. } = self.messages[end.message];
        let tag = self.first_tag + tag;
        let from = (!self.is_any(end)).then_some(from);
        let found = if own.index(2) == 0 {
            comm.probe(from, tag..=tag)?
        } else {
            // Looks for a message do not end when its sender has left.
            let until = Instant::now() + Duration::from_secs(2);
            loop {
                match comm.probe_now(from, tag..=tag)? {
                    Some(found) => break found,
                    None if Instant::now() < until => std::thread::yield_now(),
                    None => break comm.probe(from, tag..=tag)?,
                }
            }
        };
        if (found.tag, found.bytes, found.data_type) != (tag, bytes, Some(data_type)) {
            let wanted = self.messages[end.message];
            return Err(format!("a probe found {found:?}, not {wanted:?}").into());
        }
        let mut body = self.body(end, own);
        let raw = self.raw(&mut body);
        // SAFETY: the body outlives the batch, and is not touched.
        unsafe { comm.batch().recv_message(raw, found.source) }.run()?;
        Ok((found.source, body))
    }

    /// Runs the sends and receives of a round together; returns the messages from any source.
    fn together(&self, comm: &Communicator, ends: &[End], own: &mut Random) -> Result<Vec<(u32, Body)>> {
        let mut bodies: Vec<Body> = ends.iter().map(|end| self.body(*end, own)).collect();
        let mut sources = vec![0; ends.len()];
        let mut batch = comm.batch();
        for ((end, body), source) in ends.iter().zip(&mut bodies).zip(&mut sources) {
            let Message { from, to, .. } = self.messages[end.message];
            let raw = self.raw(body);
            // SAFETY: the bodies outlive the batch, and are not touched.
            batch = unsafe {
                if end.is_send {
                    batch.send_message(raw, to)
                } else if self.is_any(*end) {
                    batch.recv_any_message(raw, source)
                } else {
                    batch.recv_message(raw, from)
                }
            };
        }
        batch.run()?;
        let mut anys = Vec::new();
        for ((end, body), source) in ends.iter().zip(bodies).zip(sources) {
            if self.is_any(*end) {
                anys.push((source, body));
            } else {
                self.check(&body)?;
            }
        }
        Ok(anys)
    }

    fn started_together(
        self: &Arc<Self>,
        comm: &Communicator,
        ends: &[End],
        own: &mut Random,
    ) -> Result<Finish> {
        let bodies: Vec<Body> = ends.iter().map(|end| self.body(*end, own)).collect();
        let mut bodies = ManuallyDrop::new(bodies);
        let mut batch = comm.batch();
        for (end, body) in ends.iter().zip(bodies.iter_mut()) {
            let Message { from, to, .. } = self.messages[end.message];
            let raw = self.raw(body);
            // SAFETY: the bodies stay until the wait below; they are leaked if it does not come.
            batch = unsafe {
                if end.is_send { batch.send_message(raw, to) } else { batch.recv_message(raw, from) }
            };
        }
        // SAFETY: as above.
        let work = unsafe { batch.start() }?;
        let traffic = Arc::clone(self);
        Ok(Box::new(move |_: &mut Random| {
            work.wait()?;
            ManuallyDrop::into_inner(bodies).iter().try_for_each(|body| traffic.check(body))
        }))
    }

    /// Checks that the messages of each source have come in order.
    fn check_anys(&self, rank: u32, anys: &BTreeMap<usize, (u32, Body)>) -> Result {
        let mut streams = BTreeMap::<u32, Vec<usize>>::new();
        for (at, message) in self.messages.iter().enumerate().rev() {
            if (message.to, message.tag) == (rank, ANY) {
                streams.entry(message.from).or_default().push(at);
            }
        }
        for (source, body) in anys.values() {
            let next = streams.get_mut(source).and_then(Vec::pop);
            if !next.is_some_and(|next| self.is_right(next, body.bytes())) {
                let text = format!("from any source: the message from {source} is not its next, {next:?}");
                return Err(text.into());
            }
        }
        Ok(())
    }
}
