//! Lists of exceptions, one per line: `subject: reason`, or the subject alone if the rule asks for no reason; `#`
//! begins a comment.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::root;

/// Exceptions of one rule, by subject.
pub(crate) struct List {
    path: PathBuf,
    pub(crate) entries: BTreeMap<String, String>,
}

impl List {
    /// Reads the list of this name.
    pub(crate) fn read(name: &str) -> Self {
        let path = root().join("tests/tests/tidy").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let entries = lines.map(|line| {
            let (about, why) = line.split_once(": ").unwrap_or((line, ""));
            (about.to_owned(), why.to_owned())
        });
        Self { entries: entries.collect(), path }
    }

    /// Fails if an entry has no reason.
    pub(crate) fn with_reasons(self) -> Self {
        for (about, why) in &self.entries {
            assert!(why.len() > 10, "{}: no reason for {about}", self.path.display());
        }
        self
    }

    /// Fails unless exactly the listed subjects are found. `found` maps each to a description.
    pub(crate) fn compare(&self, rule: &str, found: &BTreeMap<String, String>) {
        let new: Vec<String> = found
            .iter()
            .filter(|(about, _)| !self.entries.contains_key(*about))
            .map(|(about, seen)| format!("  {about}: {seen}"))
            .collect();
        let gone: Vec<&String> = self.entries.keys().filter(|about| !found.contains_key(*about)).collect();
        assert!(new.is_empty(), "{rule}. Not so here:\n{}", new.join("\n"));
        assert!(
            gone.is_empty(),
            "{}: no longer so, which is good; take these lines out: {gone:#?}",
            self.path.display()
        );
    }

    /// Replaces the entries, if `KOLO_TIDY_WRITE` asks for it. Comments at the beginning are kept.
    pub(crate) fn write_if_asked(&mut self, found: &BTreeMap<String, String>) {
        if std::env::var_os("KOLO_TIDY_WRITE").is_none() {
            return;
        }
        let old = fs::read_to_string(&self.path).expect("it was read before");
        let mut text: String =
            old.lines().take_while(|line| line.starts_with('#')).flat_map(|l| [l, "\n"]).collect();
        for (about, seen) in found {
            let colon = if seen.is_empty() { "" } else { ": " };
            text += &format!("{about}{colon}{seen}\n");
        }
        fs::write(&self.path, text).expect("the list can be written");
        self.entries.clone_from(found);
    }
}
