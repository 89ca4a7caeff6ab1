//! Steps of a segment on a stage, the memory that the ranks of one host share.
//!
//! A step leaves nothing in use: when it is done, it no longer needs the caller's memory. A step that must wait says
//! for what (`Instance::awaited`), and the engine runs it again until it is done.
//!
//! # Positions of runs in a payload
//! The first run lies at the beginning. The second run lies behind it, some way behind the beginning of a page. It is
//! usually copied to a place shortly after the beginning of a page, so it must not lie shortly after one itself
//! (`LONGS_IN_PAGE` of the transport says why). All-reduces of 8 and 32 MiB with 4 and 8 ranks take 0.92 to 0.96 times
//! as long.

use std::cell::RefCell;

use kolo_collectives::plan::{Blocks, Collective, Placement, Space};
use kolo_collectives::stage::{Members, Payload};
use kolo_transport::shm::STREAMING_BYTES;
use kolo_transport::{Awaited, Error, ErrorKind, Needs, Piece, Stage, StageMismatch};

use super::super::links::Links;
use super::super::memory::Binding;
use super::super::{GROUPS, STAGE_SEGMENTS};
use super::Bound;
use super::instance::Instance;

const PAGE: usize = 4096;

/// Offset within a page of a payload's second run.
const SECOND_IN_PAGE: usize = 256;

/// Alignment of the second run in short payloads, for which a page would be too much.
const LINES: usize = 128;

/// One segment of an operation, as its steps on the stage need it.
pub(super) struct Staged<'a> {
    pub(super) bound: &'a Bound,
    pub(super) stage: &'a mut dyn Stage,
    pub(super) area: u16,
    pub(super) instance: &'a mut Instance,
}

