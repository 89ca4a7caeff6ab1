//! Runs C programs that use the library as a user would, linked to the shared and to the static library.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Link, cc, compiler, program, program_cpp, run_ranks};

fn in_both_ways(name: &str, ranks: usize, cases: &[&[&str]]) {
    let Some(cc) = cc() else { return };
    let folder = tempfile::tempdir().unwrap();
    for link in [Link::Shared, Link::Static] {
        let program = program(&cc, name, link, folder.path());
        for arguments in cases {
            run_ranks(&program, ranks, arguments);
        }
    }
}

#[test]
fn collectives() {
    in_both_ways("collectives", 3, &[&[]]);
}

#[test]
fn communicators_messages_and_memory() {
    in_both_ways("communicators", 3, &[&[]]);
}

#[test]
fn tags_sources_and_started_messages() {
    in_both_ways("messages", 3, &[&[], &["tcp"]]);
}

#[test]
fn wrong_arguments() {
    in_both_ways("usage", 1, &[&[]]);
}

#[test]
fn failures() {
    let cases: &[&[&str]] = &[
        &["mismatch"],
        &["timeout"],
        &["abort"],
        &["destroyed"],
        &["lost"],
        &["lost", "tcp"],
        &["shrink"],
        &["shrink", "tcp"],
    ];
    in_both_ways("failures", 3, cases);
}

#[test]
fn newcomers_and_their_state() {
    let Some(cc) = cc() else { return };
    for link in [Link::Shared, Link::Static] {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&cc, "newcomers", link, folder.path());
        for way in ["given", "environment"] {
            run_ranks(&program, 3, &[way, folder.path().join(way).to_str().unwrap()]);
        }
    }
}

#[test]
fn survivors() {
    let Some(cc) = cc() else { return };
    for link in [Link::Shared, Link::Static] {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&cc, "survivors", link, folder.path());
        for case in [&["lost"][..], &["lost", "tcp"], &["own"], &["limit"]] {
            run_ranks(&program, 3, case);
        }
        run_ranks(&program, 3, &["admit", folder.path().join("invitation").to_str().unwrap()]);
    }
}

#[test]
fn a_full_group_goes_on_while_a_newcomer_waits() {
    in_both_ways("elastic", 3, &[&["50", "3"]]);
}

#[test]
fn after_fork() {
    let cases: Vec<[&str; 2]> = ["call", "new", "destroy", "exit"]
        .into_iter()
        .flat_map(|what| [[what, "shm"], [what, "tcp"]])
        .collect();
    in_both_ways("fork", 3, &cases.iter().map(|case| &case[..]).collect::<Vec<_>>());
}

#[test]
fn cancelled_threads() {
    in_both_ways("cancel", 3, &[&["shm"], &["tcp"]]);
}

/// Checks for leaks, overruns and use after free, as far as the sanitizer sees them: in the C code, and in all memory that the library
/// allocates.
#[test]
fn under_the_sanitizer() {
    let Some(cc) = cc() else { return };
    let folder = tempfile::tempdir().unwrap();
    if !sanitizes(&cc, folder.path()) {
        println!("skipped: '{cc}' has no address sanitizer that works here");
        return;
    }
    for (name, ranks) in [("usage", 1), ("communicators", 3), ("collectives", 3), ("messages", 3)] {
        run_ranks(&program(&cc, name, Link::Sanitized, folder.path()), ranks, &[]);
    }
    let invitation = folder.path().join("invitation");
    let program = program(&cc, "newcomers", Link::Sanitized, folder.path());
    run_ranks(&program, 3, &["given", invitation.to_str().unwrap()]);
    let program = common::program(&cc, "survivors", Link::Sanitized, folder.path());
    run_ranks(&program, 3, &["lost"]);
}

/// Returns whether a program can be compiled with the sanitizer and runs here; under some tracers it does not.
fn sanitizes(cc: &str, folder: &Path) -> bool {
    let (source, program) = (folder.join("empty.c"), folder.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut compile = Command::new(cc);
    compile.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program).stderr(Stdio::null());
    let works = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    works(&mut compile) && works(Command::new(program).stderr(Stdio::null()))
}

#[test]
fn the_wrapper_for_cpp() {
    let Some(cxx) = compiler("CXX", "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    for standard in ["c++17", "c++20"] {
        run_ranks(&program_cpp(&cxx, standard, "wrapper", Link::Shared, folder.path()), 3, &[]);
    }
    if sanitizes(&cxx, folder.path()) {
        run_ranks(&program_cpp(&cxx, "c++17", "wrapper", Link::Sanitized, folder.path()), 3, &[]);
    }
}

#[test]
fn survivors_in_cpp() {
    let Some(cxx) = compiler("CXX", "c++") else { return };
    let folder = tempfile::tempdir().unwrap();
    run_ranks(&program_cpp(&cxx, "c++17", "survivors", Link::Shared, folder.path()), 3, &[]);
    if sanitizes(&cxx, folder.path()) {
        run_ranks(&program_cpp(&cxx, "c++17", "survivors", Link::Sanitized, folder.path()), 3, &[]);
    }
}

#[test]
fn unique_ids() {
    let Some(cc) = cc() else { return };
    for link in [Link::Shared, Link::Static] {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&cc, "unique_id", link, folder.path());
        run_ranks(&program, 3, &[folder.path().join("id").to_str().unwrap()]);
    }
}
