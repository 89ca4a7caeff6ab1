//! The members without which an agreement has ended, by place in the communicator.

use std::collections::BTreeMap;

/// Most reasons in one text. Those of the other members are most likely alike.
const MOST_REASONS: usize = 4;

/// A member that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    pub(crate) rank: u32,
    /// Why the last attempt to connect to it failed, if it did.
    pub(crate) why: Option<String>,
}

/// Members whose votes a member lacked when it gave up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Members that live and have not voted.
    pub(crate) late: Vec<u32>,
    /// Members that do not answer.
    pub(crate) silent: Vec<Silent>,
    /// The member that collects the votes, if it is another one. It alone knows who is late, perhaps itself.
    pub(crate) collector: Option<u32>,
}

impl Missing {
    /// Returns the members that are known to live.
    pub(crate) fn alive(&self) -> Vec<u32> {
        self.late.iter().copied().chain(self.collector).collect()
    }
}

impl Silent {
    /// Returns members in these places. `unreachable` has the reasons by world rank.
    pub(super) fn all(places: Vec<u32>, members: &[u32], unreachable: &BTreeMap<u32, String>) -> Vec<Self> {
        let why = |place: u32| unreachable.get(&members[place as usize]).cloned();
        places.into_iter().map(|rank| Self { rank, why: why(rank) }).collect()
    }

    /// Returns their ranks, and the reasons for which some could not be reached, as the end of a text.
    pub(crate) fn told(all: &[Self]) -> (Vec<u32>, String) {
        let reason = |silent: &Self| {
            Some(format!("; no connection to rank {}: {}", silent.rank, silent.why.as_ref()?))
        };
        let reasons = all.iter().filter_map(reason).take(MOST_REASONS).collect();
        (all.iter().map(|silent| silent.rank).collect(), reasons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_why_a_member_could_not_be_reached() {
        let unreachable = BTreeMap::from([(7, "10.0.0.3:4000: Network is unreachable".to_owned())]);
        let silent = Silent::all(vec![0, 2], &[5, 6, 7], &unreachable);
        let (ranks, reasons) = Silent::told(&silent);
        assert_eq!(ranks, [0, 2]);
        assert_eq!(reasons, "; no connection to rank 2: 10.0.0.3:4000: Network is unreachable");
    }
}
