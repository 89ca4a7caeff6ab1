//! The builder with which a rank joins a communicator.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Communicator;
use super::grow::{self, Joining};
use crate::communicator::{Making, WORLD, World, patience};
use crate::config::{Config, Elastic, check_unicode};
use crate::control::{Control, ControlRuntime, Invitation};
use crate::error::{Error, Result};
use crate::files::own_text_of;
use crate::join::{JoinSpec, process_environment};

/// Settings for joining a communicator.
#[derive(Debug, Default)]
pub struct CommunicatorBuilder {
    config: Option<Config>,
    spec: Option<JoinSpec>,
    runtime: Option<ControlRuntime>,
    invitation: Option<Invitation>,
    slot: Option<u32>,
    wait_at_most: Option<Duration>,
}

impl CommunicatorBuilder {
    /// Uses these settings instead of the environment's.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Joins as `spec` describes instead of by the environment.
    #[must_use]
    pub fn join(mut self, spec: JoinSpec) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Joins a running group as a newcomer, with an invitation that one of its members has given
    /// ([`Communicator::accept`]), instead of by the environment. The variable `KOLO_JOIN` does the same: it holds an
    /// invitation, or `file://PATH` of a file with one.
    #[must_use]
    pub fn invitation(mut self, invitation: Invitation) -> Self {
        self.invitation = Some(invitation);
        self
    }

    /// Asks, as a newcomer, for this slot ([`Communicator::slots`]) and no other. The variable `KOLO_SLOT` does the
    /// same.
    #[must_use]
    pub const fn slot(mut self, slot: u32) -> Self {
        self.slot = Some(slot);
        self
    }

    /// Limits the time for which a newcomer waits to be admitted. Without a limit it waits as long as the group
    /// lives.
    #[must_use]
    pub const fn wait_at_most(mut self, time: Duration) -> Self {
        self.wait_at_most = Some(time);
        self
    }

    /// Shares a control thread with other ranks of this process.
    #[must_use]
    pub fn control_runtime(mut self, runtime: ControlRuntime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Joins. Blocks until all ranks have joined. A newcomer blocks until the group admits it, or until the last
    /// member is gone.
    ///
    /// # Errors
    /// As [`Communicator::from_env`]. For a newcomer, [`Error::Join`](crate::Error::Join) if no member is reached
    /// ([`JoinFailure::Invitation`](crate::JoinFailure::Invitation)), if its version, settings or slot do not fit
    /// ([`JoinFailure::Disagreement`](crate::JoinFailure::Disagreement)), or if it was not admitted within the time
    /// set by [`CommunicatorBuilder::wait_at_most`].
    pub fn connect(self) -> Result<Communicator> {
        check_unicode()?;
        self.connect_by(&process_environment)
    }

    /// Like [`CommunicatorBuilder::connect`], with another environment. For Kolo's own bindings.
    ///
    /// # Errors
    /// See [`CommunicatorBuilder::connect`].
    #[doc(hidden)]
    pub fn connect_by(self, environment: &dyn Fn(&str) -> Option<String>) -> Result<Communicator> {
        let config = self.config.map_or_else(|| Config::from_lookup(environment), Config::checked)?;
        let elastic = Elastic::from_lookup(environment)?;
        let source = || self.invitation.map(Source::Given).or_else(|| Source::find(environment));
        if self.spec.is_none()
            && let Some(source) = source()
        {
            let mut spec = JoinSpec::newcomer(environment)?;
            spec.ports.clone_from(&config.port_range);
            let slot = self.slot.map_or_else(|| slot_of(environment), |slot| Ok(Some(slot)))?;
            let runtime = self.runtime.map_or_else(ControlRuntime::new, Ok)?;
            let invite = || source.read();
            let how = Joining { invite: &invite, slot, elastic, wait_at_most: self.wait_at_most };
            return grow::join(&how, &config, spec, runtime);
        }
        let mut spec = match self.spec {
            Some(spec) => spec,
            None => JoinSpec::from_env(environment)?,
        };
        let started = Instant::now();
        spec.timeout = patience(&config);
        spec.ports.clone_from(&config.port_range);
        let runtime = self.runtime.map_or_else(ControlRuntime::new, Ok)?;
        let control = Control::join(&spec, &runtime)?;
        make(control, config, elastic, started)
    }

    /// Makes the communicator of ranks that have already joined. All of them call it, once. For Kolo's own tools.
    ///
    /// # Errors
    /// See [`Communicator::from_env`].
    #[doc(hidden)]
    pub fn over(self, control: Control) -> Result<Communicator> {
        let config = self.config.map_or_else(Config::from_env, Ok)?;
        make(control, config, Elastic::default(), Instant::now())
    }
}

/// Source of a newcomer's invitation.
enum Source {
    Given(Invitation),
    /// The text of `KOLO_JOIN`.
    Text(String),
    /// A file, which may not exist yet or may be rewritten meanwhile.
    File(PathBuf),
}

impl Source {
    fn find(environment: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| environment(name).filter(|text| !text.trim().is_empty());
        let of_restarted = || {
            let path = set("KOLO_INVITE").filter(|_| is_restarted(environment))?;
            Some(format!("file://{path}"))
        };
        let text = set("KOLO_JOIN").or_else(of_restarted)?;
        let path = text.trim().strip_prefix("file://").map(PathBuf::from);
        Some(path.map_or(Self::Text(text), Self::File))
    }

