//! Dependencies point down, between crates and between the modules of the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::lists::List;
use crate::{root, source};

/// Crates from the bottom up, each with the workspace crates that only its tests may use.
const CRATES: [(&str, &str, &[&str]); 12] = [
    ("collectives", "kolo-collectives", &[]),
    ("membership", "kolo-membership", &[]),
    ("transport/verbs", "kolo-verbs", &[]),
    ("transport/gdr", "kolo-gdr", &[]),
    ("transport", "kolo-transport", &["kolo-verbs"]),
    ("runtime", "kolo", &["kolo-collectives", "kolo-membership", "kolo-transport", "kolo-gdr"]),
    ("bindings/c", "kolo-c", &["kolo"]),
    ("bindings/python", "kolo-python", &["kolo"]),
    ("bindings/mpi/engine", "kolo-mpi-engine", &["kolo", "kolo-transport"]),
    ("bindings/mpi/mpich", "kolo-mpi", &["kolo-mpi-engine"]),
    ("bindings/mpi/abi", "kolo-mpi-abi", &["kolo-mpi-engine"]),
    ("tools", "kolo-cli", &["kolo", "kolo-collectives", "kolo-transport"]),
];

#[test]
fn crates_depend_on_crates_below() {
    for (folder, name, below) in CRATES {
        let path = root().join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.contains(&format!("name = \"{name}\"")), "{folder} is {name}");
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let is_dependency = section == "[dependencies]" || section.ends_with("'.dependencies]");
            let used = line.split(['.', ' ', '=']).next().unwrap_or_default();
            // The bindings rename the crate `kolo`, since their own name is `kolo`.
            let used = if used == "kolo_rs" || used == "kolo-rs" { "kolo" } else { used };
            if is_dependency && used.starts_with("kolo") {
                assert!(below.contains(&used), "{name} uses {used}, which is not below it (ARCHITECTURE)");
            }
        }
    }
}

/// Returns the modules of the runtime (folders and files of `src`), each with those that it uses.
fn modules() -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in source::under("runtime/src") {
        let module = module_of(&source.path);
        if ["lib", "fuzzing"].contains(&module.as_str()) || source.path.contains("test") {
            continue;
        }
        let used = uses.entry(module.clone()).or_default();
        for line in source.product() {
            for (at, _) in line.match_indices("crate::") {
                let name: String =
                    line[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !name.is_empty() && name != module {
                    used.insert(name);
                }
            }
        }
    }
    let known: BTreeSet<String> = uses.keys().cloned().collect();
    uses.values_mut().for_each(|used| used.retain(|module| known.contains(module)));
    uses
}

fn module_of(path: &str) -> String {
    let inside = path.strip_prefix("runtime/src/").unwrap_or(path);
    inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs").to_owned()
}

fn reachable(modules: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for used in &modules[&module] {
            if seen.insert(used.clone()) {
                next.push(used.clone());
            }
        }
    }
    seen
}

#[test]
fn modules_of_the_runtime_form_no_circle() {
    let modules = modules();
    let below: BTreeMap<&String, BTreeSet<String>> =
        modules.keys().map(|module| (module, reachable(&modules, module))).collect();
    let mut found = BTreeMap::new();
    for (module, reached) in &below {
        let circle: Vec<&str> =
            reached.iter().filter(|other| below[other].contains(*module)).map(String::as_str).collect();
        if circle.len() > 1 {
            found.insert((*module).clone(), format!("in a circle of {}", circle.join(", ")));
        }
    }
    List::read("circles.txt")
        .with_reasons()
        .compare("Modules of the runtime form no circle (ARCHITECTURE; circles.txt)", &found);
}
