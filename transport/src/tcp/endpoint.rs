//! The endpoint of the TCP transport: the operations that the owner calls.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::NAME;
use super::accept::{Acceptor, Arrival, Identity, RejectedConnections};
use super::address::{Address, Host};
use super::black_hole::Trial;
use super::congestion;
use super::inbound::{Landing, Recv};
use super::interfaces::{self, Interface, Local};
use super::leaving::Leaving;
use super::link::{Link, State, Strands, Workspace};
use super::options::TcpOptions;
use super::outbound::{BURST_BYTES, Send};
use super::pacing::Pacing;
use super::padding::Proving;
use super::park::Park;
use super::rails::{self, Rail};
use super::relay::AtRelay;
use super::resends::Resends;
use super::route::{self, Candidate, Here};
use super::socket::{self, Stop, TcpInfo};
use super::stripes::Path;
use super::wire::{MESSAGE_MAX, key_of};
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Caps, Channel, Endpoint, Event, OnMisfit, Paced, Piece, Posted, Reach, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::pieces::{Eater, Pieces};

/// Maximum number of channels per peer. Each is a connection, and thus a descriptor; plans use a few dozen at most.
pub(super) const CHANNELS_MAX: u16 = 256;

/// Maximum number of bytes that a post hands to the kernel. The send buffer may take 4 MiB (the default) at once,
/// which would be a long wait for the caller; a call of 1 MiB is long enough for its own cost not to matter.
pub(super) const CALL_BYTES: usize = 1 << 20;

/// One rank's end of the TCP transport.
#[derive(Debug)]
pub struct TcpEndpoint {
    pub(super) me: Identity,
    pub(super) options: TcpOptions,
    pub(super) host: Host,
    interfaces: Vec<Interface>,
    /// The addresses of all interfaces of this host.
    own_addresses: Vec<IpAddr>,
    /// Whether the system has listed its interfaces.
    is_listed: bool,
    /// Facts and options that the system has refused and that this end does without, in words.
    lack: Option<String>,
    address: Vec<u8>,
    port: u16,
    pub(super) acceptor: Acceptor,
    /// Known facts about each rank, by rank.
    pub(super) peers: Vec<Peer>,
    pub(super) links: Vec<Link>,
    /// Links with pending messages.
    pub(super) listed: Vec<u32>,
    /// Links that this end dials.
    pub(super) dialing: Vec<u32>,
    /// Links for which this end dials further connections.
    pub(super) stranding: Vec<u32>,
    /// Further connections of peers whose paths may lose full segments.
    pub(super) proving: Vec<Proving>,
    /// Links with pending messages that the peer is to dial.
    pub(super) awaited: Vec<u32>,
    /// Closed connections with unsent bytes of this rank, kept for a moment because the kernel would otherwise reset
    /// them.
    pub(super) leaving: Vec<Leaving>,
    /// Connections to the relay on which this end waits for peers when neither can dial the other.
    pub(super) at_relay: Vec<AtRelay>,
    /// Scratch list of arrivals, empty between calls.
    pub(super) arrivals: Vec<Arrival>,
    /// Arrivals from peers that this end itself is dialing: see `turns`.
    pub(super) deferred: Vec<Arrival>,
    pub(super) work: Workspace,
    pub(super) pacing: Pacing,
    pub(super) resends: Resends,
    /// Connections to peers that do not acknowledge data.
    pub(super) trials: Vec<Trial>,
    pub(super) park: Park,
    /// Whether sockets are registered with `park`.
    pub(super) watching: bool,
    /// Whether the system refused to register one; sleeps are then short.
    pub(super) deaf: bool,
    pub(super) armed: bool,
    /// Whether epoll has reported an event at the acceptor or for a dial.
    pub(super) stirred: bool,
    timer_set: bool,
    /// Number of polls so far.
    pub(super) tick: u32,
}

/// Known facts about a rank.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) address: Option<Address>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) rails: Vec<Rail>,
    /// Paths on which there have been connections, and those on which dialing failed.
    pub(super) paths: Vec<Path>,
    /// Link numbers by channel index, or `NO_LINK`.
    pub(super) links: Vec<u32>,
    pub(super) down: Option<Error>,
    /// Whether this end dials first; `None` means that the lower rank does.
    pub(super) dials_first: Option<bool>,
    /// Whether neither end got through to the other the last time, and they have met at a relay.
    pub(super) is_relayed: bool,
    /// Bytes per second that the path to it carries; 0 if unknown.
    pub(super) expected: f64,
    /// Shortest round trip on the connections of its channels, if one is known.
    pub(super) least_round_trip: Option<Duration>,
}

