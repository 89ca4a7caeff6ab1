//! The rules of docs/ARCHITECTURE.md and docs/STYLE.md that a machine can check.
//!
//! Exceptions stand in the lists beside this file, one a line, each with its reason. A list can only shrink: what it names and
//! is no longer so must leave it. After a move of files, `KOLO_TIDY_WRITE=1 cargo test -p kolo-tests --test tidy` renames the
//! entries in the lists that have no reasons of their own (`unsafe.txt`, `length.txt`); the diff is for the reviewer.

mod code;
mod documents;
mod layers;
mod lists;
mod source;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}
