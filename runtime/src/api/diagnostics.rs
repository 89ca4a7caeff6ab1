//! Diagnostics: which way calls take and why, the network, and what calls have used.

use std::fmt::Write as _;

use kolo_collectives::model::Model;
use kolo_transport::{Rail, TcpOptions};

use super::Communicator;
use crate::call::RawCall;
use crate::communicator::{Core, Record, on_gpus, tcp_options};
use crate::dispatch::Explanation;
use crate::engine::Route;
use crate::error::Result;
use crate::network::{paced_in_words, rails_in_words};
use crate::wait::Policy;

/// # Diagnostics
impl Communicator {
    /// Describes in one line which ranks each transport reaches and why, and how long buffers stay registered.
    #[must_use]
    pub fn summary(&self) -> String {
        let shared = &self.shared;
        let mut out = format!("rank {} of {}", shared.group.rank, shared.group.size);
        let mut transports: Vec<&str> = shared.group.routes.iter().map(|r| r.transport).collect();
        transports.sort_unstable();
        transports.dedup();
        for transport in transports {
            let routes: Vec<&Route> =
                shared.group.routes.iter().filter(|r| r.transport == transport).collect();
            let _ = write!(out, "; {transport} to {} rank(s) ({})", routes.len(), routes[0].how);
            if let Some((other, why)) = routes[0].declined.first() {
                let _ = write!(out, ", not {other}: {why}");
            }
        }
        let mut relays = std::collections::BTreeMap::<u32, u32>::new();
        for peer in self.relayed() {
            let (by, _) = shared.world.control.relay_to(shared.group.members[peer as usize]);
            *relays.entry(by).or_default() += 1;
        }
        for (by, count) in relays {
            let _ = write!(
                out,
                "; relayed by rank {by} to {count} rank(s), since neither end could dial the other: every byte crosses \
                 rank {by}'s link twice"
            );
        }
        if let Some(network) = self.network() {
            let _ = write!(out, "; network: {network}");
        }
        for plans in self.shared.look(|core| core.planner.describe_files()) {
            let _ = write!(out, "; {plans}");
        }
        if let Some(policy) = self.registration_policy() {
            let _ = write!(out, "; buffer registrations are {policy}");
        }
        out
    }

    /// Explains as text which algorithm is chosen for a call, which ones are not, and why.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] or [`crate::Error::Unsupported`] as the call itself.
    pub fn explain(&self, call: &RawCall) -> Result<String> {
        self.check_process()?;
        let call = self.checked(call)?;
        let core = self.shared.core();
        let memory = on_gpus::foreseen(&self.shared, &core, &call);
        let memory = memory.map_or_else(String::new, |path| format!("\n  memory: {path}"));
        let symmetric = core.symmetric.describe(&call).map_or_else(String::new, |words| words + "\n");
        let way = core.explain(&call)?;
        let constants = match (&way, &self.config().profile) {
            (Explanation::Exchange(_), _) => String::new(),
            (Explanation::Plan(_) | Explanation::File(..), profile) => {
                let from = profile.as_ref().map_or_else(
                    || "built-in".to_owned(),
                    |loaded| format!("profile {} ({})", loaded.path.display(), loaded.profile.digest()),
                );
                let network = describe_network(&core, self.shared.group.size);
                let network = network.map_or_else(String::new, |words| format!("; network: {words}"));
                format!("\n  constants: {from}{network}")
            }
        };
        let unused: String =
            core.planner.files_unused(&call).iter().map(|reason| format!("\n  {reason}")).collect();
        Ok(format!("{symmetric}{way}{constants}{unused}{memory}"))
    }

    /// Names what carries out a blocking call: an algorithm, `exchange` for the exchange inside a host, or `plan` for
    /// a plan of `KOLO_PLAN`.
    ///
    /// # Errors
    /// See [`Communicator::explain`].
    pub fn way(&self, call: &RawCall) -> Result<&'static str> {
        self.check_process()?;
        let call = self.checked(call)?;
        Ok(self.shared.core().explain(&call)?.name())
    }

    /// Returns the route to each other rank, with the reason for it.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.shared.group.routes
    }

    /// Describes the network between the hosts: their number, round trip, rate, which host is slow, and the source of
    /// these figures (measured when the ranks joined, a profile, or the built-in constants). Says so if the profile
    /// is of other hosts. Where hosts have several network interfaces, also gives the share of long messages that
    /// each has carried so far; where this rank has paced long messages to several hosts, how often and at which rate.
    /// Returns `None` on a single host.
    #[must_use]
    pub fn network(&self) -> Option<String> {
        self.shared.look(|core| describe_network(core, self.shared.group.size))
    }

    /// Returns the paths that long messages to a rank have taken, with the rate and the bytes of each, where there is
    /// a choice: over TCP, if both hosts have several network interfaces. Empty otherwise, and for the rank itself.
    /// Never blocks.
    #[must_use]
    pub fn rails(&self, peer: u32) -> Vec<Rail> {
        self.shared.look(|core| core.engine.links().rails(peer))
    }

    /// Returns the ranks that this one has reached so far through rank 0's process, because neither end could dial the
    /// other; or, if one of the two is rank 0, through that of another rank. Connections are made on first use, so the
    /// list may grow. Every byte to these ranks crosses that process's link twice.
    #[must_use]
    pub fn relayed(&self) -> Vec<u32> {
        self.shared.look(|core| core.engine.links().relayed())
    }

    /// Returns records of the last 512 collectives at most, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Record> {
        self.shared.look(|core| core.calls.recorder.records())
    }

    /// Returns the bytes of staging memory that operations hold now, without that of the transports.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.shared.look(|core| core.engine.staging_bytes())
    }

    /// Returns the constants by which algorithms are chosen: built-in ones or those of `KOLO_PROFILE`, with the
    /// network as it was measured. They are the same on all ranks.
    #[doc(hidden)]
    #[must_use]
    pub fn model(&self) -> Model {
        self.shared.look(|core| *core.planner.model())
    }

    /// See [`Control::coordinator_bytes`](crate::internal::control::Control::coordinator_bytes).
    #[doc(hidden)]
    #[must_use]
    pub fn coordinator_bytes(&self) -> Option<(u64, u64)> {
        self.shared.world.control.coordinator_bytes()
    }

    /// Returns the options of further TCP endpoints between the members. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn tcp_options(&self) -> TcpOptions {
        let shared = &self.shared;
        shared.note_relayed();
        tcp_options(&shared.world, &shared.config, &shared.group.members)
    }

    /// Returns how threads of this rank wait. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn waiting_policy(&self) -> Policy {
        self.shared.policy
    }
}

/// Describes the network between the hosts, the share of each interface of a host, and the pacing of long messages.
fn describe_network(core: &Core, size: u32) -> Option<String> {
    let network = core.planner.describe_network()?;
    let rails: Vec<Vec<Rail>> = (0..size).map(|peer| core.engine.links().rails(peer)).collect();
    let known = [Some(network), rails_in_words(&rails), core.engine.links().paced().map(paced_in_words)];
    Some(known.into_iter().flatten().collect::<Vec<_>>().join("; "))
}
