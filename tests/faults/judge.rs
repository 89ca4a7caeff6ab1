//! Judgement of what the ranks reported.

use std::time::Duration;

use crate::plan::{Expect, Outcome};

/// How a rank's work ended, by its own report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It made all its calls.
    Finished,
    /// It reported an error.
    Error {
        /// Time on the machine's clock.
        at: Duration,
        kind: String,
        text: String,
    },
}

/// Problems of a trial, by column of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Problems {
    pub hangs: Vec<String>,
    pub blame: Vec<String>,
    pub leaks: Vec<String>,
    /// Wrong data, or panics.
    pub others: Vec<String>,
}

impl Problems {
    pub(crate) fn is_empty(&self) -> bool {
        self.hangs.is_empty() && self.blame.is_empty() && self.leaks.is_empty() && self.others.is_empty()
    }
}

/// Judges the ranks' reports. `ends` is by rank, and `fault` is on the machine's clock.
pub(crate) fn judge(expect: &Expect, ends: &[Option<End>], fault: Duration, problems: &mut Problems) {
    let mut texts = Vec::new();
    for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| !expect.exempt.contains(&(*rank as u32))) {
        match end {
            None => problems.hangs.push(format!("rank {rank} says nothing")),
            Some(End::Finished) => {
                if !matches!(expect.outcome, Outcome::Fine | Outcome::FineOrTold(_)) {
                    problems.others.push(format!("rank {rank} noticed nothing"));
                }
            }
            Some(End::Error { at, kind, text }) => {
                let took = at.saturating_sub(fault);
                if took > expect.within {
                    problems.hangs.push(format!("rank {rank} noticed after {:.1} s", took.as_secs_f64()));
                }
                if let Some(problem) = blame(expect, kind, text) {
                    problems.blame.push(format!("rank {rank}: {problem}: {text}"));
                }
                texts.push(text.as_str());
            }
        }
    }
    if texts.is_empty() {
        return;
    }
    if !expect.says.is_empty() && !texts.iter().any(|text| expect.says.iter().any(|word| text.contains(word)))
    {
        problems.blame.push(format!("nobody says '{}': {}", expect.says.join("' or '"), texts[0]));
    }
    let some = |text: &str| expect.named.is_empty() || expect.named.iter().any(|rank| mentions(text, *rank));
    let names = |text: &&str| match expect.outcome {
        Outcome::Pair => expect.named.iter().all(|rank| mentions(text, *rank)),
        Outcome::Told(["Unsupported"]) => true,
        // The rank that aborted is not the one that is late.
        Outcome::Late => some(claim(text)),
        _ => some(text),
    };
    if !texts.iter().any(names) {
        problems.blame.push(format!("nobody names {:?}: {}", expect.named, texts[0]));
    }
}

/// Returns the problem with one rank's text, if there is one.
fn blame(expect: &Expect, kind: &str, text: &str) -> Option<String> {
    let healthy = |rank: &u32| !expect.named.contains(rank);
    let of_kind = |kinds: &[&str]| {
        (!kinds.contains(&kind)).then(|| format!("{kind} instead of {}", kinds.join(" or ")))
    };
    if let Some(rank) = lost_in(text).into_iter().find(healthy) {
        return Some(format!("rank {rank} is healthy"));
    }
    match expect.outcome {
        Outcome::Fine => Some("an error".into()),
        Outcome::Lost => {
            let names = lost_in(text).iter().any(|rank| expect.named.contains(rank));
            of_kind(&["PeerLost", "Aborted"]).or((!names).then(|| "the lost rank is not named".into()))
        }
        Outcome::Mismatch => {
            let names = expect.named.iter().any(|rank| mentions(text, *rank));
            of_kind(&["Mismatch", "Aborted"]).or((!names).then(|| "the odd rank is not named".into()))
        }
        Outcome::Late => {
            let names = expect.named.iter().any(|rank| mentions(claim(text), *rank));
            let others = silent_in(text).into_iter().find(healthy);
            let wrong = others.filter(|_| !names).map(|rank| format!("rank {rank} is healthy"));
            of_kind(&["Timeout", "Aborted"]).or(wrong)
        }
        Outcome::Pair => {
            // A rank that gives up is one of the pair only by chance, so its naming itself does not count.
            let said = if text.contains("not finished after") { claim(text) } else { text };
            let names = expect.named.iter().all(|rank| mentions(said, *rank));
            let lost = lost_in(text).first().map(|rank| format!("rank {rank} is not lost"));
            lost.or((!names).then(|| "the pair is not named".into()))
        }
        Outcome::Told(kinds) | Outcome::FineOrTold(kinds) => of_kind(kinds),
    }
}

