//! Packing and unpacking: copies between elements of a type and a run of bytes, their data.
//!
//! Any range of the data can be copied by itself, so that a message can be packed into shared memory, and unpacked from there, part by part.
//!
//! Rules for the unsafe functions:
//! 1. `elements` is the address from which a type's displacements count; whoever calls a function of [`Type`] promises that the elements are
//!    accessible. Positions are computed with wrapping arithmetic, and only those of the elements' own bytes are accessed.
//! 2. `data` is the place of the first byte of the range, and the range's bytes from there on are accessible.
//! 3. Elements and data do not overlap. Elements into which data is unpacked do not overlap each other, by MPI's rules; if they do, their
//!    contents are unspecified.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::Type;
use super::loops::{Body, Kind, Node, Place};

/// Direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Pack,
    Unpack,
}

/// Bytes of elements that are copied run by run while they stay in the first-level cache.
const BLOCK_BYTES: usize = 8 << 10;

impl Type {
    /// Copies the data of `count` elements to `data`.
    ///
    /// # Safety
    /// The elements are readable, and `data` is writable for all their bytes.
    pub unsafe fn pack_to(&self, elements: *const u8, count: usize, data: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.pack_range(elements, count, 0..count * self.size, data) }
    }

    /// Appends the data of `count` elements to `into`.
    ///
    /// # Safety
    /// The elements at `from` are readable.
    pub unsafe fn pack(&self, from: *const u8, count: usize, into: &mut Vec<u8>) {
        let total = count * self.size;
        into.reserve(total);
        let start = into.len();
        // SAFETY: the elements are readable by the caller's promise, and there is room for `total` bytes, which the copy writes. Test:
        // `every_range_of_every_type`.
        unsafe {
            self.pack_to(from, count, into.as_mut_ptr().add(start));
            into.set_len(start + total);
        }
    }

    /// Copies a range of the data of `count` elements to `data`.
    ///
    /// # Safety
    /// The elements are readable, the range lies within their data, and `data` is writable for its length.
    pub unsafe fn pack_range(&self, elements: *const u8, count: usize, range: Range<usize>, data: *mut u8) {
        debug_assert!(range.end <= count * self.size);
        // SAFETY: the caller's promise: rules 1 to 3.
        unsafe { self.copy(Way::Pack, elements.cast_mut(), data, range) }
    }

    /// Copies `len` bytes of data, from byte `at` on, into `count` elements. Bytes beyond the elements are left out.
    ///
    /// # Safety
    /// The elements are writable, and `data` is readable for `len` bytes.
    pub unsafe fn unpack_range(
        &self,
        data: *const u8,
        len: usize,
        elements: *mut u8,
        count: usize,
        at: usize,
    ) {
        let end = (at + len).min(count * self.size);
        if at < end {
            // SAFETY: the caller's promise: rules 1 to 3.
            unsafe { self.copy(Way::Unpack, elements, data.cast_mut(), at..end) }
        }
    }

    /// Copies bytes into `count` elements, as far as the bytes reach.
    ///
    /// # Safety
    /// The elements at `to` are writable.
    pub unsafe fn unpack(&self, bytes: &[u8], to: *mut u8, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.unpack_range(bytes.as_ptr(), bytes.len(), to, count, 0) }
    }

    /// # Safety
    /// Rules 1 to 3.
    unsafe fn copy(&self, way: Way, elements: *mut u8, data: *mut u8, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // SAFETY: as the caller's; elements without gaps are one run of bytes from the true lower bound on.
        unsafe {
            if self.dense {
                let run = elements.wrapping_offset(self.true_lower as isize).wrapping_add(range.start);
                return step(way, (run, 0), (data, 0), 1, range.len());
            }
            match way {
                Way::Pack => repeat::<true>(self.loops(), (elements, self.extent), data, range),
                Way::Unpack => repeat::<false>(self.loops(), (elements, self.extent), data, range),
            }
        }
    }
}

impl Body {
    /// Copies the data to `data`.
    ///
    /// # Safety
    /// The nodes are readable at `elements`, and `data` is writable for all bytes.
    pub(super) unsafe fn pack_to(&self, elements: *const u8, data: *mut u8) {
        // SAFETY: the caller's promise: rules 1 to 3.
        unsafe { within::<true>(self, elements.cast_mut(), data, 0..self.size) }
    }