const CAPS: Caps = Caps {
    name: NAME,
    channels_max: CHANNELS_MAX,
    message_max: MESSAGE_MAX,
    // The room in the kernel's buffers is unknown, and there is no connection before the peer has polled.
    eager_max: 0,
    staging_per_channel: 0,
    park_word: false,
    park_fd: true,
    can_probe: true,
    can_cancel_recvs: true,
    can_pack: false,
    stage: None,
};

const NO_LINK: u32 = u32::MAX;

impl TcpEndpoint {
    /// Opens the endpoint of `rank` among `world_size` ranks. It listens from now on.
    ///
    /// # Errors
    /// If the rank is out of range, no interface is admitted, or the system refuses a resource.
    pub fn new(rank: u32, world_size: u32, options: TcpOptions) -> Result<Self, Error> {
        Self::with_interfaces(rank, world_size, options, interfaces::enumerate())
    }

    /// As [`TcpEndpoint::new`], with what the system says about the host's interfaces.
    pub(super) fn with_interfaces(
        rank: u32,
        world_size: u32,
        options: TcpOptions,
        local: io::Result<Local>,
    ) -> Result<Self, Error> {
        let system = |what: &'static str| move |error| Error::system(NAME, None, what, error);
        if rank >= world_size {
            let detail = format!("rank {rank} in a world of {world_size}");
            return Err(Error::new(ErrorKind::Usage, NAME, None, detail));
        }
        let instance = getrandom::u64().map_err(|error| {
            Error::system(NAME, None, "random number", io::Error::other(error.to_string()))
        })?;
        let host = Host::here(instance);
        congestion::check(&options.congestion).map_err(system("setting an option"))?;
        let (local, lack) = with_lacks(local, &options);
        let admitted = admitted(&local, &options)?;
        let listens = |at: SocketAddr| at.ip().is_unspecified() || admitted.iter().any(|i| i.ip == at.ip());
        let acceptor = Acceptor::open(&options, instance, listens).map_err(system("listening"))?;
        let at = acceptor.at().map_err(system("listening"))?;
        let reached: Vec<Interface> =
            admitted.iter().filter(|i| at.ip().is_unspecified() || i.ip == at.ip()).cloned().collect();
        let port = at.port();
        let address = Address::new(port, instance, host, &reached).encode();
        let park = Park::new().map_err(system("creating an epoll descriptor"))?;
        let key = key_of(&options.cookie);
        Ok(Self {
            me: Identity { rank, world_size, instance, key },
            resends: Resends::of(&options),
            options,
            host,
            interfaces: admitted,
            own_addresses: local.own,
            is_listed: local.is_listed,
            lack,
            address,
            port,
            acceptor,
            peers: (0..world_size).map(|_| Peer::default()).collect(),
            links: Vec::new(),
            listed: Vec::new(),
            dialing: Vec::new(),
            stranding: Vec::new(),
            proving: Vec::new(),
            awaited: Vec::new(),
            leaving: Vec::new(),
            at_relay: Vec::new(),
            arrivals: Vec::new(),
            deferred: Vec::new(),
            work: Workspace::new(),
            pacing: Pacing::default(),
            trials: Vec::new(),
            park,
            watching: false,
            deaf: false,
            armed: false,
            stirred: false,
            timer_set: false,
            tick: 0,
        })
    }

    /// Returns the port at which it listens, on all its addresses.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a count of the connections that were rejected: port scanners, other jobs, ranks of another version.
    #[must_use]
    pub fn rejected_connections(&self) -> &RejectedConnections {
        &self.acceptor.rejected
    }

    /// Describes a connected channel for the summary: the peer's address and the congestion control.
    #[must_use]
    pub fn route(&self, on: Channel) -> Option<(Option<SocketAddr>, String)> {
        let number = *self.peers.get(on.peer as usize)?.links.get(usize::from(on.index))?;
        let link = self.links.get(number as usize)?;
        link.route.as_ref().map(|route| (route.remote, route.congestion.clone()))
    }

