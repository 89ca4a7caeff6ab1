//! The ways, and their descriptions.

use std::fmt;
use std::str::FromStr;

/// The user's choice: `KOLO_GDR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The best that works.
    #[default]
    Auto,
    /// The adapter reaches the memory itself, or it is an error.
    Require,
    /// Staging, whatever works.
    Off,
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "off" => Ok(Self::Off),
            _ => Err("auto, require or off"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Off => "off",
        })
    }
}

/// How the GPU's driver is to export memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaBuf {
    /// As it does by itself.
    Plain,
    /// Mapped for PCIe, where GPU and adapter would otherwise meet over another way that adapters do not have.
    Pcie,
}

/// How the adapter reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By a descriptor of the GPU's driver.
    DmaBuf(DmaBuf),
    /// By a kernel module between the drivers.
    PeerMemory,
    /// Not at all: through pinned memory of the host.
    Staged,
}

/// The way in which bytes that an adapter has written become visible to the GPU before anybody is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The device orders such writes before whatever comes after.
    NotNeeded,
    /// A call of the GPU's driver.
    Driver,
    /// A read of the last bytes by the same adapter, back over the same way.
    ReadBack,
}

/// A way that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruled {
    /// "dma-buf", "peer memory".
    pub way: &'static str,
    /// Why not, in plain words.
    pub because: String,
}

/// The path taken, and the reasons why no better one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The way.
    pub path: Path,
    /// The flush before a message is announced.
    pub flush: Flush,
    /// The better ways, in order.
    pub ruled_out: Vec<Ruled>,
}

impl fmt::Display for Plan {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            Path::DmaBuf(DmaBuf::Plain) => f.write_str("dma-buf")?,
            Path::DmaBuf(DmaBuf::Pcie) => f.write_str("dma-buf, mapped for PCIe")?,
            Path::PeerMemory => f.write_str("peer memory")?,
            Path::Staged => f.write_str("staged through pinned host memory")?,
        }
        match (self.path, self.flush) {
            (Path::Staged, _) => {}
            (_, Flush::NotNeeded) => f.write_str("; no flush needed")?,
            (_, Flush::Driver) => f.write_str("; flushed by the GPU's driver")?,
            (_, Flush::ReadBack) => f.write_str("; flushed by reading back")?,
        }
        write_ruled(f, &self.ruled_out)
    }
}

/// `KOLO_GDR=require`, and the adapter does not reach the GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The ways, in order.
    pub ruled_out: Vec<Ruled>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KOLO_GDR=require, and the adapter cannot reach the GPU's memory")?;
        write_ruled(f, &self.ruled_out)
    }
}

impl std::error::Error for Refused {}

fn write_ruled(f: &mut fmt::Formatter<'_>, ruled_out: &[Ruled]) -> fmt::Result {
    ruled_out.iter().try_for_each(|Ruled { way, because }| write!(f, "; not {way}: {because}"))
}
