//! Tests that the modules of `src` form an order in which each uses only earlier ones: there are no
//! cycles. See docs/ARCHITECTURE.md.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules, from those that know nothing of others to those that users call. A module is a folder of `src`, or a file
/// beside them.
const MODULES: [&str; 29] = [
    "cancel",
    "mix",
    "ticks",
    "files",
    "wait",
    "types",
    "error",
    "affinity",
    "supply",
    "reduce",
    "verify",
    "profile",
    "network",
    "job",
    "plans",
    "config",
    "call",
    "join",
    "control",
    "engine",
    "gpu",
    "exchange",
    "symmetric",
    "dispatch",
    "failure",
    "communicator",
    "drive",
    "api",
    "fuzzing",
];

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for path in sources(&src) {
        let inside = path.strip_prefix(&src).expect("found there");
        let first = inside.components().next().expect("a name").as_os_str().to_str().expect("plain names");
        let module = first.trim_end_matches(".rs");
        if module != "lib" {
            let text = fs::read_to_string(&path).expect("a source");
            let above = above(module, &text);
            wrong.extend(above.into_iter().map(|other| format!("{} uses crate::{other}", inside.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the modules above its own that a source uses, leaving out its tests; or its own, if that has no place in
/// the order.
fn above(module: &str, text: &str) -> Vec<String> {
    let place = |name: &str| MODULES.iter().position(|module| *module == name);
    let Some(own) = place(module) else { return vec![format!("{module}, which has no place in the order")] };
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let names = code.split("crate::").skip(1).flat_map(|after| match after.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or_default().split(',').map(first_word).collect(),
        None => vec![first_word(after)],
    });
    names.filter(|name| place(name).is_some_and(|other| other > own)).collect()
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn arrows_upwards_are_found() {
    assert_eq!(above("engine", "use crate::call::Call;\nuse crate::drive::Step;"), ["drive"]);
    assert_eq!(above("call", "use crate::{api, mix};"), ["api"]);
    assert_eq!(above("exchange", "fn f() { crate::communicator::x() }"), ["communicator"]);
    assert!(above("drive", "// crate::api\n#[cfg(test)]\nmod tests {\n use crate::api;\n}").is_empty());
    assert_eq!(above("attic", "").len(), 1);
}
