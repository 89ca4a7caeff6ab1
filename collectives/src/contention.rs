//! Prices of message patterns for ranks that share processors.
//!
//! A waiting rank yields to the other ranks of its processor, and runs again after they have had their turns. Its wait
//! therefore depends on the rank it waits for, on how many others have work, and on how much they move through the
//! caches between its turns. The constants of the model hold for short messages round a ring, from which `kolo tune`
//! finds them; this module holds the factors for other patterns. They were measured over TCP with 4 and 8 ranks on 2
//! processors, unless stated otherwise.

use crate::model::Model;

/// The pattern that the messages of one round form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Two ranks exchange; the pairs change every round.
    Pairs,
    /// Each rank sends to one rank and receives from another; both change every round.
    Circle,
    /// Each rank sends to one neighbour and receives from the other, the same in every round.
    Neighbours,
    /// All ranks pass on the parts of one long message, one part per round.
    Pipeline,
    /// As `Pipeline`, along a chain: each rank reduces a part from one neighbour and passes the sum on to the other.
    Chain,
    /// Each rank has this many messages in flight at once, to different ranks.
    AllAtOnce(f64),
    /// This share of the ranks is active, and each of them either sends or receives.
    OneWay(f64),
    /// One rank sends to, or receives from, all others at once.
    Fan,
}

/// Factors on the model's price of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weight {
    /// Factor on latency, and on the work that a message causes whatever its length.
    pub(crate) turns: f64,
    /// Factor on the time on processors.
    pub(crate) processors: f64,
    /// Factor on the bytes on links.
    pub(crate) links: f64,
}

/// Factor for exchanging with all ranks of a host at a time, instead of with one after the other. Measured with 4 ranks
/// from 256 KiB to 64 MiB: all-reduce, all-gather and reduce-scatter over TCP take 1.16 to 1.65 times as long as round
/// the ring, and over shared memory 1.17 to 1.28 times as long as by halving.
const ALL_AT_ONCE: f64 = 1.3;

/// Factor for a round in which a rank waits for its partner, instead of for a rank that waits for a third: no rank gets
/// a turn in vain. Barriers, and all-gathers of 8 bytes by halving compared to the ring: 0.78 to 0.87.
const PAIRED: f64 = 0.8;

/// Factor for long messages to another rank in each round, instead of shorter ones or always to the same neighbour.
/// All-gathers by halving take 1.3 to 1.7 times as long as round the ring where messages are long, and 0.6 to 0.9 times
/// where they are not.
const CHANGING: f64 = 1.5;

/// Shortest long message: together with its copy in the kernel it no longer fits into a second-level cache of 1 MiB.
pub(crate) const LONG_BYTES: f64 = (512 << 10) as f64;

/// Shortest long message of exchanges one after the other. No rank passes on received data, so turns count for more
/// than caches: an all-to-all of 8 to 128 MiB among 8 ranks takes 1.1 to 1.3 times as long in segments of 256 KiB as in
/// those of 1 or 2 MiB, and among 4 ranks equally long; both take longer again in segments of 4 MiB and more.
const EXCHANGED_LONG_BYTES: f64 = (4 << 20) as f64;

/// Factor for long messages round the ring. A block that is passed on is still in the second-level cache unless it is
/// long. Reduce-scatters of 32 MiB take 1.2 to 1.4 times as long in segments of 2 and 4 MiB as in those of 256 KiB, and
/// in-place all-gathers of 8 to 128 MiB 1.15 to 1.3 times as long as in those of 512 KiB.
const PASSED_ON: f64 = 1.3;

/// Shortest long message that is only passed on. Where it is also reduced, a rank's own data needs as much cache beside
/// it.
const PASSED_ON_LONG_BYTES: f64 = 2.0 * LONG_BYTES;

/// Factor for the parts of a message that all ranks pass on. A late rank keeps all others waiting, and every processor
/// has late ranks. Broadcasts of 512 KiB to 8 MiB take 1.3 to 2.1 times the cost of their bytes by the circulant
/// algorithm, and 2.4 to 5 times along a chain.
const LOCKSTEP: f64 = 2.0;

/// Factor for long messages that are reduced, except between the same two neighbours: the message, the rank's own data
/// and the sum all need room in its caches. See docs/measurements.md, "Reductions among ranks that share processors,
/// over TCP".
const REDUCED: f64 = 2.3;

/// Shortest message for [`REDUCED`] where all ranks send and receive.
const REDUCED_LONG_BYTES: f64 = (128 << 10) as f64;

/// Shortest message for [`REDUCED`] where data goes one way: ranks that only send run ahead, and the data they have sent
/// fills the caches too.
const REDUCED_ONE_WAY_LONG_BYTES: f64 = (64 << 10) as f64;

/// The share of a message's latency and fixed work that remains on a chain: a rank takes and passes on several parts in
/// one turn. From the table named at [`REDUCED`].
const CHAINED: f64 = 0.3;

impl Weight {
    pub(crate) const ONE: Self = Self { turns: 1.0, processors: 1.0, links: 1.0 };
}

