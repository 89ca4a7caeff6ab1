//! C programs that use the library as a user would, linked in both ways.

mod common;

use common::{Link, cc, program, run_ranks};

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
fn wrong_arguments() {
    in_both_ways("usage", 1, &[&[]]);
}

#[test]
fn failures() {
    let cases: &[&[&str]] =
        &[&["mismatch"], &["timeout"], &["abort"], &["destroyed"], &["lost"], &["lost", "tcp"]];
    in_both_ways("failures", 3, cases);
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
