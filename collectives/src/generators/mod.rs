//! The algorithms: one file each, and one row each in the table below. [`Algorithm`] names them, and each file
//! implements [`Generator`].

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

// The order matters: among algorithms of equal cost, the first one listed is taken.
table! {
    /// Each rank gets all vectors and reduces them by itself, in canonical order.
    OneShot = one_shot::OneShot,
    /// Exchanges of whole vectors with partners at doubling distance.
    RecursiveDoubling = recursive_doubling::RecursiveDoubling,
    /// Träff's exchange on a circulant graph; its pipelined form for broadcast and reduce.
    Circulant = circulant::Circulant,
    /// Transfers between neighbours on a ring, over one or several channels.
    Ring = ring::Ring,
    /// Two binary trees, each for half of the vector.
    Tree = tree::Tree,
    /// Binomial tree.
    Binomial = binomial::Binomial,
    /// Transfers directly from owner to destination.
    Direct = direct::Direct,
    /// As `Direct`, with shares in proportion to the speed of the hosts, where speeds differ.
    Shares = shares::Shares,
    /// Bruck's algorithm: few rounds for small blocks.
    Bruck = bruck::Bruck,
    /// Signals at doubling distance.
    Dissemination = dissemination::Dissemination,
    /// Vectors halved with partners at doubling distance, in canonical order.
    Halving = halving::Halving,
    /// Transfers along a chain, from rank to rank.
    Chain = chain::Chain,
    /// Within hosts first, then between hosts in parallel on all ranks of a host.
    Hierarchical = hierarchical::Hierarchical,
    /// Within hosts to one leader each, then among the leaders.
    Leader = leader::Leader,
    /// As `Hierarchical`, with shared memory within hosts.
    HierarchicalStaged = staged::HierarchicalStaged,
    /// As `Leader`, with shared memory within hosts.
    LeaderStaged = staged::LeaderStaged,
    /// Shared memory of a host: collectives that only copy, and the barrier.
    Staged = staged::Staged,
    /// Shared memory of a host, where each rank that wants a result reduces everything by itself.
    StagedOneShot = staged::StagedOneShot,
    /// Shared memory of a host, where all ranks share the reduction.
    StagedTwoShot = staged::StagedTwoShot,
    /// Shards: each rank reduces everything by itself, along the tree over the shards.
    ShardsOneShot = shards::ShardsOneShot,
    /// Shards, where all ranks share the reduction.
    ShardsTwoShot = shards::ShardsTwoShot,
    /// Direct reads and writes of each other's symmetric buffers, without intermediate copies.
    Window = window::Window,
}

/// Fills the plan of a world of one rank, whose result is its own contribution.
pub(crate) fn copy_own(b: &mut PlanBuilder, task: &Task, first: u32, count: u32) {
    if task.out_of_place() {
        b.copy(Blocks::range(Space::Input, first, count), Blocks::range(Space::Output, first, count));
    }
}
