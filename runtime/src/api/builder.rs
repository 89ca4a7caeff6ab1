//! Joining.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Communicator;
use crate::communicator::{Making, WORLD, World, patience};
use crate::config::Config;
use crate::control::{Control, ControlRuntime};
use crate::error::Result;
use crate::join::JoinSpec;

/// Settings for joining.
#[derive(Debug, Default)]
pub struct CommunicatorBuilder {
    config: Option<Config>,
    spec: Option<JoinSpec>,
    runtime: Option<ControlRuntime>,
}

impl CommunicatorBuilder {
    /// Uses these settings instead of the environment's.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Joins as described here instead of by the environment.
    #[must_use]
    pub fn join(mut self, spec: JoinSpec) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Shares a control thread with other ranks of this process.
    #[must_use]
    pub fn control_runtime(mut self, runtime: ControlRuntime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Joins. Blocks until all ranks are there.
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    pub fn connect(self) -> Result<Communicator> {
        let config = self.config.map_or_else(Config::from_env, Ok)?;
        let mut spec = match self.spec {
            Some(spec) => spec,
            None => JoinSpec::from_process_env()?,
        };
        let started = Instant::now();
        spec.timeout = patience(&config);
        spec.ports.clone_from(&config.port_range);
        let runtime = self.runtime.map_or_else(ControlRuntime::new, Ok)?;
        let control = Control::join(&spec, &runtime)?;
        make(control, config, started)
    }

    /// Makes the communicator of ranks that have joined already. All of them call it, once. For Kolo's own tools.
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    #[doc(hidden)]
    pub fn over(self, control: Control) -> Result<Communicator> {
        let config = self.config.map_or_else(Config::from_env, Ok)?;
        make(control, config, Instant::now())
    }
}

fn make(control: Control, config: Config, started: Instant) -> Result<Communicator> {
    let members: Arc<[u32]> = (0..control.world_size()).collect();
    let rank = control.rank();
    let world = Arc::new(World::new(control));
    let deadline = deadline_to_connect(started, Instant::now(), patience(&config));
    Communicator::make(Making { world, id: WORLD, members, rank, config, deadline })
}

/// When ranks that have joined give up making their communicator: at the end of the time for joining, of which those that
/// wait for the last one to come have little left then. It takes milliseconds; the moments are for slow networks.
fn deadline_to_connect(started: Instant, joined: Instant, patience: Duration) -> Instant {
    const MOMENTS: Duration = Duration::from_secs(10);
    (started + patience).max(joined + patience.min(MOMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn making_the_communicator_counts_as_joining() {
        let (started, seconds) = (Instant::now(), Duration::from_secs);
        let left = |took: u64, patience: u64| {
            let joined = started + seconds(took);
            deadline_to_connect(started, joined, seconds(patience)) - joined
        };
        assert_eq!(left(1, 60), seconds(59));
        assert_eq!(left(59, 60), seconds(10), "the last one came late");
        assert_eq!(left(3, 3), seconds(3));
    }
}
