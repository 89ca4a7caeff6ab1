//! The loop that turns patterns into values, one period at a time, compiled once per instruction set.

use std::ops::Range;

use super::formula::{
    self, Covered, Factor, Formula, Lane, LaneU64, Masked, Raw, Scaled, Shifted, TrueIf, TrueUnless, mix,
};
use super::pattern::{Group, Patterns, Ranks};
use super::{PERIOD, Problem};
use crate::reduce::{Isa, divide};
use crate::types::{DataType, ReduceOp, data_types};

/// The patterns of a period.
struct Table<L: Lane> {
    p: [L::Word; PERIOD],
    m: [L::Word; PERIOD],
}

/// The values of a period.
#[repr(C, align(64))]
struct Tile<S>([S; PERIOD]);

impl<S: Copy> Tile<S> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `Lane::Stored` is an unsigned integer, so it has no padding and all bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&self.0)) }
    }
}

/// Writes the values that fill `out`, from byte `start` on.
pub(super) fn fill(problem: Problem, ranks: Ranks, start: u64, out: &mut [u8]) {
    visit(problem, ranks, start, out.len(), |range, values| out[range].copy_from_slice(values));
}

/// Makes the values of a type, by its class and the lane that the table of types names.
macro_rules! values {
    (Boolean, $lane:ident, $span:ident, $piece:ident) => {
        $span.logical::<formula::$lane>($piece)
    };
    (Float, $lane:ident, $span:ident, $piece:ident) => {
        $span.float::<formula::$lane>($piece)
    };
    ($integer:ident, $lane:ident, $span:ident, $piece:ident) => {
        $span.integer::<formula::$lane>($piece)
    };
}

macro_rules! make_visit {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {
        /// Passes `len` bytes of values from byte `start` on to a function, piece by piece. Each piece comes with its
        /// range within the `len` bytes.
        pub(super) fn visit(
            problem: Problem,
            ranks: Ranks,
            start: u64,
            len: usize,
            piece: impl FnMut(Range<usize>, &[u8]),
        ) {
            let span = Span { problem, ranks, start, len };
            match problem.data_type {
                $(DataType::$kolo => values!($class, $lane, span, piece),)+
            }
        }
    };
}
data_types!(make_visit);

/// Passes the bytes of [`fill_bytes`](super::fill_bytes) on to a function, piece by piece, as [`visit`] does.
pub(super) fn visit_bytes(
    seed: u64,
    rank: u32,
    start: u64,
    len: usize,
    piece: impl FnMut(Range<usize>, &[u8]),
) {
    let table = Table::<LaneU64> { p: [0; PERIOD], m: [0; PERIOD] };
    tiles::<LaneU64, Raw>(mix([seed, u64::from(rank), 1]), &table, start, len, |_| (), piece);
}

/// A part of a rank's contribution, or of a result.
#[derive(Clone, Copy)]
struct Span {
    problem: Problem,
    ranks: Ranks,
    start: u64,
    len: usize,
}

impl Span {
    fn group(&self) -> Group {
        Group::of(self.problem.data_type, self.problem.op)
    }

    fn integer<L: Lane>(self, piece: impl FnMut(Range<usize>, &[u8]))
    where
        Scaled: Formula<L>,
        Factor: Formula<L>,
        Shifted: Formula<L>,
        Masked: Formula<L>,
        Covered: Formula<L>,
        TrueIf: Formula<L>,
        TrueUnless: Formula<L>,
    {
        match self.group() {
            Group::Sum => self.run::<L, Scaled>(piece),
            Group::Prod => self.run::<L, Factor>(piece),
            Group::Min | Group::Max => self.run::<L, Shifted>(piece),
            Group::BitAnd => self.run::<L, Covered>(piece),
            Group::BitOr | Group::BitXor => self.run::<L, Masked>(piece),
            _ => self.logical::<L>(piece),
        }
    }

    fn float<L: Lane>(self, piece: impl FnMut(Range<usize>, &[u8]))
    where
        Scaled: Formula<L>,
        Factor: Formula<L>,
        Shifted: Formula<L>,
        TrueIf: Formula<L>,
        TrueUnless: Formula<L>,
    {
        match self.group() {
            Group::Sum => self.run::<L, Scaled>(piece),
            Group::Prod => self.run::<L, Factor>(piece),
            Group::Min | Group::Max => self.run::<L, Shifted>(piece),
            _ => self.logical::<L>(piece),
        }
    }

