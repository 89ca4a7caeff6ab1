//! Buffers of collectives: the program's buffers with their types, and contiguous copies.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use super::schedule::{Memory, Schedule};
use crate::args::count;
use crate::constants::{BYTE, DATATYPE_NULL, IN_PLACE};
use crate::datatype::{self, Type};
use crate::error::{Class, Outcome, fail};

/// Elements of a type in the program's memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    at: usize,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub of: Arc<Type>,
}

impl Buffer {
    /// Makes a buffer of the arguments of a call.
    ///
    /// # Errors
    /// For a negative count or an invalid type.
    pub fn new(at: *const c_void, n: i64, of: i32) -> Outcome<Self> {
        // Programs leave out the type of no elements.
        let of = if n == 0 && of == DATATYPE_NULL { BYTE } else { of };
        if n > 0 {
            not_in_place(at)?;
        }
        Ok(Self { at: at as usize, count: count(n)?, of: datatype::committed(of)? })
    }

    /// Makes a buffer without elements.
    #[must_use]
    pub fn none() -> Self {
        let byte = datatype::builtin(0x4c00_010d).map(Arc::clone);
        Self { at: 0, count: 0, of: byte.unwrap_or_else(|| unreachable!("MPI_BYTE is predefined")) }
    }

    /// Returns a buffer with the same layout `bytes` further on.
    #[must_use]
    pub fn moved(&self, bytes: i64) -> Self {
        Self { at: self.at.wrapping_add(bytes as usize), ..self.clone() }
    }

    /// Returns the buffer with another number of elements.
    #[must_use]
    pub fn of_count(&self, count: usize) -> Self {
        Self { count, ..self.clone() }
    }

    /// Returns the address that the program gave, from which the type's displacements count.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Fails if the program has given no buffer.
    ///
    /// # Errors
    /// [`Class::Buffer`] for NULL.
    pub fn check(&self) -> Outcome {
        self.of.check_address(self.address().cast_const().cast(), self.count)
    }

    /// Returns the address of the lowest byte of the first element; `None` if there is no data.
    fn first_byte(&self) -> Option<usize> {
        (self.bytes() > 0).then(|| self.at.wrapping_add(self.of.true_lower as usize))
    }

    /// Returns the bytes of data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count * self.of.size()
    }

    /// Returns the elements as one run of bytes, if they are contiguous.
    #[must_use]
    pub fn flat(&self) -> Option<Memory> {
        let at = self.address().wrapping_offset(self.of.true_lower as isize);
        self.of.is_flat().then_some(Memory { at, len: self.bytes() })
    }

    /// Returns one run of bytes to send from: the buffer itself, or a copy that the schedule makes.
    pub fn source(&self, s: &mut Schedule) -> Memory {
        self.flat().unwrap_or_else(|| {
            let copy = s.stage(self.bytes());
            let from = self.clone();
            s.run(move || {
                from.pack_into(copy);
                Ok(())
            });
            copy
        })
    }

    /// Returns one run of bytes to receive into: the buffer itself, or memory that [`Buffer::arrived`] unpacks.
    pub fn sink(&self, s: &mut Schedule) -> Memory {
        self.flat().unwrap_or_else(|| s.stage(self.bytes()))
    }

    /// Unpacks the data that has arrived in the memory of [`Buffer::sink`].
    pub fn arrived(&self, s: &mut Schedule, memory: Memory) {
        if self.of.is_flat() {
            return;
        }
        let into = self.clone();
        s.run(move || {
            into.unpack_from(memory);
            Ok(())
        });
    }

    /// Copies the data into a run of bytes.
    pub fn pack_into(&self, memory: Memory) {
        let range = 0..self.bytes().min(memory.len);
        // SAFETY: reads the program's elements, and writes at most as many bytes as the memory has.
        unsafe { self.of.pack_range(self.address(), self.count, range, memory.at) }
    }

    /// Copies a run of bytes into the elements.
    pub fn unpack_from(&self, memory: Memory) {
        // SAFETY: writes the program's elements; nothing else writes the bytes meanwhile.
        unsafe { self.of.unpack_range(memory.at, memory.len, self.address(), self.count, 0) };
    }
}

