//! Rules for documents: links lead somewhere, sentences begin with their subject, and settings are described.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// Documents that programs generate.
const GENERATED: [&str; 2] = ["docs/benchmarks.md", "docs/scale.md"];

/// Returns all documents of the repository, without those of its dependencies.
fn documents() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir()
                && !path.is_symlink()
                && !name.starts_with('.')
                && !["target", "shared"].contains(&&*name)
            {
                folders.push(path);
            } else if name.ends_with(".md") {
                all.push(path);
            }
        }
    }
    assert!(all.len() > 15, "documents are found: {all:?}");
    all.sort();
    all
}

/// Returns the text without code blocks, line by line.
fn prose(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("the document can be read");
    let mut in_code = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((at + 1, line.to_owned()));
        }
    }
    lines
}

/// Returns the anchor of a heading, as GitHub and rustdoc make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links(line: &str) -> Vec<String> {
    let begins = line.match_indices("](").map(|(at, _)| &line[at + 2..]);
    begins.filter_map(|rest| rest.split(')').next()).map(|link| link.trim().to_owned()).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        for (at, line) in prose(&document) {
            for link in links(&line) {
                // Links to items, which rustdoc checks, and to other sites.
                let is_item = link.contains("::")
                    || (!link.contains('.') && !link.contains('/') && !link.contains('#'));
                if is_item || link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
                let target = if file.is_empty() {
                    document.clone()
                } else {
                    document.parent().expect("it lies in a folder").join(file)
                };
                let has_heading = || {
                    heading.is_empty()
                        || prose(&target)
                            .iter()
                            .any(|(_, line)| line.starts_with('#') && anchor(line) == heading)
                };
                if !target.exists() || !has_heading() {
                    broken.push(format!("{}:{at}: {link}", document.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "Links that lead nowhere:\n{}", broken.join("\n"));
}

/// Returns whether a sentence has a clause as its subject: "What is copied ...", "Who waits ...". Questions may begin
/// so.
fn begins_with_a_clause(sentence: &str) -> bool {
    let first = sentence.split_whitespace().next().unwrap_or_default();
    let is_clause =
        ["What", "Who", "Whoever", "Whatever", "Whom", "Whose"].contains(&first.trim_end_matches([',', '.']));
    is_clause && !sentence.trim_end().ends_with('?')
}

/// Returns the sentences of a paragraph.
fn sentences(paragraph: &str) -> Vec<&str> {
    let ends = paragraph.match_indices(['.', '?', '!', ':']).map(|(at, _)| at + 1);
    let ends: Vec<usize> =
        ends.filter(|at| paragraph[*at..].starts_with(' ')).chain([paragraph.len()]).collect();
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(&ends).map(|(begin, end)| paragraph[begin..*end].trim()).collect()
}

#[test]
fn sentences_begin_with_their_subject() {
    let mut found = Vec::new();
    for document in documents() {
        let name = document.strip_prefix(root()).expect("it lies below").to_string_lossy().into_owned();
        // The style guide shows examples of what it forbids.
        if GENERATED.contains(&&*name) || name == "docs/STYLE.md" {
            continue;
        }
        let mut paragraph = String::new();
        let lines = prose(&document);
        let ends = lines.iter().map(Some).chain([None]);
        for line in ends {
            let text = line.map_or("", |(_, line)| line.trim());
            let starts_anew = ["- ", "* ", "#", "|", "1. "].iter().any(|sign| text.starts_with(sign));
            if text.is_empty() || starts_anew {
                let bad = sentences(&paragraph).into_iter().filter(|sentence| begins_with_a_clause(sentence));
                found.extend(bad.map(|sentence| format!("{name}: {sentence}")));
                paragraph.clear();
            }
            if !text.starts_with(['#', '|']) {
                paragraph += text.trim_start_matches(['-', '*', ' ']);
                paragraph.push(' ');
            }
        }
    }
    assert!(
        found.is_empty(),
        "Sentences whose subject is a clause (STYLE, Sentences 1):\n{}",
        found.join("\n")
    );
}

/// Returns the paragraphs of a source file's comments, with their first lines. Items of lists are paragraphs of their
/// own.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut in_code) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let comment =
            line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
        in_code = comment.is_some_and(|words| words.starts_with("```") != in_code);
        let Some(words) = comment.filter(|words| !in_code && !words.is_empty() && !words.starts_with("```"))
        else {
            is_open = false;
            continue;
        };
        let item = words.trim_start_matches(|c: char| c.is_ascii_digit() || "-*#|. ".contains(c));
        match paragraphs.last_mut() {
            Some((_, paragraph)) if is_open && item.len() == words.len() => {
                paragraph.push(' ');
                *paragraph += words;
            }
            _ => paragraphs.push((at + 1, item.to_owned())),
        }
        is_open = true;
    }
    paragraphs
}

#[test]
fn sentences_of_comments_do_so_too() {
    let folders = [
        "bindings",
        "benches",
        "collectives",
        "examples",
        "membership",
        "runtime",
        "tests",
        "tools",
        "transport",
    ];
    let mut found = Vec::new();
    for path in folders.into_iter().flat_map(crate::source::paths) {
        let text = fs::read_to_string(root().join(&path)).expect("the file can be read");
        for (line, paragraph) in comments(&text) {
            let bad = sentences(&paragraph).into_iter().filter(|sentence| begins_with_a_clause(sentence));
            found.extend(bad.map(|sentence| format!("{path}:{line}: {sentence}")));
        }
    }
    assert!(
        found.is_empty(),
        "Comments whose subject is a clause (STYLE, Sentences 1):\n{}",
        found.join("\n")
    );
}

/// Source files that read settings from the environment, without the variables of other programs.
const READERS: [&str; 4] = [
    "runtime/src/config.rs",
    "runtime/src/join/env.rs",
    "runtime/src/api/builder.rs",
    "runtime/src/config/elastic.rs",
];

/// Returns the `KOLO_*` variables that stand in a text between two marks.
fn variables(text: &str, mark: char) -> BTreeSet<String> {
    let begins = text.match_indices(mark).map(|(at, _)| &text[at + mark.len_utf8()..]);
    let names = begins.filter_map(|rest| rest.split_once(mark)).map(|(name, _)| name);
    let is_variable = |name: &&str| {
        let rest = name.strip_prefix("KOLO_");
        rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    names.filter(is_variable).map(str::to_owned).collect()
}

#[test]
fn the_page_of_settings_is_complete() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("the file can be read");
    let in_code: BTreeSet<String> = READERS.iter().flat_map(|path| variables(&read(path), '"')).collect();
    let described = variables(&read("docs/settings.md"), '`');
    assert!(in_code.len() > 30, "settings are found: {in_code:?}");
    let missing: Vec<_> = in_code.difference(&described).collect();
    let unknown: Vec<_> = described.difference(&in_code).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "missing in docs/settings.md: {missing:?}; {unknown:?}"
    );
}

