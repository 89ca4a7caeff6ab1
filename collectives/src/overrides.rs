//! Choices of algorithms by the user, parsed from text.
//!
//! The text is a comma-separated list of `[collective[@from-to]:]algorithm`, in which the first rule that fits
//! an operation counts: `ring`, `all_reduce:tree`,
//! `all_reduce@0-64K:one_shot,all_reduce@64K-:ring,broadcast:binomial`. Sizes are bytes as
//! [`Request`](crate::select::Request) counts them, with K, M and G for powers of 1024, both ends included. A
//! rule without a collective applies where its algorithm can serve; a rule with one is binding, and fails
//! where the algorithm cannot serve.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::Algorithm;
use crate::plan::Collective;
use crate::select::{Order, may_serve};
use crate::task::Task;

/// A parsed list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overrides {
    /// The rules in order of precedence.
    pub rules: Vec<Rule>,
}

/// One rule of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The collective that the rule applies to; all if `None`.
    pub collective: Option<Collective>,
    /// Fewest bytes that the rule applies to.
    pub from: u64,
    /// Most bytes that the rule applies to.
    pub to: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
}

impl Overrides {
    /// Returns the algorithm asked for, to be passed to [`Request::forced`](crate::select::Request::forced) of the same call.
    #[must_use]
    pub fn force(&self, task: &Task, bytes: u64, irregular: bool, order: Order) -> Option<Algorithm> {
        let fits = |rule: &&Rule| match rule.collective {
            // A rule with an algorithm over shards does not apply to other reductions, nor the reverse.
            Some(collective) => {
                collective == task.collective && rule.algorithm.takes_shards() == task.shards.is_some()
            }
            None => rule.may_serve(task, irregular, order),
        };
        let mut rules = self.rules.iter().filter(|rule| (rule.from..=rule.to).contains(&bytes));
        rules.find(fits).map(|rule| rule.algorithm)
    }
}

impl Rule {
    /// Returns whether the algorithm can do a call, so that a rule without a collective applies to it.
    #[must_use]
    pub fn may_serve(&self, task: &Task, irregular: bool, order: Order) -> bool {
        may_serve(self.algorithm, task, irregular, order).is_ok()
    }
}

/// An error in a list of overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideError {
    /// No algorithm has this name.
    Algorithm {
        /// The entry.
        entry: String,
        /// The name.
        name: String,
    },
    /// No collective has this name.
    Collective {
        /// The entry.
        entry: String,
        /// The name.
        name: String,
    },
    /// Not a range of sizes.
    Range {
        /// The entry.
        entry: String,
        /// The range.
        range: String,
    },
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm { entry, name } => {
                let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
                write!(f, "in {entry:?}: unknown algorithm {name:?}; expected one of {}", names.join(", "))
            }
            Self::Collective { entry, name } => {
                let names: Vec<&str> = Collective::ALL.iter().map(|collective| collective.name()).collect();
                write!(f, "in {entry:?}: unknown collective {name:?}; expected one of {}", names.join(", "))
            }
            Self::Range { entry, range } => {
                write!(f, "in {entry:?}: {range:?} is not a range of sizes, such as 0-64K, 64K-1M or 1M-")
            }
        }
    }
}

impl std::error::Error for OverrideError {}

impl FromStr for Overrides {
    type Err = OverrideError;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Ok(Self { rules: entries.map(str::parse).collect::<Result<_, _>>()? })
    }
}

impl FromStr for Rule {
    type Err = OverrideError;