    fn read(&self) -> Result<Invitation> {
        match self {
            Self::Given(invitation) => Ok(invitation.clone()),
            Self::Text(text) => text.parse(),
            Self::File(path) => {
                let problem =
                    |error| Error::system(format!("reading the invitation {}", path.display()), error);
                own_text_of(path).map_err(problem)?.parse()
            }
        }
    }
}

/// Returns whether torchrun has started this worker to replace one that died.
fn is_restarted(environment: &dyn Fn(&str) -> Option<String>) -> bool {
    let times = environment("TORCHELASTIC_RESTART_COUNT").and_then(|text| text.trim().parse::<u32>().ok());
    times.is_some_and(|times| times > 0)
}

fn slot_of(environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<u32>> {
    let set = |name: &str| environment(name).filter(|text| !text.trim().is_empty());
    let of_restarted = || set("RANK").filter(|_| is_restarted(environment) && set("KOLO_JOIN").is_none());
    let text = set("KOLO_SLOT").or_else(of_restarted);
    let number = |text: String| {
        let wrong = || {
            Error::configuration(
                "KOLO_SLOT",
                format!("'{text}' is not a slot number"),
                "Set it to a number from 0",
            )
        };
        text.trim().parse().map_err(|_| wrong())
    };
    text.map(number).transpose()
}

fn make(control: Control, config: Config, elastic: Elastic, started: Instant) -> Result<Communicator> {
    let members: Arc<[u32]> = (0..control.world_size()).collect();
    let rank = control.rank();
    let world = Arc::new(World::new(control, elastic));
    let deadline = deadline_to_connect(started, Instant::now(), patience(&config));
    Communicator::make(Making {
        world,
        id: WORLD,
        members,
        rank,
        config,
        deadline,
        ancestors: Arc::default(),
    })
}

/// Returns when ranks that have joined give up making their communicator: at the end of the time for joining. Ranks
/// that had to wait for the last one have little of that time left, so each has some seconds in any case. Making the
/// communicator takes milliseconds; the seconds are for slow networks.
fn deadline_to_connect(started: Instant, joined: Instant, patience: Duration) -> Instant {
    const MOMENTS: Duration = Duration::from_secs(10);
    (started + patience).max(joined + patience.min(MOMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_torchrun_starts_again_is_a_newcomer_where_there_are_invitations() {
        let found = |set: &[(&str, &str)]| {
            let environment =
                |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
            let source = Source::find(&environment).map(|source| match source {
                Source::File(path) => path.display().to_string(),
                Source::Text(text) => text,
                Source::Given(_) => unreachable!(),
            });
            (source, slot_of(&environment).unwrap())
        };
        let (invite, rank, again) =
            (("KOLO_INVITE", "/i"), ("RANK", "2"), ("TORCHELASTIC_RESTART_COUNT", "1"));
        assert_eq!(found(&[invite, rank, again]), (Some("/i".into()), Some(2)));
        assert_eq!(found(&[invite, rank, ("TORCHELASTIC_RESTART_COUNT", "0")]), (None, None));
        assert_eq!(found(&[rank, again]).0, None, "torchrun's own way");
        assert_eq!(found(&[invite, rank, again, ("KOLO_JOIN", "abc")]), (Some("abc".into()), None));
    }

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