    fn logical<L: Lane>(self, piece: impl FnMut(Range<usize>, &[u8]))
    where
        TrueIf: Formula<L>,
        TrueUnless: Formula<L>,
    {
        match self.group() {
            Group::LogicalAnd => self.run::<L, TrueUnless>(piece),
            _ => self.run::<L, TrueIf>(piece),
        }
    }

    fn run<L: Lane, F: Formula<L>>(self, piece: impl FnMut(Range<usize>, &[u8])) {
        let Problem { data_type, op, seed, .. } = self.problem;
        // The hash depends on the index alone, so it is the same for all ranks.
        let key = mix([seed, u64::MAX, 0]);
        let table = self.table::<L>();
        let finish = |tile: &mut Tile<L::Stored>| {
            if let (ReduceOp::Avg, Ranks::First(ranks)) = (op, self.ranks) {
                // SAFETY: the tile holds `PERIOD` elements of the type.
                unsafe { divide(data_type, tile.0.as_mut_ptr().cast(), PERIOD, ranks) };
            }
        };
        tiles::<L, F>(key, &table, self.start, self.len, finish, piece);
    }

    /// Returns the patterns of the positions that the span touches.
    fn table<L: Lane>(&self) -> Table<L> {
        let Problem { data_type, op, world_size, seed } = self.problem;
        let patterns = Patterns { data_type, op, world_size, seed };
        let size = size_of::<L::Stored>();
        let first = (self.start / size as u64 % PERIOD as u64) as usize;
        let mut table = Table { p: [L::Word::default(); PERIOD], m: [L::Word::default(); PERIOD] };
        for j in (first..first + PERIOD.min(self.len / size)).map(|j| j % PERIOD) {
            let pattern = patterns.at(self.ranks, j);
            table.p[j] = L::word(pattern.p.0, pattern.p.1);
            table.m[j] = L::word(pattern.m.0, pattern.m.1);
        }
        table
    }
}

/// Makes the tiles that the `len` bytes from `start` on touch, and passes on the part of each that lies within these
/// bytes.
fn tiles<L: Lane, F: Formula<L>>(
    key: u64,
    table: &Table<L>,
    start: u64,
    len: usize,
    mut finish: impl FnMut(&mut Tile<L::Stored>),
    mut piece: impl FnMut(Range<usize>, &[u8]),
) {
    let emit = emit::<L, F>(Isa::best());
    let mut tile = Tile([L::Stored::default(); PERIOD]);
    let tile_bytes = size_of_val(&tile.0);
    let mut done = 0;
    while done < len {
        let at = start + done as u64;
        let (number, skip) = (at / tile_bytes as u64, (at % tile_bytes as u64) as usize);
        let count = (tile_bytes - skip).min(len - done);
        // SAFETY: `Isa::best` is available, and `emit` returns the function for it.
        unsafe { emit(mix([key, number, 0]), table, &mut tile) };
        finish(&mut tile);
        piece(done..done + count, &tile.bytes()[skip..skip + count]);
        done += count;
    }
}

type Emit<L> = unsafe fn(key: u64, table: &Table<L>, tile: &mut Tile<<L as Lane>::Stored>);

fn emit<L: Lane, F: Formula<L>>(isa: Isa) -> Emit<L> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => emit_avx2::<L, F>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => emit_avx512::<L, F>,
        _ => emit_baseline::<L, F>,
    }
}

#[inline(always)]
fn emit_generic<L: Lane, F: Formula<L>>(key: u64, table: &Table<L>, tile: &mut Tile<L::Stored>) {
    for j in 0..PERIOD {
        tile.0[j] = L::store(F::value(L::hash(key, j as u32), table.p[j], table.m[j]));
    }
}

fn emit_baseline<L: Lane, F: Formula<L>>(key: u64, table: &Table<L>, tile: &mut Tile<L::Stored>) {
    emit_generic::<L, F>(key, table, tile);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn emit_avx2<L: Lane, F: Formula<L>>(key: u64, table: &Table<L>, tile: &mut Tile<L::Stored>) {
    emit_generic::<L, F>(key, table, tile);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn emit_avx512<L: Lane, F: Formula<L>>(key: u64, table: &Table<L>, tile: &mut Tile<L::Stored>) {
    emit_generic::<L, F>(key, table, tile);
}