    /// Returns the number of connections over which a channel's long messages go.
    #[must_use]
    pub fn connections(&self, on: Channel) -> usize {
        let numbers = self.peers.get(on.peer as usize).map_or(&[][..], |peer| &peer.links);
        let link = numbers.get(usize::from(on.index)).and_then(|&number| self.links.get(number as usize));
        let strands = |link: &Link| link.bundle.as_ref().map_or(1, |bundle| bundle.strands.len());
        link.filter(|link| matches!(link.state, State::Open(_))).map_or(0, strands)
    }

    /// Returns the number of a channel's link, which is made on first use.
    pub(super) fn link(&mut self, on: Channel) -> Result<u32, Error> {
        let usage = |what: String| Err(Error::new(ErrorKind::Usage, NAME, Some(on.peer), what));
        let Some(peer) = self.peers.get_mut(on.peer as usize) else {
            return usage(format!("no such rank in a world of {}", self.me.world_size));
        };
        if let Some(cause) = &peer.down {
            return Err(cause.clone());
        }
        let index = usize::from(on.index);
        if let Some(&number) = peer.links.get(index)
            && number != NO_LINK
        {
            return Ok(number);
        }
        if on.peer == self.me.rank {
            return usage("a rank has no channel to itself".into());
        }
        if on.index >= CHANNELS_MAX {
            return usage(format!("channel {} of at most {CHANNELS_MAX}", on.index));
        }
        if peer.links.len() <= index {
            peer.links.resize(index + 1, NO_LINK);
        }
        // There are at most 2^32 ranks with 2^8 channels; memory runs out long before the numbers do.
        let number = self.links.len() as u32;
        peer.links[index] = number;
        self.links.push(Link::new(on));
        Ok(number)
    }

