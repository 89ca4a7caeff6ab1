//! Calls for which the user has named an algorithm. They take its plan, and skip the faster ways of one host.

use std::ops::RangeInclusive;

use kolo_collectives::Algorithm;
use kolo_collectives::overrides::Overrides;
use kolo_collectives::plan::Collective;
use kolo_collectives::select::Order;
use kolo_collectives::task::Task;
use kolo_collectives::window::Symmetric;

use super::{Call, Counts};

/// The calls of a communicator for which an algorithm is forced. They are the same on all ranks, as the settings are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forced {
    /// Collectives with a rule for any length, one bit each. Usually there are none, and every call looks here.
    collectives: u16,
    /// Rules by collective, in order of precedence.
    rules: Vec<Vec<Rule>>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// Lengths in bytes.
    lengths: RangeInclusive<u64>,
    /// Algorithm; `None` if a file has the plan.
    algorithm: Option<Algorithm>,
    /// The only root for which the rule holds, if any.
    root: Option<u32>,
    /// Whether a call fails if it cannot take the algorithm. An algorithm that was named for all collectives holds
    /// where it can serve; for `window` this is known only once a call is made.
    must_serve: bool,
}

impl Forced {
    /// Collects the rules for calls with this order of reduction. `task` returns the communicator's task for a
    /// collective.
    pub(crate) fn new(overrides: &Overrides, order: Order, task: impl Fn(Collective) -> Task) -> Self {
        let of = |collective: &Collective| -> Vec<Rule> {
            let task = task(*collective);
            let symmetric = task.clone().with_symmetric(Symmetric::All);
            let rule = |rule: &kolo_collectives::overrides::Rule| {
                let must_serve = match rule.collective {
                    Some(named) => named == *collective,
                    None => rule.may_serve(&task, false, order),
                };
                let may_serve = rule.collective.is_none() && rule.may_serve(&symmetric, false, order);
                let lengths = rule.from..=rule.to;
                let algorithm = Some(rule.algorithm);
                (must_serve || may_serve).then_some(Rule { lengths, algorithm, root: None, must_serve })
            };
            // The planner handles algorithms for shards, since no faster way stands beside their plans.
            overrides.rules.iter().filter(|rule| !rule.algorithm.takes_shards()).filter_map(rule).collect()
        };
        Self::of(Collective::ALL.iter().map(of).collect())
    }

    fn of(rules: Vec<Vec<Rule>>) -> Self {
        let has_any = |(at, rules): (usize, &Vec<_>)| u16::from(!rules.is_empty()) << at;
        let collectives = rules.iter().enumerate().map(has_any).sum();
        Self { collectives, rules }
    }

    /// Adds the calls for which a file has a plan: the collective, its root, and the shortest and longest length.
    /// Algorithms take precedence.
    pub(crate) fn with_plans(
        self,
        plans: impl Iterator<Item = (Collective, Option<u32>, (u64, u64))>,
    ) -> Self {
        let mut rules = self.rules;
        rules.resize(Collective::ALL.len(), Vec::new());
        for (collective, root, (from, to)) in plans {
            rules[collective as usize].push(Rule {
                lengths: from..=to,
                algorithm: None,
                root,
                must_serve: true,
            });
        }
        Self::of(rules)
    }

    /// Returns whether an algorithm or a plan is forced for a call of even counts.
    #[inline]
    pub(crate) fn covers(&self, call: &Call) -> bool {
        self.names(call.collective) && self.fitting(call).any(|rule| rule.must_serve)
    }

    /// Returns whether one is forced for some length of a collective.
    #[inline]
    pub(crate) fn names(&self, collective: Collective) -> bool {
        self.collectives & 1 << collective as u16 != 0
    }

    /// Returns the algorithm that takes precedence for a call of even counts.
    #[inline]
    pub(crate) fn first(&self, call: &Call) -> Option<Algorithm> {
        if self.names(call.collective) {
            self.fitting(call).next().and_then(|rule| rule.algorithm)
        } else {
            None
        }
    }

    #[cold]
    fn fitting(&self, call: &Call) -> impl Iterator<Item = &Rule> {
        let bytes = match call.counts {
            Counts::Even(count) => Some((count * call.data_type.size()) as u64),
            Counts::Uneven { .. } | Counts::Shards(_) => None,
        };
        let rules = &self.rules[call.collective as usize];
        rules.iter().filter(move |rule| {
            bytes.is_some_and(|bytes| rule.lengths.contains(&bytes))
                && rule.root.is_none_or(|root| root == call.root)
        })
    }
}
