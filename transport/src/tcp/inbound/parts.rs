//! Receives the parts of a striped message from all strands of the channel. The rules are in `stripes`.

use socket2::Socket;

use super::super::link::{SCRATCH_BYTES, Workspace};
use super::super::socket;
use super::super::stripes::{Bundle, Incoming};
use super::super::wire::{HEADER_BYTES, Header, Part};
use super::{Front, Halt, Inbound, Landing, Recv};
use crate::endpoint::{Event, GRAIN_BYTES};
use crate::pieces::Cursor;

/// Maximum number of separate ranges of a message that have arrived. There are few: a strand has one part in flight,
/// and parts are cut in order.
const RUNS_MAX: usize = 1024;

/// State of a striped message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Striped {
    sequence: u32,
    len: usize,
    got: usize,
    /// Whether its payload is dropped, because it fits no receive.
    is_dropped: bool,
}

/// Progress of a strand.
enum Step {
    /// The strand brought as many bytes as were asked for.
    Moved(usize),
    /// The strand brought this many bytes, and has no more for now.
    Dry(usize),
    /// The strand has finished with this message.
    Ahead,
}

impl Inbound {
    pub(super) fn begin_parts(&mut self, header: Header, is_dropped: bool) {
        let Header { sequence, len, .. } = header;
        self.runs.clear();
        self.front = Front::Striped(Striped { sequence, len: len as usize, got: 0, is_dropped });
    }

    /// Receives parts of the striped message at the front, up to about `budget` bytes on each strand. [`Halt::Parts`]
    /// means that the message is complete.
    pub(in super::super) fn progress_parts(
        &mut self,
        first: &Socket,
        bundle: &mut Bundle,
        work: &mut Workspace,
        budget: usize,
        exhaust: bool,
        events: &mut Vec<Event>,
    ) -> (usize, Halt) {
        let (mut total, mut is_dry) = (0, true);
        for (at, strand) in bundle.strands.iter_mut().enumerate() {
            let socket = strand.socket.as_deref().unwrap_or(first);
            let mut moved = 0;
            // A reset behind the last byte is left for the next message.
            while !strand.inward.has_ended && !self.is_whole() {
                if moved >= budget {
                    is_dry = false;
                    break;
                }
                match self.step(at == 0, socket, &mut strand.inward, work, budget - moved) {
                    Ok(Step::Moved(bytes)) => moved += bytes,
                    Ok(Step::Dry(bytes)) => {
                        moved += bytes;
                        if bytes == 0 || !exhaust {
                            break;
                        }
                    }
                    Ok(Step::Ahead) | Err(Halt::Blocked) => break,
                    Err(Halt::Closed(source)) if strand.inward.may_end(source.as_ref()) => {
                        strand.inward.has_ended = true;
                    }
                    Err(halt) => return (total + moved, halt),
                }
            }
            total += moved;
            if self.is_whole() {
                self.end_parts(&mut bundle.strands[0].inward, events);
                return (total, Halt::Parts);
            }
        }
        if bundle.strands.iter().all(|strand| strand.inward.has_ended) {
            return (total, Halt::Closed(None));
        }
        (total, if is_dry { Halt::Blocked } else { Halt::Budget })
    }

    /// Returns the number of bytes of the front message that have arrived, also for a striped one.
    pub(super) fn received_bytes(&self) -> usize {
        self.striped().map_or(self.payload_bytes, |striped| striped.got)
    }

    fn striped(&self) -> Option<&Striped> {
        if let Front::Striped(striped) = &self.front { Some(striped) } else { None }
    }

    fn is_whole(&self) -> bool {
        self.striped().is_some_and(|striped| striped.got == striped.len)
    }

    /// Continues with the data behind the message, whose header may have arrived.
    fn end_parts(&mut self, first: &mut Incoming, events: &mut Vec<Event>) {
        let Front::Striped(striped) = self.front else { return };
        if !striped.is_dropped
            && let Some(front) = self.queue.pop_front()
        {
            events.push(Event::Done(front.token));
            self.next();
        }
        if let Some(header) = self.ahead.take() {
            // The next message waits like one that was held.
            (self.header, self.header_bytes, self.front) = (header, HEADER_BYTES, Front::Held);
        } else {
            // Some bytes of the next header may have arrived.
            (self.header, self.header_bytes) = (first.header, std::mem::take(&mut first.header_bytes));
            self.front = Front::Arriving;
        }
    }

    /// Reads bytes of a header, or of a part's payload.
    fn step(
        &mut self,
        is_first: bool,
        socket: &Socket,
        strand: &mut Incoming,
        work: &mut Workspace,
        budget: usize,
    ) -> Result<Step, Halt> {
        if strand.left > 0 {
            return self.step_payload(is_first, socket, strand, work, budget);
        }
        if is_first && self.ahead.is_some() {
            return Ok(Step::Ahead);
        }
        if strand.header_bytes < HEADER_BYTES {
            let room = &mut strand.header[strand.header_bytes..];
            let wanted = room.len();
            let moved = if is_first && self.has_stash() {
                let moved = wanted.min(self.stash.len() - self.stash_start);
                room[..moved].copy_from_slice(&self.stash[self.stash_start..][..moved]);
                self.leave_stash(moved);
                moved
            } else {
                socket::recv_bytes(socket, room)?
            };
            strand.header_bytes += moved;
            if strand.header_bytes < HEADER_BYTES {
                return Ok(if self.has_stash() { Step::Moved(moved) } else { Step::Dry(moved) });
            }
        }
        self.take_header(is_first, strand).map_err(Halt::Corrupt)
    }

