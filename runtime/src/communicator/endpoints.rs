//! Opens and connects this rank's endpoints.

use std::time::{Duration, Instant};

use kolo_transport::shm::{Exchange, SingleCopy};
use kolo_transport::tcp::Congestion;
use kolo_transport::{Endpoint, ErrorKind, Options, RdmaOptions, RegistrationPolicy, ShmOptions, TcpOptions};

use super::connect::{Making, WORLD};
use super::shared::{Adapters, World};
use crate::config::{Config, TransportKind, Transports};
use crate::control::{AbortCause, AbortKind, Membership};
use crate::engine::{Links, Route};
use crate::error::{Error, ErrorContext, Result};
use crate::failure::adopt;
use crate::gpu;

/// Time that this rank waits for a peer's reason: a peer that gives up closes its socket first, and then says why.
const REASON_GRACE: Duration = Duration::from_millis(50);

/// A transport that may be used.
pub(super) struct Candidate {
    pub(super) kind: TransportKind,
    pub(super) endpoint: Result<Box<dyn Endpoint>, String>,
}

impl Candidate {
    /// Returns the number of channels per peer that the transport offers, if it could be opened.
    pub(super) fn channels_max(&self) -> Option<u16> {
        Some(self.endpoint.as_ref().ok()?.caps().channels_max)
    }
}

/// Opens all transports that the settings allow.
pub(super) fn open(making: &Making) -> Vec<Candidate> {
    let (control, config, members) = (&making.world.control, &making.config, &making.members);
    let (rank, world_size) = (making.rank, members.len() as u32);
    let options = Options {
        shm: ShmOptions {
            host_key: config.host_id.clone(),
            stores: config.shm_stores,
            single_copy: SingleCopy::allowed(config.shm_single_copy),
            ..ShmOptions::default()
        },
        rdma: rdma_options(making),
        tcp: tcp_options(&making.world, config, members),
    };
    let info = control.peer_info();
    let own = info[control.rank() as usize].host_key;
    let one_host =
        config.host_id.is_none() && members.iter().all(|rank| info[*rank as usize].host_key == own);
    let local_ranks = members.iter().filter(|rank| info[**rank as usize].host_key == own).count();
    config
        .transports
        .kinds()
        .iter()
        .copied()
        .map(|kind| {
            // Adapters stay unused where shared memory will carry everything.
            let idle = kind.features().uses_adapters && one_host && config.transports == Transports::Auto;
            let endpoint = match idle {
                true => Err("all ranks are on one host".to_owned()),
                false => kind
                    .open(rank, world_size, &options)
                    .map_err(|error| format!("{error}{}", too_few_ports(config, local_ranks))),
            };
            Candidate { kind, endpoint }
        })
        .collect()
}

/// Describes the problem if the range of ports is too small for the ranks of a host.
fn too_few_ports(config: &Config, local_ranks: usize) -> String {
    let Some(ports) = &config.port_range else { return String::new() };
    match ports.len() < local_ranks {
        true => format!(
            "; {local_ranks} ranks on a host need {local_ranks} ports, but the range has {}",
            ports.len()
        ),
        false => String::new(),
    }
}

/// Returns the options of TCP endpoints between some ranks of a world.
pub(crate) fn tcp_options(world: &World, config: &Config, ranks: &[u32]) -> TcpOptions {
    let control = &world.control;
    let members = || ranks.iter().zip(0..).filter(|(rank, _)| **rank != control.rank());
    let relays = members().filter_map(|(rank, place)| Some((place, control.relay_to(*rank).1?)));
    let parted = members().filter(|(rank, _)| control.is_parted_from(**rank)).map(|(_, place)| place);
    let (dial_patience, dial_timeout, reach_within) = dial_times(config.timeout, control.dead_after());
    TcpOptions {
        dial_patience,
        dial_timeout,
        reach_within,
        is_told_of_deaths: true,
        dead_after: control.dead_after(),
        cookie: control.job_cookie(),
        interfaces: config.socket_interfaces.as_deref().and_then(TcpOptions::interfaces_from),
        ports: config.port_range.clone(),
        port: control.port(),
        congestion: Congestion::from_setting(config.socket_congestion.as_deref()),
        streams: config.socket_streams,
        pacing: config.socket_pacing,
        relay: control.coordinator_at().filter(|_| config.relay),
        relays: relays.filter(|(_, at)| config.relay && Some(*at) != control.coordinator_at()).collect(),
        relayed_before: world.relayed_of(ranks).into_iter().chain(parted).collect(),
        ..TcpOptions::default()
    }
}

