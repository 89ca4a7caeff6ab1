//! Tests the archive that users get: unpacks it elsewhere, builds the examples against it by make and by CMake, and runs them.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{cc, compiler, package, profile, run_ranks, succeed};

/// Packs the library and unpacks the archive into `folder`; returns the unpacked root.
fn unpacked(folder: &Path) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut dist = Command::new(package().join("dist.sh"));
    dist.args(["--profile", &profile(), "--output"]).arg(folder);
    dist.env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target);
    let printed = succeed(&mut dist);
    let archive = Path::new(printed.trim_end());
    succeed(Command::new("tar").arg("-C").arg(folder).arg("-xf").arg(archive));
    archive.with_extension("").with_extension("")
}

fn examples(root: &Path, folder: &Path, name: &str) -> PathBuf {
    let to = folder.join(name);
    succeed(Command::new("cp").arg("-r").arg(root.join("share/doc/kolo/examples")).arg(&to));
    to
}

#[test]
fn the_archive_serves() {
    for tool in ["make", "pkg-config", "ld", "objcopy", "strip", "tar", "gzip"] {
        if compiler("KOLO_NO_SUCH_VARIABLE", tool).is_none() {
            return;
        }
    }
    let Some(cc) = cc() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = unpacked(folder.path());
    for file in [
        "include/kolo.h",
        "include/kolo.hpp",
        "share/doc/kolo/LICENSE-MIT",
        "share/doc/kolo/c-api.md",
        "lib/libkolo.so",
    ] {
        assert!(root.join(file).exists(), "{file}");
    }
    let search = format!("PKG_CONFIG_PATH={}", root.join("lib/pkgconfig").display());
    for way in ["STATIC=", "STATIC=1"] {
        let folder = examples(&root, folder.path(), way);
        succeed(
            Command::new("make")
                .current_dir(&folder)
                .args([&search, "CFLAGS=-Werror", way])
                .arg(format!("CC={cc}")),
        );
        run_ranks(&folder.join("sum"), 2, &[]);
        run_ranks(&folder.join("overlap"), 3, &[]);
        run_ranks(&folder.join("elastic"), 3, &["50"]);
    }
    only_ours_is_visible(&root.join("lib/libkolo.a"));
    if compiler("CMAKE", "cmake").is_some() {
        let folder = examples(&root, folder.path(), "cmake");
        let prefix = format!("-DCMAKE_PREFIX_PATH={}", root.display());
        succeed(Command::new("cmake").current_dir(&folder).args(["-B", "build", &prefix]));
        succeed(Command::new("cmake").current_dir(&folder).args(["--build", "build"]));
        run_ranks(&folder.join("build/sum"), 2, &[]);
        run_ranks(&folder.join("build/sum_static"), 2, &[]);
        run_ranks(&folder.join("build/elastic"), 2, &["50"]);
    }
}

/// Checks that the static library shows only Kolo's symbols: with Rust's own symbols, it would clash with another Rust library.
fn only_ours_is_visible(archive: &Path) {
    let symbols = succeed(Command::new("nm").args(["--extern-only", "--defined-only"]).arg(archive));
    let foreign: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| !name.starts_with("kolo"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
