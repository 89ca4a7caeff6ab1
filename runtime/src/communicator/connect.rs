//! Makes a communicator: the ranks' introduction to each other, endpoints, routes, and the state that follows from
//! them.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kolo_transport::Process;
use serde::{Serialize, de::DeserializeOwned};

use super::agreement::{self, Agreed};
use super::attendance::Attendance;
use super::awaited::Awaited;
use super::card::{Card, assign_processor, facts, host_indices, policy, shares_processors};
use super::core::{Calls, Core, Sleepers};
use super::endpoints::{self, Candidate, Established};
use super::growth;
use super::model::model_for;
use super::routes;
use super::shared::{Contended, Fault, Group, Shared, World};
use super::shared_memory;
use super::time_limit::TimeLimit;
use crate::affinity::{self, Processor, SoftAffinity};
use crate::config::{Config, Determinism};
use crate::control::{GatherKey, Membership, PeerInfo, Round, StatusBoard};
use crate::dispatch::{Limits, Planner};
use crate::engine::Engine;
use crate::error::{Error, JoinFailure, Result};
use crate::exchange::Exchange;
use crate::exchange::compiled::{CompiledExchange, HostFacts};
use crate::failure::Cause;
use crate::gpu::{self, GpuAccess, Gpus};
use crate::job::MOST_PATIENCE;
use crate::mix::mix;
use crate::network::Knowledge;
use crate::reduce::DefaultFloats;
use crate::symmetric::SymmetricBuffers;
use crate::wait::{Policy, usable_processors};

/// Identity of the communicator of all ranks. The identities of others are derived from their parent's.
pub(crate) const WORLD: u64 = 1;

/// Returns the identity of a communicator split off `parent`.
pub(crate) fn child_id(parent: u64, number: u64, color: u64) -> u64 {
    mix(mix(parent ^ mix(number)) ^ color)
}