/// Returns the time-outs for one silent address, for all of them, and for the peer. A call should end with the list of
/// silent addresses rather than with its own time-out, which does not know them. Five addresses of a peer are therefore
/// given up before that, and so is the peer.
fn dial_times(timeout: Duration, dead_after: Duration) -> (Duration, Duration, Duration) {
    let usual = TcpOptions::default();
    let (patience, silence) = (usual.dial_patience.min(timeout / 16), usual.dial_timeout.min(timeout / 2));
    (patience, silence, dead_after.min(timeout / 4 * 3))
}

fn rdma_options(making: &Making) -> RdmaOptions {
    let config = &making.config;
    RdmaOptions {
        library: config.ib_library.as_ref().map(Into::into),
        adapters: config.ib_adapters.clone(),
        gid_index: config.ib_gid_index,
        traffic_class: config.ib_traffic_class,
        service_level: config.ib_service_level,
        queue_pairs: config.ib_queue_pairs,
        keep: config.ib_cache,
        side: tcp_options(&making.world, config, &making.members),
        ..RdmaOptions::default()
    }
}

/// Links to the other ranks, and facts learnt while connecting them.
pub(super) struct Established {
    pub(super) links: Links,
    /// The exchange of the host, if all ranks are on it.
    pub(super) exchange: Option<Exchange>,
    /// How the adapters reach GPU memory, if there are any.
    pub(super) plan: Option<kolo_gdr::Plan>,
    pub(super) adapters: Option<Adapters>,
}

/// Connects the endpoints that the routes need. Blocks until all ranks have, at most until the deadline.
pub(super) fn establish(
    making: &Making,
    candidates: Vec<Candidate>,
    routes: &[Route],
    membership: &Membership,
    shares_processors: bool,
) -> Result<Established> {
    let (mut exchange, mut plan, mut adapters) = (None, None, None);
    let mut endpoints: Vec<Box<dyn Endpoint>> = Vec::new();
    let mut names = Vec::new();
    for candidate in candidates {
        let (name, Ok(mut endpoint)) = (candidate.kind.name(), candidate.endpoint) else { continue };
        if !routes.iter().any(|route| route.transport == name) {
            continue;
        }
        if let Some(access) = endpoint.device_access() {
            let found = gpu::plan(&making.config, access.takes_dma_bufs.clone())?;
            if making.id == WORLD {
                tracing::info!("GPU memory: {found}");
                if let policy @ RegistrationPolicy::Unwatched { .. } = &access.registrations {
                    tracing::warn!(rank = making.rank, "buffer registrations with adapters are {policy}");
                }
            }
            plan = Some(found);
            let registrations = access.registrations.to_string();
            adapters = Some(Adapters { registrations, fork: access.fork.clone() });
        }
        if shares_processors {
            endpoint.share_processors();
        }
        establish_one(&mut *endpoint, making, membership)?;
        if routes.iter().all(|route| route.transport == name) {
            exchange = endpoint.exchange();
        }
        names.push(name);
        endpoints.push(endpoint);
    }
    let via = (0..making.members.len() as u32).map(|peer| {
        let route = routes.iter().find(|route| route.peer == peer)?;
        names.iter().position(|name| *name == route.transport)
    });
    Ok(Established { links: Links::new(endpoints, via), exchange, plan, adapters })
}

/// Connects one endpoint. If that fails, all members hear why. Otherwise those that have their connections would take
/// this rank for one that has left.
fn establish_one(endpoint: &mut dyn Endpoint, making: &Making, membership: &Membership) -> Result<()> {
    let is_aborted = || membership.abort_flag().is_raised();
    endpoint.establish(&is_aborted, making.deadline).map_err(|source| {
        let context = ErrorContext::unnumbered(making.rank, "making the communicator");
        if source.kind == ErrorKind::PeerLost {
            membership.abort_flag().wait(Instant::now() + REASON_GRACE);
        }
        if let Some(report) = membership.abort_flag().cause() {
            return adopt(&report, |_| None).error(context, making.rank);
        }
        let reason = format!("{}: {source}", context.operation);
        membership.abort(AbortCause::new(making.rank, AbortKind::Transport, reason));
        Error::Transport { context, source: Box::new(source) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_addresses_are_given_up_before_the_call_is() {
        for timeout_ms in [1, 400, 4_000, 30_000, 600_000] {
            let timeout = Duration::from_millis(timeout_ms);
            let (patience, silence, reach) = dial_times(timeout, Duration::from_secs(60));
            assert!(4 * patience + silence < timeout, "{timeout:?}: {patience:?}, {silence:?}");
            assert!(reach < timeout, "{timeout:?}: {reach:?}");
        }
        let usual = TcpOptions::default();
        let long = dial_times(Duration::from_secs(600), usual.dead_after);
        assert_eq!(long, (usual.dial_patience, usual.dial_timeout, usual.reach_within));
        assert_eq!(dial_times(Duration::from_secs(600), Duration::from_secs(3)).2, Duration::from_secs(3));
    }
}
