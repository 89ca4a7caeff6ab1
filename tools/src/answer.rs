//! Answers for people: a title, named values, and paragraphs below.

use std::fmt;

/// An answer of `explain` or `sim`.
#[derive(Debug)]
pub(crate) struct Answer {
    title: String,
    rows: Vec<(&'static str, String)>,
    paragraphs: Vec<String>,
}

impl Answer {
    /// Makes an answer without paragraphs.
    pub(crate) fn new<const N: usize>(title: String, rows: [(&'static str, String); N]) -> Self {
        Self { title, rows: rows.into(), paragraphs: Vec::new() }
    }

    /// Adds a value, if it is known.
    pub(crate) fn row(&mut self, name: &'static str, value: Option<String>) {
        self.rows.extend(value.map(|value| (name, value)));
    }

    /// Adds a paragraph.
    pub(crate) fn paragraph(&mut self, text: String) {
        self.paragraphs.push(text);
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.rows.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<10} {value}"))?;
        self.paragraphs.iter().try_for_each(|text| writeln!(f, "\n{text}"))
    }
}
