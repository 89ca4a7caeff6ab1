//! Making a communicator: endpoints, routes, and what the ranks must agree on.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kolo_transport::foreign::printable;
use kolo_transport::tcp::Congestion;
use kolo_transport::{Endpoint, Options, RdmaOptions, Reach, RegistrationPolicy, ShmOptions, TcpOptions};

use super::Communicator;
use super::agreement::{self, Agreed};
use super::card::{Card, assign_processor, facts, host_indices, policy};
use super::direct::Direct;
use super::familiar::Familiar;
use super::gpu_direct;
use super::gpu_memory;
use super::gpu_regions::Regions;
use super::line::Line;
use super::model::model_for;
use super::registration::Adapters;
use super::shared::{Core, Shared, World};
use super::tiny::Tiny;
use crate::config::{Config, Determinism, TransportKind, Transports};
use crate::control::{AbortCause, AbortKind, Control, ControlRuntime, ExchangeKey, Membership};
use crate::engine::{Engine, Links, Route};
use crate::error::{Context, Error, Result};
use crate::home::{self, Home};
use crate::job::MOST_PATIENCE;
use crate::join::JoinSpec;
use crate::mix::mix;
use crate::planner::Planner;
use crate::recorder::Recorder;
use crate::wait::usable_processors;

/// Settings for joining.
#[derive(Debug, Default)]
pub struct Builder {
    config: Option<Config>,
    spec: Option<JoinSpec>,
    runtime: Option<ControlRuntime>,
}

impl Builder {
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
            None => JoinSpec::from_env(&|name| std::env::var(name).ok())?,
        };
        let started = Instant::now();
        spec.timeout = patience(&config);
        let runtime = self.runtime.map_or_else(ControlRuntime::new, Ok)?;
        let control = Control::join(&spec, &runtime)?;
        let members: Arc<[u32]> = (0..control.world_size()).collect();
        let rank = control.rank();
        let world = Arc::new(World { control, processor: OnceLock::new() });
        let deadline = deadline_to_connect(started, Instant::now(), patience(&config));
        connect(world, WORLD, members, rank, config, deadline)
    }
}

/// How long ranks wait for each other.
pub(crate) fn patience(config: &Config) -> Duration {
    config.join_timeout.min(MOST_PATIENCE)
}

/// When ranks that have joined give up making their communicator: at the end of the time for joining, of which those that
/// wait for the last one to come have little left then. It takes milliseconds; the moments are for slow networks.
fn deadline_to_connect(started: Instant, joined: Instant, patience: Duration) -> Instant {
    const MOMENTS: Duration = Duration::from_secs(10);
    (started + patience).max(joined + patience.min(MOMENTS))
}

/// The identity of the communicator of all ranks. Others are derived from their parent's.
const WORLD: u64 = 1;

/// Most bytes shown of another rank's reason.
const REASON_BYTES: usize = 1 << 10;

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_card(bytes: &[u8]) {
    if let Ok(card) = Card::parse(bytes) {
        let cards = [card];
        let hosts = host_indices(&cards);
        let _ = (facts(&hosts, &cards), agreement::check(0, &[&cards[0].agreed]));
        let _ = assign_processor(0, &hosts, &cards);
    }
    let _ = failed_paths(0, &[bytes.to_vec()]);
}