impl Staged<'_> {
    /// Publishes the next round. Returns whether there was room.
    ///
    /// # Safety
    /// The sources are valid; see `Operation::begin`.
    pub(super) unsafe fn publish(
        &mut self,
        src: [Option<Blocks>; 2],
        except: Option<Blocks>,
    ) -> Result<bool, Error> {
        let round = self.instance.round;
        let payload = self.payload_of(usize::from(round), self.stage.member());
        let len = self.bytes(&payload);
        let is_free = self.stage.is_free(self.area, len);
        if !self.heard(is_free, Awaited::Room(len))? {
            return Ok(false);
        }
        if len > 0 {
            let slot = self.stage.slot(self.area, len);
            for ((index, run), src) in payload.runs.iter().enumerate().zip(src) {
                let (Some(run), Some(src)) = (run, src) else { continue };
                for (first, count) in but(except, run.first, run.count) {
                    let at = self.place(&payload, first, count).map_or(0, |(at, _)| at);
                    debug_assert!(payload.run_of(first, count) == Some(index), "in its own run");
                    let src = Blocks::range(src.space, src.first + (first - run.first), count);
                    // SAFETY: the blocks have equal lengths on both sides, by the checker, so they end within the slot.
                    unsafe { self.copy_in(src, slot.wrapping_add(at)) };
                }
            }
        }
        let digest = (self.instance.segment as u64) << 16 | u64::from(round);
        self.stage.publish(self.area, self.bound.tag, digest, len);
        self.instance.round += 1;
        Ok(true)
    }

    /// # Safety
    /// As [`Self::publish`], and there is room.
    unsafe fn copy_in(&mut self, src: Blocks, mut to: *mut u8) {
        let from = self.instance.pieces.len();
        self.bound.place(src, self.instance);
        for piece in &self.instance.pieces[from..] {
            // SAFETY: the caller's promise.
            unsafe { self.stage.copier().copy(piece.ptr, to, piece.len) };
            to = to.wrapping_add(piece.len);
        }
        self.instance.pieces.truncate(from);
    }

    /// Returns whether these members have published the current round.
    pub(super) fn await_members(&mut self, of: Members) -> Result<bool, Error> {
        let needs = needs(of);
        let have = self.stage.has_published(self.area, needs);
        self.heard(have, Awaited::Payloads(needs))
    }

    /// Returns the memory of blocks that a member has published in the current round.
    pub(super) fn shown(&self, member: u16, first: u32, count: u32) -> Result<Piece, Error> {
        let member = usize::from(member);
        let payload = self.payload_of(usize::from(self.instance.round).wrapping_sub(1), member);
        let Some((at, len)) = self.place(&payload, first, count) else {
            let detail = format!("blocks {first}+{count} are not in the payload of member {member}");
            return Err(Error::new(ErrorKind::Usage, "engine", None, detail));
        };
        let ptr = match len {
            0 => std::ptr::null_mut(),
            _ => self.stage.payload(self.area, member, self.bytes(&payload)).wrapping_add(at).cast_mut(),
        };
        Ok(Piece { ptr, len })
    }

    /// Reduces these blocks, as these members have published them, into `dst`.
    ///
    /// # Safety
    /// `own` and `dst` are valid, each of them in one piece; see `Operation::begin`.
    pub(super) unsafe fn fold(
        &mut self,
        of: Members,
        (first, count): (u32, u32),
        own: Option<*const u8>,
        dst: Piece,
    ) -> Result<(), Error> {
        let me = self.stage.member();
        let of = of.range(self.stage.members().len());
        self.instance.fold_buffers.operands.clear();
        for member in of {
            let operand = match own {
                Some(own) if member == me => own,
                _ => {
                    let shown = self.shown(member as u16, first, count)?;
                    debug_assert!(shown.len == dst.len, "as long as the result");
                    shown.ptr.cast_const()
                }
            };
            self.instance.fold_buffers.operands.push(operand);
        }
        let FoldBuffers { operands, scratch } = &self.instance.fold_buffers;
        let how = self.bound.arithmetic.folding(scratch);
        // SAFETY: all operands have the same length, and none is `dst` except possibly one of the first two, by the
        // checker. Payloads stay until this rank publishes again.
        unsafe { how.fold(dst.ptr, dst.len, operands.len(), |index| operands[index]) };
        Ok(())
    }

    fn payload_of(&self, round: usize, member: usize) -> Payload {
        let Some(stage) = &self.bound.binding.plan.stage else { return Payload::PRESENCE };
        stage.rounds.get(round).map_or(Payload::PRESENCE, |round| round[member])
    }

    /// Returns offset and length of blocks in a payload, in bytes.
    fn place(&self, payload: &Payload, first: u32, count: u32) -> Option<(usize, usize)> {
        let (stage, layout) = (self.bound.binding.plan.stage.as_ref()?, &self.bound.binding.layout);
        let place = stage.place(layout, payload, (first, count), self.instance.segment)?;
        let size = self.bound.binding.element_bytes;
        let run_at = match (place.run, payload.runs[0]) {
            (1, Some(run)) => second_at(stage.run_elements(layout, run, self.instance.segment) * size),
            _ => 0,
        };
        Some((run_at + place.offset * size, place.len * size))
    }

    fn bytes(&self, payload: &Payload) -> usize {
        payload_bytes(&self.bound.binding, payload, self.instance.segment)
    }

    /// Handles the stage's answer for this segment.
    fn heard(&mut self, answer: Result<bool, StageMismatch>, awaited: Awaited) -> Result<bool, Error> {
        let is_there = answer.map_err(|found| mismatch(self.stage, self.bound.tag, found))?;
        self.instance.awaited = (!is_there).then_some(awaited);
        Ok(is_there)
    }
}

/// Returns the members whose payloads an `Await` waits for.
pub(crate) const fn needs(of: Members) -> Needs {
    match of {
        Members::All => Needs::All,
        Members::One(member) => Needs::Only(member as usize),
        Members::Below(end) => Needs::Below(end as usize),
    }
}

/// Memory that folding reuses.
#[derive(Debug, Default)]
pub(super) struct FoldBuffers {
    operands: Vec<*const u8>,
    scratch: RefCell<Vec<u8>>,
}

/// Returns the error of ranks that have made different calls.
pub(super) fn mismatch(stage: &dyn Stage, tag: u64, found: StageMismatch) -> Error {
    let kind = ErrorKind::Mismatch { expected_tag: tag, tag: found.tag, expected_len: 0, len: 0 };
    let peer = stage.members().get(found.member).copied();
    Error::new(kind, "stage", peer, "it made a different call")
}

/// Returns the bytes of a payload in a segment, including the space between its runs.
fn payload_bytes(binding: &Binding, payload: &Payload, segment: usize) -> usize {
    let Some(stage) = &binding.plan.stage else { return 0 };
    let of = |run| stage.run_elements(&binding.layout, run, segment) * binding.element_bytes;
    match payload.runs {
        [Some(first), Some(second)] => second_at(of(first)) + of(second),
        [Some(run), None] | [None, Some(run)] => of(run),
        [None, None] => 0,
    }
}

