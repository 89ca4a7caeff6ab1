//! Plans as text for people.

use std::fmt;
use std::str::FromStr;

use crate::plan::{Action, Blocks, Channel, Collective, Cut, Like, Placement, Plan, Space, Step};
use crate::stage::{Members, Stage};

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: no collective has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCollective {
    /// The text that was given.
    pub name: String,
}

impl fmt::Display for UnknownCollective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Collective::ALL.iter().map(|collective| collective.name()).collect();
        write!(f, "unknown collective {:?}; expected one of {}", self.name, names.join(", "))
    }
}

impl std::error::Error for UnknownCollective {}

impl FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|collective| collective.name() == name);
        found.ok_or_else(|| UnknownCollective { name: name.to_owned() })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OutOfPlace => "out of place",
            Self::InPlace => "in place",
        })
    }
}

/// A number of things, with their name.
struct Counted(u32, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "in",
            Self::Output => "out",
            Self::Scratch => "tmp",
            Self::Stage(member) => return write!(f, "stage{member}"),
            Self::Window(member) => return write!(f, "window{member}"),
        })
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.space, Range(self.first, self.count))
    }
}

/// A range of consecutive blocks: the first one and their number.
struct Range(u32, u32);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(first, 1) => write!(f, "[{first}]"),
            Self(first, count) => write!(f, "[{first}..{}]", first + count),
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "rank {}", self.peer),
            index => write!(f, "rank {}/{index}", self.peer),
        }
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(block) => write!(f, "in[{block}]"),
            Self::Output(block) => write!(f, "out[{block}]"),
        }
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::One(member) => write!(f, "member {member}"),
            Self::Below(end) => write!(f, "members 0..{end}"),
        }
    }
}

/// The payload that a rank publishes.
pub(crate) struct Published([Option<Blocks>; 2], Option<Blocks>);

impl Published {
    /// Takes the payload of a `Publish`.
    pub(crate) fn of(src: [Option<Blocks>; 2], except: Option<Blocks>) -> Self {
        Self(src, except)
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [None, None] => f.write_str("presence")?,
            [Some(blocks), None] | [None, Some(blocks)] => write!(f, "{blocks}")?,
            [Some(first), Some(second)] => write!(f, "{first}, {second}")?,
        }
        self.1.map_or(Ok(()), |blocks| write!(f, " but {blocks}"))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, src } => write!(f, "send    {src} to {to}"),
            Self::Recv { from, dst } => write!(f, "recv    {dst} from {from}"),
            Self::RecvReduce { from, with, dst } if with == dst => write!(f, "reduce  {dst} += from {from}"),
            Self::RecvReduce { from, with, dst } => write!(f, "reduce  {dst} = {with} + from {from}"),
            Self::Copy { src, dst } => write!(f, "copy    {dst} = {src}"),
            Self::Reduce { a, b, dst } => write!(f, "reduce  {dst} = {a} + {b}"),
            Self::Signal { to } => write!(f, "signal  {to}"),
            Self::WaitSignal { from } => write!(f, "wait    signal from {from}"),
            Self::Publish { src, except } => write!(f, "publish {}", Published::of(*src, *except)),
            Self::Await { of } => write!(f, "await   {of}"),
            Self::Fold { of, first, count, own, dst } => {
                write!(f, "fold    {dst} = stages{} of {of}", Range(*first, *count))?;
                own.map_or(Ok(()), |own| write!(f, ", own from {own}"))
            }
            Self::Spread { of, first, count, to, at } => {
                let (from, at) = (Range(*first, *count), Range(*at, *count));
                write!(f, "spread  out{at} of {to} = in{from} of {of}")
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)?;
        if self.fence {
            f.write_str(", fenced")?;
        }
        if let Some(after) = self.after {
            write!(f, ", after lane {} step {}", after.lane, after.step)?;
        }
        Ok(())
    }
}

/// Prints the whole program: one line per step, one lane after the other.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} by {}, rank {} of {}, root {}, {}",
            self.collective, self.algorithm, self.rank, self.world_size, self.root, self.placement
        )?;
        match self.cut {
            Cut::Vector { parts } => writeln!(f, "  vector in {}", Counted(parts, "part"))?,
            Cut::Shards { parts, shards } => {
                writeln!(f, "  {} in vectors of {}", Counted(shards, "shard"), Counted(parts, "part"))?;
            }
            Cut::PerRank => writeln!(f, "  blocks of the caller's lengths")?,
        }
        if !self.scratch.is_empty() {
            write!(f, "  scratch: {} like", Counted(self.scratch.len() as u32, "block"))?;
            // The beginning of a long list says enough.
            const SHOWN: usize = 8;
            for like in self.scratch.iter().take(SHOWN) {
                write!(f, " {like}")?;
            }
            writeln!(f, "{}", if self.scratch.len() > SHOWN { " ..." } else { "" })?;
        }
        if let Some(Stage { members, rounds, windows, .. }) = &self.stage {
            let rounds = Counted(rounds.len() as u32, "round");
            writeln!(f, "  stages: {} in {rounds}", Counted(members.len() as u32, "member"))?;
            for (what, of) in [("inputs", windows.inputs), ("outputs", windows.outputs)] {
                of.map_or(Ok(()), |of| writeln!(f, "  windows: {what} of {of}"))?;
            }
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            writeln!(f, "  lane {index}")?;
            for (number, step) in lane.iter().enumerate() {
                writeln!(f, "    {number:>4}  {step}")?;
            }
        }
        Ok(())
    }
}
