//! One rank's part in the examination of the network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo::internal::control::{self, Control, GatherKey};
use kolo::{Communicator, Config, ControlRuntime, JoinSpec, PeerInfo};
use kolo_transport::TcpOptions;
use kolo_transport::foreign::printable;
use kolo_transport::tcp::{Network, dialled, listen};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::facts::Facts;
use super::findings::{Severity, findings};
use super::meetings::{Meeting, meet};
use super::rates::{self, Measured, Place};
use super::reach::{Answering, Reach, Target, Token, in_parallel, reach};
use super::report::{Host, Report, Route};
use super::summary::{Summary, reaches};
use crate::configuration;
use crate::error::{CliError, Result};
use crate::launch::environment;

/// Ranks that are started together join within this time.
const JOIN_LIMIT: Duration = Duration::from_secs(15);

/// Time for dialling, a burst, and another burst with small segments, on a busy machine.
const PHASE_LIMIT: Duration = Duration::from_secs(20);

/// Most hosts that one host dials at a time, each at several addresses.
const HOSTS_AT_A_TIME: usize = 128;

/// The calls of a communicator over short paths take milliseconds.
const CALL_LIMIT: Duration = Duration::from_secs(8);

/// Meetings take at most this part of the time for pairs.
const MEETINGS_PART: u32 = 4;

/// Identifies the exchanges of the examination; no communicator has this number.
const EXAMINATION: u64 = 0x646f_6374_6f72;

/// Least and most elements of the vectors that are summed at the end.
const TRIAL_ELEMENTS: (usize, usize) = (1 << 10, 1 << 16);

/// Most bytes of a text from another rank; errors are the longest.
const TEXT_BYTES: usize = 4096;

/// Extent of the examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Examine the hosts and the network between them.
    Network,
    /// Also make a communicator, if nothing prevents it.
    Communicator,
}

/// Result of an examination.
pub(crate) struct Examined {
    pub rank: u32,
    pub report: Report,
}

/// Reason why there is no result.
#[derive(Debug)]
pub(crate) enum Unexamined {
    /// The ranks have not found each other, or have lost each other.
    Job(CliError),
    /// The examination does what the control plane does not admit, which says nothing about jobs.
    Doctor(CliError),
}

impl From<CliError> for Unexamined {
    fn from(error: CliError) -> Self {
        Self::Job(error)
    }
}

impl From<kolo::Error> for Unexamined {
    fn from(error: kolo::Error) -> Self {
        match error {
            kolo::Error::Usage { .. } => Self::Doctor(CliError::failure(
                error,
                "This says nothing about jobs; please report it as a bug",
            )),
            _ => Self::Job(error.into()),
        }
    }
}

impl From<Unexamined> for CliError {
    fn from(failed: Unexamined) -> Self {
        let (Unexamined::Job(error) | Unexamined::Doctor(error)) = failed;
        error
    }
}

/// This rank and its connection to the others.
struct Rank {
    control: Control,
    members: Arc<[u32]>,
    round: u64,
}

impl Rank {
    /// Sends a value to all ranks, and returns the values that they send.
    fn tell<T: Serialize + DeserializeOwned>(&mut self, what: &T) -> Result<Vec<T>, Unexamined> {
        self.tell_within(PHASE_LIMIT, what)
    }

    fn tell_within<T: Serialize + DeserializeOwned>(
        &mut self,
        limit: Duration,
        what: &T,
    ) -> Result<Vec<T>, Unexamined> {
        let blob = serde_json::to_vec(what).unwrap_or_default();
        let key = GatherKey { communicator: EXAMINATION, round: control::Round::Numbered(self.round) };
        self.round += 1;
        let told = self.control.all_gather(key, &self.members, &blob, Instant::now() + limit)?;
        told.iter()
            .map(|blob| {
                decode(blob).map_err(|error| {
                    let problem = format!("a rank's report cannot be read: {error}");
                    CliError::failure(problem, "Use the same version of Kolo on all hosts").into()
                })
            })
            .collect()
    }
}

