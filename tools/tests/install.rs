//! `deploy/install.sh`: the installed files work, and its list is complete.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::command;

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text.into_owned()
}

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no {tool}");
    }
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn what_is_installed_serves() {
    if !["ld", "objcopy", "strip", "tar", "gzip", "install", "pkg-config", "cc"].iter().all(|tool| has(tool))
    {
        return;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let package = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/install.sh");
    let mut install = Command::new(script);
    install.args(["--prefix", "/opt/kolo", "--profile", "dev", "--destdir"]).arg(package.path());
    succeed(install.env("CARGO", env!("CARGO")).env("CARGO_TARGET_DIR", target));

    let root = package.path().join("opt/kolo");
    let found: BTreeSet<PathBuf> = files(&root).into_iter().collect();
    let list = std::fs::read_to_string(root.join("share/kolo/installed")).unwrap();
    let listed: BTreeSet<PathBuf> =
        list.lines().map(|line| package.path().join(line.trim_start_matches('/'))).collect();
    assert_eq!(found, listed);
    for file in ["include/kolo.hpp", "lib/cmake/kolo/koloConfig.cmake", "share/man/man1/kolo-perf.1"] {
        assert!(root.join(file).exists(), "{file}");
    }
    let completions = std::fs::read_to_string(root.join("share/bash-completion/completions/kolo")).unwrap();
    assert!(completions.contains("explain-error"));

    let version = succeed(command(root.join("bin/kolo")).arg("--version"));
    let mut found = Command::new("pkg-config");
    found.env("PKG_CONFIG_PATH", root.join("lib/pkgconfig")).args(["--modversion", "kolo"]);
    assert_eq!(version.trim(), format!("kolo {}", succeed(&mut found).trim()));
    let program = package.path().join("sum");
    let flags = succeed(
        Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"))
            .args(["--cflags", "--libs", "kolo"]),
    );
    let source = root.join("share/doc/kolo/examples/sum.c");
    succeed(Command::new("cc").arg(source).arg("-o").arg(&program).args(flags.split_whitespace()));
    let run = |program: &Path, libraries: &str| {
        let mut run = command(root.join("bin/kolo"));
        succeed(run.args(["run", "-n", "2", "--"]).arg(program).env("LD_LIBRARY_PATH", root.join(libraries)));
    };
    run(&program, "lib");

    for (abi, library) in [("mpich", "-lmpi"), ("abi", "-lmpi_abi")] {
        let program = package.path().join(abi);
        let mut compile = Command::new("cc");
        compile.arg("-I").arg(root.join("include/kolo-mpi").join(abi)).arg("-o").arg(&program);
        compile.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/mpi/tests/c/sessions.c"));
        succeed(compile.arg("-L").arg(root.join("lib/kolo-mpi")).arg(library));
        run(&program, "lib/kolo-mpi");
    }
}