/// Returns the references of a comment to sections of documents, such as `docs/plans.md, "The file"`.
fn references(comment: &str) -> Vec<(String, String)> {
    let begins = comment.match_indices("docs/").map(|(at, _)| &comment[at..]);
    let references = begins.filter_map(|rest| {
        let (file, after) = rest.split_once(".md, ")?;
        let mark = after.chars().next().filter(|mark| ['"', '*'].contains(mark))?;
        let heading = after[1..].split(mark).next()?;
        (!file.contains(' ')).then(|| (format!("{file}.md"), heading.to_owned()))
    });
    references.collect()
}

#[test]
fn references_of_comments_lead_somewhere() {
    let mut broken = Vec::new();
    for path in
        ["collectives", "membership", "runtime", "transport"].into_iter().flat_map(crate::source::paths)
    {
        let text = fs::read_to_string(root().join(&path)).expect("the file can be read");
        for (line, comment) in comments(&text) {
            for (file, heading) in references(&comment) {
                let target = root().join(&file);
                let is_there = target.exists()
                    && prose(&target).iter().any(|(_, line)| line.trim_start_matches('#').trim() == heading);
                if !is_there {
                    broken.push(format!("{path}:{line}: {file}, {heading}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "Comments that refer to missing sections:\n{}", broken.join("\n"));
}

/// Returns the modules that a file declares, without those for tests.
fn declared(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let modules = (0..lines.len()).filter(|at| *at == 0 || !lines[at - 1].starts_with("#[cfg("));
    let name =
        |at: usize| lines[at].strip_suffix(';')?.trim_start_matches("pub(crate) ").strip_prefix("mod ");
    modules.filter_map(name).collect()
}

#[test]
fn tables_of_files_are_complete() {
    let (mut tables, mut missing) = (0, Vec::new());
    for path in
        ["collectives", "membership", "runtime", "transport"].into_iter().flat_map(crate::source::paths)
    {
        let text = fs::read_to_string(root().join(&path)).expect("the file can be read");
        let Some((_, table)) = text.split_once("//! | file | contents |") else { continue };
        let rows: String = table.lines().skip(1).take_while(|line| line.starts_with("//! |")).collect();
        tables += 1;
        let lacks = |module: &&str| !rows.contains(&format!("`{module}`"));
        missing.extend(declared(&text).into_iter().filter(lacks).map(|module| format!("{path}: {module}")));
    }
    assert!(tables > 1, "tables are found");
    assert!(missing.is_empty(), "Modules that the table above them lacks:\n{}", missing.join("\n"));
}

#[test]
fn the_rules_for_documents_see_what_they_look_for() {
    assert_eq!(anchor("## What is in it?"), "what-is-in-it");
    assert_eq!(links("see [a](b.md#c) and [d](e)"), ["b.md#c", "e"]);
    assert!(variables("`KOLO_A`, `KOLO_`, `x KOLO_B`", '`').into_iter().eq(["KOLO_A".to_owned()]));
    let reference = ("docs/a.md".to_owned(), "One two".to_owned());
    assert_eq!(references("See docs/a.md, \"One two\", and docs/b.md."), [reference]);
    assert!(begins_with_a_clause("Who leaves early is named."));
    assert!(
        !begins_with_a_clause("What happens when a peer dies?") && !begins_with_a_clause("A rank waits.")
    );
    assert_eq!(declared("mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod c;\nmod d {"), ["a", "b"]);
    let text = "/// One two\n/// three. Who\n/// acts.\nfn f() {} // no\n    // - Four.\n    // - Five\n/// ```\n/// // What code\n/// ```";
    let paragraphs = ["One two three. Who acts.", "Four.", "Five"].map(str::to_owned);
    assert!(comments(text).into_iter().map(|(_, paragraph)| paragraph).eq(paragraphs));
    assert_eq!(sentences("One. Two: three? v1.2 four"), ["One.", "Two:", "three?", "v1.2 four"]);
}
