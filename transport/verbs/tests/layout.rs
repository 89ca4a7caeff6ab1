//! Compares the mirrors with the headers installed on this machine, if there are any.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[test]
fn mirrors_agree_with_the_installed_headers() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/layout.c");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layout");
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: no infiniband/verbs.h here (Debian and Ubuntu: libibverbs-dev)");
        return;
    }
    let compiled = match Command::new("cc").arg("-o").arg(&program).arg(&source).output() {
        Err(error) => return println!("skipped: cannot run cc: {error}"),
        Ok(output) => output,
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();

    let theirs: BTreeMap<&str, u64> = printed
        .lines()
        .map(|line| line.split_once(' ').expect("name and number"))
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect();
    let table = kolo_verbs::sys::layout_table();
    let ours: BTreeMap<&str, u64> = table.iter().map(|(name, number)| (name.as_str(), *number)).collect();
    assert_eq!(ours.len(), table.len(), "a name stands twice in our table");
    assert!(ours.len() > 200, "only {} rows", ours.len());
    for (name, number) in &theirs {
        assert_eq!(ours.get(name), Some(number), "{name}");
    }
    for name in ours.keys() {
        assert!(theirs.contains_key(name), "c/layout.c does not print {name}");
    }
    println!("{} sizes, offsets and constants agree", ours.len());
}

#[test]
fn nothing_is_loaded_before_it_is_asked_for() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("libibverbs"), "this program was linked to libibverbs");
}
