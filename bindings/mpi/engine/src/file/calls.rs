//! The calls that open and close files, set views and pointers, and query files.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use super::shared::SharedPointer;
use super::view::View;
use super::{FILES, File, class_of, lock, lookup};
use crate::args::{put, put_text, text};
use crate::collective::{self, all_well};
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::datatype;
use crate::error::{Class, Fail, Outcome, fail};
use crate::{group, handlers, info};

/// The representation in which data are in the file as they are in memory.
const NATIVE: &str = "native";

/// Further names of that representation, which the program has registered.
static REPRESENTATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// # Safety
/// `name` is null, or a string that ends with a zero.
unsafe fn path(name: *const c_char) -> Outcome<PathBuf> {
    if name.is_null() {
        return fail(Class::BadFile, "the file name is NULL");
    }
    // SAFETY: the caller's promise: the string ends with a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name.is_empty() {
        return fail(Class::BadFile, "the file name is empty");
    }
    Ok(PathBuf::from(OsStr::from_bytes(name)))
}

fn check_mode(mode: c_int) -> Outcome {
    let has = |bit: c_int| mode & bit != 0;
    let directions = [MODE_RDONLY, MODE_RDWR, MODE_WRONLY].iter().filter(|bit| has(**bit)).count();
    let text = match mode {
        _ if mode & !MODE_ALL != 0 => "it has unknown bits",
        _ if directions != 1 => {
            "it must have exactly one of MPI_MODE_RDONLY, MPI_MODE_RDWR and MPI_MODE_WRONLY"
        }
        _ if has(MODE_RDONLY) && (has(MODE_CREATE) || has(MODE_EXCL)) => "a read-only file cannot be created",
        _ if has(MODE_RDWR) && has(MODE_SEQUENTIAL) => {
            "MPI_MODE_SEQUENTIAL cannot be combined with MPI_MODE_RDWR"
        }
        _ => return Ok(()),
    };
    fail(Class::Amode, format!("access mode {mode:#x}: {text}"))
}

/// Opens a file for this rank. Only the first rank creates it.
fn open(path: &Path, mode: c_int, is_first: bool) -> Outcome<fs::File> {
    let mut options = OpenOptions::new();
    options.read(mode & MODE_WRONLY == 0).write(mode & MODE_RDONLY == 0);
    if is_first {
        options.create(mode & MODE_CREATE != 0).create_new(mode & MODE_CREATE != 0 && mode & MODE_EXCL != 0);
    }
    options.open(path).map_err(|error| Fail::new(class_of(&error), format!("'{}': {error}", path.display())))
}

/// Checks that all ranks have the same mode, and agrees on a random number, the first rank's.
fn agree(comm: &Arc<Comm>, mode: c_int) -> Outcome<u64> {
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(|error| Fail::new(Class::Other, error))?;
    let mut told = mode.to_le_bytes().to_vec();
    told.extend(number);
    let all = collective::share(comm, &told)?;
    if all.chunks_exact(12).any(|other| other[..4] != told[..4]) {
        return fail(Class::NotSame, "the ranks open the file with different access modes");
    }
    Ok(all[4..12].try_into().map_or(0, u64::from_le_bytes))
}

pub unsafe fn file_open(
    comm: c_int,
    name: *const c_char,
    mode: c_int,
    hints: c_int,
    into: *mut c_int,
) -> Outcome {
    let outer = comm::intra(comm)?;
    let handle = outer.create(Arc::clone(&outer.members), None)?;
    let comm = comm::lookup(handle)?;
    comm::release(handle);
    // If one rank has a problem, all fail, so that none waits for another in vain.
    // SAFETY: the caller's promise.
    let own = unsafe { path(name) }.and_then(|path| check_mode(mode).map(|()| path));
    let (path, info) = all_well(&comm, own.and_then(|path| info::pairs(hints).map(|info| (path, info))))?;
    let number = agree(&comm, mode)?;
    let first = if comm.rank == 0 { Some(open(&path, mode, true)) } else { None };
    let opened = match first {
        Some(opened) => all_well(&comm, opened.map(Some))?,
        None => all_well(&comm, Ok(None))?,
    };
    let file = all_well(&comm, opened.map_or_else(|| open(&path, mode, false), Ok))?;
    let bytes = datatype::lookup(BYTE)?;
    let view = View::new(0, Arc::clone(&bytes), bytes, NATIVE.to_owned())?;
    let start =
        if mode & MODE_APPEND == 0 { 0 } else { file.metadata().map_or(0, |found| found.len()) as i64 };
    let file = Arc::new(File {
        handle: AtomicI32::new(FILE_NULL),
        shared: SharedPointer::new(&path, number, start),
        comm,
        path,
        file,
        mode,
        view: Mutex::new(Arc::new(view)),
        position: Mutex::new(start),
        is_atomic: AtomicBool::new(false),
        access: Mutex::new(()),
        begun: Mutex::new(None),
        handler: Mutex::new(handlers::of_files()),
        info: Mutex::new(info),
    });
    // No rank may write before all know where the file ends.
    file.barrier()?;
    let handle = FILES.insert(Arc::clone(&file));
    file.handle.store(handle, Ordering::Relaxed);
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe { put(into, handle) }
}