    fn from_str(entry: &str) -> Result<Self, Self::Err> {
        let (scope, algorithm) = match entry.rsplit_once(':') {
            Some((scope, algorithm)) => (Some(scope), algorithm),
            None => (None, entry),
        };
        let algorithm = algorithm.trim().parse().map_err(|_| OverrideError::Algorithm {
            entry: entry.to_owned(),
            name: algorithm.trim().to_owned(),
        })?;
        let Some(scope) = scope else {
            return Ok(Self { collective: None, from: 0, to: u64::MAX, algorithm });
        };
        let (name, range) = match scope.split_once('@') {
            Some((name, range)) => (name.trim(), Some(range.trim())),
            None => (scope.trim(), None),
        };
        let collective = name
            .parse()
            .map_err(|_| OverrideError::Collective { entry: entry.to_owned(), name: name.to_owned() })?;
        let (from, to) = match range {
            None => (0, u64::MAX),
            Some(range) => sizes(range)
                .ok_or_else(|| OverrideError::Range { entry: entry.to_owned(), range: range.to_owned() })?,
        };
        Ok(Self { collective: Some(collective), from, to, algorithm })
    }
}

/// Parses `from-to` or `from-`.
fn sizes(range: &str) -> Option<(u64, u64)> {
    let (from, to) = range.split_once('-')?;
    let from = size(from)?;
    let to = if to.trim().is_empty() { u64::MAX } else { size(to)? };
    (from <= to).then_some((from, to))
}

fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rule_that_fits_counts() {
        let overrides: Overrides =
            "all_reduce@0-64K:one_shot, all_reduce@64K-1M:ring ,broadcast:binomial,direct"
                .parse()
                .expect("valid");
        let all_reduce = Task::new(Collective::AllReduce, 4);
        let force = |task: &Task, bytes| overrides.force(task, bytes, false, Order::Any);
        assert_eq!(force(&all_reduce, 0), Some(Algorithm::OneShot));
        assert_eq!(force(&all_reduce, 65_536), Some(Algorithm::OneShot));
        assert_eq!(force(&all_reduce, 65_537), Some(Algorithm::Ring));
        assert_eq!(force(&all_reduce, 1 << 30), Some(Algorithm::Direct));
        assert_eq!(force(&Task::new(Collective::Broadcast, 4), 1), Some(Algorithm::Binomial));
        assert_eq!(force(&Task::new(Collective::Barrier, 4), 0), None);
        assert_eq!("".parse::<Overrides>().expect("nothing to ask for").rules, []);
    }

    #[test]
    fn a_rule_without_a_collective_applies_where_its_algorithm_can_serve() {
        use Algorithm as A;
        let force = |rules: &str, task: &Task, irregular, order| {
            rules.parse::<Overrides>().expect("valid").force(task, 1 << 10, irregular, order)
        };
        let (all_to_all, gather) = (Task::new(Collective::AllToAll, 4), Task::new(Collective::Gather, 4));
        assert_eq!(force("bruck", &all_to_all, false, Order::Any), Some(A::Bruck));
        assert_eq!(force("bruck", &all_to_all, true, Order::Any), None, "it needs blocks of equal length");
        assert_eq!(force("all_to_all:bruck", &all_to_all, true, Order::Any), Some(A::Bruck), "binding");
        assert_eq!(force("binomial", &gather, true, Order::Any), None);
        assert_eq!(force("binomial,direct", &gather, true, Order::Any), Some(A::Direct));
        let all_reduce = Task::new(Collective::AllReduce, 4);
        assert_eq!(force("ring", &all_reduce, false, Order::Any), Some(A::Ring));
        assert_eq!(force("ring", &all_reduce, false, Order::Canonical), None);
        assert_eq!(force("ring,halving", &all_reduce, false, Order::Canonical), Some(A::Halving));
        assert_eq!(force("all_reduce:ring", &all_reduce, false, Order::Canonical), Some(A::Ring), "binding");
    }

    #[test]
    fn errors_name_what_there_is() {
        let error = |text: &str| text.parse::<Overrides>().expect_err(text).to_string();
        assert!(error("rings").contains("\"rings\"; expected one of one_shot, recursive_doubling"));
        assert!(error("allreduce:ring").contains("\"allreduce\"; expected one of all_reduce"));
        for range in ["64K", "2-1", "x-", "1T-", "-5", "99999999999999G-"] {
            assert!(error(&format!("all_reduce@{range}:ring")).contains("range of sizes"), "{range}");
        }
    }
}