/// Returns the text without the speaker, and without the rank that aborted.
fn claim(text: &str) -> &str {
    let text = text.split_once(": ").map_or(text, |(_, rest)| rest);
    match text.strip_prefix("the communicator was aborted by rank ") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, reason)| reason),
        None => text,
    }
}

/// Whether a text names a rank, alone or in a list.
fn mentions(text: &str, rank: u32) -> bool {
    numbers_after_rank(text).iter().any(|(number, _)| *number == rank)
}

/// Returns the ranks that "are lost" in a text.
fn lost_in(text: &str) -> Vec<u32> {
    let found = numbers_after_rank(text);
    found.into_iter().filter(|(_, rest)| rest.starts_with(" is lost")).map(|(number, _)| number).collect()
}

/// Returns the ranks that do not answer, according to a text.
fn silent_in(text: &str) -> Vec<u32> {
    let found = numbers_after_rank(text);
    found.into_iter().filter(|(_, rest)| rest.starts_with(" (no answer")).map(|(number, _)| number).collect()
}

/// Returns the numbers after "rank", or in a list after "ranks", each with the text that follows it.
fn numbers_after_rank(text: &str) -> Vec<(u32, &str)> {
    let mut found = Vec::new();
    for (at, word) in text.match_indices("rank") {
        let mut rest = text[at + word.len()..].trim_start_matches('s').trim_start_matches([' ', '=']);
        loop {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let Ok(number) = rest[..digits].parse() else { break };
            rest = &rest[digits..];
            found.push((number, rest));
            let next = rest.strip_prefix(", ").or_else(|| rest.strip_prefix(" and "));
            match next {
                Some(behind) => rest = behind,
                None => break,
            }
        }
    }
    found
}

/// Checks that the judge itself can distinguish right from wrong.
pub(crate) fn check_itself() {
    let lost = "rank 1, all_reduce(8 x f32, sum), operation #3: rank 12 is lost (gone). Look";
    assert_eq!(lost_in(lost), [12]);
    assert!(mentions(lost, 12) && !mentions(lost, 2) && mentions("missing: ranks 3, 4 and 5", 4));
    let aborted = "rank 1, barrier, operation #3: the communicator was aborted by rank 0: waiting for rank 2 (no answer)";
    assert!(mentions(claim(aborted), 2) && !mentions(claim(aborted), 0) && !mentions(claim(aborted), 1));
    assert_eq!(silent_in(aborted), [2]);
    let error = |text: &str, kind: &str, at: u64| {
        Some(End::Error { at: Duration::from_secs(at), kind: kind.into(), text: text.into() })
    };
    let verdict = |named: &[u32], outcome, ends: &[Option<End>]| {
        let mut problems = Problems::default();
        judge(&Expect::new(outcome, named, 5), ends, Duration::from_secs(1), &mut problems);
        (problems.hangs.len(), problems.blame.len(), problems.others.len())
    };
    let right = error("rank 0, barrier, operation #3: rank 1 is lost (gone)", "PeerLost", 2);
    assert_eq!(verdict(&[1], Outcome::Lost, &[right.clone(), None]), (0, 0, 0));
    assert_eq!(verdict(&[1], Outcome::Lost, &[None, None]), (1, 0, 0));
    assert_eq!(verdict(&[1], Outcome::Lost, &[Some(End::Finished), None]), (0, 0, 1));
    assert_ne!(verdict(&[2], Outcome::Lost, &[right.clone(), None, None]).1, 0);
    assert_eq!(verdict(&[1], Outcome::Fine, &[right, None]).1, 1);
    let late = error("rank 0, barrier, operation #3: rank 1 is lost (gone)", "PeerLost", 9);
    assert_eq!(verdict(&[1], Outcome::Lost, &[late, None]).0, 1);
    let wrong =
        error("rank 0, barrier, operation #3: not finished; waiting for rank 2 (no answer)", "Timeout", 2);
    assert_ne!(verdict(&[1], Outcome::Late, &[wrong, None]).1, 0);
}