    /// Copies the data to the nodes.
    ///
    /// # Safety
    /// The nodes are writable at `elements`, and `data` is readable for all bytes.
    pub(super) unsafe fn unpack_from(&self, data: *const u8, elements: *mut u8) {
        // SAFETY: the caller's promise: rules 1 to 3.
        unsafe { within::<false>(self, elements, data.cast_mut(), 0..self.size) }
    }
}

/// Copies `count` runs of `len` bytes in either direction, from place to place with these steps.
///
/// # Safety
/// The runs are accessible at both places.
#[inline]
unsafe fn step(
    way: Way,
    (elements, stride): (*mut u8, i64),
    (data, pace): (*mut u8, i64),
    count: usize,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match way {
            Way::Pack => runs((elements, stride), (data, pace), count, len),
            Way::Unpack => runs((data, pace), (elements, stride), count, len),
        }
    }
}

const fn way(packs: bool) -> Way {
    if packs { Way::Pack } else { Way::Unpack }
}

/// Copies a range of the data of a body that is repeated every `stride` bytes.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn repeat<const PACK: bool>(
    body: &Body,
    (elements, stride): (*mut u8, i64),
    mut data: *mut u8,
    Range { start, end }: Range<usize>,
) {
    let place = |nth: usize| elements.wrapping_offset((nth as i64).wrapping_mul(stride) as isize);
    let (mut at, size) = (start, body.size);
    // SAFETY: all ranges lie within the caller's, and `data` advances with `at`.
    unsafe {
        while at < end {
            let (nth, from) = (at / size, at % size);
            let whole = if from == 0 { (end - at) / size } else { 0 };
            let len = match whole {
                0 => {
                    let len = (size - from).min(end - at);
                    within::<PACK>(body, place(nth), data, from..from + len);
                    len
                }
                _ => {
                    iterate::<PACK>(body, (place(nth), stride), data, whole);
                    whole * size
                }
            };
            data = data.wrapping_add(len);
            at += len;
        }
    }
}

/// Copies whole repetitions of a body.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn iterate<const PACK: bool>(
    body: &Body,
    (elements, stride): (*mut u8, i64),
    data: *mut u8,
    count: usize,
) {
    let size = body.size;
    let place = |nth: usize| elements.wrapping_offset((nth as i64).wrapping_mul(stride) as isize);
    // Runs of neighbouring repetitions are copied in an inner loop whose lengths are fixed.
    let block = if body.is_plain && (stride.unsigned_abs() as usize) < BLOCK_BYTES / 4 {
        (BLOCK_BYTES / (stride.unsigned_abs() as usize).max(size)).max(1)
    } else {
        1
    };
    let mut nth = 0;
    // SAFETY: every run lies in an element of the caller's, and its data at its own place in the range.
    unsafe {
        if let [node] = &*body.nodes
            && let Some(len) = node.single()
        {
            let run = elements.wrapping_offset(node.offset as isize);
            return step(way(PACK), (run, stride), (data, size as i64), count, len);
        }
        while nth < count {
            let (now, to) = (block.min(count - nth), data.wrapping_add(nth * size));
            if now == 1 {
                within::<PACK>(body, place(nth), to, 0..size);
            } else {
                for node in &body.nodes {
                    let run = place(nth).wrapping_offset(node.offset as isize);
                    let data = (to.wrapping_add(node.start), size as i64);
                    step(way(PACK), (run, stride), data, now, node.size);
                }
            }
            nth += now;
        }
    }
}

/// Copies a range of the data of a body.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn within<const PACK: bool>(body: &Body, elements: *mut u8, data: *mut u8, range: Range<usize>) {
    let first = match range.start {
        0 => 0,
        start => body.nodes.partition_point(|node| node.start + node.size <= start),
    };
    for node in &body.nodes[first..] {
        if node.start >= range.end {
            return;
        }
        let from = range.start.max(node.start);
        let part = from - node.start..range.end.min(node.start + node.size) - node.start;
        let elements = elements.wrapping_offset(node.offset as isize);
        // SAFETY: the part lies in the range, and its data begins `from - range.start` bytes into the range's.
        unsafe { part_of::<PACK>(node, elements, data.wrapping_add(from - range.start), part) }
    }
}

/// Copies a range of the data of a node that lies at `elements`.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn part_of<const PACK: bool>(node: &Node, elements: *mut u8, data: *mut u8, range: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe {
        match &node.kind {
            Kind::Loop { body, stride, .. } => repeat::<PACK>(body, (elements, *stride), data, range),
            Kind::List(places) => list::<PACK>(places, elements, data, range),
            Kind::Strip { len, stride, .. } => strip::<PACK>(*len, (elements, *stride), data, range),
        }
    }
}