/// Makes a communicator of `members` (world ranks), of which this is number `rank`. All members call it. Blocks until all
/// have, or the deadline.
pub(crate) fn connect(
    world: Arc<World>,
    id: u64,
    members: Arc<[u32]>,
    rank: u32,
    config: Config,
    deadline: Instant,
) -> Result<Communicator> {
    let driver = gpu_memory::driver(&config)?;
    let membership = world.control.register(id, Arc::clone(&members));
    let mut candidates = open_endpoints(&world.control, rank, &members, &config);
    let card = Card {
        transports: candidates
            .iter()
            .map(|c| {
                let address = match &c.endpoint {
                    Ok(endpoint) => Ok(endpoint.address().to_vec()),
                    Err(because) => Err(because.clone()),
                };
                (c.kind.name().to_owned(), address)
            })
            .collect(),
        host: (world.control.peer_info()[world.control.rank() as usize].host_key, config.host_id.clone()),
        processors: usable_processors() as u32,
        affinity: home::affinity(),
        channels: candidates.iter().filter_map(Candidate::channels_max).min().unwrap_or(u16::MAX),
        has_gpus: driver.is_some(),
        agreed: Agreed::of(&config),
    };
    let blob = postcard::to_stdvec(&card).map_err(|error| broken(rank, &error))?;
    let key = ExchangeKey { communicator: id, round: 0 };
    let cards: Vec<Card> = world
        .control
        .exchange(key, &members, blob, deadline)?
        .iter()
        .map(|blob| Card::parse(blob))
        .collect::<std::result::Result<_, _>>()
        .map_err(|problem| broken(rank, &problem))?;
    agreement::check(rank, &cards.iter().map(|card| &card.agreed).collect::<Vec<_>>())?;
    let hosts = host_indices(&cards);
    let mut routes = Vec::new();
    for peer in (0..members.len() as u32).filter(|peer| *peer != rank) {
        routes.push(choose_route(rank, peer, &mut candidates, &cards[peer as usize], Vec::new())?);
    }
    let tries = |card: &Card| card.offers().any(|kind| kind.features().tries_paths);
    if cards.iter().filter(|card| tries(card)).count() > 1 {
        let key = ExchangeKey { communicator: id, round: 1 };
        let failed = try_paths(rank, &mut candidates, &routes, deadline);
        let blob = postcard::to_stdvec(&failed).map_err(|error| broken(rank, &error))?;
        let blobs = world.control.exchange(key, &members, blob, deadline)?;
        let failed = failed_paths(rank, &blobs).map_err(|error| broken(rank, &error))?;
        for route in &mut routes {
            if let Some(why) = failed.get(&route.peer) {
                let mut declined = std::mem::take(&mut route.declined);
                declined.push((route.transport.to_owned(), why.clone()));
                let card = &cards[route.peer as usize];
                *route = choose_route(rank, route.peer, &mut candidates, card, declined)?;
            }
        }
    }
    let policy = policy(&hosts, &cards, &config);
    let processor = *world.processor.get_or_init(|| assign_processor(rank as usize, &hosts, &cards));
    let mut flat = None;
    let mut gpu_direct = None;
    let mut adapters = None;
    let mut endpoints: Vec<Box<dyn Endpoint>> = Vec::new();
    let mut index_of = Vec::new();
    for candidate in candidates {
        let (name, Ok(mut endpoint)) = (candidate.kind.name(), candidate.endpoint) else { continue };
        if !routes.iter().any(|route| route.transport == name) {
            continue;
        }
        if let Some(access) = endpoint.device_access() {
            let plan = gpu_direct::plan(&config, access.takes_dma_bufs.clone())?;
            if id == WORLD {
                tracing::info!("GPU memory: {plan}");
                if let policy @ RegistrationPolicy::Unwatched { .. } = &access.registrations {
                    tracing::warn!(rank, "registrations of buffers with adapters are {policy}");
                }
            }
            gpu_direct = Some(plan);
            adapters = Some(Adapters::of(&access));
        }
        establish(&mut *endpoint, rank, &membership, deadline)?;
        if routes.iter().all(|route| route.transport == name) {
            flat = endpoint.exchange();
        }
        index_of.push(name);
        endpoints.push(endpoint);
    }
    let via = (0..members.len() as u32).map(|peer| {
        let route = routes.iter().find(|route| route.peer == peer)?;
        index_of.iter().position(|name| *name == route.transport)
    });
    let links = Links::new(endpoints, via);
    // The numbering of channels must be the same on all ranks, whichever transports each has in the end.
    let channels = cards.iter().map(|card| card.channels).min().unwrap_or(1);
    let engine = Engine::new(rank, links, channels, config.unexpected_bytes);
    let model = model_for(facts(&hosts, &cards), config.profile.as_ref().map(|loaded| &loaded.profile));
    let planner = Planner::new(rank, Arc::clone(&hosts), model, &config, engine.channels_per_operation())?;
    let canonical = config.determinism == Determinism::Canonical;
    let tiny = flat.filter(|_| config.tiny_bytes != Some(0)).map(|flat| {
        let has_gpus = cards.iter().any(|card| card.has_gpus);
        Tiny::new(flat, rank, config.tiny_bytes, has_gpus, canonical, planner.forced())
    });
    let direct = Direct::new(rank, members.len() as u32, config.direct_bytes, canonical, planner.forced());
    let core = Core {
        engine,
        planner,
        tiny,
        line: Line::default(),
        direct,
        recorder: Recorder::new(),
        familiar: Familiar::new(),
        sequence: 0,
        messages: 0,
        children: 0,
        allocations: 0,
        groups: HashMap::new(),
        closed: false,
        gpu_direct,
        adapters,
        gpu_regions: Regions::default(),
        gpu_counters: gpu_memory::GpuCounters::default(),
        bounces: Vec::new(),
        bouncing: 0,
        home: processor.map(Home::new),
    };
    let shared =
        Shared::new(rank, id, members, hosts, routes, config, policy, world, membership, driver, core);
    let communicator = Communicator { shared: Arc::new(shared) };
    tracing::info!("{}", communicator.summary());
    Ok(communicator)
}

