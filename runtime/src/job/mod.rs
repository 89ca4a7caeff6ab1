//! Facts about a job that both `join` and `control` need: limits, and the job's secrets.

pub(crate) mod limits;
mod secret;

use std::time::{Duration, Instant};

pub use limits::{Liveness, MAX_WORLD_SIZE};
pub use secret::JobSecret;
pub(crate) use secret::{RendezvousKey, mac};

/// Random number that identifies a job. Rank 0's coordinator chooses it and tells it to all ranks in the welcome.
pub type Cookie = [u8; 16];

/// Default time that ranks wait for each other, whichever way they join. Containers of one job may start minutes apart.
pub const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Ten years. No wait may be longer, so that clock arithmetic does not overflow.
pub(crate) const MOST_PATIENCE: Duration = Duration::from_secs(315_360_000);

/// Returns the moment after this time from now, which may be as long as a program likes.
pub(crate) fn deadline_after(time: Duration) -> Instant {
    Instant::now() + time.min(MOST_PATIENCE)
}