/// Returns buffers as one run of bytes, if each follows the one before it without a gap.
#[must_use]
pub fn one_run(parts: &[Buffer]) -> Option<Memory> {
    let mut run: Option<Memory> = None;
    for part in parts.iter().filter(|part| part.bytes() > 0) {
        let Memory { at, len } = part.flat()?;
        run = match run {
            None => Some(Memory { at, len }),
            Some(run) if run.at.wrapping_add(run.len) == at => Some(Memory { len: run.len + len, ..run }),
            Some(_) => return None,
        };
    }
    run
}

/// Fails for `MPI_IN_PLACE` as an argument that has to be a buffer.
///
/// # Errors
/// [`Class::Buffer`].
pub fn not_in_place(at: *const c_void) -> Outcome {
    match at == IN_PLACE {
        true => fail(Class::Buffer, "MPI_IN_PLACE cannot stand for this buffer: give an address"),
        false => Ok(()),
    }
}

/// Fails a call whose result would overwrite its input.
///
/// # Errors
/// [`Class::Buffer`].
pub fn aliased() -> Outcome {
    fail(Class::Buffer, "data is sent from where data is received: use two buffers, or MPI_IN_PLACE")
}

/// The most pairs of buffers that [`apart`] compares one by one, without a sorted list.
const FEW_PAIRS: usize = 64;

/// Checks that no data to send begins where received data begins, and that no buffer is NULL. Buffers may have the same address if their
/// types select different bytes.
///
/// # Errors
/// As [`aliased`] and [`Buffer::check`].
pub fn apart<'a>(
    out: impl IntoIterator<Item = &'a Buffer, IntoIter: Clone>,
    into: impl IntoIterator<Item = &'a Buffer, IntoIter: Clone>,
) -> Outcome {
    let (out, into) = (out.into_iter(), into.into_iter());
    out.clone().chain(into.clone()).try_for_each(Buffer::check)?;
    let mut out = out.filter_map(Buffer::first_byte);
    let mut into = into.filter_map(Buffer::first_byte);
    let most = |(_, most): (usize, Option<usize>)| most.unwrap_or(usize::MAX);
    let (sent, received) = (most(out.size_hint()), most(into.size_hint()));
    let is_alias = if sent.min(received) <= 1 || sent.saturating_mul(received) <= FEW_PAIRS {
        out.any(|start| into.clone().any(|other| other == start))
    } else {
        let mut starts: Vec<usize> = out.collect();
        starts.sort_unstable();
        into.any(|start| starts.binary_search(&start).is_ok())
    };
    if is_alias { aliased() } else { Ok(()) }
}

/// Elements in memory that a schedule owns, in the layout of their type, gaps included. Operators work on such memory.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// The whole memory.
    pub memory: Memory,
    /// Number of elements.
    pub count: usize,
    /// Type of the elements.
    pub of: Arc<Type>,
}

impl Scratch {
    /// Makes room for `count` elements, which are undefined at first.
    pub fn new(s: &mut Schedule, of: &Arc<Type>, count: usize) -> Self {
        let len = match count {
            0 => 0,
            _ => ((count as i64 - 1) * of.extent.abs() + of.true_extent) as usize,
        };
        Self { memory: s.stage(len), count, of: Arc::clone(of) }
    }

    /// Makes room for as many elements of the same type.
    pub fn alike(&self, s: &mut Schedule) -> Self {
        Self::new(s, &self.of, self.count)
    }