/// The identity of a communicator split off `parent`.
pub(crate) fn child_id(parent: u64, number: u64, color: u64) -> u64 {
    mix(mix(parent ^ mix(number)) ^ color)
}

struct Candidate {
    kind: TransportKind,
    endpoint: Result<Box<dyn Endpoint>, String>,
}

impl Candidate {
    fn channels_max(&self) -> Option<u16> {
        Some(self.endpoint.as_ref().ok()?.caps().channels_max)
    }
}

fn open_endpoints(control: &Control, rank: u32, members: &[u32], config: &Config) -> Vec<Candidate> {
    let world_size = members.len() as u32;
    let kinds = match &config.transports {
        Transports::Auto => TransportKind::ALL.to_vec(),
        Transports::Only(list) => list.clone(),
    };
    let options = Options {
        shm: ShmOptions { host_key: config.host_id.clone(), ..ShmOptions::default() },
        rdma: rdma_options(control, config),
        tcp: tcp_options(control, config),
    };
    let info = control.peer_info();
    let own = info[control.rank() as usize].host_key;
    let one_host =
        config.host_id.is_none() && members.iter().all(|rank| info[*rank as usize].host_key == own);
    kinds
        .into_iter()
        .map(|kind| {
            // Adapters are not troubled for what shared memory will carry.
            let idle = kind.features().uses_adapters && one_host && config.transports == Transports::Auto;
            let endpoint = match idle {
                true => Err("all ranks are on one host".to_owned()),
                false => kind.open(rank, world_size, &options).map_err(|error| error.to_string()),
            };
            Candidate { kind, endpoint }
        })
        .collect()
}

fn tcp_options(control: &Control, config: &Config) -> TcpOptions {
    let (dial_patience, dial_timeout) = dial_times(config.timeout);
    TcpOptions {
        dial_patience,
        dial_timeout,
        cookie: control.job_cookie(),
        interfaces: config.socket_interfaces.as_deref().and_then(TcpOptions::interfaces_from),
        congestion: match config.socket_congestion.as_deref() {
            None => Congestion::Auto,
            Some("system") => Congestion::System,
            Some(name) => Congestion::Named(name.to_owned()),
        },
        ..TcpOptions::default()
    }
}

/// How long one address may be silent before the next is tried, and altogether. A call should end with the addresses that
/// do not answer rather than with its own time-out, which knows of none: five addresses of a peer are given up before that.
fn dial_times(timeout: Duration) -> (Duration, Duration) {
    let usual = TcpOptions::default();
    (usual.dial_patience.min(timeout / 16), usual.dial_timeout.min(timeout / 2))
}

fn rdma_options(control: &Control, config: &Config) -> RdmaOptions {
    RdmaOptions {
        library: config.ib_library.as_ref().map(Into::into),
        adapters: config.ib_adapters.clone(),
        gid_index: config.ib_gid_index,
        traffic_class: config.ib_traffic_class,
        service_level: config.ib_service_level,
        queue_pairs: config.ib_queue_pairs,
        keep: config.ib_cache,
        side: tcp_options(control, config),
        ..RdmaOptions::default()
    }
}