    /// Queues a receive.
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`].
    unsafe fn enqueue_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        let number = self.link(on)?;
        let (landing, len) = match dst {
            Sink::Place(list) => {
                let (pieces, total) = Pieces::new(list);
                (Landing::Place(pieces), total)
            }
            Sink::Consume { len, consumer } => {
                (Landing::Eat(Eater::new(consumer)), Some(len).filter(|&len| len <= MESSAGE_MAX))
            }
        };
        let len = len.ok_or_else(|| too_long(on.peer))?;
        let inbound = &mut self.links[number as usize].inbound;
        inbound.probed = false;
        inbound.queue.push_back(Recv {
            token,
            tag,
            len,
            landing,
            conditional: on_misfit == OnMisfit::Return,
        });
        self.enlist(number);
        Ok(Posted::Pending)
    }

    /// Returns the existing links to a peer.
    pub(super) fn links_to(&self, peer: u32) -> impl Iterator<Item = &Link> {
        let numbers = self.peers.get(peer as usize).map_or(&[][..], |peer| &peer.links);
        numbers.iter().filter_map(|&number| self.links.get(number as usize))
    }

    /// Notes that a link has pending messages, and starts its connection.
    fn enlist(&mut self, number: u32) {
        let link = &mut self.links[number as usize];
        if !link.listed {
            link.listed = true;
            self.listed.push(number);
        }
        if matches!(link.state, State::Idle) {
            self.ensure_connection(number);
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn caps(&self) -> &Caps {
        &CAPS
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error> {
        if peer == self.me.rank || peer >= self.me.world_size {
            let detail = format!("no such peer in a world of {}", self.me.world_size);
            return Err(Error::new(ErrorKind::Usage, NAME, Some(peer), detail));
        }
        let address = Address::decode(address).map_err(|error| Error {
            kind: ErrorKind::Corrupt,
            ..Error::system(NAME, Some(peer), "the peer's address", error)
        })?;
        let (interfaces, own) = (&*self.interfaces, &*self.own_addresses);
        let here = Here { interfaces, own, is_listed: self.is_listed };
        let (stack, list) = (self.host.stack(&address.host), self.options.interfaces.as_deref());
        let candidates = route::candidates(&address, stack, here, self.options.family, list);
        if candidates.is_empty() && self.relay_to(peer).is_none() {
            let because = "no common network; see KOLO_SOCKET_IFNAME".to_owned();
            return Ok(Reach::No { because });
        }
        let rails = rails::rails(&address, &self.host, &self.interfaces, self.options.family, list);
        let near = if self.host.same_stack(&address.host) { "same host, " } else { "" };
        let mut how = match (candidates.first(), &rails[..]) {
            (None, _) => "no common network: relayed by rank 0, unless the peer gets through".to_owned(),
            (Some(first), [_, others @ ..]) if !others.is_empty() => {
                let others = others.iter().map(|rail| format!("{} via {}", rail.to.ip(), rail.at));
                let others: Vec<String> = others.collect();
                format!("{} via {}, long messages also to {}", first.to, first.interface, others.join(", "))
            }
            (Some(first), _) => format!("{near}{} via {}", first.to, first.interface),
        };
        if let Some(lack) = &self.lack {
            how = format!("{how}; {lack}");
        }
        let known = &mut self.peers[peer as usize];
        known.rails = rails;
        known.address = Some(address);
        known.candidates = candidates;
        for number in known.links.clone() {
            let waiting = self.links.get(number as usize).is_some_and(|l| l.has_work());
            if waiting && matches!(self.links[number as usize].state, State::Idle) {
                self.ensure_connection(number);
            }
        }
        Ok(Reach::Yes { how })
    }

    fn establish(&mut self, _: &dyn Fn() -> bool, _deadline: Instant) -> Result<(), Error> {
        // It has listened since `new`, and connections are made on first use.
        Ok(())
    }

    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let number = self.link(on)?;
        let (pieces, total) = Pieces::new(src);
        let len = total.ok_or_else(|| too_long(on.peer))?;
        let link = &mut self.links[number as usize];
        link.outbound.queue.push_back(Send::new(token, tag, len, pieces));
        if link.wants_pace(len) {
            self.pace(number, len);
        }
        let link = &mut self.links[number as usize];
        let burst = link.outbound.posted_after.replace(self.tick) == Some(self.tick);
        if link.outbound.queue.len() == 1
            && !(burst && len <= BURST_BYTES)
            && !link.pace.is_listed
            && matches!(link.state, State::Open(_))
        {
            let mut through = false;
            let paths = &mut self.peers[on.peer as usize].paths;
            match link.transmit(paths, &mut self.work, CALL_BYTES, |_| through = true) {
                Err(Stop::Blocked) => link.writable = false,
                // If the connection is closed, the next poll meets that again and reports it.
                Ok(_) | Err(Stop::Closed(_)) => {}
            }
            if through {
                return Ok(Posted::Done);
            }
        }
        self.enlist(number);
        Ok(Posted::Pending)
    }

    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_recv(on, tag, dst, on_misfit, token) }
    }

    fn cancel_recvs(&mut self, on: Channel, events: &mut Vec<Event>) -> bool {
        self.link(on).is_ok_and(|number| self.links[number as usize].inbound.take_back(events))
    }

    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        let number = self.link(on)?;
        self.links[number as usize].inbound.probed = true;
        self.enlist(number);
        Ok(())
    }

    fn cancel_probe(&mut self, on: Channel) {
        if let Ok(number) = self.link(on) {
            self.links[number as usize].inbound.probed = false;
        }
    }

    fn is_hearing(&self, peer: u32) -> bool {
        self.links_to(peer).any(|link| match &link.state {
            State::Open(_) => link.inbound.is_wanted(),
            // The peer may have sent its welcome and all the rest.
            State::Dialing(dial) => link.inbound.is_wanted() && dial.has_said_hello(),
            State::Idle | State::Awaited(_) | State::Gone => false,
        })
    }

    fn is_sending(&self, peer: u32) -> bool {
        self.links_to(peer).any(|link| !link.outbound.queue.is_empty())
    }

    fn is_unheard(&self, peer: u32) -> bool {
        self.links_to(peer).any(|link| match &link.state {
            State::Open(socket) => {
                let others =
                    link.bundle.iter().flat_map(|bundle| &bundle.strands).filter_map(|s| s.socket.as_ref());
                let in_vain = |socket: &_| TcpInfo::of(socket).is_some_and(|info| info.resends_in_vain());
                in_vain(socket) || others.into_iter().any(in_vain)
            }
            State::Dialing(dial) => link.silences > 0 || dial.is_unheard(),
            State::Awaited(awaiting) => awaiting.tried.is_some(),
            State::Idle | State::Gone => false,
        })
    }

    fn black_hole(&mut self, peer: u32) -> Option<u32> {
        self.find_black_hole(peer, Instant::now())
    }

    fn rails(&self, peer: u32) -> Vec<crate::endpoint::Rail> {
        let Some(known) = self.peers.get(peer as usize) else { return Vec::new() };
        let rail = |path: &Path| crate::endpoint::Rail {
            interface: path.interface.clone(),
            remote: path.remote,
            bytes_per_second: path.rate,
            sent_bytes: path.sent,
            problem: path.problem.clone(),
        };
        let idle =
            known.rails.iter().filter(|rail| known.paths.iter().all(|path| path.remote != rail.to.ip()));
        let idle = idle.map(|idle| rail(&Path::new(idle.to.ip(), idle.interface.clone())));
        let all: Vec<_> = known.paths.iter().map(rail).chain(idle).collect();
        if all.len() > 1 { all } else { Vec::new() }
    }

    fn expect(&mut self, peer: u32, bytes_per_second: f64) {
        self.expect_rate(peer, bytes_per_second);
    }

    fn paced(&self) -> Option<&Paced> {
        self.pacing.paced()
    }

    fn relayed(&self) -> Vec<u32> {
        let is_relayed = |link: &Link| link.route.as_ref().is_some_and(|route| route.is_relayed);
        (0..self.me.world_size).filter(|peer| self.links_to(*peer).any(is_relayed)).collect()
    }

    fn leave(&mut self) {
        self.part();
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.progress(events)
    }

    fn arm(&mut self, _by: ParkBy) -> Armed<'_> {
        if self.listed.is_empty() {
            return Armed::Idle;
        }
        self.look();
        self.armed = true;
        let dials = self.dialing.iter().filter_map(|&number| match &self.links[number as usize].state {
            State::Dialing(dial) => dial.due(&self.options),
            _ => None,
        });
        let strands =
            self.stranding.iter().filter_map(|&number| match &self.links[number as usize].strands {
                Strands::Dialing(dials) => dials.iter().filter_map(|(_, dial)| dial.due(&self.options)).min(),
                Strands::None | Strands::Wanted => None,
            });
        let dials = dials.chain(strands).chain(self.proving.iter().filter_map(Proving::until));
        let waits = self.awaited.iter().filter_map(|&number| self.links[number as usize].awaited_until());
        let deferred = self.deferred.iter().map(|arrival| self.deferred_until(arrival));
        let short = self.deaf.then(|| Instant::now() + Duration::from_millis(1));
        let due = dials.chain(waits).chain(deferred).chain(self.relays_due());
        let due = due.chain(self.acceptor.due(&self.options)).chain(short).min();
        if due.is_some() || self.timer_set {
            self.timer_set = due.is_some();
            // Setting a timer fails only for invalid arguments, which this one never has.
            let _ = self.park.set_timer(due);
        }
        Armed::Fd(self.park.fd())
    }

    fn disarm(&mut self) {
        self.armed = false;
    }

    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        self.close_peer(peer, cause, events);
    }

    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        for peer in 0..self.me.world_size {
            self.close_peer(peer, cause, events);
        }
    }

    fn is_flushed(&self) -> bool {
        self.listed.iter().all(|&number| self.links[number as usize].outbound.queue.is_empty())
    }
}

/// Returns the interfaces, which may be guessed, and what the system has refused and an endpoint does without.
fn with_lacks(local: io::Result<Local>, options: &TcpOptions) -> (Local, Option<String>) {
    let (local, mut lacks) = match local {
        Ok(local) => (local, Vec::new()),
        Err(error) => {
            (Local::towards(options.relay), vec![format!("the system does not list interfaces ({error})")])
        }
    };
    lacks.extend(socket::refused(options));
    (local, (!lacks.is_empty()).then(|| lacks.join("; ")))
}

/// Returns the interfaces that the options admit.
fn admitted(local: &Local, options: &TcpOptions) -> Result<Vec<Interface>, Error> {
    // Without a list, nothing can be chosen from it.
    let list = options.interfaces.as_deref().filter(|_| local.is_listed);
    interfaces::chosen(local.up.clone(), list, options.family)
        .map_err(|detail| Error::new(ErrorKind::System, NAME, None, detail))
}

fn too_long(peer: u32) -> Error {
    Error::new(ErrorKind::Usage, NAME, Some(peer), "a message longer than memory")
}
