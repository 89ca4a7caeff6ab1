//! Settings on which ranks must agree, since they decide which messages are exchanged.

use kolo_transport::foreign::printable;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::{Error, JoinFailure, Result};

/// Longest value that is shown, in bytes; it may be another rank's.
const VALUE_BYTES: usize = 512;

const NAMES: [&str; 9] = [
    "KOLO_ALGO",
    "KOLO_DETERMINISM",
    "KOLO_SEGMENT_BYTES",
    "KOLO_WINDOW",
    "KOLO_EXCHANGE_BYTES",
    "KOLO_ONE_SHOT_BYTES",
    "KOLO_SYMMETRIC_BYTES",
    "KOLO_TRANSPORT",
    "KOLO_NETWORK_PROBE",
];

/// Such settings of one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Agreed {
    /// Each value as a user would write it; `None` where Kolo chooses.
    values: [Option<String>; NAMES.len()],
    /// File of the profile and digest of its constants. The digests must agree; the files may differ.
    profile: Option<(String, String)>,
    /// Files of plans with digests of their contents; again only the digests must agree.
    plans: Vec<(String, String)>,
}

impl Agreed {
    pub(super) fn of(config: &Config) -> Self {
        let rows = config.rows();
        let value =
            |wanted| rows.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| value.clone());
        let profile = config.profile.as_ref();
        Self {
            values: NAMES.map(value),
            profile: profile.map(|known| (known.path.display().to_string(), known.profile.digest())),
            plans: config
                .plans
                .iter()
                .map(|plans| (plans.path.display().to_string(), plans.digest.clone()))
                .collect(),
        }
    }

    /// Describes the settings that differ, with both values; empty if none does.
    fn difference(&self, other: &Self) -> String {
        let tell = |name, here: Option<String>, there: Option<String>| {
            let shown = |value: String| printable(&value, VALUE_BYTES);
            let [here, there] = [here, there].map(|value| value.map_or_else(|| "not set".to_owned(), shown));
            format!("{name} is {here} here, {there} there")
        };
        let pairs = NAMES.into_iter().zip(self.values.iter().zip(&other.values));
        let mut texts: Vec<_> = pairs
            .filter(|(_, (here, there))| here != there)
            .map(|(name, (here, there))| tell(name, here.clone(), there.clone()))
            .collect();
        let digest = |side: &Self| side.profile.as_ref().map(|(_, digest)| digest.clone());
        if digest(self) != digest(other) {
            let show = |side: &Self| {
                side.profile.as_ref().map(|(path, digest)| format!("{path} (constants {digest})"))
            };
            texts.push(tell("KOLO_PROFILE", show(self), show(other)));
        }
        let digests = |side: &Self| side.plans.iter().map(|(_, digest)| digest.clone()).collect::<Vec<_>>();
        if digests(self) != digests(other) {
            let show = |side: &Self| {
                let one = |(path, digest): &(String, String)| format!("{path} (plans {digest})");
                let all: Vec<String> = side.plans.iter().map(one).collect();
                Some(all.join(", ")).filter(|text| !text.is_empty())
            };
            texts.push(tell("KOLO_PLAN", show(self), show(other)));
        }
        texts.join("; ")
    }
}

/// Describes the difference between a newcomer's settings ([`Agreed`], as bytes) and these, if there is one.
pub(super) fn objection(ours: &Config, theirs: &[u8]) -> Option<String> {
    let ours = Agreed::of(ours);
    match postcard::from_bytes::<Agreed>(theirs) {
        Ok(theirs) => Some(ours.difference(&theirs)).filter(|text| !text.is_empty()),
        Err(error) => Some(format!("they cannot be read: {error}")),
    }
}

/// Compares the settings of all ranks, in rank order, with those of `rank`.
///
/// # Errors
/// [`Error::Join`] with the first rank whose settings differ.
pub(super) fn check(rank: u32, all: &[&Agreed]) -> Result<()> {
    let Some(ours) = all.get(rank as usize) else { return Ok(()) };
    let differences = all.iter().map(|theirs| ours.difference(theirs));
    let Some((other, difference)) = differences.enumerate().find(|(_, text)| !text.is_empty()) else {
        return Ok(());
    };
    Err(Error::Join {
        rank: Some(rank),
        kind: JoinFailure::Disagreement,
        problem: format!("rank {other} has different settings: {difference}"),
        remedy: "Use the same settings on all ranks, from the environment or in code".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Agreed, check};
    use crate::config::Config;

    fn set(variables: &[(&str, &str)]) -> Agreed {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Agreed::of(
            &Config::from_lookup(&|name| variables.get(name).map(|value| (*value).to_owned())).unwrap(),
        )
    }

    #[test]
    fn what_differs_is_told_as_users_write_it() {
        let plain = set(&[]);
        let other = set(&[
            ("KOLO_ALGO", "ring"),
            ("KOLO_DETERMINISM", "canonical"),
            ("KOLO_SEGMENT_BYTES", "64K"),
            ("KOLO_TRANSPORT", "shm,tcp"),
            ("KOLO_TIMEOUT", "5"),
        ]);
        let text = check(1, &[&plain, &other]).unwrap_err().to_string();
        assert_eq!(
            text,
            "rank 1 could not join: rank 0 has different settings: KOLO_ALGO is ring here, not set there; \
             KOLO_DETERMINISM is canonical here, repeatable there; KOLO_SEGMENT_BYTES is 65536 here, not set \
             there; KOLO_TRANSPORT is shm,tcp here, auto there. Use the same settings on all ranks, from the \
             environment or in code [K0304]"
        );
    }

    #[test]
    fn other_plans_are_told() {
        let with = |hosts: &[u32]| {
            Agreed::of(
                &Config::default().with(|config| config.plans = vec![crate::plans::tests::ring(hosts)]),
            )
        };
        assert_eq!(with(&[0, 0]).difference(&with(&[0, 0])), "");
        let text = with(&[0, 0]).difference(&with(&[0, 1]));
        assert!(text.starts_with("KOLO_PLAN is ring.json (plans ") && text.ends_with(") there"), "{text}");
        let text = with(&[0, 0]).difference(&set(&[]));
        assert!(text.ends_with(" here, not set there"), "{text}");
    }

    #[test]
    fn what_may_differ_does_not_matter() {
        check(0, &[&set(&[]), &set(&[("KOLO_TIMEOUT", "5"), ("KOLO_HOST_ID", "here")])]).unwrap();
    }

    /// A setting that is missing from the table would agree with any value.
    #[test]
    fn each_setting_counts() {
        for (name, value) in [
            ("KOLO_ALGO", "tree"),
            ("KOLO_DETERMINISM", "canonical"),
            ("KOLO_SEGMENT_BYTES", "1"),
            ("KOLO_WINDOW", "1"),
            ("KOLO_EXCHANGE_BYTES", "0"),
            ("KOLO_ONE_SHOT_BYTES", "0"),
            ("KOLO_SYMMETRIC_BYTES", "0"),
            ("KOLO_TRANSPORT", "tcp"),
            ("KOLO_NETWORK_PROBE", "off"),
        ] {
            let text = set(&[]).difference(&set(&[(name, value)]));
            assert!(
                text.starts_with(&format!("{name} is ")) && text.ends_with(&format!("{value} there")),
                "{text}"
            );
        }
    }
}
