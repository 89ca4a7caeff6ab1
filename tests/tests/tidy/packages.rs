//! Everything that users may download carries its licences.

use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Returns the folders below this one that have a file of this name.
fn folders_with(name: &str, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if folder.join(name).is_file() {
        found.push(folder.to_owned());
    }
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let entry_name = entry.file_name();
        let is_built = entry_name == "target" || entry_name.to_string_lossy().starts_with('.');
        if entry.file_type().unwrap().is_dir() && !is_built {
            found.extend(folders_with(name, &entry.path()));
        }
    }
    found
}

/// Cargo and maturin look for files in the folder of the package only; they follow links.
#[test]
fn packages_have_their_licences() {
    let read = |path: PathBuf| {
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (mut folders, mut crates) = (folders_with("pyproject.toml", &root()), 0);
    for folder in &folders {
        assert!(read(folder.join("pyproject.toml")).contains(r#"license-files = ["LICENSE-*"]"#));
    }
    for folder in folders_with("Cargo.toml", &root()) {
        let manifest = read(folder.join("Cargo.toml"));
        if !manifest.contains("[package]") || manifest.contains("publish = false") {
            continue;
        }
        let is_partial = manifest.lines().any(|line| line.starts_with("include = "));
        assert!(
            !is_partial || manifest.contains(r#""LICENSE-*""#),
            "{} leaves licences out",
            folder.display()
        );
        folders.push(folder);
        crates += 1;
    }
    assert!(crates >= 7 && folders.len() > crates, "there are packages: {folders:?}");
    for folder in folders {
        for licence in LICENCES {
            assert!(
                read(folder.join(licence)) == read(root().join(licence)),
                "{}",
                folder.join(licence).display()
            );
        }
    }
}
