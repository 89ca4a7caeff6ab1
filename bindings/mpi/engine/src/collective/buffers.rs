//! Buffers of collectives: the program's, with their types, and contiguous ones.

use std::ffi::c_void;
use std::sync::Arc;

use super::schedule::{Memory, Schedule};
use crate::args::count;
use crate::datatype::{self, Type};
use crate::error::Outcome;

/// Elements of a type in the program's memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    at: usize,
    /// Their number.
    pub count: usize,
    /// Their type.
    pub of: Arc<Type>,
}

impl Buffer {
    /// The elements that arguments name.
    ///
    /// # Errors
    /// For a negative number, or what is no type.
    pub fn new(at: *const c_void, n: i64, of: i32) -> Outcome<Self> {
        Ok(Self { at: at as usize, count: count(n)?, of: datatype::committed(of)? })
    }

    /// No elements.
    #[must_use]
    pub fn none() -> Self {
        let byte = datatype::builtin(0x4c00_010d).map(Arc::clone);
        Self { at: 0, count: 0, of: byte.unwrap_or_else(|| unreachable!("MPI_BYTE is predefined")) }
    }

    /// The same elements somewhere else.
    #[must_use]
    pub fn moved(&self, bytes: i64) -> Self {
        Self { at: self.at.wrapping_add(bytes as usize), ..self.clone() }
    }

    /// Another number of elements.
    #[must_use]
    pub fn of_count(&self, count: usize) -> Self {
        Self { count, ..self.clone() }
    }

    /// First byte.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Bytes of data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count * self.of.size()
    }

    /// The elements as one run of bytes, if they are one.
    #[must_use]
    pub fn flat(&self) -> Option<Memory> {
        let at = self.address().wrapping_offset(self.of.true_lower as isize);
        self.of.is_flat().then_some(Memory { at, len: self.bytes() })
    }

    /// The data as one run of bytes to send from: itself, or a copy that the schedule makes.
    pub fn source(&self, s: &mut Schedule) -> Memory {
        self.flat().unwrap_or_else(|| {
            let copy = s.keep(self.bytes());
            let from = self.clone();
            s.run(move || {
                from.pack_into(copy);
                Ok(())
            });
            copy
        })
    }

    /// One run of bytes to receive into: itself, or memory that [`Buffer::arrived`] unpacks.
    pub fn sink(&self, s: &mut Schedule) -> Memory {
        self.flat().unwrap_or_else(|| s.keep(self.bytes()))
    }

    /// Unpacks what has come into the memory of [`Buffer::sink`].
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
        let mut bytes = Vec::new();
        // SAFETY: the program's elements, and as many bytes.
        unsafe {
            self.of.pack(self.address(), self.count, &mut bytes);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.at, bytes.len().min(memory.len));
        }
    }

    /// Copies a run of bytes into the elements.
    pub fn unpack_from(&self, memory: Memory) {
        // SAFETY: the program's elements; nobody writes the bytes meanwhile.
        unsafe { self.of.unpack(memory.bytes(), self.address(), self.count) };
    }
}

/// Elements of a type in memory of a schedule's own, at their places, holes and all: what operators work on.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// All of it.
    pub memory: Memory,
    /// Number of elements.
    pub count: usize,
    /// Their type.
    pub of: Arc<Type>,
}

impl Scratch {
    /// Room for some elements.
    pub fn new(s: &mut Schedule, of: &Arc<Type>, count: usize) -> Self {
        let len = match count {
            0 => 0,
            _ => ((count as i64 - 1) * of.extent.abs() + of.true_extent) as usize,
        };
        Self { memory: s.keep(len), count, of: Arc::clone(of) }
    }

    /// Room for as many.
    pub fn alike(&self, s: &mut Schedule) -> Self {
        Self::new(s, &self.of, self.count)
    }

    /// A copy of the program's elements, made when the schedule runs.
    pub fn load(s: &mut Schedule, from: &Buffer) -> Self {
        let scratch = Self::new(s, &from.of, from.count);
        let (from, to) = (from.clone(), scratch.clone());
        s.run(move || {
            let mut bytes = Vec::new();
            // SAFETY: the program's elements, and room for as many.
            unsafe {
                from.of.pack(from.address(), from.count, &mut bytes);
                to.of.unpack(&bytes, to.address(), to.count);
            }
            Ok(())
        });
        scratch
    }

    /// Address that displacements count from.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        // With a negative extent, the first element is the last in memory.
        let back = if self.of.extent < 0 { (self.count as i64 - 1).max(0) * self.of.extent } else { 0 };
        self.memory.at.wrapping_offset((-self.of.true_lower - back) as isize)
    }

    /// The memory of some of the elements.
    #[must_use]
    pub fn elements(&self, from: usize, count: usize) -> Memory {
        if count == 0 {
            return self.memory.part(0, 0);
        }
        let extent = self.of.extent.unsigned_abs() as usize;
        self.memory.part(from * extent, (count - 1) * extent + self.of.true_extent as usize)
    }

    /// Copies the elements to the program's.
    pub fn store(&self, s: &mut Schedule, into: &Buffer) {
        let (from, into) = (self.clone(), into.clone());
        s.run(move || {
            let mut bytes = Vec::new();
            // SAFETY: as in `load`.
            unsafe {
                from.of.pack(from.address(), from.count, &mut bytes);
                into.of.unpack(&bytes, into.address(), into.count);
            }
            Ok(())
        });
    }
}