impl Pattern {
    /// Returns the weight of a round among `ranks` ranks on one host, with messages of `bytes` that are reduced or not.
    pub(crate) fn weight(self, model: &Model, ranks: u32, bytes: f64, reduces: bool) -> Weight {
        if model.oversubscription <= 1.0 || ranks == 2 {
            return Weight::ONE;
        }
        match self {
            Self::AllAtOnce(at_once) if at_once > 1.0 => Weight { links: ALL_AT_ONCE, ..Weight::ONE },
            // Over shared memory, no other factor was found to matter.
            _ if !model.has_system_calls() => Weight::ONE,
            Self::Neighbours => {
                let long_bytes = if reduces { LONG_BYTES } else { PASSED_ON_LONG_BYTES };
                Weight { links: longer(bytes, long_bytes, PASSED_ON), ..Weight::ONE }
            }
            Self::Pairs => Weight { turns: PAIRED, links: changing(bytes, reduces), ..Weight::ONE },
            Self::AllAtOnce(_) => {
                Weight { turns: PAIRED, links: longer(bytes, EXCHANGED_LONG_BYTES, CHANGING), ..Weight::ONE }
            }
            Self::Circle => Weight { links: changing(bytes, reduces), ..Weight::ONE },
            Self::Pipeline => Weight { links: LOCKSTEP, ..Weight::ONE },
            Self::Chain => Weight { turns: CHAINED, ..Weight::ONE },
            Self::OneWay(share) => one_way(model, share, gathered(bytes, reduces)),
            // At any time the one rank is busy, and one of the others.
            Self::Fan => one_way(model, 2.0 / f64::from(ranks), ALL_AT_ONCE * gathered(bytes, reduces)),
        }
    }
}

/// The idle ranks leave the processors to the active ones, and an active rank handles one end of a message, not both.
fn one_way(model: &Model, share: f64, links: f64) -> Weight {
    let processors = share.max(1.0 / model.oversubscription);
    Weight { turns: 1.0, processors, links: links * processors / 2.0 }
}

/// Factor on links where a rank sends to another rank in each round.
fn changing(bytes: f64, reduces: bool) -> f64 {
    if reduces { longer(bytes, REDUCED_LONG_BYTES, REDUCED) } else { longer(bytes, LONG_BYTES, CHANGING) }
}

/// Factor on links where all ranks send to one.
fn gathered(bytes: f64, reduces: bool) -> f64 {
    if reduces { longer(bytes, REDUCED_ONE_WAY_LONG_BYTES, REDUCED) } else { 1.0 }
}

fn longer(bytes: f64, long_bytes: f64, factor: f64) -> f64 {
    if bytes >= long_bytes { factor } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LinkClass;

    fn contended() -> Model {
        let intra = LinkClass { overhead_seconds: 2e-6, ..LinkClass::SHARED_MEMORY };
        Model { oversubscription: 2.0, intra, ..Model::TCP }
    }

    #[test]
    fn ranks_with_processors_of_their_own_do_not_care() {
        for pattern in [Pattern::Pairs, Pattern::Circle, Pattern::AllAtOnce(3.0), Pattern::OneWay(0.5)] {
            assert_eq!(pattern.weight(&Model::TCP, 4, 1e7, true), Weight::ONE);
        }
        assert_eq!(Pattern::Circle.weight(&contended(), 2, 1e7, true), Weight::ONE);
    }

    #[test]
    fn pairs_are_best_for_short_messages_and_the_ring_for_long_ones() {
        let of = |pattern: Pattern, bytes: f64| pattern.weight(&contended(), 4, bytes, false);
        assert_eq!(of(Pattern::Neighbours, 6e5), Weight::ONE);
        for other in [Pattern::Circle, Pattern::Neighbours, Pattern::AllAtOnce(3.0), Pattern::Pipeline] {
            assert!(of(Pattern::Pairs, 1e3).turns < of(other, 1e3).turns);
        }
        assert!(of(Pattern::Pairs, 6e5).links > 1.0 && of(Pattern::Pairs, 1e3).links == 1.0);
        assert!(of(Pattern::OneWay(0.5), 1e3).links < 1.0);
    }

    #[test]
    fn long_reductions_want_short_parts_along_a_chain() {
        let of = |pattern: Pattern, bytes: f64| pattern.weight(&contended(), 8, bytes, true);
        for pattern in [Pattern::Pairs, Pattern::Circle, Pattern::OneWay(0.5), Pattern::Fan] {
            assert!(of(pattern, 2e5).links > of(pattern, 3e4).links, "{pattern:?}");
            assert!(of(Pattern::Chain, 3e4).turns < of(pattern, 3e4).turns, "{pattern:?}");
        }
        assert_eq!(of(Pattern::Chain, 3e4).links, 1.0);
    }

    #[test]
    fn what_is_reduced_or_passed_on_wants_shorter_messages_than_what_is_only_exchanged() {
        let links =
            |pattern: Pattern, bytes: f64, reduces| pattern.weight(&contended(), 4, bytes, reduces).links;
        assert!(links(Pattern::Neighbours, 6e5, true) > links(Pattern::Neighbours, 2e5, true));
        assert_eq!(links(Pattern::Neighbours, 6e5, false), 1.0);
        assert!(links(Pattern::Neighbours, 2e6, false) > 1.0);
        assert_eq!(links(Pattern::AllAtOnce(1.0), 2e6, false), 1.0);
        assert!(links(Pattern::AllAtOnce(1.0), 1e7, false) > 1.0);
    }
}