/// Returns the longest time for which ranks wait for each other.
pub(crate) fn patience(config: &Config) -> Duration {
    config.join_timeout.min(MOST_PATIENCE)
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_card(bytes: &[u8]) {
    if let Ok(card) = postcard::from_bytes::<Card>(bytes)
        && card.check().is_ok()
    {
        let cards = [card];
        let hosts = host_indices(&cards);
        let _ = (facts(&hosts, &cards), agreement::check(0, &[&cards[0].agreed]));
        let _ = assign_processor(0, &hosts, &cards);
    }
    if let Ok(told) = postcard::from_bytes(bytes) {
        let _ = routes::failed_paths(1, Vec::new(), &[told]);
    }
}

/// A communicator in the making. `members` are world ranks, and this rank is number `rank` of them.
pub(crate) struct Making {
    pub(crate) world: Arc<World>,
    pub(crate) id: u64,
    pub(crate) members: Arc<[u32]>,
    pub(crate) rank: u32,
    pub(crate) config: Config,
    pub(crate) deadline: Instant,
    /// The communicators that it is split off, directly or not.
    pub(crate) ancestors: Arc<[u64]>,
}

impl Making {
    /// Makes the communicator. All members call it. Blocks until all have, at most until the deadline.
    pub(crate) fn connect(mut self) -> Result<Shared> {
        self.config = self.config.checked()?;
        let driver = gpu::driver(&self.config)?;
        let membership = self.world.control.register_below(
            self.id,
            Arc::clone(&self.members),
            Arc::clone(&self.ancestors),
        );
        let made = self.come_together(&membership, driver.is_some());
        let (group, core, policy) = made.inspect_err(|error| self.give_up(&membership, error))?;
        membership.note_made();
        let shared = Shared {
            policy,
            gpus: Gpus { rank: group.rank, driver },
            group,
            config: self.config,
            world: self.world,
            membership,
            core: Contended::new(core),
            attendance: Attendance::default(),
            fault: Fault::default(),
            time_limit: TimeLimit::none(),
            children: Mutex::default(),
            waiting_list: OnceLock::new(),
            process: Process::current(),
        };
        if let Some(waiting_list) = growth::open_waiting_list(&shared) {
            let _ = shared.waiting_list.set(waiting_list);
        }
        Ok(shared)
    }

    /// Tells the other members that this rank does not make its part. Those that have the communicator would wait for it
    /// there.
    fn give_up(&self, membership: &Membership, error: &Error) {
        if !self.ancestors.is_empty()
            && let Some(cause) = Cause::of(error)
        {
            membership.abort(cause.report(self.rank));
        }
    }

    /// Meets the other members, and connects to them.
    fn come_together(&mut self, membership: &Membership, has_gpus: bool) -> Result<(Group, Core, Policy)> {
        let mut candidates = endpoints::open(self);
        let cards = self.introduce(&candidates, has_gpus)?;
        // A caller may wait for the ranks without limit, but now all of them are here, and connecting takes no longer than usual.
        self.deadline = self.deadline.min(Instant::now() + patience(&self.config));
        let hosts = host_indices(&cards);
        let routes = routes::choose_all(self, &mut candidates, &cards)?;
        let shares_processors = shares_processors(self.rank as usize, &cards);
        let mut established = endpoints::establish(self, candidates, &routes, membership, shares_processors)?;
        let group = Group {
            id: self.id,
            rank: self.rank,
            size: self.members.len() as u32,
            members: Arc::clone(&self.members),
            hosts,
            routes,
            adapters: established.adapters.take(),
        };
        let core = self.core(&group, &cards, established, Arc::clone(membership.board()))?;
        let policy = policy(&group.hosts, &cards, &self.config);
        Ok((group, core, policy))
    }

    /// Tells the others what this rank has and wants, and returns what they have told.
    fn introduce(&self, candidates: &[Candidate], has_gpus: bool) -> Result<Vec<Card>> {
        let address = |candidate: &Candidate| match &candidate.endpoint {
            Ok(endpoint) => Ok(endpoint.address().to_vec()),
            Err(because) => Err(because.clone()),
        };
        let named = |candidate: &Candidate| (candidate.kind.name().to_owned(), address(candidate));
        let control = &self.world.control;
        let host_key = control.peer_info()[control.rank() as usize].host_key;
        let card = Card {
            transports: candidates.iter().map(named).collect(),
            host: (host_key, self.config.host_id.clone()),
            processors: usable_processors() as u32,
            processor_set: affinity::processor_set(),
            affinity: affinity::processors_digest(host_key),
            channels: candidates.iter().filter_map(Candidate::channels_max).min().unwrap_or(u16::MAX),
            has_gpus,
            agreed: Agreed::of(&self.config),
        };
        let cards = self.tell(Round::Introductions, &card)?;
        cards.iter().try_for_each(Card::check).map_err(|problem| broken(self.rank, &problem))?;
        agreement::check(self.rank, &cards.iter().map(|card| &card.agreed).collect::<Vec<_>>())?;
        Ok(cards)
    }

    /// Sends a message to all others, and returns the messages of all in rank order.
    pub(super) fn tell<M: Serialize + DeserializeOwned>(&self, round: Round, message: &M) -> Result<Vec<M>> {
        let key = GatherKey { communicator: self.id, round };
        self.world.control.all_gather(key, &self.members, message, self.deadline)
    }

    /// Returns the names of the hosts by their numbers. Hosts are numbered in order of appearance.
    fn host_names<'a>(&self, hosts: &[u32], peers: &'a [PeerInfo]) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for (host, member) in hosts.iter().zip(self.members.iter()) {
            if *host as usize == names.len() {
                names.push(&peers[*member as usize].hostname);
            }
        }
        names
    }

    /// Returns what is known of the network between this communicator's hosts before it measures anything itself.
    fn known_network(&self, names: &[&str]) -> Knowledge {
        let config = &self.config;
        let measured = || self.world.network(&self.members, &config.transports);
        let known = Knowledge::of(config.profile.as_ref(), names, || {
            if config.network_probe { measured() } else { None }
        });
        if let (Some(problem), 0, WORLD) = (known.unused_profile(), self.rank, self.id) {
            tracing::warn!("{problem}");
        }
        known
    }

    /// Makes the core.
    fn core(
        &self,
        group: &Group,
        cards: &[Card],
        established: Established,
        board: Arc<StatusBoard>,
    ) -> Result<Core> {
        // The selection depends on what is computed here, and must be the same on all ranks.
        let _floats = DefaultFloats::enter();
        let (config, hosts, rank) = (&self.config, &group.hosts, self.rank);
        // All ranks must number channels alike, whichever transports each of them uses in the end.
        let channels = cards.iter().map(|card| card.channels).min().unwrap_or(1);
        let mut engine = Engine::new(rank, established.links, channels, config.unexpected_bytes);
        let peers = self.world.control.peer_info();
        let names = self.host_names(hosts, peers);
        let network = self.known_network(&names);
        let mut profile = config.profile.as_ref().map(|loaded| loaded.profile.clone());
        if let (Some(_), Some(profile)) = (network.unused_profile(), &mut profile) {
            profile.network = None;
        }
        let model = model_for(facts(hosts, cards), profile.as_ref());
        let stages = shared_memory::is_everywhere(self, hosts, &engine)?;
        let limits = Limits { channels: engine.channels_per_operation(), stages };
        let mut planner = Planner::new(rank, Arc::clone(hosts), &names, model, config, limits)?;
        let here = hosts[rank as usize];
        engine
            .links_mut()
            .expect(network.between().into_iter().flat_map(|between| between.rates(here, hosts)));
        planner.learn(network);
        let canonical = config.determinism == Determinism::Canonical;
        let exchange = established.exchange.filter(|_| config.exchange_bytes != Some(0)).map(|area| {
            let host = HostFacts {
                has_gpus: cards.iter().any(|card| card.has_gpus),
                shares_processors: (0..cards.len()).any(|rank| shares_processors(rank, cards)),
                one_shot_bytes: config.one_shot_bytes,
            };
            let forced = planner.forced();
            let takes_stages = |collective, bytes| planner.takes_stages(collective, bytes);
            Exchange::new(CompiledExchange::new(
                area,
                rank,
                config.exchange_bytes,
                host,
                canonical,
                forced,
                takes_stages,
            ))
        });
        let symmetric =
            SymmetricBuffers::new(rank, group.size, config.symmetric_bytes, canonical, planner.forced());
        let assign = || assign_processor(rank as usize, &group.hosts, cards);
        let mut processor = Processor::new(self.world.processor.get_or_init(assign).map(SoftAffinity::new));
        if let Some(between) = planner.network().between() {
            processor.learn(between.round_trip_seconds(), Instant::now());
        }
        Ok(Core {
            engine,
            planner,
            exchange,
            symmetric,
            gpu: GpuAccess::new(rank, established.plan),
            calls: Calls::none(),
            board,
            awaited: Awaited::default(),
            sleepers: Sleepers::default(),
            processor,
            closed: false,
        })
    }
}

