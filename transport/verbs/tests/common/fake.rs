//! The stand-in library. Each test loads a copy of its own, so that each has separate state.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kolo_verbs::{Absence, Library};
use tempfile::TempDir;

pub use super::knob::{Count, Knob};

pub struct Fake {
    _folder: TempDir,
    pub file: PathBuf,
}

impl Fake {
    pub fn new() -> Self {
        Self::without(&[])
    }

    /// Makes a library that lacks these functions: their names in the file are changed, so that the dynamic loader
    /// does not find them, as in a library that never had them.
    pub fn without(names: &[&str]) -> Self {
        let mut image = std::fs::read(built()).unwrap();
        for name in names {
            let entry = [b"\0", name.as_bytes(), b"\0"].concat();
            let places: Vec<usize> =
                (0..image.len() - entry.len()).filter(|&at| image[at..].starts_with(&entry)).collect();
            assert!(!places.is_empty(), "the stand-in has no {name} to begin with");
            for at in places {
                image[at + entry.len() - 2] = b'?';
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libfake.so");
        std::fs::write(&file, image).unwrap();
        Self { _folder: folder, file }
    }

    pub fn load(&self) -> Result<Library, Absence> {
        Library::open_file(self.file.as_os_str())
    }

    pub fn set(&self, knob: Knob, value: i64) {
        // SAFETY: this is the stand-in's own function of that type.
        let set: extern "C" fn(u32, i64) = unsafe { std::mem::transmute(self.function(c"fake_set")) };
        set(knob as u32, value);
    }

    /// Returns the number of objects that were made and not freed.
    pub fn live(&self) -> i64 {
        self.count(Count::Live)
    }

    /// Returns one of the stand-in's counts.
    pub fn count(&self, which: Count) -> i64 {
        // SAFETY: as in `set`.
        let get: extern "C" fn(u32) -> i64 = unsafe { std::mem::transmute(self.function(c"fake_get")) };
        get(which as u32)
    }

    fn function(&self, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
        let file = CString::new(self.file.as_os_str().as_bytes()).unwrap();
        // SAFETY: the strings are terminated; the library is never unloaded, and loading it twice returns the same
        // one.
        let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }
}

/// Returns the path of the stand-in, which cargo builds beside the folder of the test programs. `cargo test` builds
/// it unless it builds only one test; it is then built here.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().and_then(Path::parent).unwrap().join("examples");
    let file = folder.join("libfake_ibverbs.so");
    if !file.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build-as-tests", "--quiet", "--example", "fake_ibverbs"]);
        assert!(cargo.status().unwrap().success() && file.exists(), "cannot build {}", file.display());
    }
    file
}
