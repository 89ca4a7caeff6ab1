//! One message of the suite: its memory at the sender or receiver, and the checks on it.

use super::pattern::Pattern;
use crate::endpoint::{Consumer, GRAIN_BYTES, Packer, Piece, Sink};

/// Number of bytes before, between and after pieces that nobody may touch.
const GUARD_BYTES: usize = 24;
const GUARD: u8 = 0xa5;
/// Filling of a target before a message arrives.
const BLANK: u8 = 0x5c;

/// Shape of a message.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pattern: Pattern,
    len: usize,
    cuts: Vec<usize>,
    misalignment: usize,
    repeated: bool,
    eaten: bool,
}

impl Shape {
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let pattern = Pattern::new(seed);
        Self { pattern, len, cuts: vec![len], misalignment: 0, repeated: false, eaten: false }
    }

    /// Divides the message into pieces of these lengths.
    pub(super) fn cut(mut self, cuts: Vec<usize>) -> Self {
        assert_eq!(cuts.iter().sum::<usize>(), self.len);
        self.cuts = cuts;
        self
    }

    /// Makes the first piece begin this many bytes after a multiple of 64.
    pub(super) fn misaligned(mut self, bytes: usize) -> Self {
        self.misalignment = bytes;
        self
    }

    /// Repeats the same `period` bytes, so that a source needs no more memory than that. Both ends must use it.
    pub(super) fn repeated(mut self, period: usize) -> Self {
        self.pattern = self.pattern.with_period(period);
        self.cuts = vec![period; self.len / period];
        self.cuts.extend(Some(self.len % period).filter(|&rest| rest > 0));
        self.repeated = true;
        self
    }

    /// Has a consumer receive the message.
    pub(super) fn eaten(mut self) -> Self {
        self.eaten = true;
        self
    }
}

/// The memory of a message, which stays in place while the transport uses it.
#[derive(Debug)]
pub(super) struct Memory {
    shape: Shape,
    /// Guards and pieces.
    bytes: Vec<u8>,
    /// Offsets of the pieces in `bytes`.
    starts: Vec<usize>,
    pieces: Box<[Piece]>,
    eaten: Box<Eaten>,
}

// SAFETY: the pieces point into the heap memory of `bytes`, which moves together with them and keeps its address.
unsafe impl Send for Memory {}

/// State of a consumer: the bytes that it has seen.
#[derive(Debug)]
struct Eaten {
    pattern: Pattern,
    len: usize,
    /// Number of bytes that have come.
    at: usize,
    /// Ranges of the bytes that have come, in order and merged where they touch.
    runs: Vec<(usize, usize)>,
    fault: Option<String>,
}

impl Eaten {
    fn new(pattern: Pattern, len: usize) -> Self {
        // This is enough for messages that arrive out of order, so the suite does not count an allocation of its own.
        Self { pattern, len, at: 0, runs: Vec::with_capacity(64), fault: None }
    }

    /// Notes that bytes have come; returns whether some of them had come before.
    fn note(&mut self, offset: usize, end: usize) -> bool {
        let at = self.runs.partition_point(|run| run.0 < offset);
        let overlaps =
            at > 0 && self.runs[at - 1].1 > offset || self.runs.get(at).is_some_and(|run| run.0 < end);
        match at.checked_sub(1).and_then(|before| self.runs.get_mut(before)) {
            Some(run) if run.1 == offset => run.1 = end,
            _ => self.runs.insert(at, (offset, end)),
        }
        self.at += end - offset;
        overlaps
    }
}

impl Memory {
    pub(super) fn source(shape: Shape) -> Self {
        let mut memory = Self::lay_out(shape);
        if memory.shape.repeated {
            let (start, period) = (memory.starts[0], memory.bytes.len());
            let len = memory.pieces[0].len.min(period);
            memory.shape.pattern.fill(0, &mut memory.bytes[start..start + len]);
        } else {
            let mut offset = 0;
            for (start, piece) in memory.starts.iter().zip(&memory.pieces) {
                memory.shape.pattern.fill(offset, &mut memory.bytes[*start..start + piece.len]);
                offset += piece.len;
            }
        }
        memory
    }

    pub(super) fn target(shape: Shape) -> Self {
        if shape.eaten {
            let eaten = Eaten::new(shape.pattern, shape.len);
            let (bytes, starts, pieces) = (Vec::new(), Vec::new(), Box::default());
            return Self { shape, bytes, starts, pieces, eaten: Box::new(eaten) };
        }
        Self::lay_out(shape)
    }

