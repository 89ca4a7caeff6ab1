//! Facts about a job that both `join` and `control` need: limits, and the secrets of the job's processes.

pub(crate) mod limits;
mod secret;

use std::time::Duration;

pub use limits::{Liveness, MAX_WORLD_SIZE};
pub use secret::JobSecret;
pub(crate) use secret::{RendezvousKey, mac};

/// Random number that names a job: chosen by rank 0's coordinator, given to all ranks in the welcome.
pub type Cookie = [u8; 16];

/// Default time for which ranks wait for each other, whichever way they join: containers of one job may start minutes apart.
pub const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Ten years: no wait is longer, and clocks do not overflow.
pub(crate) const MOST_PATIENCE: Duration = Duration::from_secs(315_360_000);
