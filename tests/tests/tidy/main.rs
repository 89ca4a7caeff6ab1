//! The rules of docs/ARCHITECTURE.md and docs/STYLE.md that a machine can check.
//!
//! Exceptions stand in the lists beside this file, one per line, each with its reason. A list can only shrink: an entry
//! that no longer applies must be removed. After a move of files,
//! `KOLO_TIDY_WRITE=1 cargo test -p kolo-tests --test tidy` renames the entries in the lists without reasons
//! (`unsafe.txt`, `length.txt`); the diff is for the reviewer.

mod code;
mod documents;
mod layers;
mod lists;
mod packages;
mod source;

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}
