//! Tests that the codes of errors are the same in the runtime's table, in the documents and in the texts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use kolo::error::codes::{ALL, explanation};
use kolo::{Cluster, Communicator, Config, Error, JoinSpec, Locator};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/troubleshooting.md");
    fs::read_to_string(path).expect("docs/troubleshooting.md")
}

/// Converts a heading to the form that links use.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn codes_are_in_order_and_complete() {
    let codes: Vec<_> = ALL.iter().map(|row| row.code).collect();
    assert!(codes.is_sorted() && codes.iter().collect::<BTreeSet<_>>().len() == codes.len(), "{codes:?}");
    for row in ALL {
        assert!(row.code.len() == 5 && row.code.starts_with('K'), "{row:?}");
        assert!(row.cause.ends_with('.') && !row.remedies.is_empty(), "{row:?}");
        assert!(row.remedies.iter().all(|remedy| remedy.ends_with('.')), "{row:?}");
        assert_eq!(explanation(&row.code.to_lowercase()), Some(row));
    }
    assert_eq!(explanation("K0000"), None);
}

#[test]
fn the_page_has_every_code_and_its_section() {
    let page = page();
    let headings: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("##")).map(|h| h.trim_matches(['#', ' '])).collect();
    let row = |of: &kolo::error::codes::Explanation| {
        format!("| {} | {} | [{}](#{}) |", of.code, of.title, of.section, anchor(of.section))
    };
    let wanted: Vec<String> = ALL.iter().map(row).collect();
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with("| K0")).collect();
    assert_eq!(found, wanted, "docs/troubleshooting.md should have these rows:\n{}", wanted.join("\n"));
    for row in ALL {
        assert!(headings.contains(row.section), "{}: no section '{}'", row.code, row.section);
    }
}

#[test]
fn texts_end_with_their_code() {
    let refused = Cluster::try_local(1, |comm| comm.broadcast(&mut [0_u8], 1)).unwrap_err();
    let folder = tempfile::tempdir().expect("a folder");
    let alone = |world_size, locator| {
        let config = Config::default().with(|config| config.join_timeout = Duration::from_millis(300));
        let spec = JoinSpec::new(0, world_size, locator, "a test");
        Communicator::builder().config(config).join(spec).connect().unwrap_err()
    };
    let nobody_comes = alone(2, Locator::File { path: folder.path().join("meet") });
    let setting = Error::configuration("KOLO_X", "what is wrong", "What to set");
    for (error, code) in [(refused, "K0101"), (nobody_comes, "K0301"), (setting, "K0201")] {
        assert!(error.to_string().ends_with(&format!(" [{code}]")), "{error}");
        assert_eq!(error.code(), code);
    }
}
