//! Makes derived types.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use super::basic::{LOWER_MARK, UPPER_MARK};
use super::{Blocks, Made, Type};
use crate::attributes::Attributes;
use crate::constants::{BYTE, COMBINER_HINDEXED, COMBINER_RESIZED, COMBINER_STRUCT, DATATYPE_NULL};
use crate::error::{Class, Outcome, fail};

/// The lowest and the highest byte that elements occupy.
#[derive(Clone, Copy)]
struct Bounds {
    low: i64,
    high: i64,
    /// Whether there are elements. With a negative extent, the low end of one lies above its high end.
    any: bool,
}

impl Bounds {
    const NONE: Self = Self { low: i64::MAX, high: i64::MIN, any: false };

    /// Adds `count` elements from `at` on, one per `extent` bytes; each reaches from `low` to `high`.
    fn add(&mut self, at: i64, count: i64, extent: i64, (low, high): (i64, i64)) -> Option<()> {
        if count > 0 {
            let last = at.checked_add(extent.checked_mul(count - 1)?)?;
            self.low = self.low.min(at.min(last).checked_add(low)?);
            self.high = self.high.max(at.max(last).checked_add(high)?);
            self.any = true;
        }
        Some(())
    }

    fn ends(self) -> (i64, i64) {
        if self.any { (self.low, self.high) } else { (0, 0) }
    }
}

struct Extents {
    size: i64,
    elements: i64,
    bounds: Bounds,
    /// The bounds of the elements whose lower bound the program has set, and of those whose upper bound it has set.
    set_bounds: [Bounds; 2],
    true_bounds: Bounds,
}

fn extents(made: &Made) -> Option<Extents> {
    let none = Bounds::NONE;
    let mut all = Extents { size: 0, elements: 0, bounds: none, set_bounds: [none; 2], true_bounds: none };
    let mut add = |at: i64, count: i64, of: &Type, repeat: i64, stride: i64| {
        let size = (of.size as i64).checked_mul(count)?.checked_mul(repeat)?;
        all.size = all.size.checked_add(size)?;
        // Every value has at least one byte, so these products are not larger than those above.
        all.elements += of.elements * count * repeat;
        // A type without data bounds others only if the program has set its bounds.
        if count == 0 || is_mark(of) || of.elements == 0 && of.bounded == [false; 2] {
            return Some(());
        }
        let mut block = Bounds::NONE;
        block.add(0, count, of.extent, (of.lower, of.lower.checked_add(of.extent)?))?;
        all.bounds.add(at, repeat, stride, block.ends())?;
        for (bounds, is_set) in all.set_bounds.iter_mut().zip(of.bounded) {
            bounds.add(at, if is_set { repeat } else { 0 }, stride, block.ends())?;
        }
        if of.size > 0 {
            let mut block = Bounds::NONE;
            block.add(0, count, of.extent, (of.true_lower, of.true_lower.checked_add(of.true_extent)?))?;
            all.true_bounds.add(at, repeat, stride, block.ends())?;
        }
        Some(())
    };
    match &made.blocks {
        Blocks::Basic(_) | Blocks::Within(_) => {}
        Blocks::Even { count, length, stride } => add(0, *length, &made.types[0], *count, *stride)?,
        Blocks::Listed(blocks) => {
            for (at, count, which) in blocks {
                add(*at, *count, &made.types[*which as usize], 1, 0)?;
            }
        }
    }
    Some(all)
}

fn is_mark(of: &Type) -> bool {
    of.builtin == LOWER_MARK || of.builtin == UPPER_MARK
}

/// Returns the bounds that marks in a structure set: the lowest and the highest of their places.
fn marks(made: &Made) -> [Option<i64>; 2] {
    let Blocks::Listed(blocks) = &made.blocks else { return [None; 2] };
    let places = |mark: i32| {
        let set = move |(_, count, which): &&(i64, i64, u32)| {
            *count > 0 && made.types[*which as usize].builtin == mark
        };
        blocks.iter().filter(set).map(|(place, ..)| *place)
    };
    [places(LOWER_MARK).min(), places(UPPER_MARK).max()]
}

/// Returns the types of which an element has any. The types of empty blocks are not part of the element, and do not align it.
pub(super) fn present(made: &Made) -> Vec<&Type> {
    match &made.blocks {
        Blocks::Basic(_) | Blocks::Within(_) => made.types.iter().map(|of| &**of).collect(),
        Blocks::Even { count, length, .. } if *count == 0 || *length == 0 => Vec::new(),
        Blocks::Even { .. } => vec![&*made.types[0]],
        Blocks::Listed(blocks) => {
            let filled = blocks.iter().filter(|(_, count, _)| *count > 0);
            filled.map(|(_, _, which)| &*made.types[*which as usize]).collect()
        }
    }
}

