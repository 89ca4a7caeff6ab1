//! Positions of data as nested loops over runs of bytes, which other processes may send.
//!
//! The loops of a vector take some words, however many blocks it has. Positions from another process may be any. Before data is copied, the
//! caller checks that they lie in memory meant for that.

use super::Type;
use super::layout::Run;
use super::loops::{Body, Kind, Node, Place, list, repeated};

/// Positions of data, as offsets in memory, in the order of the data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape(Body);

/// Numbers by which the kinds of nodes are encoded.
const STRIP: u64 = 0;
const LOOP: u64 = 1;
const LIST: u64 = 2;

/// More loops in each other than any type has: each has several repetitions, and 2^63 repetitions have no place in memory.
const DEPTH_MAX: u32 = 70;

impl Shape {
    pub(crate) fn empty() -> Self {
        Self(Body::new(Vec::new()))
    }

    /// Returns the positions of contiguous bytes.
    pub(crate) fn run(offset: i64, len: usize) -> Self {
        let run = (len > 0).then(|| Node::run(offset, len));
        Self(Body::new(run.into_iter().collect()))
    }

    /// Returns the positions of some runs, none of which is empty.
    pub(crate) fn list(runs: &[Run]) -> Self {
        match runs {
            [] => Self::empty(),
            [run] => Self::run(run.offset, run.len),
            _ => Self(Body::new(vec![list(runs[0].offset, runs.iter().copied())])),
        }
    }

    /// Returns the positions of the data of elements of a type.
    pub(crate) fn elements(of: &Type, count: usize, offset: i64) -> Self {
        if of.dense {
            return Self::run(offset.wrapping_add(of.true_lower), count * of.size);
        }
        let mut nodes = repeated(of.copies(), count, of.extent);
        nodes.iter_mut().for_each(|node| node.offset = node.offset.wrapping_add(offset));
        Self(Body::new(nodes))
    }

    /// Returns the number of bytes of data.
    pub(crate) const fn bytes(&self) -> usize {
        self.0.size
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        encode(&self.0, out);
    }

    /// Decodes positions; `None` if the bytes are malformed.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let body = decode(&mut bytes, 0)?;
        bytes.is_empty().then_some(Self(body))
    }

    /// Returns the lowest and the highest offset of memory, with the bytes that a run with this much data reaches.
    pub(crate) fn span(&self, reach: impl Fn(usize) -> usize) -> Option<(i64, i64)> {
        let (low, high) = span(&self.0, &reach)?;
        Some((low.try_into().ok()?, high.try_into().ok()?))
    }

    /// Calls `visit` for each run, in the order of the data, until it returns false. Returns whether it never has.
    pub(crate) fn each_run(&self, mut visit: impl FnMut(Run) -> bool) -> bool {
        each_run(&self.0, 0, &mut visit)
    }

    /// Appends the data at `memory` to `into`.
    ///
    /// # Safety
    /// The positions, from `memory` on, are readable.
    pub(crate) unsafe fn pack(&self, memory: *const u8, into: &mut Vec<u8>) {
        into.reserve(self.bytes());
        let start = into.len();
        // SAFETY: the positions are readable by the caller's promise, and there is room for the bytes, all of which the copy writes. Test:
        // `shapes_survive_the_wire`.
        unsafe {
            self.0.pack_to(memory, into.as_mut_ptr().add(start));
            into.set_len(start + self.bytes());
        }
    }

    /// As [`Self::pack`], to memory that has room for the data.
    ///
    /// # Safety
    /// The positions, from `memory` on, are readable, and do not overlap with the data.
    pub(crate) unsafe fn pack_to(&self, memory: *const u8, data: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.0.pack_to(memory, data) }
    }

    /// As [`Self::unpack`], from memory that holds as much data.
    ///
    /// # Safety
    /// The positions, from `memory` on, are writable, and do not overlap with the data.
    pub(crate) unsafe fn unpack_from(&self, data: *const u8, memory: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unpack_from(data, memory) }
    }

    /// Copies data to the positions; `None` if it has another length.
    ///
    /// # Safety
    /// The positions, from `memory` on, are writable.
    pub(crate) unsafe fn unpack(&self, data: &[u8], memory: *mut u8) -> Option<()> {
        if data.len() != self.bytes() {
            return None;
        }
        // SAFETY: the caller's promise; the data has a byte for each of the positions.
        unsafe { self.0.unpack_from(data.as_ptr(), memory) };
        Some(())
    }
}

/// Returns the runs of a list, with offsets that count from that of the list.
fn runs_of(places: &[Place]) -> impl Iterator<Item = Run> {
    places.windows(2).map(|pair| Run { offset: pair[0].offset, len: pair[1].start - pair[0].start })
}

