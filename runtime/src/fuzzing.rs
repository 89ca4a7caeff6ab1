//! Fuzz targets: the parsers of outside bytes as functions, for tests/fuzz. Built only with `cfg(fuzzing)` and in
//! tests.
//!
//! Each function accepts any bytes, must not panic, and asserts the properties that must hold.

use crate::profile::Profile;
use crate::{communicator, control, join, plans};

/// A target: its name, and the function that takes its bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 14] = [
    ("control_frames", control_frames),
    ("control_handshake", control_handshake),
    ("control_sealed", control_sealed),
    ("coordinator_state", coordinator_state),
    ("members", members),
    ("card", card),
    ("notice", notice),
    ("pmi", pmi),
    ("url", url),
    ("node_list", node_list),
    ("environment", environment),
    ("unique_id", unique_id),
    ("profile", profile),
    ("plans", plans),
];

/// Frames between ranks and coordinator.
pub fn control_frames(bytes: &[u8]) {
    control::fuzz::frames(bytes);
}

/// Both sides of the handshake.
pub fn control_handshake(bytes: &[u8]) {
    control::fuzz::handshake(bytes);
}

/// Sealed records.
pub fn control_sealed(bytes: &[u8]) {
    control::fuzz::sealed(bytes);
}

/// The coordinator, driven by a script of events and times.
pub fn coordinator_state(bytes: &[u8]) {
    control::fuzz::coordinator_state(bytes);
}

/// Frames between members, and an agreement driven by a script of the frames that a member hears.
pub fn members(bytes: &[u8]) {
    control::fuzz::members(bytes);
}

/// A card, which holds a rank's facts for the others when a communicator is made.
pub fn card(bytes: &[u8]) {
    communicator::fuzz_card(bytes);
}

/// Rank 0's publication.
pub fn notice(bytes: &[u8]) {
    join::fuzz::notice(bytes);
}

/// A launcher's answers over PMI-1.
pub fn pmi(bytes: &[u8]) {
    join::fuzz::pmi(bytes);
}

/// Rendezvous URLs.
pub fn url(bytes: &[u8]) {
    join::fuzz::url(bytes);
}

/// Lists of hosts.
pub fn node_list(bytes: &[u8]) {
    join::fuzz::node_list(bytes);
}

/// Variables of launchers and settings.
pub fn environment(bytes: &[u8]) {
    join::fuzz::environment(bytes);
}

/// Unique ids.
pub fn unique_id(bytes: &[u8]) {
    join::fuzz::unique_id(bytes);
}

/// Profiles as `kolo tune` writes them.
pub fn profile(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(profile) = Profile::parse(text)
    {
        let again = Profile::parse(&profile.to_toml()).expect("what it writes it reads");
        assert_eq!(again.digest(), profile.digest());
    }
}

/// Files of plans.
pub fn plans(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(set) = plans::parse(text)
    {
        assert_eq!(plans::parse(&plans::to_text(&set)).as_ref(), Ok(&set), "what it writes it reads");
    }
}

#[cfg(test)]
mod tests {
    /// Runs the corpus of tests/fuzz through the same functions.
    #[test]
    fn the_corpus_passes() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
        for (name, target) in super::TARGETS {
            let files = std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut count = 0;
            for file in files {
                target(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0, "{name} has no corpus");
        }
    }
}
