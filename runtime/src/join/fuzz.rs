//! The parsers of texts from launchers, files, stores and users, as functions of bytes for [`crate::fuzzing`].

use std::collections::HashMap;

use super::file::Notice;
use super::{JoinSpec, UNIQUE_ID_BYTES, UniqueId, nodelist, pmi};
use crate::config::Config;

/// Parses rank 0's publications in files, stores, boards and multicast answers.
pub(crate) fn notice(bytes: &[u8]) {
    if let Ok(notice) = Notice::parse(bytes) {
        let _ = (notice.key(), notice.writer());
        assert!(Notice::parse(&notice.to_json()).is_ok());
    }
}

/// Parses a launcher's answers over PMI-1, on rank 0 and on the others.
pub(crate) fn pmi(bytes: &[u8]) {
    pmi::fuzz(bytes);
}

/// Parses rendezvous URLs.
pub(crate) fn url(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(parsed) = super::url::parse(text, "a script")
    {
        let _ = parsed.locator.to_string();
    }
}

/// Parses lists of hosts as Slurm writes them.
pub(crate) fn node_list(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = nodelist::first(text);
    }
}

/// Parses environment variables: lines of NAME=value. Variables that name files are left out.
pub(crate) fn environment(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let variables: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let lookup = |name: &str| {
        let is_file = ["KOLO_PROFILE", "KOLO_PLAN", "XDG_RUNTIME_DIR"].contains(&name);
        variables.get(name).filter(|_| !is_file).map(|value| (*value).to_owned())
    };
    let _ = JoinSpec::from_env(&lookup);
    if let Ok(config) = Config::from_lookup(&lookup) {
        let _ = config.rows();
    }
}

/// Parses unique ids.
pub(crate) fn unique_id(bytes: &[u8]) {
    let mut id = [0; UNIQUE_ID_BYTES];
    let most = bytes.len().min(id.len());
    id[..most].copy_from_slice(&bytes[..most]);
    if let Ok(spec) = (UniqueId { bytes: id }).join_spec(4, 1) {
        assert!(spec.secret.is_some(), "an id keeps others out");
    }
}