fn encode(body: &Body, out: &mut Vec<u8>) {
    let put = |out: &mut Vec<u8>, words: &[u64]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    put(out, &[body.nodes.len() as u64]);
    for node in &body.nodes {
        let offset = node.offset as u64;
        match &node.kind {
            Kind::Strip { len, count, stride } => {
                put(out, &[STRIP, offset, *len as u64, *count as u64, *stride as u64]);
            }
            Kind::Loop { body, count, stride } => {
                put(out, &[LOOP, offset, *count as u64, *stride as u64]);
                encode(body, out);
            }
            Kind::List(places) => {
                put(out, &[LIST, offset, places.len() as u64 - 1]);
                runs_of(places).for_each(|run| put(out, &[run.offset as u64, run.len as u64]));
            }
        }
    }
}

fn word(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}

/// Reads a number of bytes or of repetitions, of which there is at least one.
fn number(bytes: &mut &[u8]) -> Option<usize> {
    word(bytes)?.try_into().ok().filter(|number| (1..=isize::MAX as usize).contains(number))
}

fn decode(bytes: &mut &[u8], depth: u32) -> Option<Body> {
    let (mut nodes, mut size) = (Vec::new(), 0_usize);
    if depth > DEPTH_MAX {
        return None;
    }
    for _ in 0..word(bytes)? {
        let node = node(bytes, depth)?;
        size = size.checked_add(node.size).filter(|size| *size <= isize::MAX as usize)?;
        nodes.push(node);
    }
    Some(Body::new(nodes))
}

fn node(bytes: &mut &[u8], depth: u32) -> Option<Node> {
    let (kind, offset) = (word(bytes)?, word(bytes)? as i64);
    let fits = |len: usize, count: usize| len > 0 && len.checked_mul(count).is_some();
    Some(match kind {
        STRIP => {
            let (len, count, stride) = (number(bytes)?, number(bytes)?, word(bytes)? as i64);
            fits(len, count).then(|| Node::new(offset, Kind::Strip { len, count, stride }))?
        }
        LOOP => {
            let (count, stride) = (number(bytes)?, word(bytes)? as i64);
            let body = decode(bytes, depth + 1)?;
            fits(body.size, count).then(|| Node::new(offset, Kind::Loop { body, count, stride }))?
        }
        LIST => {
            let (mut runs, mut size) = (Vec::new(), 0_usize);
            for _ in 0..number(bytes)? {
                let run = Run { offset: (word(bytes)? as i64).wrapping_add(offset), len: number(bytes)? };
                size = size.checked_add(run.len)?;
                runs.push(run);
            }
            list(offset, runs.into_iter())
        }
        _ => return None,
    })
}

/// Returns the lowest and the highest offset of the memory of some nodes; `None` if there are no nodes.
fn span(body: &Body, reach: &impl Fn(usize) -> usize) -> Option<(i128, i128)> {
    let wider = |one: (i128, i128), other: (i128, i128)| (one.0.min(other.0), one.1.max(other.1));
    let repeated = |(low, high): (i128, i128), count: usize, stride: i64| {
        let last = (count as i128 - 1) * i128::from(stride);
        (low.saturating_add(last.min(0)), high.saturating_add(last.max(0)))
    };
    let nodes = body.nodes.iter().filter_map(|node| {
        let (low, high) = match &node.kind {
            Kind::Strip { len, count, stride } => repeated((0, reach(*len) as i128), *count, *stride),
            Kind::Loop { body, count, stride } => repeated(span(body, reach)?, *count, *stride),
            Kind::List(places) => {
                let of_run = |run: Run| {
                    let offset = i128::from(run.offset);
                    (offset, offset + reach(run.len) as i128)
                };
                runs_of(places).map(of_run).reduce(wider)?
            }
        };
        let offset = i128::from(node.offset);
        Some((low.saturating_add(offset), high.saturating_add(offset)))
    });
    nodes.reduce(wider)
}