/// Checks that there is an area for each segment in flight.
pub(super) fn check_window(binding: &Binding, window: usize) -> Result<(), Error> {
    if binding.plan.stage.is_none() || window <= STAGE_SEGMENTS {
        return Ok(());
    }
    let detail = format!("{window} segments in flight on the stage; at most {STAGE_SEGMENTS}");
    Err(Error::new(ErrorKind::Usage, "engine", None, detail))
}

/// Checks that a bound plan can run on this rank's stage: the members are the same, and the longest payload fits.
pub(super) fn check(binding: &Binding, links: &Links) -> Result<(), Error> {
    let Some(wanted) = &binding.plan.stage else { return Ok(()) };
    let refused = |detail: String| Err(Error::new(ErrorKind::Usage, "engine", None, detail));
    let algorithm = binding.plan.algorithm;
    if !wanted.windows.is_empty() {
        return refused(format!("{algorithm} reaches into other ranks' buffers, which messages cannot do"));
    }
    let (Some(stage), Some(caps)) = (links.stage(), links.stage_caps()) else {
        return refused(format!("{algorithm} uses memory that ranks share, and there is none"));
    };
    if *stage.members() != *wanted.members {
        let (have, want) = (stage.members(), &wanted.members);
        return refused(format!("{algorithm} is for ranks {want:?}, but memory is shared by ranks {have:?}"));
    }
    let payloads = wanted.rounds.iter().flatten();
    let longest = payloads.map(|payload| payload_bytes(binding, payload, 0)).max().unwrap_or(0);
    if usize::from(caps.areas) < usize::from(GROUPS) * STAGE_SEGMENTS {
        return refused(format!("a stage of {} areas", caps.areas));
    }
    if longest > caps.payload_max {
        let most = caps.payload_max;
        return refused(format!("{algorithm} with payloads of {longest} bytes; at most {most}"));
    }
    Ok(())
}

/// Returns whether the members' buffers together exceed the caches, so that results should bypass them.
pub(super) fn streams(binding: &Binding) -> bool {
    let Some(stage) = &binding.plan.stage else { return false };
    let (input, output) = binding.buffer_bytes();
    let members = stage.members.len();
    let touched = match binding.plan.collective {
        // The root reads or writes as much as all others together.
        Collective::Gather | Collective::Scatter => 2 * input.max(output),
        Collective::Broadcast => members * output,
        // In place, the target was just read.
        Collective::AllReduce if binding.plan.placement == Placement::InPlace => 0,
        _ => members * (input + output),
    };
    touched >= STREAMING_BYTES
}

fn second_at(first_bytes: usize) -> usize {
    if first_bytes < PAGE {
        first_bytes.next_multiple_of(LINES)
    } else {
        first_bytes.next_multiple_of(PAGE) + SECOND_IN_PAGE
    }
}

/// Returns blocks `first..first + count` without those of `except`, if these lie among them.
fn but(except: Option<Blocks>, first: u32, count: u32) -> impl Iterator<Item = (u32, u32)> {
    let end = first + count;
    let (from, to) = except.map_or((end, end), |except| (except.first, except.end()));
    let (from, to) = if from >= first && to <= end { (from, to) } else { (end, end) };
    [(first, from - first), (to, end - to)].into_iter().filter(|(_, count)| *count > 0)
}

/// Returns the member on whose stage blocks lie, if they lie on one.
pub(super) fn member_of(blocks: Blocks) -> Option<u16> {
    if let Space::Stage(member) = blocks.space { Some(member) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_left_out() {
        let except = |first, count| Some(Blocks::range(Space::Stage(0), first, count));
        let but = |except| but(except, 4, 4).collect::<Vec<_>>();
        assert_eq!(but(None), [(4, 4)]);
        assert_eq!(but(except(5, 1)), [(4, 1), (6, 2)]);
        assert_eq!(but(except(4, 1)), [(5, 3)]);
        assert_eq!(but(except(7, 1)), [(4, 3)]);
        assert_eq!(but(except(4, 4)), []);
        assert_eq!(but(except(0, 2)), [(4, 4)], "it is of the other run");
    }

    #[test]
    fn a_second_run_does_not_lie_where_the_first_ends() {
        assert_eq!((second_at(0), second_at(1), second_at(4000)), (0, 128, 4096));
        assert_eq!((second_at(4096), second_at(70_000)), (4096 + 256, 73_728 + 256));
    }
}
