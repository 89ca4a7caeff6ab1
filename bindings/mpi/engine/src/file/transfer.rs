//! Reading and writing of files.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::unix::fs::FileExt;

use super::view::View;
use super::{File, Split, lock, lookup};
use crate::args::{count, put};
use crate::collective;
use crate::constants::*;
use crate::datatype::{self, Type};
use crate::error::{Class, Fail, Outcome, fail};
use crate::handle::Held;
use crate::request::{self, Active};

/// The place of an access in the file.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At an offset.
    At(i64),
    /// At this rank's pointer.
    Own,
    /// At the shared pointer.
    Shared,
    /// At the shared pointer, rank after rank.
    Ordered,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    Read,
    Write,
}

/// The program's memory.
struct Buffer {
    at: *mut u8,
    count: usize,
    of: Held<Type>,
}

impl Buffer {
    fn new(at: *const c_void, n: i64, of: c_int) -> Outcome<Self> {
        let (count, of) = (count(n)?, datatype::held(of)?);
        if at.is_null() && count * of.size() > 0 && of.basic().is_some() {
            return fail(Class::Buffer, "the buffer is NULL");
        }
        Ok(Self { at: at.cast_mut().cast(), count, of })
    }

    fn bytes(&self) -> usize {
        self.count * self.of.size()
    }

    /// Calls `call` with the bytes to write.
    ///
    /// # Safety
    /// The elements are readable.
    unsafe fn with_data<T>(&self, call: impl FnOnce(&[u8]) -> T) -> T {
        if self.bytes() == 0 {
            return call(&[]);
        }
        // SAFETY: the caller's promise; elements without gaps are one run of bytes from the true lower bound on.
        unsafe {
            if self.of.is_flat() {
                let start = self.at.wrapping_offset(self.of.true_lower as isize);
                return call(std::slice::from_raw_parts(start, self.bytes()));
            }
            let mut packed = Vec::new();
            self.of.pack(self.at, self.count, &mut packed);
            call(&packed)
        }
    }

    /// Calls `call` with memory to read into; `call` returns how many bytes it has read.
    ///
    /// # Safety
    /// The elements are writable, and nothing else uses them.
    unsafe fn with_room(&self, call: impl FnOnce(&mut [u8]) -> Outcome<usize>) -> Outcome<usize> {
        if self.bytes() == 0 {
            return call(&mut []);
        }
        // SAFETY: as above.
        unsafe {
            if self.of.is_flat() {
                let start = self.at.wrapping_offset(self.of.true_lower as isize);
                return call(std::slice::from_raw_parts_mut(start, self.bytes()));
            }
            let mut packed = vec![0; self.bytes()];
            let got = call(&mut packed)?;
            self.of.unpack(&packed[..got], self.at, self.count);
            Ok(got)
        }
    }
}