/// Decodes a rank's report. Its texts, such as names of hosts and interfaces, go to terminals.
fn decode<T: DeserializeOwned>(blob: &[u8]) -> serde_json::Result<T> {
    fn make_printable(value: &mut Value) {
        match value {
            Value::String(text) => *text = printable(text, TEXT_BYTES),
            Value::Array(values) => values.iter_mut().for_each(make_printable),
            Value::Object(fields) => fields.values_mut().for_each(make_printable),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut value = serde_json::from_slice(blob)?;
    make_printable(&mut value);
    serde_json::from_value(value)
}

/// Examines the network between the hosts of this job. All ranks must call it. It blocks for some seconds, plus
/// `time` for the pairs of hosts.
pub(crate) fn examine(time: Duration, depth: Depth) -> Result<Examined, Unexamined> {
    let (config, problem) = match depth {
        // The result must not depend on measurements, which may be what is to be replaced.
        Depth::Network => (configuration::without_files()?, None),
        Depth::Communicator => configuration::with_usable_files()?,
    };
    let runtime = ControlRuntime::new()?;
    let is_launched = environment::launched()?.is_some() || std::env::var_os("KOLO_RENDEZVOUS").is_some();
    let mut spec = if is_launched { JoinSpec::from_process_env()? } else { JoinSpec::local(1).remove(0) };
    let is_given = std::env::var_os("KOLO_JOIN_TIMEOUT").is_some();
    spec.timeout = if is_given { config.join_timeout } else { JOIN_LIMIT };
    spec.ports.clone_from(&config.port_range);
    let control = Control::join(&spec, &runtime)?;
    let began = Instant::now();
    let members: Arc<[u32]> = (0..control.world_size()).collect();
    let own = control.rank();
    let hosts = hosts(control.peer_info());
    let host = hosts.iter().position(|ranks| ranks.contains(&own)).unwrap_or_default() as u32;
    let is_leader = hosts[host as usize][0] == own;
    let mut rank = Rank { control: control.clone(), members, round: 0 };

    let token = token(&control.job_cookie());
    let answering = if is_leader && hosts.len() > 1 { Some(answering(&config, token)?) } else { None };
    let port = answering.as_ref().map(|answering| answering.port);
    let told = rank.tell(&Facts::collect(&config, port, problem.map(|problem| problem.message)))?;
    let mut report = Report { hosts: describe(&hosts, &told), ..Report::default() };
    let list = config.socket_interfaces.as_deref().and_then(TcpOptions::interfaces_from);
    let examiner = answering.map(|answering| Examiner { host, token, answering, list });
    let reached = examiner.as_ref().map(|examiner| examiner.reach(&report.hosts)).unwrap_or_default();
    let limit = PHASE_LIMIT * hosts.len().div_ceil(HOSTS_AT_A_TIME) as u32;
    let told = rank.tell_within(limit, &Summary::new(&reached, hosts.len()))?;
    report.reaches = reaches(told, &report.hosts, reached);
    measure(&mut rank, &mut report, examiner.as_ref(), time)?;
    hold_meetings(&mut rank, &mut report, examiner.as_ref(), time / MEETINGS_PART)?;
    drop(examiner);
    let is_broken = findings(&report).iter().any(|finding| finding.severity == Severity::Broken);
    if depth == Depth::Communicator && !is_broken {
        let tried = match trial(&config, control, trial_elements(&report)) {
            Ok(routes) => (routes, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        // If the communicator failed, the control plane may have ended with it.
        let told = rank.tell(&tried).unwrap_or_else(|_| vec![tried]);
        report.failure = told.iter().find_map(|(_, failure)| failure.clone());
        report.routes = told.into_iter().flat_map(|(routes, _)| routes).collect();
    }
    report.seconds = began.elapsed().as_secs_f64();
    Ok(Examined { rank: own, report })
}

/// Returns the ranks of each host, in the order of their first ranks.
fn hosts(peers: &[PeerInfo]) -> Vec<Vec<u32>> {
    let mut keys: Vec<u64> = Vec::new();
    let mut hosts: Vec<Vec<u32>> = Vec::new();
    for peer in peers {
        let at = keys.iter().position(|key| *key == peer.host_key).unwrap_or_else(|| {
            keys.push(peer.host_key);
            hosts.push(Vec::new());
            keys.len() - 1
        });
        hosts[at].push(peer.rank);
    }
    hosts
}

fn describe(hosts: &[Vec<u32>], told: &[Facts]) -> Vec<Host> {
    let describe = |ranks: &Vec<u32>| {
        let mut facts = told[ranks[0] as usize].clone();
        let tightest = |limit: fn(&Facts) -> Option<u64>| {
            ranks.iter().filter_map(|rank| limit(&told[*rank as usize])).min()
        };
        facts.open_files = tightest(|facts| facts.open_files);
        facts.locked_memory = tightest(|facts| facts.locked_memory);
        facts.problem = ranks.iter().find_map(|rank| told[*rank as usize].problem.clone());
        Host { ranks: ranks.clone(), facts }
    };
    hosts.iter().map(describe).collect()
}

/// Derives the token from the cookie, which only joined ranks know. The cookie itself never crosses the network
/// in clear.
fn token(cookie: &[u8]) -> Token {
    let mut hash = Sha256::new();
    hash.update(b"kolo doctor");
    hash.update(cookie);
    let mut token = Token::default();
    token.copy_from_slice(&hash.finalize()[..16]);
    token
}

fn answering(config: &Config, token: Token) -> Result<Answering> {
    let doing = "listening for other hosts";
    let socket = listen(config.port_range.clone()).map_err(|error| CliError::system(doing, &error))?;
    Answering::start(socket.into(), token).map_err(|error| CliError::system(doing, &error))
}

/// The leader of a host, which examines the other hosts.
struct Examiner {
    host: u32,
    token: Token,
    answering: Answering,
    /// The interfaces that the user admits.
    list: Option<Vec<String>>,
}

impl Examiner {
    /// Dials all other hosts, many at a time.
    fn reach(&self, hosts: &[Host]) -> Vec<Reach> {
        let target = |(host, number): (&Host, u32)| Target {
            host: number,
            addresses: addresses(host, self.list.as_deref()),
            port: host.facts.port.unwrap_or_default(),
        };
        let mut targets: Vec<Target> =
            hosts.iter().zip(0..).filter(|(_, number)| *number != self.host).map(target).collect();
        // All hosts begin elsewhere, so that no host is dialled by all others at once.
        let others = targets.len().max(1);
        targets.rotate_left(self.host as usize % others);
        let mut reached =
            in_parallel(&targets, HOSTS_AT_A_TIME, |target| reach(&self.token, self.host, target));
        reached.sort_by_key(|reach| reach.to);
        reached
    }
}

/// Returns the addresses at which the transport would dial a host from here, in its order.
fn addresses(host: &Host, list: Option<&[String]>) -> Vec<(String, IpAddr, u8)> {
    let network = |(interface, ip, prefix): &(String, IpAddr, u8)| Network {
        interface: interface.clone(),
        ip: *ip,
        prefix: *prefix,
    };
    let theirs: Vec<Network> = host.facts.networks.iter().map(network).collect();
    let found = dialled(&theirs, list).unwrap_or_default();
    found.into_iter().map(|(network, distance)| (network.interface, network.ip, distance)).collect()
}

/// A leader's measurements in one round.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Round {
    measured: Option<Measured>,
    problem: Option<(u32, u32, String)>,
    /// Set by rank 0: whether there is time for another round.
    goes_on: bool,
}

fn measure(
    rank: &mut Rank,
    report: &mut Report,
    examiner: Option<&Examiner>,
    time: Duration,
) -> Result<(), Unexamined> {
    let hosts = report.hosts.len() as u32;
    let ports: Vec<Option<u16>> = report.hosts.iter().map(|host| host.facts.port).collect();
    let until = Instant::now() + time;
    report.rounds = (0, rates::rounds(hosts));
    for round in 0..rates::rounds(hosts) {
        let mut own = Round::default();
        let pairs = rates::pairs(hosts, round);
        let mine = examiner.and_then(|examiner| {
            let pair = pairs.iter().find(|pair| [pair.0, pair.1].contains(&examiner.host))?;
            Some((examiner, pair.0 + pair.1 - examiner.host))
        });
        if let Some((Examiner { host, token, answering, .. }, partner)) = mine {
            let place = Place { host: *host, token, answering, reaches: &report.reaches, ports: &ports };
            match rates::measure(&place, partner) {
                Ok(measured) => own.measured = measured,
                Err(problem) => own.problem = Some((*host, partner, problem)),
            }
        }
        own.goes_on = Instant::now() < until;
        let told = rank.tell(&own)?;
        let goes_on = told.first().is_some_and(|round| round.goes_on);
        for Round { measured, problem, .. } in told {
            report.measured.extend(measured);
            // Both ends report the problem; the first report is enough.
            let is_new = |(from, to, _): &(u32, u32, String)| {
                !report.unmeasured.iter().any(|(one, other, _)| (*one, *other) == (*to, *from))
            };
            let new = problem.filter(is_new);
            report.unmeasured.extend(new);
        }
        report.rounds.0 += 1;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Lets several hosts send to one, for each host in turn. It takes three hosts.
fn hold_meetings(
    rank: &mut Rank,
    report: &mut Report,
    examiner: Option<&Examiner>,
    time: Duration,
) -> Result<()> {
    let hosts = report.hosts.len() as u32;
    let ports: Vec<Option<u16>> = report.hosts.iter().map(|host| host.facts.port).collect();
    let until = Instant::now() + time;
    for to in (0..hosts).filter(|_| hosts > 2) {
        let met = examiner.and_then(|Examiner { host, token, answering, .. }| {
            let place = Place { host: *host, token, answering, reaches: &report.reaches, ports: &ports };
            meet(&place, hosts, to)
        });
        let told: Vec<(Option<Meeting>, bool)> = rank.tell(&(met, Instant::now() < until))?;
        let goes_on = told.first().is_some_and(|(_, goes_on)| *goes_on);
        report.meetings.extend(told.into_iter().filter_map(|(met, _)| met));
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Returns as many elements as the slowest way carries in a second, since a slow link is no broken one. All ranks know the same
/// measurements.
fn trial_elements(report: &Report) -> usize {
    let rates = report.measured.iter().map(|way| way.bytes_per_second);
    let carried = rates.fold(f64::INFINITY, f64::min) / size_of::<f32>() as f64;
    (carried as usize).clamp(TRIAL_ELEMENTS.0, TRIAL_ELEMENTS.1)
}

/// Makes a communicator over the connections to rank 0 and sums a vector. Returns how this rank reaches the
/// others.
fn trial(config: &Config, control: Control, elements: usize) -> Result<Vec<Route>> {
    let config = config.clone().with(|config| {
        config.network_probe = false;
        config.timeout = CALL_LIMIT;
    });
    let is_alone = control.world_size() == 1;
    let comm = Communicator::builder().config(config).over(control)?;
    let mut routes: Vec<Route> = Vec::new();
    for route in comm.routes() {
        let (transport, how, declined) =
            (route.transport.to_owned(), route.how.clone(), route.declined.clone());
        match routes.iter_mut().find(|known| known.transport == transport && known.declined == declined) {
            Some(known) => known.peers.push(route.peer),
            None => {
                routes.push(Route { rank: comm.rank(), peers: vec![route.peer], transport, how, declined })
            }
        }
    }
    if !is_alone {
        let mut ones = vec![1.0_f32; elements];
        comm.all_reduce(&mut ones, kolo::ReduceOp::Sum)?;
        let ranks = comm.world_size() as f32;
        if ones.iter().any(|sum| *sum != ranks) {
            return Err(CliError::failure(
                format!("the sum of ones over {ranks} ranks is wrong"),
                "Suspect memory or a network adapter; `kolo perf all_reduce -c 1` shows which ranks are \
                 affected",
            ));
        }
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::super::text::text;
    use super::*;

    #[test]
    fn texts_of_other_ranks_do_not_reach_a_terminal_as_they_are() {
        let strange = || "\x1b]0;x\x07".to_owned();
        let facts = Facts {
            hostname: strange(),
            congestion: strange(),
            problem: Some(strange()),
            processor_quota: Some(1.5),
            locked_memory: Some(u64::MAX),
            networks: vec![(strange(), IpAddr::from([192, 0, 2, 1]), 24)],
            ..Facts::default()
        };
        let told: Facts = decode(&serde_json::to_vec(&facts).unwrap()).unwrap();
        assert_eq!(told.hostname, "\\u{1b}]0;x\\u{7}");
        assert_eq!((told.processor_quota, told.locked_memory), (Some(1.5), Some(u64::MAX)));
        assert_eq!(told.networks[0].1, facts.networks[0].1);
        let route = Route {
            rank: 0,
            peers: vec![1],
            transport: strange(),
            how: strange(),
            declined: vec![(strange(), strange())],
        };
        let route: Vec<Route> = decode(&serde_json::to_vec(&[route]).unwrap()).unwrap();
        let hosts = vec![Host { ranks: vec![0, 1], facts: told }];
        let report = Report { hosts, routes: route, ..Report::default() };
        let out = text(&report, &findings(&report));
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
    }
}