pub unsafe fn file_close(handle: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        let file = lookup(*handle)?;
        let own = match &*lock(&file.begun) {
            Some(_) => fail(Class::Io, "a split collective call has begun but not ended"),
            None => Ok(()),
        };
        all_well(&file.comm, own)?;
        let flushed = match file.mode & (MODE_RDONLY | MODE_DELETE_ON_CLOSE) {
            0 => file.file.sync_data().map_err(|error| file.failed("write back", &error)),
            _ => Ok(()),
        };
        file.barrier()?;
        FILES.remove(*handle);
        *handle = FILE_NULL;
        if file.comm.rank == 0 {
            file.shared.remove();
        }
        let removed = match file.mode & MODE_DELETE_ON_CLOSE {
            0 => Ok(()),
            _ => {
                file.first_does(|| fs::remove_file(&file.path).map_err(|error| file.failed("delete", &error)))
            }
        };
        flushed.and(removed)
    }
}

pub unsafe fn file_delete(name: *const c_char, hints: c_int) -> Outcome {
    crate::world::check_running()?;
    info::pairs(hints)?;
    // SAFETY: the caller's promise.
    let path = unsafe { path(name) }?;
    fs::remove_file(&path).map_err(|error| {
        Fail::new(class_of(&error), format!("could not delete '{}': {error}", path.display()))
    })
}

/// Sets the length of a file. All ranks call it.
fn resize(file: &File, size: i64, also_shrink: bool) -> Outcome {
    let own = match size {
        ..0 => fail(Class::Arg, format!("a file cannot have {size} bytes")),
        _ if file.mode & MODE_RDONLY != 0 => {
            fail(Class::ReadOnly, format!("'{}' is open for reading", file.path.display()))
        }
        _ => Ok(()),
    };
    all_well(&file.comm, own)?;
    file.first_does(|| {
        if !also_shrink && file.size()? >= size as u64 {
            return Ok(());
        }
        file.file.set_len(size as u64).map_err(|error| file.failed("resize", &error))
    })
}

pub unsafe fn file_set_size(file: c_int, size: i64) -> Outcome {
    resize(&*lookup(file)?, size, true)
}

pub unsafe fn file_preallocate(file: c_int, size: i64) -> Outcome {
    resize(&*lookup(file)?, size, false)
}

pub unsafe fn file_get_size(file: c_int, size: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(size, lookup(file)?.size()? as i64) }
}

pub unsafe fn file_get_group(file: c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(into, group::register(Arc::clone(&lookup(file)?.comm.members))) }
}

pub unsafe fn file_get_amode(file: c_int, mode: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(mode, lookup(file)?.mode) }
}

pub unsafe fn file_set_info(file: c_int, hints: c_int) -> Outcome {
    let (file, pairs) = (lookup(file)?, info::pairs(hints)?);
    *lock(&file.info) = pairs;
    Ok(())
}

pub unsafe fn file_get_info(file: c_int, into: *mut c_int) -> Outcome {
    let pairs = lock(&lookup(file)?.info).clone();
    // SAFETY: the caller's promise.
    unsafe { put(into, info::make(pairs)) }
}

/// Makes the view that one rank's arguments describe.
unsafe fn seen(
    file: &File,
    displacement: i64,
    etype: c_int,
    filetype: c_int,
    representation: *const c_char,
) -> Outcome<View> {
    // SAFETY: the caller's promise.
    let representation = unsafe { text(representation) }?;
    if ![NATIVE, "internal"].contains(&&*representation) && !lock(&REPRESENTATIONS).contains(&representation)
    {
        return fail(
            Class::UnsupportedDatarep,
            format!("'{representation}'; Kolo supports native and internal, which are the same"),
        );
    }
    let displacement = match displacement {
        DISPLACEMENT_CURRENT if file.mode & MODE_SEQUENTIAL != 0 => {
            let now = file
                .shared
                .update(|now| now)
                .map_err(|error| file.failed("update the file pointer of", &error))?;
            file.view().byte_of(now)?
        }
        _ => displacement,
    };
    View::new(displacement, datatype::committed(etype)?, datatype::committed(filetype)?, representation)
}