/// Reads until the memory is full or the file ends.
fn read_all(file: &std::fs::File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => break,
            Ok(now) => done += now,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl File {
    /// Returns the first etype of an access of `etypes` etypes, and moves the pointers past the access.
    fn claim(&self, place: Place, etypes: i64) -> Outcome<i64> {
        let failed = |error: io::Error| self.failed("update the file pointer of", &error);
        match place {
            Place::At(offset) => self.check_random().map(|()| offset),
            Place::Own => {
                self.check_random()?;
                let mut position = lock(&self.position);
                let now = *position;
                *position = now.saturating_add(etypes);
                Ok(now)
            }
            Place::Shared => self.shared.update(|now| now.saturating_add(etypes)).map_err(failed),
            Place::Ordered => {
                let all = collective::share(&self.comm, &etypes.to_le_bytes())?;
                let lengths: Vec<i64> =
                    all.chunks_exact(8).map(|len| len.try_into().map_or(0, i64::from_le_bytes)).collect();
                let before: i64 = lengths[..self.comm.rank as usize].iter().sum();
                let mut base = Ok(0);
                if self.comm.rank == 0 {
                    base = self.shared.update(|now| now.saturating_add(lengths.iter().sum())).map_err(failed);
                }
                let told = base.as_ref().copied().unwrap_or(-1);
                let told = collective::tell(&self.comm, &told.to_le_bytes(), 8, 0)?;
                base?;
                match told.try_into().map_or(-1, i64::from_le_bytes) {
                    -1 => fail(Class::Io, "rank 0 could not move the shared pointer"),
                    base => Ok(base + before),
                }
            }
        }
    }

    /// Returns what is wrong with an access of so many bytes, if anything is.
    fn objection(&self, access: Access, view: &View, bytes: usize) -> Option<(Class, &'static str)> {
        let is_write = access == Access::Write;
        Some(match self.mode {
            mode if is_write && mode & MODE_RDONLY != 0 => (Class::ReadOnly, "the file is open for reading"),
            mode if !is_write && mode & MODE_WRONLY != 0 => (Class::Access, "the file is open for writing"),
            _ if !bytes.is_multiple_of(view.unit()) => {
                (Class::Io, "an access must consist of whole etypes of the view")
            }
            _ if is_write && bytes > 0 && view.is_empty() => {
                (Class::Io, "the view shows nothing of the file")
            }
            _ => return None,
        })
    }

    /// Reads or writes.
    ///
    /// # Safety
    /// The memory is readable for a write and writable for a read, and nothing else uses it meanwhile.
    unsafe fn transfer(&self, place: Place, buffer: &Buffer, access: Access) -> Outcome<Status> {
        let view = self.view();
        let (bytes, unit) = (buffer.bytes(), view.unit());
        let wrong = self.objection(access, &view, bytes);
        // All ranks take part in an ordered access, even one whose arguments are wrong.
        let etypes = if wrong.is_some() { 0 } else { (bytes / unit) as i64 };
        let first = match (place, &wrong) {
            (Place::Ordered, _) | (_, None) => self.claim(place, etypes)?,
            _ => 0,
        };
        if let Some((class, text)) = wrong {
            return fail(class, format!("{bytes} bytes, '{}': {text}", self.path.display()));
        }
        let from = view.bytes_of(first)?;
        let broken = |what: &str, at: u64, len: usize, error: &io::Error| {
            let Fail { class, text, object } = self.failed(what, error);
            Fail { class, text: format!("{text} ({len} bytes at byte {at})").into(), object }
        };
        // SAFETY: the caller's promise.
        let moved = self.alone(|| unsafe {
            match access {
                Access::Write => buffer.with_data(|data| {
                    view.each(from, data.len(), |at, range| {
                        let len = range.len();
                        let written = self.file.write_all_at(&data[range], at);
                        written.map(|()| len).map_err(|error| broken("write", at, len, &error))
                    })
                }),
                Access::Read => buffer.with_room(|room| {
                    let len = room.len();
                    view.each(from, len, |at, range| {
                        let len = range.len();
                        read_all(&self.file, &mut room[range], at)
                            .map_err(|error| broken("read", at, len, &error))
                    })
                }),
            }
        })?;
        let mut status = Status::EMPTY;
        status.set_bytes(moved as i64);
        Ok(status)
    }
}

/// Makes the calls. `status` calls write a status, `request` calls return a request that is already complete, and `begins` calls keep the
/// status for the call that ends them.
macro_rules! transfers {
    ($($access:ident $name:ident($($offset:ident)?) = $place:expr => $how:ident $($split:ident)?;)+) => {$(
        transfers!(@$how $access $name [$($offset)?] $place, $($split)?);
    )+};
    (@status $access:ident $name:ident [$($offset:ident)?] $place:expr,) => {
        pub unsafe fn $name(file: c_int, $($offset: i64,)? buf: *const c_void, n: i64, of: c_int, status: *mut Status) -> Outcome {
            let file = lookup(file)?;
            let buffer = Buffer::new(buf, n, of)?;
            // SAFETY: the caller's promise: `n` elements at `buf`, and a place for a status.
            unsafe {
                let done = file.transfer($place, &buffer, Access::$access)?;
                request::set_status(status, done);
            }
            Ok(())
        }
    };
    (@request $access:ident $name:ident [$($offset:ident)?] $place:expr,) => {
        pub unsafe fn $name(file: c_int, $($offset: i64,)? buf: *const c_void, n: i64, of: c_int, into: *mut c_int) -> Outcome {
            let file = lookup(file)?;
            let buffer = Buffer::new(buf, n, of)?;
            // SAFETY: as above.
            unsafe {
                let done = file.transfer($place, &buffer, Access::$access)?;
                put(into, request::register(Active::Over(done), &file.comm))
            }
        }
    };
    (@begins $access:ident $name:ident [$($offset:ident)?] $place:expr, $split:ident) => {
        pub unsafe fn $name(file: c_int, $($offset: i64,)? buf: *const c_void, n: i64, of: c_int) -> Outcome {
            let file = lookup(file)?;
            let buffer = Buffer::new(buf, n, of)?;
            let mut begun = lock(&file.begun);
            if begun.is_some() {
                return fail(Class::Io, "another split collective call has begun on this file but not ended");
            }
            // SAFETY: as above.
            *begun = Some((Split::$split, unsafe { file.transfer($place, &buffer, Access::$access) }?));
            Ok(())
        }
    };
}

transfers! {
    Read file_read_at(offset) = Place::At(offset) => status;
    Write file_write_at(offset) = Place::At(offset) => status;
    Read file_read_at_all(offset) = Place::At(offset) => status;
    Write file_write_at_all(offset) = Place::At(offset) => status;
    Read file_read() = Place::Own => status;
    Write file_write() = Place::Own => status;
    Read file_read_all() = Place::Own => status;
    Write file_write_all() = Place::Own => status;
    Read file_read_shared() = Place::Shared => status;
    Write file_write_shared() = Place::Shared => status;
    Read file_read_ordered() = Place::Ordered => status;
    Write file_write_ordered() = Place::Ordered => status;
    Read file_iread_at(offset) = Place::At(offset) => request;
    Write file_iwrite_at(offset) = Place::At(offset) => request;
    Read file_iread_at_all(offset) = Place::At(offset) => request;
    Write file_iwrite_at_all(offset) = Place::At(offset) => request;
    Read file_iread() = Place::Own => request;
    Write file_iwrite() = Place::Own => request;
    Read file_iread_all() = Place::Own => request;
    Write file_iwrite_all() = Place::Own => request;
    Read file_iread_shared() = Place::Shared => request;
    Write file_iwrite_shared() = Place::Shared => request;
    Read file_read_at_all_begin(offset) = Place::At(offset) => begins ReadAtAll;
    Write file_write_at_all_begin(offset) = Place::At(offset) => begins WriteAtAll;
    Read file_read_all_begin() = Place::Own => begins ReadAll;
    Write file_write_all_begin() = Place::Own => begins WriteAll;
    Read file_read_ordered_begin() = Place::Ordered => begins ReadOrdered;
    Write file_write_ordered_begin() = Place::Ordered => begins WriteOrdered;
}

macro_rules! ends {
    ($($name:ident = $split:ident;)+) => {$(
        pub unsafe fn $name(file: c_int, _: *const c_void, status: *mut Status) -> Outcome {
            let file = lookup(file)?;
            let mut begun = lock(&file.begun);
            match *begun {
                Some((Split::$split, done)) => {
                    *begun = None;
                    // SAFETY: the caller's promise: a place for a status.
                    unsafe { request::set_status(status, done) };
                    Ok(())
                }
                _ => fail(Class::Io, "no such split collective call has begun on this file"),
            }
        }
    )+};
}

ends! {
    file_read_at_all_end = ReadAtAll;
    file_write_at_all_end = WriteAtAll;
    file_read_all_end = ReadAll;
    file_write_all_end = WriteAll;
    file_read_ordered_end = ReadOrdered;
    file_write_ordered_end = WriteOrdered;
}