/// Copies a range of the data of a strip, whose first and last run may be cut.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn strip<const PACK: bool>(
    len: usize,
    (elements, stride): (*mut u8, i64),
    mut data: *mut u8,
    Range { start, end }: Range<usize>,
) {
    let place = |nth: usize| elements.wrapping_offset((nth as i64).wrapping_mul(stride) as isize);
    let (mut nth, cut) = if start == 0 { (0, 0) } else { (start / len, start % len) };
    let mut left = end - start;
    // SAFETY: the runs are the strip's, and `left` bounds their data.
    unsafe {
        if cut > 0 {
            let head = (len - cut).min(left);
            step(way(PACK), (place(nth).wrapping_add(cut), 0), (data, 0), 1, head);
            data = data.wrapping_add(head);
            (nth, left) = (nth + 1, left - head);
        }
        let whole = left / len;
        step(way(PACK), (place(nth), stride), (data, len as i64), whole, len);
        let tail = left - whole * len;
        if tail > 0 {
            step(way(PACK), (place(nth + whole), 0), (data.wrapping_add(whole * len), 0), 1, tail);
        }
    }
}

/// Copies a range of the data of a list of runs.
///
/// # Safety
/// Rules 1 to 3.
unsafe fn list<const PACK: bool>(places: &[Place], elements: *mut u8, data: *mut u8, range: Range<usize>) {
    let first = match range.start {
        0 => 0,
        start => places.partition_point(|place| place.start <= start) - 1,
    };
    for pair in places[first..].windows(2) {
        let [run, next] = pair else { return };
        if run.start >= range.end {
            return;
        }
        let (from, until) = (range.start.max(run.start), range.end.min(next.start));
        let at = elements.wrapping_offset(run.offset as isize).wrapping_add(from - run.start);
        let to = data.wrapping_add(from - range.start);
        let (source, target) = if PACK { (at, to) } else { (to, at) };
        // SAFETY: the run is the list's, and the part of it lies in the range.
        unsafe { short(source, target, until - from) }
    }
}

/// Bytes that may be undefined: those of a message that is shorter than its receive.
type Chunk<const N: usize> = MaybeUninit<[u8; N]>;

/// Copies `count` runs of `len` bytes; each of the two sides has its step.
///
/// # Safety
/// All runs are accessible on both sides, and runs do not overlap their copies.
#[inline]
unsafe fn runs(from: (*mut u8, i64), to: (*mut u8, i64), count: usize, len: usize) {
    // SAFETY: the caller's promise; each function copies `count` runs of `len` bytes.
    unsafe {
        match len {
            0 => {}
            1 => fixed::<1>(from, to, count),
            2 => fixed::<2>(from, to, count),
            4 => fixed::<4>(from, to, count),
            8 => fixed::<8>(from, to, count),
            16 => fixed::<16>(from, to, count),
            24 => fixed::<24>(from, to, count),
            32 => fixed::<32>(from, to, count),
            48 => fixed::<48>(from, to, count),
            64 => fixed::<64>(from, to, count),
            3 => ends::<2>(from, to, count, len),
            5..=7 => ends::<4>(from, to, count, len),
            9..=15 => ends::<8>(from, to, count, len),
            17..=31 => ends::<16>(from, to, count, len),
            33..=63 => ends::<32>(from, to, count, len),
            65..=128 => ends::<64>(from, to, count, len),
            _ => each(from, to, count, |from, to| std::ptr::copy_nonoverlapping(from, to, len)),
        }
    }
}

/// Calls `copy` for each run.
#[inline]
fn each(
    (mut from, from_step): (*mut u8, i64),
    (mut to, to_step): (*mut u8, i64),
    count: usize,
    copy: impl Fn(*mut u8, *mut u8),
) {
    for _ in 0..count {
        copy(from, to);
        from = from.wrapping_offset(from_step as isize);
        to = to.wrapping_offset(to_step as isize);
    }
}

/// Copies runs of `N` bytes.
///
/// # Safety
/// As [`runs`].
unsafe fn fixed<const N: usize>(from: (*mut u8, i64), to: (*mut u8, i64), count: usize) {
    // SAFETY: the caller's promise.
    each(from, to, count, |from, to| unsafe { bytes::<N>(from, to) });
}

