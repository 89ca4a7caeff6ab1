//! Calls for which the user has named an algorithm: they take its plan, and skip the faster ways of one host.

use std::ops::RangeInclusive;

use kolo_collectives::overrides::Overrides;
use kolo_collectives::plan::Collective;
use kolo_collectives::task::Task;

use super::{Call, Counts};

/// The calls of a communicator for which an algorithm is forced. The same on all ranks, since the settings are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forced {
    /// Collectives of which some length is, by their bit: mostly none, and asked with every call.
    collectives: u16,
    /// Lengths in bytes of each, by collective.
    lengths: Vec<Vec<RangeInclusive<u64>>>,
}

impl Forced {
    /// `task` gives the communicator's task for a collective.
    pub(crate) fn new(overrides: &Overrides, task: impl Fn(Collective) -> Task) -> Self {
        let lengths: Vec<Vec<_>> = Collective::ALL
            .iter()
            .map(|collective| {
                let fits = overrides.rules.iter().filter(|rule| match rule.collective {
                    Some(named) => named == *collective,
                    None => rule.algorithm.supports(&task(*collective)).is_ok(),
                });
                fits.map(|rule| rule.from..=rule.to).collect()
            })
            .collect();
        let has_any = |(at, lengths): (usize, &Vec<_>)| u16::from(!lengths.is_empty()) << at;
        let collectives = lengths.iter().enumerate().map(has_any).sum();
        Self { collectives, lengths }
    }

    /// Whether an algorithm is forced for a call of even counts.
    #[inline]
    pub(crate) fn covers(&self, call: &Call) -> bool {
        self.names(call.collective) && self.covers_length(call)
    }

    /// Whether one is for some length of a collective.
    #[inline]
    pub(crate) fn names(&self, collective: Collective) -> bool {
        self.collectives & 1 << collective as u16 != 0
    }

    #[cold]
    fn covers_length(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        let bytes = (count * call.data_type.size()) as u64;
        self.lengths[call.collective as usize].iter().any(|range| range.contains(&bytes))
    }
}