pub unsafe fn file_set_view(
    file: c_int,
    displacement: i64,
    etype: c_int,
    filetype: c_int,
    representation: *const c_char,
    hints: c_int,
) -> Outcome {
    let file = lookup(file)?;
    // SAFETY: the caller's promise.
    let own = unsafe { seen(&file, displacement, etype, filetype, representation) };
    let own = own.and_then(|view| info::pairs(hints).map(|hints| (view, hints)));
    // The ranks also wait here for each other.
    let (view, hints) = all_well(&file.comm, own)?;
    let reset = file.shared.reset(file.comm.rank == 0);
    file.barrier()?;
    reset.map_err(|error| file.failed("update the file pointer of", &error))?;
    *lock(&file.view) = Arc::new(view);
    *lock(&file.position) = 0;
    if !hints.is_empty() {
        *lock(&file.info) = hints;
    }
    Ok(())
}

pub unsafe fn file_get_view(
    file: c_int,
    displacement: *mut i64,
    etype: *mut c_int,
    filetype: *mut c_int,
    representation: *mut c_char,
) -> Outcome {
    let view = lookup(file)?.view();
    // SAFETY: the caller's promise.
    unsafe {
        put(displacement, view.displacement)?;
        put_text(&view.representation, representation, MAX_DATAREP_STRING, std::ptr::null_mut())?;
        put(etype, datatype::handle_of(&view.etype))?;
        put(filetype, datatype::handle_of(&view.filetype))
    }
}

pub unsafe fn file_seek(file: c_int, offset: i64, whence: c_int) -> Outcome {
    let file = lookup(file)?;
    file.check_random()?;
    let mut position = lock(&file.position);
    *position = file.sought(offset, whence, *position)?;
    Ok(())
}

pub unsafe fn file_get_position(file: c_int, into: *mut i64) -> Outcome {
    let file = lookup(file)?;
    file.check_random()?;
    let position = *lock(&file.position);
    // SAFETY: the caller's promise.
    unsafe { put(into, position) }
}

pub unsafe fn file_get_byte_offset(file: c_int, offset: i64, into: *mut i64) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(into, lookup(file)?.view().byte_of(offset)?) }
}

pub unsafe fn file_seek_shared(file: c_int, offset: i64, whence: c_int) -> Outcome {
    let file = lookup(file)?;
    // The barrier lets earlier operations of all ranks finish.
    file.barrier()?;
    file.first_does(|| {
        let mut to = Ok(0);
        let moved = file.shared.update(|now| {
            to = file.sought(offset, whence, now);
            *to.as_ref().unwrap_or(&now)
        });
        moved.map_err(|error| file.failed("update the file pointer of", &error))?;
        to.map(drop)
    })
}

pub unsafe fn file_get_position_shared(file: c_int, into: *mut i64) -> Outcome {
    let file = lookup(file)?;
    let now =
        file.shared.update(|now| now).map_err(|error| file.failed("update the file pointer of", &error))?;
    // SAFETY: the caller's promise.
    unsafe { put(into, now) }
}

pub unsafe fn file_get_type_extent(file: c_int, of: c_int, extent: *mut i64) -> Outcome {
    lookup(file)?;
    // SAFETY: the caller's promise.
    unsafe { put(extent, datatype::lookup(of)?.extent) }
}

pub unsafe fn file_set_atomicity(file: c_int, flag: c_int) -> Outcome {
    let file = lookup(file)?;
    file.is_atomic.store(flag != 0, Ordering::Release);
    file.barrier()
}

pub unsafe fn file_get_atomicity(file: c_int, flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(flag, lookup(file)?.is_atomic.load(Ordering::Acquire).into()) }
}

pub unsafe fn file_sync(file: c_int) -> Outcome {
    let file = lookup(file)?;
    let flushed = match file.mode & MODE_RDONLY {
        0 => file.file.sync_data().map_err(|error| file.failed("write back", &error)),
        _ => Ok(()),
    };
    file.barrier()?;
    flushed
}

pub unsafe fn register_datarep(
    name: *const c_char,
    read: *const c_void,
    write: *const c_void,
    extent: *const c_void,
    _extra: *mut c_void,
) -> Outcome {
    crate::world::check_running()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    if name.is_empty() || name.len() >= MAX_DATAREP_STRING || extent.is_null() {
        return fail(Class::Arg, "a data representation needs a name and a function that returns extents");
    }
    if !read.is_null() || !write.is_null() {
        return fail(Class::UnsupportedOperation, "Kolo does not convert the data of files");
    }
    let mut known = lock(&REPRESENTATIONS);
    if [NATIVE, "internal", "external32"].contains(&&*name) || known.contains(&name) {
        return fail(Class::DupDatarep, format!("'{name}'"));
    }
    known.push(name);
    Ok(())
}