fn each_run(body: &Body, base: i64, visit: &mut impl FnMut(Run) -> bool) -> bool {
    body.nodes.iter().all(|node| {
        let base = base.wrapping_add(node.offset);
        let place = |nth: usize, stride: i64| base.wrapping_add((nth as i64).wrapping_mul(stride));
        match &node.kind {
            Kind::Strip { len, count, stride } => {
                (0..*count).all(|nth| visit(Run { offset: place(nth, *stride), len: *len }))
            }
            Kind::Loop { body, count, stride } => {
                (0..*count).all(|nth| each_run(body, place(nth, *stride), visit))
            }
            Kind::List(places) => {
                runs_of(places).all(|run| visit(Run { offset: base.wrapping_add(run.offset), len: run.len }))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::construct::{made, make};
    use super::super::pack::tests::{Dice, random};
    use super::super::{Blocks, builtin};
    use super::*;
    use crate::constants::COMBINER_VECTOR;

    fn encoded(shape: &Shape) -> Vec<u8> {
        let mut bytes = Vec::new();
        shape.encode(&mut bytes);
        bytes
    }

    fn vector(of: &Arc<Type>, count: i64, stride: i64) -> Type {
        let blocks = Blocks::Even { count, length: 1, stride };
        make(made(COMBINER_VECTOR, vec![Arc::clone(of)], blocks), None).expect("a type")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn shapes_survive_the_wire(seed in any::<u64>(), depth in 1_u32..4, count in 0_usize..5, offset in -50_i64..50) {
            let mut dice = Dice(seed);
            let of = random(&mut dice, depth, false);
            if of.size() * count > 1 << 16 {
                return Ok(());
            }
            let shape = Shape::elements(&of, count, offset);
            prop_assert_eq!(shape.bytes(), count * of.size());
            let mut bytes = encoded(&shape);
            let read = Shape::decode(&bytes);
            prop_assert_eq!(read.as_ref(), Some(&shape));
            let mut runs = Vec::new();
            shape.each_run(|run| {
                runs.push(run);
                true
            });
            let (low, high) = shape.span(|len| len).unwrap_or_default();
            prop_assert_eq!(low, runs.iter().map(|run| run.offset).min().unwrap_or(0));
            prop_assert_eq!(high, runs.iter().map(|run| run.offset + run.len as i64).max().unwrap_or(0));
            // The data is the same as that of the elements, and that of the runs.
            let mut memory: Vec<u8> = (low..high).map(|at| (at * 7) as u8).collect();
            let base = memory.as_mut_ptr().wrapping_offset(-low as isize);
            let (mut data, mut expected) = (Vec::new(), Vec::new());
            // SAFETY: the memory has all positions.
            unsafe {
                shape.pack(base, &mut data);
                of.pack(base.wrapping_offset(offset as isize), count, &mut expected);
            }
            prop_assert_eq!(&data, &expected);
            let of_runs = runs.iter().flat_map(|run| (run.offset..).take(run.len)).map(|at| (at * 7) as u8);
            prop_assert_eq!(&data, &of_runs.collect::<Vec<u8>>());
            // Bytes that are not a shape's are refused, or are another shape's.
            let at = dice.below(bytes.len() as i64) as usize;
            bytes[at] ^= 1 << dice.below(8);
            if let Some(other) = Shape::decode(&bytes) {
                prop_assert_eq!(&encoded(&other), &bytes);
                let _ = other.span(|len| len);
            }
            prop_assert!(Shape::decode(&bytes[..at]).is_none());
        }
    }

    #[test]
    fn loops_are_not_sent_run_by_run() {
        let int = builtin(0x4c00_0405).expect("predefined");
        let column = Arc::new(vector(int, 1 << 16, 8));
        let columns = vector(&column, 1 << 10, 1 << 20);
        for of in [&*column, &columns] {
            let shape = Shape::elements(of, 3, 64);
            assert!(encoded(&shape).len() < 200, "{} bytes", encoded(&shape).len());
            assert_eq!(shape.bytes(), 3 * of.size());
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let strip = |len: u64, count: u64| bytes(&[1, STRIP, 0, len, count, 8]);
        assert!(Shape::decode(&strip(4, 2)).is_some());
        for (len, count) in [(0, 1), (1, 0), (1 << 40, 1 << 40), (u64::MAX, 1)] {
            assert_eq!(Shape::decode(&strip(len, count)), None, "{count} runs of {len} bytes");
        }
        assert_eq!(Shape::decode(&bytes(&[1, LOOP, 0, 5, 8, 0])), None, "an empty loop");
        assert_eq!(Shape::decode(&bytes(&[1, LIST, 0, 1 << 50])), None, "a list without its runs");
        assert_eq!(Shape::decode(&bytes(&[1, 3, 0, 1, 1, 1])), None, "an unknown kind");
        let deep = [1, LOOP, 0, 1, 0].repeat(1000);
        assert_eq!(
            Shape::decode(&bytes(&[&deep[..], &[1, STRIP, 0, 1, 1, 0]].concat())),
            None,
            "endless loops"
        );
        let far = strip(1, 1 << 62);
        let far = Shape::decode(&far).expect("a shape");
        assert_eq!(far.span(|len| len), None, "its end has no address");
    }
}
