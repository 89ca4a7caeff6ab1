//! Rules for code: which files may wait, use `unsafe` or read the environment, and limits on length.

use std::collections::BTreeMap;

use crate::lists::List;
use crate::source::{self, Source};

/// Longest function and longest file, in lines.
const FUNCTION_MAX: usize = 70;
const FILE_MAX: usize = 600;

/// Returns the files in whose code one of these words occurs.
fn with_words(words: &[&str]) -> BTreeMap<String, String> {
    let seen = |source: &Source| {
        let lines = source.product().iter().enumerate();
        let at: Vec<String> = lines
            .filter(|(_, line)| words.iter().any(|word| has_word(line, word)))
            .map(|(at, _)| format!("{}", at + 1))
            .collect();
        (!at.is_empty()).then(|| (source.path.clone(), format!("line {}", at.join(", "))))
    };
    source::product().iter().filter_map(seen).collect()
}

/// Returns whether a word occurs in a line by itself.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

#[test]
fn only_listed_files_wait() {
    let waits =
        ["hint::spin_loop", "thread::yield_now", "thread::sleep", "thread::park_timeout", "thread::park"];
    let rule = "Only wait.rs decides how long a thread spins, yields or sleeps (STYLE, Code 6; waiting.txt)";
    let mut found = with_words(&waits);
    // The thread of the control plane waits in its async runtime, which is not on the data path.
    found.retain(|path, _| !path.contains("/control/") && !path.contains("/join/"));
    List::read("waiting.txt").with_reasons().compare(rule, &found);
}

#[test]
fn only_transports_touch_data_sockets_and_shared_memory() {
    let words = [
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "UnixStream",
        "UnixListener",
        "socket2",
        "mmap",
        "memfd_create",
    ];
    let mut found = with_words(&words);
    // Joining and the control plane have sockets of their own, which never carry payload.
    let own = ["runtime/src/control/", "runtime/src/join/", "transport/"];
    found.retain(|path, _| !own.iter().any(|folder| path.starts_with(folder)));
    List::read("sockets.txt")
        .with_reasons()
        .compare("Only transports touch data sockets and shared memory (ARCHITECTURE; sockets.txt)", &found);
}

#[test]
fn unsafe_stands_in_listed_files() {
    let mut found = with_words(&["unsafe"]);
    assert!(!found.keys().any(|path| path.starts_with("collectives/")), "kolo-collectives forbids unsafe");
    found.values_mut().for_each(|seen| seen.clear());
    let mut list = List::read("unsafe.txt");
    list.write_if_asked(&found);
    list.compare("unsafe stands in listed files only (STYLE, unsafe 1; unsafe.txt)", &found);
}

#[test]
fn the_environment_is_read_in_listed_files() {
    let found = with_words(&["env::var", "env::var_os", "env::vars", "env::vars_os"]);
    List::read("environment.txt")
        .with_reasons()
        .compare("The environment is read in config and join (STYLE, Code 7; environment.txt)", &found);
}

#[test]
fn state_of_the_process_is_in_listed_files() {
    let changes = ["Mutex", "RwLock", "Cell", "RefCell", "OnceLock", "Once"];
    let is_state = |line: &&String| {
        let global =
            line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix("static ");
        global.is_some_and(|global| {
            global.contains("Atomic") || changes.iter().any(|word| has_word(global, word))
        })
    };
    let mut found = BTreeMap::new();
    for source in source::product().into_iter().filter(|source| !source.path.starts_with("bindings/")) {
        if let Some(line) = source.product().iter().find(is_state) {
            found.insert(source.path.clone(), line.clone());
        }
    }
    List::read("globals.txt")
        .with_reasons()
        .compare("No global mutable state, except of the process (STYLE, Code 8; globals.txt)", &found);
}

/// A comparison with a name misses the transport that is added next.
#[test]
fn the_runtime_asks_for_features_of_transports() {
    let mut found = Vec::new();
    for source in source::product().into_iter().filter(|source| source.path.starts_with("runtime/")) {
        let lines = source.product().iter().enumerate().filter(|(_, line)| compares_transport(line));
        found.extend(lines.map(|(at, _)| format!("{}, line {}", source.path, at + 1)));
    }
    assert!(
        found.is_empty(),
        "The runtime asks for `Features` and `Caps` (CONTRIBUTING). Not so: {found:#?}"
    );
}

/// Returns whether a line compares a transport with a literal, which is blanked out.
fn compares_transport(line: &str) -> bool {
    let is_value = |text: &str| text.starts_with(|c: char| c.is_alphanumeric() || "_*&(".contains(c));
    let is_literal = |after: &str| !is_value(after.trim_start()) || after.trim_start().starts_with("&&");
    ["transport ==", "transport !="].iter().any(|words| line.split(words).skip(1).any(is_literal))
}

/// Returns functions by name with their lines, as rustfmt lays them out: from `fn` to the brace at the same
/// indentation.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let mut all = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let indentation = line.len() - trimmed.len();
        let Some(name) = function_name(trimmed) else { continue };
        let end = format!("{}}}", &line[..indentation]);
        let body = source.lines[at..].iter().position(|line| line.trim_end() == end);
        let is_declared_only = source.lines[at..]
            .iter()
            .find(|line| line.contains('{') || line.trim_end().ends_with(';'))
            .is_some_and(|line| !line.contains('{'));
        if let Some(lines) = body.filter(|_| !is_declared_only && !line.trim_end().ends_with('}')) {
            all.push((name.to_owned(), lines + 1));
        }
    }
    all
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    words
        .by_ref()
        .find(|word| {
            !(word.starts_with("pub")
                || ["in", "super)", "crate)", "const", "async", "unsafe", "extern", "default"].contains(word))
        })
        .filter(|word| *word == "fn")?;
    words.next()?.split(['(', '<']).next()
}

#[test]
fn functions_and_files_are_short() {
    let mut found = BTreeMap::new();
    for source in source::product() {
        for (name, lines) in functions(&source).into_iter().filter(|(_, lines)| *lines > FUNCTION_MAX) {
            found.insert(format!("{}::{name}", source.path), format!("{lines} lines"));
        }
        if source.lines.len() > FILE_MAX {
            found.insert(source.path.clone(), format!("{} lines", source.lines.len()));
        }
    }
    let mut list = List::read("length.txt");
    list.write_if_asked(&found);
    let rule = format!(
        "Functions have at most {FUNCTION_MAX} lines and files {FILE_MAX} (STYLE, Code 1; length.txt)"
    );
    list.compare(&rule, &found);
    for (about, seen) in &found {
        let lines =
            |text: &str| text.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("N lines");
        assert!(lines(seen) <= lines(&list.entries[about]), "{about} has grown to {seen}: {rule}");
    }
}

#[test]
fn a_function_is_measured_from_its_name_to_its_brace() {
    let text = "impl A {\n    pub(crate) async unsafe fn long<T>(\n        a: T,\n    ) {\n        b();\n    }\n\n    fn short() {}\n}\n";
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let source = Source { path: String::new(), product_lines: lines.len(), lines };
    assert_eq!(functions(&source), [("long".to_owned(), 5)]);
    assert!(has_word("unsafe { x }", "unsafe") && !has_word("unsafe_code", "unsafe"));
}

#[test]
fn comparisons_of_transports_with_literals_are_seen() {
    let seen = |text: &str| compares_transport(&source::without_comments_and_strings(text));
    assert!(seen("if route.transport == \"shm\" && x {") && seen("find(|r| r.transport != \"tcp\")"));
    assert!(!seen("route.transport == name") && !seen("r.transport == *name") && !seen("transport: \"shm\""));
}
