//! The ways to reach a GPU's memory, and their descriptions.

use std::fmt;
use std::str::FromStr;

/// The user's choice: `KOLO_GDR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The best way that works.
    #[default]
    Auto,
    /// A way in which the adapter reaches the memory itself; otherwise it is an error.
    Require,
    /// Staging, whichever ways work.
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

/// How the GPU's driver must export memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaBuf {
    /// In its default way.
    Plain,
    /// Mapped for PCIe, on GPUs with a coherent link to the processor, which adapters do not have.
    Pcie,
}

/// How the adapter reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By a descriptor that the GPU's driver exports.
    DmaBuf(DmaBuf),
    /// By a kernel module between the drivers.
    PeerMemory,
    /// It does not: the bytes go through pinned memory of the host.
    Staged,
}

/// How bytes that an adapter has written become visible to the GPU before a message is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// No flush: the device orders such writes before everything that follows.
    NotNeeded,
    /// A call of the GPU's driver.
    Driver,
    /// A read of the last bytes by the same adapter, over the same path.
    ReadBack,
}

/// A way that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruled {
    /// "dma-buf", "peer memory".
    pub way: &'static str,
    /// The reason, in plain words.
    pub because: String,
}

/// The way chosen, and the reasons why no better one is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The way chosen.
    pub path: Path,
    /// The flush before a message is reported.
    pub flush: Flush,
    /// The better ways that cannot be used, in order.
    pub ruled_out: Vec<Ruled>,
}

impl fmt::Display for Plan {
    /// Writes one line.
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
            (_, Flush::Driver) => f.write_str("; flushed by the GPU driver")?,
            (_, Flush::ReadBack) => f.write_str("; flushed by reading back")?,
        }
        write_ruled(f, &self.ruled_out)
    }
}

/// Error: `KOLO_GDR=require` is set, and the adapter cannot reach the GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// All ways that cannot be used, in order.
    pub ruled_out: Vec<Ruled>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KOLO_GDR=require is set, but the adapter cannot reach the GPU's memory")?;
        write_ruled(f, &self.ruled_out)
    }
}

impl std::error::Error for Refused {}

fn write_ruled(f: &mut fmt::Formatter<'_>, ruled_out: &[Ruled]) -> fmt::Result {
    ruled_out.iter().try_for_each(|Ruled { way, because }| write!(f, "; not {way}: {because}"))
}
