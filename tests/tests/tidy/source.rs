//! Source files in the form that the rules check: without comments, strings and test modules.

use std::fs;
use std::path::Path;

use crate::root;

/// A source file.
pub(crate) struct Source {
    /// Path relative to the repository.
    pub(crate) path: String,
    /// Lines of the file: blank where they hold only comments; strings have no contents.
    pub(crate) lines: Vec<String>,
    /// Number of lines before the first test module.
    pub(crate) product_lines: usize,
}

/// Returns the sources of the library crates, which programs link.
pub(crate) fn product() -> Vec<Source> {
    let folders = [
        "runtime/src",
        "collectives/src",
        "transport/src",
        "transport/verbs/src",
        "transport/gdr/src",
        "bindings/c/src",
        "bindings/mpi/abi/src",
        "bindings/mpi/engine/src",
        "bindings/mpi/mpich/src",
        "bindings/python/src",
    ];
    let mut all: Vec<Source> = folders.into_iter().flat_map(under).collect();
    all.retain(|source| !is_test_file(&source.path));
    assert!(all.len() > 200, "sources are found");
    all
}

/// Returns all Rust files under a folder.
pub(crate) fn under(folder: &str) -> Vec<Source> {
    paths(folder).into_iter().map(|path| read(&path)).collect()
}

/// Returns the paths of all Rust files under a folder, relative to the repository.
pub(crate) fn paths(folder: &str) -> Vec<String> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.retain(|path| !path.contains("/target/"));
    paths.sort();
    paths
}

fn collect(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path.strip_prefix(root()).expect("it lies below").to_string_lossy().into_owned());
        }
    }
}

fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let helpers = path.contains("/conformance/") || path.contains("/tests/");
    helpers || name == "tests.rs" || name.ends_with("_tests.rs") || name.contains("fuzz")
}

fn read(path: &str) -> Source {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let lines: Vec<String> = without_comments_and_strings(&text).lines().map(str::to_owned).collect();
    let is_test = |at: &usize| {
        lines[*at].trim() == "#[cfg(test)]" && lines.get(at + 1).is_some_and(|next| next.contains("mod "))
    };
    let product_lines = (0..lines.len()).find(is_test).unwrap_or(lines.len());
    Source { path: path.to_owned(), lines, product_lines }
}

impl Source {
    /// Returns the lines that are not tests.
    pub(crate) fn product(&self) -> &[String] {
        &self.lines[..self.product_lines]
    }
}

/// Blanks out comments and the contents of strings and characters; line numbers are kept.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blanked = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = hashes + 2;
            rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        out.extend(rest[..blanked].chars().filter(|c| *c == '\n'));
        rest = &rest[blanked..];
    }
    out
}

/// Returns the number of `#` of a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.chars().take_while(|c| *c == '#').count();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// Returns whether a quote begins a character, and not a lifetime.
fn is_character(text: &str) -> bool {
    let mut after = text.chars().skip(1);
    after.next() == Some('\\') || after.next() == Some('\'')
}

/// Returns the length of a quoted text.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_and_strings_are_blanked() {
    let text = "let a = \"unsafe // \\\" x\"; // unsafe\nlet b = 'x'; let c: &'static str = r#\"unsafe \"#;\n/* unsafe\n */ d";
    let seen = without_comments_and_strings(text);
    assert_eq!(seen, "let a = ; \nlet b = ; let c: &'static str = ;\n\n d");
}