/// Makes a type. `bounds` are lower bound and extent, if the program sets them.
///
/// # Errors
/// If sizes or displacements do not fit into 64 bits.
pub(super) fn make(made: Made, bounds: Option<(i64, i64)>) -> Outcome<Type> {
    let Some(Extents { size, elements, bounds: natural, set_bounds, true_bounds }) = extents(&made) else {
        return fail(Class::Arg, "the datatype is larger than the address space");
    };
    let parts = present(&made);
    let align = parts.iter().map(|of| of.align).max().unwrap_or(1);
    // By the standard, bounds that the program has set take precedence over those of other elements, at every level.
    let marks = marks(&made);
    let [set_low, set_high] = set_bounds.map(|bounds| bounds.any.then_some(bounds));
    let set_low = set_low.map(|bounds| bounds.low).into_iter().chain(marks[0]).min();
    let set_high = set_high.map(|bounds| bounds.high).into_iter().chain(marks[1]).max();
    let bounded = [set_low, set_high].map(|set| bounds.is_some() || set.is_some());
    let (low, mut high) = natural.ends();
    let low = set_low.unwrap_or(low);
    high = set_high.unwrap_or(high);
    if made.combiner == COMBINER_STRUCT && !bounded[1] {
        // A C compiler pads structures in the same way.
        high += (align - (high - low).rem_euclid(align)) % align;
    }
    let (lower, extent) = bounds.unwrap_or((low, high - low));
    let (true_low, true_high) = true_bounds.ends();
    let mut of = Type {
        size: size as usize,
        elements,
        lower,
        extent,
        true_lower: true_low,
        true_extent: true_high - true_low,
        align,
        bounded,
        dense: false,
        builtin: DATATYPE_NULL,
        handles: AtomicUsize::new(0),
        made,
        parts: OnceLock::new(),
        runs: OnceLock::new(),
        loops: OnceLock::new(),
        committed: AtomicBool::new(false),
        name: Mutex::default(),
        attributes: Attributes::default(),
    };
    of.dense = of.is_dense();
    Ok(of)
}

/// Makes a type of a range of the data of consecutive elements: its address is that of the first element.
pub(crate) fn bytes_of(of: &Type, range: Range<usize>) -> Outcome<Arc<Type>> {
    let (mut blocks, size) = (Vec::new(), of.size.max(1));
    for element in range.start / size..range.end.div_ceil(size) {
        let mut at = element * size;
        for run in of.runs()? {
            let (from, to) = (at.max(range.start), (at + run.len).min(range.end));
            if from < to {
                let place = element as i64 * of.extent + run.offset + (from - at) as i64;
                blocks.push((place, (to - from) as i64, 0));
            }
            at += run.len;
        }
    }
    let byte = super::builtin(BYTE).map(Arc::clone).unwrap_or_else(|| unreachable!("MPI_BYTE is predefined"));
    Ok(Arc::new(make(made(COMBINER_HINDEXED, vec![byte], Blocks::Listed(blocks)), None)?))
}

impl Type {
    /// Returns whether elements are contiguous runs that follow one another. Avoids flattening the type where that would take long.
    fn is_dense(&self) -> bool {
        if self.size as i64 != self.true_extent || self.size as i64 != self.extent {
            return false;
        }
        match &self.made.blocks {
            Blocks::Basic(_) => true,
            Blocks::Within(whole) => whole.dense,
            Blocks::Even { length, stride, count } => {
                let of = &self.made.types[0];
                of.dense && (*count <= 1 || *stride == length * of.extent)
            }
            Blocks::Listed(blocks) => {
                let mut next = None;
                blocks.iter().filter(|(_, count, _)| *count > 0).all(|(at, count, which)| {
                    let of = &self.made.types[*which as usize];
                    let start = at + of.true_lower;
                    let fits = of.size == 0 || of.dense && next.is_none_or(|next| next == start);
                    if of.size > 0 {
                        next = Some(start + count * of.extent);
                    }
                    fits
                })
            }
        }
    }
}

/// Makes a type's contents for `MPI_Type_get_contents`, still without the arguments of the call.
pub(super) fn made(combiner: c_int, types: Vec<Arc<Type>>, blocks: Blocks) -> Made {
    let (integers, addresses, counts) = (Vec::new(), Vec::new(), Vec::new());
    Made { combiner, integers, addresses, counts, types, blocks }
}

/// Makes a type with other bounds.
pub(super) fn resized(of: &Arc<Type>, lower: i64, extent: i64) -> Outcome<Type> {
    let mut made =
        made(COMBINER_RESIZED, vec![Arc::clone(of)], Blocks::Even { count: 1, length: 1, stride: 0 });
    made.addresses = vec![lower, extent];
    make(made, Some((lower, extent)))
}
