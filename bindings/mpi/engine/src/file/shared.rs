//! The shared file pointer: a number in a hidden file beside the file. A rank creates the hidden file when it first uses the pointer.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kolo_transport::Unpoisoned;

/// The shared pointer, as one rank sees it.
#[derive(Debug)]
pub(crate) struct SharedPointer {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The pointer's value as long as no rank has written it.
    first: i64,
    file: Option<fs::File>,
}

impl SharedPointer {
    /// Makes the pointer of a file. The number is the same on all ranks, and distinguishes the pointer from others of this file.
    pub(crate) fn new(of: &Path, number: u64, first: i64) -> Self {
        let name = of.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let path = of.with_file_name(format!(".{name}.kolo-{number:016x}"));
        Self { path, state: Mutex::new(State { first, file: None }) }
    }

    /// Changes the pointer while no other rank does. Returns its former value.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn update(&self, change: impl FnOnce(i64) -> i64) -> io::Result<i64> {
        let mut state = self.state.lock().unpoisoned();
        let first = state.first;
        let file = match &state.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                state.file.insert(options.open(&self.path)?)
            }
        };
        file.lock()?;
        let change = || {
            let mut bytes = [0; 8];
            let old = if file.read_at(&mut bytes, 0)? == 8 { i64::from_le_bytes(bytes) } else { first };
            let new = change(old);
            if new != old {
                file.write_all_at(&new.to_le_bytes(), 0)?;
            }
            Ok(old)
        };
        let changed = change();
        file.unlock()?;
        changed
    }

    /// Resets the pointer to zero. All ranks call it between two barriers; exactly one of them passes `clears`.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn reset(&self, clears: bool) -> io::Result<()> {
        self.state.lock().unpoisoned().first = 0;
        if clears && self.path.exists() { self.update(|_| 0).map(drop) } else { Ok(()) }
    }

    /// Removes the hidden file. One rank calls it when no rank uses the pointer any more.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