/// The first transport that both ends have and that reaches the peer, of those not declined already. Both ends
/// decide by the same facts.
fn choose_route(
    rank: u32,
    peer: u32,
    candidates: &mut [Candidate],
    card: &Card,
    mut declined: Vec<(String, String)>,
) -> Result<Route> {
    for candidate in candidates {
        let name = candidate.kind.name();
        if declined.iter().any(|(other, _)| other == name) {
            continue;
        }
        let theirs = card.transports.iter().find(|(theirs, _)| theirs == name).map(|(_, address)| address);
        let reach = match (&mut candidate.endpoint, theirs) {
            (Err(because), _) => Reach::No { because: because.clone() },
            (_, None) => Reach::No { because: format!("rank {peer} does not use it") },
            (_, Some(Err(because))) => {
                Reach::No { because: format!("rank {peer} has none: {}", printable(because, REASON_BYTES)) }
            }
            (Ok(endpoint), Some(Ok(address))) => endpoint.introduce(peer, address).map_err(|source| {
                Error::Transport { context: Context { rank, ..Context::default() }, source: Box::new(source) }
            })?,
        };
        match reach {
            Reach::Yes { how } => return Ok(Route { peer, transport: name, how, declined }),
            Reach::No { because } => declined.push((name.to_owned(), because)),
        }
    }
    let reasons: Vec<String> = declined.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    Err(Error::Join {
        rank: Some(rank),
        problem: format!("no transport reaches rank {peer} ({})", reasons.join("; ")),
        remedy: "Allow more of them with KOLO_TRANSPORT=auto, or mend the reason given".to_owned(),
    })
}

/// Tries the paths that are to be tried before anything relies on them. Those that carry nothing, by peer.
fn try_paths(
    rank: u32,
    candidates: &mut [Candidate],
    routes: &[Route],
    deadline: Instant,
) -> Vec<(u32, String)> {
    let mut failed = Vec::new();
    for Candidate { kind, endpoint } in candidates {
        let Ok(endpoint) = endpoint else { continue };
        let via = routes.iter().filter(|route| route.transport == kind.name());
        let peers: Vec<u32> = via.map(|route| route.peer).collect();
        if kind.features().tries_paths && !peers.is_empty() {
            tracing::debug!(rank, ?peers, "trying paths over {}", kind.name());
            failed.extend(endpoint.try_paths(&peers, deadline));
        }
    }
    failed.into_iter().map(|(peer, error)| (peer, error.detail)).collect()
}

/// The peers of this rank that it, or they, could not reach.
fn failed_paths(
    rank: u32,
    blobs: &[impl AsRef<[u8]>],
) -> std::result::Result<HashMap<u32, String>, postcard::Error> {
    let mut failed = HashMap::new();
    for (from, blob) in blobs.iter().enumerate() {
        let list: Vec<(u32, String)> = postcard::from_bytes(blob.as_ref())?;
        for (peer, why) in list {
            let why = printable(&why, REASON_BYTES);
            if from as u32 == rank {
                failed.insert(peer, why);
            } else if peer == rank {
                failed.entry(from as u32).or_insert_with(|| format!("rank {from} says: {why}"));
            }
        }
    }
    Ok(failed)
}

/// If it fails, all members hear why: some may have their connections, and would take this rank for one that has left.
fn establish(
    endpoint: &mut dyn Endpoint,
    rank: u32,
    membership: &Membership,
    deadline: Instant,
) -> Result<()> {
    endpoint.establish(deadline).map_err(|source| {
        let context = Context { rank, operation: "making the communicator".to_owned(), sequence: 0 };
        let reason = format!("{}: {source}", context.operation);
        membership.abort(AbortCause::new(rank, AbortKind::Transport, reason));
        Error::Transport { context, source: Box::new(source) }
    })
}

fn broken(rank: u32, error: &dyn std::fmt::Display) -> Error {
    Error::Join {
        rank: Some(rank),
        problem: format!("a rank's introduction could not be read: {error}"),
        remedy: "Use the same version of Kolo on all ranks".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_time_limit_for_all_ways_to_join() {
        let spec = JoinSpec::new(0, 1, crate::join::Locator::Local(Default::default()), "a test");
        assert_eq!(patience(&Config::default()), spec.timeout, "the default is one");
        let long = Config { join_timeout: 3 * spec.timeout, ..Config::default() };
        assert_eq!(patience(&long), long.join_timeout, "longer than the default too");
        let boundless = Config { join_timeout: Duration::MAX, ..Config::default() };
        assert_eq!(patience(&boundless), MOST_PATIENCE);
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

    #[test]
    fn silent_addresses_are_given_up_before_the_call_is() {
        for timeout_ms in [1, 400, 4_000, 30_000, 600_000] {
            let timeout = Duration::from_millis(timeout_ms);
            let (patience, silence) = dial_times(timeout);
            assert!(4 * patience + silence < timeout, "{timeout:?}: {patience:?}, {silence:?}");
        }
        let (usual, long) = (TcpOptions::default(), dial_times(Duration::from_secs(600)));
        assert_eq!(long, (usual.dial_patience, usual.dial_timeout));
    }
}