    /// Checks the header of a strand, which is complete.
    fn take_header(&mut self, is_first: bool, strand: &mut Incoming) -> Result<Step, &'static str> {
        let Front::Striped(striped) = &self.front else { return Ok(Step::Ahead) };
        let Some(part) = Part::decode(&strand.header) else {
            if is_first && Header::decode(&strand.header).is_some() {
                self.ahead = Some(strand.header);
                strand.header_bytes = 0;
                return Ok(Step::Ahead);
            }
            return Err("bytes that are not the header of a part");
        };
        // The messages in between may have had no part for this strand. On the first strand, their headers come
        // before.
        if part.sequence.wrapping_sub(striped.sequence).cast_signed() > 0 && !is_first {
            return Ok(Step::Ahead);
        }
        if part.sequence != striped.sequence {
            return Err("a part of another message");
        }
        // `decode` has checked that the sum does not overflow and that lengths fit.
        let (offset, len) = (part.offset as usize, part.len as usize);
        let is_whole = |at: usize| at == striped.len || at.is_multiple_of(GRAIN_BYTES);
        if part.offset + part.len > striped.len as u64 || !is_whole(offset) || !is_whole(offset + len) {
            return Err("a part beyond its message");
        }
        note(&mut self.runs, offset, offset + len)?;
        (strand.offset, strand.left, strand.header_bytes, strand.grain_bytes) = (offset, len, 0, 0);
        (strand.cursor, strand.has_brought) = (Cursor::START, true);
        if !striped.is_dropped
            && let Some(Recv { landing: Landing::Place(pieces), .. }) = self.queue.front()
        {
            pieces.advance(&mut strand.cursor, offset);
        }
        Ok(Step::Moved(HEADER_BYTES))
    }

    /// Takes in payload bytes of a part.
    fn step_payload(
        &mut self,
        is_first: bool,
        socket: &Socket,
        strand: &mut Incoming,
        work: &mut Workspace,
        budget: usize,
    ) -> Result<Step, Halt> {
        let is_dropped = self.striped().is_none_or(|striped| striped.is_dropped);
        let stashed = if is_first { self.stash.len() - self.stash_start } else { 0 };
        let front = self.queue.front().filter(|_| !is_dropped);
        let eaten = !matches!(front, Some(Recv { landing: Landing::Place(_), .. }));
        let limit = strand.left.min(if eaten { SCRATCH_BYTES - strand.grain_bytes } else { budget });
        work.io.clear();
        let (moved, wanted) = if stashed > 0 {
            let moved = limit.min(stashed);
            let bytes = &self.stash[self.stash_start..][..moved];
            match front {
                Some(Recv { landing: Landing::Place(pieces), .. }) => pieces.fill(&mut strand.cursor, bytes),
                _ => work.scratch()[strand.grain_bytes..][..moved].copy_from_slice(bytes),
            }
            self.leave_stash(moved);
            (moved, moved)
        } else {
            match front {
                Some(Recv { landing: Landing::Place(pieces), .. }) => {
                    work.io.gather(pieces, strand.cursor, limit);
                }
                _ => work.ask_scratch(strand.grain_bytes, strand.grain_bytes + limit),
            }
            let moved = socket::recv(socket, &mut work.io)?;
            if let Some(Recv { landing: Landing::Place(pieces), .. }) = front {
                pieces.advance(&mut strand.cursor, moved);
            }
            (moved, work.io.bytes())
        };
        strand.left -= moved;
        if let Some(Recv { landing: Landing::Eat(eater), .. }) = self.queue.front().filter(|_| !is_dropped) {
            let there = strand.grain_bytes + moved;
            let whole = if strand.left == 0 { there } else { there - there % GRAIN_BYTES };
            let scratch = work.scratch();
            scratch[..strand.grain_bytes].copy_from_slice(&strand.grain[..strand.grain_bytes]);
            eater.eat(strand.offset, &scratch[..whole]);
            strand.offset += whole;
            strand.grain_bytes = there - whole;
            strand.grain[..strand.grain_bytes].copy_from_slice(&scratch[whole..there]);
        }
        if let Front::Striped(striped) = &mut self.front {
            striped.got += moved;
        }
        Ok(if moved < wanted { Step::Dry(moved) } else { Step::Moved(moved) })
    }
}

/// Notes that the bytes of a message from `start` to `end` are arriving.
fn note(runs: &mut Vec<(usize, usize)>, start: usize, end: usize) -> Result<(), &'static str> {
    let at = runs.partition_point(|run| run.0 < start);
    if at > 0 && runs[at - 1].1 > start || runs.get(at).is_some_and(|run| run.0 < end) {
        return Err("a part that has already arrived");
    }
    let joins = runs.get(at).is_some_and(|run| run.0 == end);
    match at.checked_sub(1).map(|before| runs[before]) {
        Some((_, last)) if last == start && joins => {
            runs[at - 1].1 = runs[at].1;
            runs.remove(at);
        }
        Some((_, last)) if last == start => runs[at - 1].1 = end,
        _ if joins => runs[at].0 = start,
        _ if runs.len() >= RUNS_MAX => return Err("parts too far apart"),
        _ => runs.insert(at, (start, end)),
    }
    Ok(())
}