    /// Makes room for a copy of the program's elements, which the schedule makes when it runs.
    pub fn load(s: &mut Schedule, from: &Buffer) -> Self {
        let scratch = Self::new(s, &from.of, from.count);
        let (from, to) = (from.clone(), scratch.clone());
        s.run(move || {
            // SAFETY: reads the program's elements, and writes to room for as many.
            unsafe { copy_elements(&from.of, from.count, from.address(), to.address()) };
            Ok(())
        });
        scratch
    }

    /// Returns the address from which the type's displacements count.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        // With a negative extent, the first element is the last in memory.
        let back = if self.of.extent < 0 { (self.count as i64 - 1).max(0) * self.of.extent } else { 0 };
        self.memory.at.wrapping_offset((-self.of.true_lower - back) as isize)
    }

    /// Returns a part of the elements.
    #[must_use]
    pub fn piece(&self, elements: &Range<usize>) -> Self {
        let count = elements.len();
        let extent = self.of.extent.unsigned_abs() as usize;
        // With a negative extent, the first element is the last in memory.
        let from = if self.of.extent < 0 { self.count - elements.end } else { elements.start };
        let memory = match count {
            0 => self.memory.part(0, 0),
            _ => self.memory.part(from * extent, (count - 1) * extent + self.of.true_extent as usize),
        };
        Self { memory, count, of: Arc::clone(&self.of) }
    }

    /// Whether parts of the elements share no byte.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        self.of.extent.unsigned_abs() as i64 >= self.of.true_extent
    }

    /// Copies the elements to the program's buffer when the schedule runs.
    pub fn store(&self, s: &mut Schedule, into: &Buffer) {
        let (from, into) = (self.clone(), into.clone());
        s.run(move || {
            // SAFETY: as in `load`, the other way.
            unsafe { copy_elements(&from.of, from.count, from.address(), into.address()) };
            Ok(())
        });
    }
}

/// Copies elements of a type to another place. Leaves the gaps between them there as they are.
///
/// # Safety
/// `count` elements are readable at `from` and writable at `to`, and nothing writes them meanwhile.
unsafe fn copy_elements(of: &Type, count: usize, from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise. Test: `reducing`.
    unsafe {
        if of.is_flat() {
            let data = to.wrapping_offset(of.true_lower as isize);
            return of.pack_range(from, count, 0..count * of.size(), data);
        }
        let mut bytes = Vec::new();
        of.pack(from, count, &mut bytes);
        of.unpack(&bytes, to, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns buffers of one byte each.
    fn bytes(at: impl IntoIterator<Item = usize>) -> Vec<Buffer> {
        at.into_iter().map(|at| Buffer { at, count: 1, ..Buffer::none() }).collect()
    }

    #[test]
    fn buffers_that_follow_each_other_are_one_run() {
        let at = |places: &[(usize, usize)]| {
            let parts: Vec<Buffer> = places
                .iter()
                .map(|(at, count)| Buffer { at: *at, count: *count, ..Buffer::none() })
                .collect();
            one_run(&parts).map(|run| (run.at as usize, run.len))
        };
        assert_eq!(at(&[(64, 3), (7, 0), (67, 1), (68, 9)]), Some((64, 13)));
        assert_eq!(at(&[(64, 3), (68, 1)]), None);
        assert_eq!(at(&[(67, 1), (64, 3)]), None);
        assert_eq!(at(&[(64, 0)]), None);
    }

    #[test]
    fn few_and_many_buffers_that_meet_are_found() {
        for (sent, received) in [(1, 1), (1, 100), (100, 1), (8, 8), (9, 8), (100, 100)] {
            let out = bytes((0..sent).map(|nth| 5000 - 3 * nth));
            let mut into = bytes((0..received).map(|nth| 9000 + nth));
            assert!(apart(&out, &into).is_ok(), "{sent} and {received} buffers");
            into[received - 1] = out[sent / 2].clone();
            assert!(apart(&out, &into).is_err(), "{sent} and {received} buffers");
            into[received - 1].count = 0;
            assert!(apart(&out, &into).is_ok(), "{sent} and {received} buffers");
        }
    }
}