/// Copies runs of `N` to 2 `N` bytes: the first `N` and the last `N`, which may overlap.
///
/// # Safety
/// As [`runs`].
unsafe fn ends<const N: usize>(from: (*mut u8, i64), to: (*mut u8, i64), count: usize, len: usize) {
    // SAFETY: the caller's promise, and `N <= len <= 2 N`.
    each(from, to, count, |from, to| unsafe { both_ends::<N>(from, to, len) });
}

#[inline]
unsafe fn bytes<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; both are valid for `N` bytes.
    unsafe { to.cast::<Chunk<N>>().write_unaligned(from.cast::<Chunk<N>>().read_unaligned()) }
}

#[inline]
unsafe fn both_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise: both are valid for `len` bytes, and `N <= len <= 2 N`.
    unsafe {
        let last = from.add(len - N).cast::<Chunk<N>>().read_unaligned();
        bytes::<N>(from, to);
        to.add(len - N).cast::<Chunk<N>>().write_unaligned(last);
    }
}

/// Copies a run; short ones without a call of memcpy.
///
/// # Safety
/// The run is accessible on both sides.
#[inline]
unsafe fn short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            8 => bytes::<8>(from, to),
            4..=7 => both_ends::<4>(from, to, len),
            9..=16 => both_ends::<8>(from, to, len),
            17..=32 => both_ends::<16>(from, to, len),
            33..=64 => both_ends::<32>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::construct::{made, make, resized};
    use super::super::{Blocks, Type, arrays, builtin};
    use crate::constants::{COMBINER_HINDEXED, ORDER_C, ORDER_FORTRAN};

    /// Numbers for the choices that make up a case.
    pub(crate) struct Dice(pub(crate) u64);

    impl Dice {
        pub(crate) fn below(&mut self, limit: i64) -> i64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as i64 % limit
        }
    }

    /// Makes a random type of nested blocks. With `may_overlap`, its runs may share bytes.
    pub(crate) fn random(dice: &mut Dice, depth: u32, may_overlap: bool) -> Arc<Type> {
        if depth == 0 {
            // MPI_BYTE, MPI_SHORT, MPI_INT, MPI_DOUBLE, MPI_DOUBLE_INT
            let handles = [0x4c00_010d, 0x4c00_0203, 0x4c00_0405, 0x4c00_080b, 0x8c00_0001_u32];
            return Arc::clone(builtin(handles[dice.below(5) as usize] as i32).expect("predefined"));
        }
        let of = random(dice, depth - 1, may_overlap);
        let far = of.true_extent + of.extent.abs();
        let made_of = |blocks| make(made(COMBINER_HINDEXED, vec![Arc::clone(&of)], blocks), None);
        let new = match dice.below(6) {
            0 | 1 => {
                let (count, length) = (dice.below(7), dice.below(4));
                let gap = if dice.below(3) == 0 { 0 } else { dice.below(20) };
                let stride = if may_overlap { dice.below(60) - 30 } else { length * of.extent + gap };
                made_of(Blocks::Even { count, length, stride })
            }
            2 | 3 => {
                let (mut blocks, mut at) = (Vec::new(), dice.below(40) - 20);
                for _ in 0..dice.below(40) {
                    let length = dice.below(3);
                    blocks.push((if may_overlap { dice.below(200) } else { at }, length, 0));
                    at += length * far + dice.below(3) * dice.below(9);
                }
                if dice.below(2) == 0 {
                    blocks.reverse();
                }
                made_of(Blocks::Listed(blocks))
            }
            4 => {
                let slack = if may_overlap { 0 } else { far };
                resized(&of, dice.below(9) - 4, slack + dice.below(30))
            }
            _ => {
                let sizes = vec![2 + dice.below(3), 1 + dice.below(4), 3];
                let parts: Vec<i64> = sizes.iter().map(|size| 1 + dice.below(*size)).collect();
                let starts = sizes.iter().zip(&parts).map(|(size, part)| size - part).collect();
                let order = if dice.below(2) == 0 { ORDER_C } else { ORDER_FORTRAN };
                arrays::subarray(&[sizes, parts, starts], order, &of)
            }
        };
        Arc::new(new.expect("a small type"))
    }

    /// Appends the offsets of an element's bytes in the order of its definition.
    fn offsets(of: &Type, at: i64, into: &mut Vec<i64>) {
        let mut block = |of: &Type, at: i64, count: i64| {
            (0..count).for_each(|element| offsets(of, at + element * of.extent, into));
        };
        match &of.made.blocks {
            Blocks::Basic(parts) => {
                let each =
                    parts.iter().flat_map(|part| (0..part.len() as i64).map(|byte| part.offset + byte));
                into.extend(each.map(|offset| at + offset));
            }
            Blocks::Within(whole) => block(whole, at, 1),
            Blocks::Even { count, length, stride } => {
                (0..*count).for_each(|nth| block(&of.made.types[0], at + nth * stride, *length));
            }
            Blocks::Listed(blocks) => {
                for (place, count, which) in blocks {
                    block(&of.made.types[*which as usize], at + place, *count);
                }
            }
        }
    }

    fn check(of: &Type, count: usize, dice: &mut Dice, may_overlap: bool) {
        let mut places = Vec::new();
        (0..count as i64).for_each(|element| offsets(of, element * of.extent, &mut places));
        assert_eq!(places.len(), count * of.size());
        let low = places.iter().copied().min().unwrap_or(0);
        let span = places.iter().map(|place| place - low + 1).max().unwrap_or(0) as usize;
        let mut memory: Vec<u8> = (0..span).map(|at| (at * 7 + at / 256) as u8).collect();
        let expected: Vec<u8> = places.iter().map(|place| memory[(place - low) as usize]).collect();
        let elements = memory.as_mut_ptr().wrapping_offset(-low as isize);
        let mut packed = Vec::new();
        // SAFETY: the memory has all bytes of the elements, and the vectors have room for the ranges.
        unsafe { of.pack(elements, count, &mut packed) };
        assert_eq!(packed, expected, "{of:?}");
        let mut cuts: Vec<usize> = (0..6).map(|_| dice.below(expected.len() as i64 + 1) as usize).collect();
        cuts.extend([0, expected.len()]);
        cuts.sort_unstable();
        let mut again = vec![0xee_u8; span];
        let target = again.as_mut_ptr().wrapping_offset(-low as isize);
        for cut in cuts.windows(2).rev() {
            let mut part = vec![0_u8; cut[1] - cut[0]];
            // SAFETY: as above.
            unsafe {
                of.pack_range(elements, count, cut[0]..cut[1], part.as_mut_ptr());
                of.unpack_range(part.as_ptr(), part.len(), target, count, cut[0]);
            }
            assert_eq!(part, &expected[cut[0]..cut[1]], "{cut:?} of {of:?}");
        }
        if !may_overlap {
            let mut wanted = vec![0xee_u8; span];
            for (place, byte) in places.iter().zip(&expected) {
                wanted[(place - low) as usize] = *byte;
            }
            assert_eq!(again, wanted, "{of:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn every_range_of_every_type(seed in any::<u64>(), depth in 1_u32..4, count in 0_usize..5, overlap in any::<bool>()) {
            let mut dice = Dice(seed);
            let of = random(&mut dice, depth, overlap);
            if of.size() * count < 1 << 16 {
                check(&of, count, &mut dice, overlap);
            }
        }
    }

    #[test]
    fn long_runs_and_long_lists() {
        let byte = builtin(0x4c00_010d).expect("predefined");
        let mut dice = Dice(1);
        for len in [1, 3, 5, 8, 13, 16, 24, 31, 32, 48, 63, 64, 65, 100, 128, 129, 500, 4096] {
            let even = Blocks::Even { count: 50, length: len, stride: len + 3 };
            let of = make(made(COMBINER_HINDEXED, vec![Arc::clone(byte)], even), None).expect("a type");
            check(&of, 3, &mut dice, false);
            let listed = (0..400).map(|nth| (nth * (len + 9) + nth % 5, len - nth % 2, 0)).collect();
            let listed = Blocks::Listed(listed);
            let of = make(made(COMBINER_HINDEXED, vec![Arc::clone(byte)], listed), None).expect("a type");
            check(&of, 2, &mut dice, false);
        }
    }

    #[test]
    fn a_vector_with_more_blocks_than_a_list_may_have() {
        let byte = builtin(0x4c00_010d).expect("predefined");
        let even = Blocks::Even { count: 1 << 30, length: 1, stride: 0 };
        let of = make(made(COMBINER_HINDEXED, vec![Arc::clone(byte)], even), None).expect("a type");
        let (value, mut part) = (7_u8, [0; 100]);
        // SAFETY: all blocks are the same byte.
        unsafe { of.pack_range(&raw const value, 1, 1 << 29..(1 << 29) + 100, part.as_mut_ptr()) };
        assert_eq!(part, [7; 100]);
        assert!(of.parts().is_err(), "a list of its parts would be too long");
    }
}
