//! Files.
//!
//! Every rank opens the file itself, and reads and writes its own pieces with system calls. The transfer is complete when a call returns,
//! even if the call returns a request. Ranks communicate only to open and close a file, and about the shared file pointer.

mod calls;
mod shared;
mod transfer;
mod view;

use std::ffi::c_int;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use calls::*;
pub use transfer::*;

use crate::collective;
use crate::comm::Comm;
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::handle::Table;
use crate::handlers::{self, Handler};
use crate::info::Pairs;
use kolo_transport::Unpoisoned;
use shared::SharedPointer;
use view::View;

/// An open file.
#[derive(Debug)]
pub struct File {
    handle: AtomicI32,
    /// The file's own communicator.
    comm: Arc<Comm>,
    path: PathBuf,
    file: fs::File,
    mode: c_int,
    view: Mutex<Arc<View>>,
    /// This rank's pointer, in etypes.
    position: Mutex<i64>,
    shared: SharedPointer,
    is_atomic: AtomicBool,
    /// Held by the thread of this process that accesses the file in atomic mode.
    access: Mutex<()>,
    /// The split collective call that has begun, and its status.
    begun: Mutex<Option<(Split, Status)>>,
    handler: Mutex<Handler>,
    info: Mutex<Pairs>,
}

/// Split collective calls. A file has at most one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    ReadAtAll,
    WriteAtAll,
    ReadAll,
    WriteAll,
    ReadOrdered,
    WriteOrdered,
}

static FILES: Table<Arc<File>> = Table::new(0x4);

/// Returns the file of a handle.
///
/// # Errors
/// [`Class::File`] for an invalid handle.
pub fn lookup(handle: c_int) -> Outcome<Arc<File>> {
    crate::world::check_running()?;
    match handle {
        FILE_NULL => fail(Class::File, "MPI_FILE_NULL"),
        _ => FILES
            .get(handle)
            .map_or_else(|| fail(Class::File, format!("{handle:#x} is not a file, or was closed")), Ok),
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unpoisoned()
}

/// Returns the standard's class of a system error.
fn class_of(error: &io::Error) -> Class {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => Class::NoSuchFile,
        Kind::PermissionDenied => Class::Access,
        Kind::AlreadyExists => Class::FileExists,
        Kind::ReadOnlyFilesystem => Class::ReadOnly,
        Kind::StorageFull => Class::NoSpace,
        Kind::QuotaExceeded => Class::Quota,
        Kind::InvalidFilename | Kind::IsADirectory | Kind::NotADirectory => Class::BadFile,
        Kind::ExecutableFileBusy | Kind::ResourceBusy => Class::FileInUse,
        Kind::OutOfMemory => Class::NoMem,
        _ => Class::Io,
    }
}

impl File {
    /// Returns the error handler.
    #[must_use]
    pub fn handler(&self) -> Handler {
        lock(&self.handler).clone()
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        handlers::replace(&self.handler, handler);
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&lock(&self.view))
    }

    /// Makes a failure of a system error for this file.
    fn failed(&self, what: &str, error: &io::Error) -> Fail {
        let text = format!("rank {} could not {what} '{}': {error}", self.comm.rank, self.path.display());
        Fail::new(class_of(error), text)
    }

    fn size(&self) -> Outcome<u64> {
        let found = self.file.metadata().map_err(|error| self.failed("ask for the size of", &error))?;
        Ok(found.len())
    }

    /// Waits for all ranks.
    fn barrier(&self) -> Outcome {
        collective::share(&self.comm, &[0]).map(drop)
    }

    /// Lets rank 0 do something, and tells all ranks whether it succeeded. All ranks call it.
    fn first_does(&self, what: impl FnOnce() -> Outcome) -> Outcome {
        let done = if self.comm.rank == 0 { what() } else { Ok(()) };
        let class = done.as_ref().err().map_or(0, |failure| failure.class);
        let told = collective::tell(&self.comm, &class.to_le_bytes(), 4, 0)?;
        done?;
        match told.try_into().map_or(0, c_int::from_le_bytes) {
            0 => Ok(()),
            class => Err(Fail { class, text: "rank 0 of the file's group failed".into(), object: None }),
        }
    }

    /// Fails for files in sequential mode, which have no random access.
    fn check_random(&self) -> Outcome {
        if self.mode & MODE_SEQUENTIAL == 0 {
            return Ok(());
        }
        fail(
            Class::UnsupportedOperation,
            "the file was opened with MPI_MODE_SEQUENTIAL: use its shared pointer",
        )
    }

    /// Returns the target of a seek of a pointer that is at `now`.
    fn sought(&self, offset: i64, whence: c_int, now: i64) -> Outcome<i64> {
        let from = match whence {
            SEEK_SET => 0,
            SEEK_CUR => now,
            SEEK_END => self.view().end_of(self.size()?),
            _ => {
                return fail(
                    Class::Arg,
                    format!("{whence} is not MPI_SEEK_SET, MPI_SEEK_CUR or MPI_SEEK_END"),
                );
            }
        };
        match from.checked_add(offset).filter(|to| *to >= 0) {
            Some(to) => Ok(to),
            None => fail(
                Class::Arg,
                format!("an offset of {offset} from {from} lies before the beginning of the file"),
            ),
        }
    }

    /// Runs an access; in atomic mode, no other rank accesses the file meanwhile.
    fn alone<T>(&self, access: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        if !self.is_atomic.load(Ordering::Acquire) {
            return access();
        }
        let _thread = lock(&self.access);
        self.file.lock().map_err(|error| self.failed("lock", &error))?;
        let done = access();
        self.file.unlock().map_err(|error| self.failed("unlock", &error))?;
        done
    }
}