pub(super) fn broken(rank: u32, error: &dyn std::fmt::Display) -> Error {
    Error::Join {
        rank: Some(rank),
        kind: JoinFailure::Version,
        problem: format!("a rank's introduction could not be read: {error}"),
        remedy: "Use the same version of Kolo on all ranks".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Cluster, Communicator};
    use crate::join::{JoinSpec, Locator};

    #[test]
    fn one_time_limit_for_all_ways_to_join() {
        let spec = JoinSpec::new(0, 1, Locator::Local(Default::default()), "a test");
        assert_eq!(patience(&Config::default()), spec.timeout, "the default is one");
        let long = Config { join_timeout: 3 * spec.timeout, ..Config::default() };
        assert_eq!(patience(&long), long.join_timeout, "longer than the default too");
        let boundless = Config { join_timeout: Duration::MAX, ..Config::default() };
        assert_eq!(patience(&boundless), MOST_PATIENCE);
    }

    #[test]
    fn a_time_of_zero_is_refused_as_in_the_environment() {
        let timeout = Config { timeout: Duration::ZERO, ..Config::default() };
        let silent = Config { silent_after: Duration::ZERO, ..Config::default() };
        for (config, name) in [(timeout, "timeout"), (silent, "silent_after")] {
            let error = Cluster::with_config(2, &config, |_| ()).expect_err("it is refused");
            assert!(
                matches!(&error, Error::Configuration { setting, .. } if setting.contains(name)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_duplicate_may_set_no_limit_on_silence() {
        let agree = |comm: &Communicator| comm.agree(1).map(|agreed| (agreed.flags, agreed.ranks));
        Cluster::with_config(2, &Config::default(), |comm| {
            let boundless = Config { silent_after: Duration::MAX, ..comm.config().clone() };
            let other = comm.duplicate(boundless).expect("it is made");
            for comm in [&other, &comm] {
                assert_eq!(agree(comm).expect("both live"), (1, vec![0, 1]));
            }
            assert_eq!(other.shrink().expect("both live").world_size(), 2);
        })
        .expect("the cluster");
    }
}
