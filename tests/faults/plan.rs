//! A trial and its required outcome, as data.

use std::time::Duration;

use rustix::process::Signal;

use crate::net::Change;

/// How the ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Shared memory, with the exchange for short calls.
    Shm,
    /// Shared memory, with plans for all calls.
    ShmPlans,
    /// TCP over loopback.
    Tcp,
    /// Two ranks on each of several simulated hosts.
    Hosts,
    /// Each rank in its own network namespace, with a switch of the trial between them.
    Network,
}

impl Way {
    /// The ways that need only one host.
    pub(crate) const LOCAL: [Self; 4] = [Self::Shm, Self::ShmPlans, Self::Tcp, Self::Hosts];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::ShmPlans => "shm, plans",
            Self::Tcp => "tcp",
            Self::Hosts => "shm and tcp",
            Self::Network => "namespaces",
        }
    }

    /// Returns the settings of a rank.
    pub(crate) fn settings(self, rank: u32) -> Vec<(&'static str, String)> {
        match self {
            Self::Shm => vec![("KOLO_TRANSPORT", "shm".into())],
            Self::ShmPlans => vec![("KOLO_TRANSPORT", "shm".into()), ("KOLO_EXCHANGE_BYTES", "0".into())],
            Self::Tcp | Self::Network => vec![("KOLO_TRANSPORT", "tcp".into())],
            Self::Hosts => vec![("KOLO_HOST_ID", format!("host-{}", rank / 2))],
        }
    }
}

/// A step of the trial. Steps are made in order.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Wait until all ranks are making calls.
    Running,
    /// Wait for this long.
    Pause(Duration),
    /// Record that the fault happens now. Without this step, a rank reports the time.
    Fault,
    /// Send a signal to a rank.
    Signal(u32, Signal),
    /// Wait until a rank has ended.
    End(u32),
    /// Change the network.
    Net(Change),
    /// Reset the connections between two ranks: those for data, or that of the control plane.
    Reset {
        /// Rank in whose namespace the reset is made.
        rank: u32,
        /// Rank at the other end.
        peer: u32,
        /// Whether to reset the control plane's connection.
        control: bool,
    },
}

/// Required reports of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No error: every rank makes all its calls, with right results.
    Fine,
    /// One of the named ranks is lost.
    Lost,
    /// Calls differ, and each text contains the named rank.
    Mismatch,
    /// A time-out that names the rank at fault.
    Late,
    /// The connection between the two named ranks is at fault, and neither of them is lost.
    Pair,
    /// An error of one of these kinds that names one of the named ranks, if there are any.
    Told(&'static [&'static str]),
    /// Either no error, or one as for `Told`.
    FineOrTold(&'static [&'static str]),
}

/// The required outcome of a trial.
#[derive(Clone, Debug)]
pub(crate) struct Expect {
    /// Ranks that need not report anything: they are dead, stopped, or do not know.
    pub exempt: Vec<u32>,
    /// Ranks that may be blamed, by their rank in the communicator concerned.
    pub named: Vec<u32>,
    pub outcome: Outcome,
    /// Longest time from the fault to the last rank's error, or to the end if there are no errors.
    pub within: Duration,
    /// Texts, of which one must be in some rank's report.
    pub says: &'static [&'static str],
    /// Whether a panic of the named ranks is part of the trial.
    pub may_panic: bool,
}

impl Expect {
    /// Requires an outcome from all ranks except the culprits, which may be blamed.
    pub(crate) fn new(outcome: Outcome, culprits: &[u32], within_s: u64) -> Self {
        Self {
            exempt: culprits.to_vec(),
            named: culprits.to_vec(),
            outcome,
            within: Duration::from_secs(within_s),
            says: &[],
            may_panic: false,
        }
    }

    /// Requires the outcome from all ranks.
    pub(crate) fn of_all(self) -> Self {
        Self { exempt: Vec::new(), ..self }
    }

    pub(crate) fn says(self, says: &'static [&'static str]) -> Self {
        Self { says, ..self }
    }
}

/// A launch of ranks by `kolo run`, and the end of the launcher.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    /// Script that each rank runs in a shell. `RANK_PROGRAM` stands for a rank that makes calls.
    pub script: &'static str,
    /// Signal that the launcher gets, after this time.
    pub signal: Signal,
    pub after: Duration,
}

/// One trial.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub ranks: u32,
    pub way: Way,
    /// Arguments of all ranks.
    pub words: Vec<String>,
    /// Settings of all ranks.
    pub settings: Vec<(&'static str, String)>,
    pub steps: Vec<Step>,
    pub expect: Expect,
    pub launched: Option<Launched>,
}

impl Plan {
    pub(crate) fn new(ranks: u32, way: Way, expect: Expect) -> Self {
        Self {
            ranks,
            way,
            words: Vec::new(),
            settings: Vec::new(),
            steps: Vec::new(),
            expect,
            launched: None,
        }
    }

    /// Adds an argument of all ranks.
    pub(crate) fn word(mut self, name: &str, value: impl ToString) -> Self {
        self.words.push(format!("{name}={}", value.to_string()));
        self
    }

    /// Adds a setting of all ranks.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    pub(crate) fn then(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }
}
