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
    as_the_page_says(&root, &cc, &folder.path().join("page"));
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

/// Builds a program with the command of the page, and runs it without further settings.
fn as_the_page_says(root: &Path, cc: &str, folder: &Path) {
    let page = std::fs::read_to_string(root.join("share/doc/kolo/c-api.md")).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("cc ")).expect("the page has a command");
    std::fs::create_dir(folder).unwrap();
    std::fs::copy(root.join("share/doc/kolo/examples/sum.c"), folder.join("prog.c")).unwrap();
    let mut built = Command::new("sh");
    built.current_dir(folder).env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"));
    succeed(built.arg("-c").arg(format!("{cc} {line}")));
    run_ranks(&folder.join("a.out"), 2, &[]);
}

/// A fake cargo says which flags it gets, with a line for each.
#[test]
fn a_folder_whose_name_has_a_space_is_one_word() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("my clone");
    let flags = folder.path().join("flags");
    let cargo = folder.path().join("cargo");
    let script = format!(
        "#!/bin/sh\ncase $1 in pkgid) echo kolo-c@0.1.0 ;; *) printf '%s' \"$CARGO_ENCODED_RUSTFLAGS\" | tr '\\037' '\\n' > {}; \
         exit 1 ;; esac\n",
        flags.display()
    );
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (name, from) in [
        ("bindings/c/dist.sh", "dist.sh"),
        ("bindings/remap.sh", "../remap.sh"),
        ("deploy/install.sh", "../../deploy/install.sh"),
    ] {
        let to = root.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(package().join(from), to).unwrap();
    }
    for script in ["bindings/c/dist.sh", "deploy/install.sh"] {
        // Not the script itself: a child of the other test, before it is a program of its own, may still have the copy open.
        let mut build = Command::new("sh");
        build
            .arg(root.join(script))
            .env("CARGO", &cargo)
            .env("RUSTFLAGS", " -C  debuginfo=0 ")
            .env("CARGO_HOME", "/a home");
        build.env_remove("CARGO_ENCODED_RUSTFLAGS");
        assert!(!build.output().unwrap().status.success(), "the fake cargo fails");
        let remap = format!("--remap-path-prefix={}=kolo", root.display());
        let expected = ["-C", "debuginfo=0", &remap, "--remap-path-prefix=/a home=cargo"];
        assert_eq!(
            std::fs::read_to_string(&flags).unwrap().lines().collect::<Vec<_>>(),
            expected,
            "{script}"
        );
        std::fs::remove_file(&flags).unwrap();
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
