//! A trial and its expected outcome, as data.

use std::time::Duration;

use rustix::process::Signal;

use crate::net::Change;

/// How ranks of one host reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Shared memory, short calls by exchange.
    Shm,
    /// Shared memory, all calls by plans.
    ShmPlans,
    /// TCP over loopback.
    Tcp,
    /// Two ranks on each of several pretended hosts.
    Hosts,
    /// Each rank in a network namespace of its own, joined by a switch of the trial's.
    Network,
}

impl Way {
    /// Those of one host.
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

    /// The settings of a rank.
    pub(crate) fn settings(self, rank: u32) -> Vec<(&'static str, String)> {
        match self {
            Self::Shm => vec![("KOLO_TRANSPORT", "shm".into())],
            Self::ShmPlans => vec![("KOLO_TRANSPORT", "shm".into()), ("KOLO_EXCHANGE_BYTES", "0".into())],
            Self::Tcp | Self::Network => vec![("KOLO_TRANSPORT", "tcp".into())],
            Self::Hosts => vec![("KOLO_HOST_ID", format!("host-{}", rank / 2))],
        }
    }
}

/// Something that the trial does, in order.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Waits until all ranks are at work.
    Running,
    /// Lets so much time pass.
    Pause(Duration),
    /// The fault happens now; otherwise a rank says when.
    Fault,
    /// Signals a rank.
    Signal(u32, Signal),
    /// Waits for the end of a rank.
    End(u32),
    /// Changes the network.
    Net(Change),
    /// Resets the connections between two ranks: those of data, or that of the control plane.
    Reset {
        /// In whose namespace.
        rank: u32,
        /// The other end.
        peer: u32,
        /// Which of them.
        control: bool,
    },
}

/// The ranks' expected reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing: every rank does all its calls, with right results.
    Fine,
    /// That one of the named ranks is lost.
    Lost,
    /// That calls differ; the named rank is in each text.
    Mismatch,
    /// A time-out that names the rank in whose hands it was.
    Late,
    /// That the connection between the two named ranks is at fault; neither of them is lost.
    Pair,
    /// An error of one of these kinds that names one of the named ranks, where there are any.
    Told(&'static [&'static str]),
    /// Either nothing at all or as `Told`.
    FineOrTold(&'static [&'static str]),
}

/// The expectation.
#[derive(Clone, Debug)]
pub(crate) struct Expect {
    /// The ranks that nothing is asked of: they are dead, stopped, or do not know.
    pub exempt: Vec<u32>,
    /// The ranks that may be blamed, in the numbering of the communicator concerned.
    pub named: Vec<u32>,
    pub outcome: Outcome,
    /// From the fault to the last rank's error; or to the end, where all is fine.
    pub within: Duration,
    /// One of these must be in what some rank says.
    pub says: &'static [&'static str],
    /// A panic of these ranks is part of the trial.
    pub may_panic: bool,
}

impl Expect {
    /// An outcome for all ranks but the exempt, who are those that may be blamed.
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

    /// The same, asked of all ranks.
    pub(crate) fn of_all(self) -> Self {
        Self { exempt: Vec::new(), ..self }
    }

    pub(crate) fn says(self, says: &'static [&'static str]) -> Self {
        Self { says, ..self }
    }
}

/// Ranks that `kolo run` starts, and the end of the launcher.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    /// The script that each rank runs in a shell, with `RANK_PROGRAM` for a rank at work.
    pub script: &'static str,
    /// The launcher's signal, after so long.
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

    /// Gives all ranks an argument.
    pub(crate) fn word(mut self, name: &str, value: impl ToString) -> Self {
        self.words.push(format!("{name}={}", value.to_string()));
        self
    }

    /// Gives all ranks a setting.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    pub(crate) fn then(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }
}