    fn lay_out(shape: Shape) -> Self {
        let room = shape.cuts.iter().map(|len| len + GUARD_BYTES).sum::<usize>() + GUARD_BYTES + 256;
        let room = if shape.repeated { shape.cuts[0] + 2 * GUARD_BYTES + 256 } else { room };
        let mut bytes = vec![GUARD; room];
        let base = bytes.as_ptr().align_offset(64);
        let mut start = base + 64 * GUARD_BYTES.div_ceil(64) + shape.misalignment;
        let mut starts = Vec::with_capacity(shape.cuts.len());
        for &len in &shape.cuts {
            starts.push(start);
            if !shape.repeated {
                bytes[start..start + len].fill(BLANK);
                start += len + GUARD_BYTES;
            }
        }
        let first = bytes.as_mut_ptr();
        let pieces = starts
            .iter()
            .zip(&shape.cuts)
            .map(|(&at, &len)| Piece { ptr: first.wrapping_add(at), len })
            .collect();
        let eaten = Box::new(Eaten::new(shape.pattern, 0));
        Self { shape, bytes, starts, pieces, eaten }
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn sink(&mut self) -> Sink<'_> {
        if self.shape.eaten {
            let context = (&raw mut *self.eaten).cast();
            Sink::Consume { len: self.shape.len, consumer: Consumer { call: eat, context } }
        } else {
            Sink::Place(&self.pieces)
        }
    }

    /// Returns the length of a message, and a packer that makes it.
    pub(super) fn packer(&mut self) -> (usize, Packer) {
        (self.shape.len, Packer { call: make, context: (&raw mut *self.eaten).cast() })
    }

    /// Returns the defect of a received message, if there is one.
    pub(super) fn fault(&self) -> Option<String> {
        if self.shape.eaten {
            if let Some(fault) = &self.eaten.fault {
                return Some(fault.clone());
            }
            let (at, len) = (self.eaten.at, self.shape.len);
            return (at != len).then(|| format!("the consumer got {at} of {len} bytes"));
        }
        let mut offset = 0;
        for (&start, piece) in self.starts.iter().zip(&self.pieces) {
            let run = &self.bytes[start..start + piece.len];
            if let Some(at) = self.shape.pattern.difference(offset, run) {
                return Some(format!("wrong byte at offset {at} of {}", self.shape.len));
            }
            offset += piece.len;
        }
        self.guard_fault()
    }

    /// Returns whether neither a byte of the pieces nor one around them has been written since the target was made.
    pub(super) fn is_blank(&self) -> bool {
        let mut pieces = self.starts.iter().zip(&self.pieces);
        let blank = |(start, piece): (&usize, &Piece)| {
            self.bytes[*start..start + piece.len].iter().all(|byte| *byte == BLANK)
        };
        self.eaten.at == 0 && pieces.all(blank) && self.guard_fault().is_none()
    }

    /// Returns the defect around the pieces, if there is one, whatever their contents.
    pub(super) fn guard_fault(&self) -> Option<String> {
        let mut at = 0;
        let ends = self.starts.iter().zip(&self.pieces).map(|(&start, piece)| (start, start + piece.len));
        for (start, end) in ends.chain([(self.bytes.len(), self.bytes.len())]) {
            if self.bytes[at..start.max(at)].iter().any(|&b| b != GUARD) {
                return Some(format!("bytes outside of the pieces were overwritten, before offset {start}"));
            }
            at = end;
        }
        self.eaten.fault.clone()
    }

    /// Returns a number that changes when the memory does.
    pub(super) fn fingerprint(&self) -> u64 {
        let words =
            self.bytes.chunks(8).map(|chunk| chunk.iter().fold(0u64, |sum, &b| sum << 8 | u64::from(b)));
        let sum =
            words.fold(0u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        sum ^ self.eaten.at as u64
    }
}

/// The suite's packer, which checks the contract.
///
/// # Safety
/// `context` is an [`Eaten`], and `to..to + len` is writable.
unsafe fn make(context: *mut (), offset: usize, to: *mut u8, len: usize) {
    // SAFETY: by contract; the box outlives the token, and nobody else accesses it meanwhile.
    let made = unsafe { &mut *context.cast::<Eaten>() };
    if offset != made.at || offset + len > made.len {
        made.fault =
            Some(format!("the packer was asked for {len} bytes at {offset}, and had made {}", made.at));
    }
    made.at = offset + len;
    // SAFETY: by contract.
    unsafe {
        to.write_bytes(0, len);
        made.pattern.fill(offset, std::slice::from_raw_parts_mut(to, len));
    }
}

/// The suite's consumer, which checks the contract and the bytes.
///
/// # Safety
/// `context` is an [`Eaten`], and `data..data + len` is readable.
unsafe fn eat(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: by contract; the box outlives the token, and nobody else accesses it meanwhile.
    let eaten = unsafe { &mut *context.cast::<Eaten>() };
    // SAFETY: by contract.
    let bytes = unsafe { std::slice::from_raw_parts(data, len) };
    let fault = if eaten.note(offset, offset + len) {
        Some(format!("the consumer got some of the {len} bytes at {offset} twice"))
    } else if !offset.is_multiple_of(GRAIN_BYTES) && len > 0 {
        Some(format!("the consumer was called at offset {offset}, which is no multiple of the grain"))
    } else if offset + len > eaten.len {
        Some(format!("the consumer got {} bytes, expected {}", offset + len, eaten.len))
    } else if offset + len < eaten.len && !len.is_multiple_of(GRAIN_BYTES) {
        Some(format!("the consumer got {len} bytes in the middle, which is no multiple of the grain"))
    } else {
        eaten.pattern.difference(offset, bytes).map(|at| format!("the consumer got a wrong byte at {at}"))
    };
    if eaten.fault.is_none() {
        eaten.fault = fault;
    }
}
