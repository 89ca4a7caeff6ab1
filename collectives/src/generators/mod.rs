//! The algorithms: one file each, and a row in the table below. [`Algorithm`] is the door, [`Generator`] what a file provides.

mod binomial;
mod bruck;
mod chain;
mod circulant;
mod circulant_pipelined;
mod circulant_schedule;
mod direct;
mod dissemination;
mod halving;
mod hierarchical;
mod leader;
mod one_shot;
mod recursive_doubling;
mod ring;
mod shards;
mod shares;
mod staged;
mod tree;
mod window;

use crate::builder::PlanBuilder;
use crate::generator::Generator;
use crate::plan::{Blocks, Space};
use crate::task::Task;
pub(crate) use window::windows as windows_of;

macro_rules! table {
    ($($(#[$doc:meta])+ $algorithm:ident = $generator:expr,)+) => {
        /// The algorithms Kolo knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])+ $algorithm,)+
        }

        impl Algorithm {
            /// All of them.
            pub const ALL: [Self; [$(stringify!($algorithm)),+].len()] = [$(Self::$algorithm),+];

            pub(crate) fn generator(self) -> &'static dyn Generator {
                match self {
                    $(Self::$algorithm => &$generator,)+
                }
            }
        }
    };
}

// Of algorithms that cost the same, the first one listed is taken.
table! {
    /// Everybody gets all vectors and reduces them by itself, in canonical order.
    OneShot = one_shot::OneShot,
    /// Exchange whole vectors with partners at doubling distance.
    RecursiveDoubling = recursive_doubling::RecursiveDoubling,
    /// Träff's exchange on a circulant graph; for broadcast and reduce its pipelined form.
    Circulant = circulant::Circulant,
    /// Neighbours on a ring, over one or several channels.
    Ring = ring::Ring,
    /// Two binary trees, each for half of the vector.
    Tree = tree::Tree,
    /// Binomial tree.
    Binomial = binomial::Binomial,
    /// Straight from owner to destination.
    Direct = direct::Direct,
    /// The same with shares by the speed of the hosts, where that differs.
    Shares = shares::Shares,
    /// Bruck's few rounds for small blocks.
    Bruck = bruck::Bruck,
    /// Signals at doubling distance.
    Dissemination = dissemination::Dissemination,
    /// Halving vectors with partners at doubling distance, in canonical order.
    Halving = halving::Halving,
    /// From rank to rank.
    Chain = chain::Chain,
    /// Within hosts, then between them, in parallel on all ranks of a host.
    Hierarchical = hierarchical::Hierarchical,
    /// Within hosts to one leader each, then among the leaders.
    Leader = leader::Leader,
    /// As `Hierarchical`, with shared memory within hosts.
    HierarchicalStaged = staged::HierarchicalStaged,
    /// As `Leader`, with shared memory within hosts.
    LeaderStaged = staged::LeaderStaged,
    /// Over memory that the ranks of a host share: collectives that only copy, and the barrier.
    Staged = staged::Staged,
    /// The same, where each rank that wants a result reduces everything by itself.
    StagedOneShot = staged::StagedOneShot,
    /// The same, where all ranks share the reduction out.
    StagedTwoShot = staged::StagedTwoShot,
    /// Shards: every rank reduces everything by itself, along the tree over the shards.
    ShardsOneShot = shards::ShardsOneShot,
    /// The same, where all ranks share the reduction out.
    ShardsTwoShot = shards::ShardsTwoShot,
    /// In each other's symmetric buffers, with nothing in between.
    Window = window::Window,
}

/// The plan of a world of one rank: the result is its own contribution.
pub(crate) fn copy_own(b: &mut PlanBuilder, task: &Task, first: u32, count: u32) {
    if task.out_of_place() {
        b.copy(Blocks::range(Space::Input, first, count), Blocks::range(Space::Output, first, count));
    }
}
