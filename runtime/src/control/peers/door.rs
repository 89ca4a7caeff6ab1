//! A member's door: the port at which the other members of its job reach it without the coordinator.
//!
//! Every process has one port for this; threads of one process have a channel instead. Except to pass on long messages
//! of the coordinator (`passing`), members connect to a door ("knock") only after something has gone wrong. Each door
//! draws a key, which the members tell each other while they make their first communicator, and both ends prove that
//! they know it. The handshake and the sealed stream are those of the coordinator.
//!
//! A door exists for as long as its process has a place in the job. The system refuses connections to the port of a
//! process that has ended, and this refusal proves its end ([`NoAnswer::Gone`]). A stopped process accepts connections
//! and stays silent.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_transport::tcp::Port;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::Event;
use super::halls;
use super::lobby::{GroupId, Lobby};
use super::porter::{self, Answer, House, LeftBehind, Opening, Registry, Shortage};
use super::snapshots::Desk;
use crate::control::connect::{Heard, dial};
use crate::control::coordinator::{BoxedStream, Coordinator, CoordinatorCounters};
use crate::control::entry::Entry;
use crate::control::handshake::{Credentials, Rejection, greet_member};
use crate::control::line;
use crate::control::wire::{decode, encode, read_frame, remember};
use crate::error::{Error, Result};
use crate::job::limits::{
    AGREEMENT_BEAT, HANDSHAKE_TIMEOUT, MAX_DOOR_ADDRESSES, MAX_HANDSHAKES, MAX_HELLO_FRAME, SPARE_HANDSHAKES,
};
use crate::job::{Cookie, RendezvousKey};
use crate::join::{JoinSpec, Locator, open_port};

/// Identifies a meeting of survivors.
pub(crate) type Tag = [u8; 32];

/// Time between the starts of attempts on several addresses.
const STAGGER: Duration = Duration::from_millis(20);

/// Pause before the second attempt at a door that has not answered. Later pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Address and key of a door.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DoorAddress {
    /// Random number of the door. It is unique, even across restarts of one process.
    pub(super) id: u64,
    key: RendezvousKey,
    addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for DoorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoorAddress").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Reason why there is no connection.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// The process has ended, or it has left the job.
    Gone(String),
    /// The same, and the member has gone on without this rank before.
    LeftBehind(LeftBehind),
    /// No answer, which may change.
    Silent(String),
    /// The other end is Kolo, but with another version or other keys.
    Misfit { problem: String, remedy: String },
}

impl NoAnswer {
    /// Returns the reason in words.
    pub(in crate::control) fn text(self) -> String {
        match self {
            Self::Gone(text) | Self::Silent(text) | Self::Misfit { problem: text, .. } => text,
            Self::LeftBehind(_) => "it has gone on without this rank".to_owned(),
        }
    }
}

/// The door of this process or thread. It is closed when dropped.
pub(crate) struct Door {
    address: DoorAddress,
    residents: Registry,
    is_local: bool,
    /// Port of the door, which the endpoints of this process share.
    port: Option<OpenPort>,
    /// Task that answers incoming connections.
    porter: AbortHandle,
    shortage: Arc<Shortage>,
}

struct OpenPort {
    port: Arc<Port>,
    /// All addresses that lead to the port.
    addresses: Vec<SocketAddr>,
    counters: Arc<CoordinatorCounters>,
}

impl Door {
    /// Opens a door on the current tokio runtime, of the kind that the ranks of this job have.
    pub(crate) async fn open(spec: &JoinSpec) -> Result<Self> {
        match spec.locator {
            Locator::Local(_) => Self::open_for_threads(),
            _ => Self::open_port(spec).await,
        }
    }

    /// Opens a door for threads of this process.
    pub(in crate::control) fn open_for_threads() -> Result<Self> {
        let (id, key) = draw()?;
        let residents = Registry::default();
        let porter = tokio::spawn(halls::serve(halls::open(id), residents.clone())).abort_handle();
        let address = DoorAddress { id, key, addresses: Vec::new() };
        Ok(Self { address, residents, is_local: true, port: None, porter, shortage: Arc::default() })
    }

    /// Opens a door for other processes.
    pub(in crate::control) async fn open_port(spec: &JoinSpec) -> Result<Self> {
        let (id, key) = draw()?;
        let residents = Registry::default();
        let (listener, addresses) = open_port(spec).await?;
        let at = listener.local_addr().map_err(|e| Error::system("asking for the port", e))?;
        let shortage = Arc::new(Shortage::default());
        let house = House {
            credentials: Credentials { secret: spec.secret.clone(), rendezvous: Some(key) },
            residents: residents.clone(),
            endpoints: Port::new(at),
            relay: Arc::default(),
            counters: Arc::default(),
            shortage: shortage.clone(),
        };
        // Every rank may dial at once, on several channels. A stranger's connection costs no more than a rank's.
        let most = MAX_HANDSHAKES.min(4 * spec.world_size as usize + SPARE_HANDSHAKES);
        let port = Some(OpenPort {
            port: house.endpoints.clone(),
            addresses: addresses.clone(),
            counters: house.counters.clone(),
        });
        let porter = tokio::spawn(porter::serve(listener, most, house)).abort_handle();
        let address = DoorAddress { id, key, addresses }.bounded();
        Ok(Self { address, residents, is_local: false, port, porter, shortage })
    }

    /// Returns the port at which the endpoints of this process may listen too. `None` for a thread's door.
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.port.as_ref().map(|open| &open.port)
    }

    /// Returns the address at which this process itself reaches the port.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        let port = self.port.as_ref()?.port.at().port();
        Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
    }

    /// Returns the entry for joining ranks, with the addresses at which they reach it. `None` for a thread's door.
    pub(crate) fn entry(&self) -> Option<(Entry, Vec<SocketAddr>)> {
        let OpenPort { port, addresses, counters } = self.port.as_ref()?;
        let mut entry = None;
        self.residents.send_modify(|residents| entry = Some(residents.let_join(port.at(), counters.clone())));
        Some((entry?, addresses.clone()))
    }

    /// Whether this process has lacked descriptors for lines to other members at some time since `since`.
    pub(in crate::control) fn lacked_descriptors(&self, since: Instant) -> bool {
        !self.is_local && self.shortage.was_since(since)
    }

    /// Whether the door is a thread's.
    pub(crate) const fn is_local(&self) -> bool {
        self.is_local
    }

    pub(crate) const fn address(&self) -> &DoorAddress {
        &self.address
    }

    /// Sends lines from members of this job to `events` from now on.
    pub(super) fn move_in(&self, cookie: Cookie, events: &mpsc::UnboundedSender<Event>) {
        self.residents.send_modify(|residents| {
            residents.worlds.insert(cookie, events.downgrade());
        });
    }

    /// Records that the members of a communicator have gone on without these ranks of the job, which will be told so.
    /// `everywhere`: the communicator has all ranks of the job.
    pub(super) fn leave_behind(&self, cookie: Cookie, ranks: &[u32], communicator: u64, everywhere: bool) {
        self.residents.send_modify(|residents| {
            ranks.iter().for_each(|rank| residents.leave_behind(cookie, *rank, communicator, everywhere));
        });
    }

    /// Sends messages that members pass on to `to` from now on.
    pub(in crate::control) fn take_passed(&self, to: mpsc::Sender<Heard>) {
        self.residents.send_modify(|residents| residents.passed = Some(to));
    }

    /// Returns the lobby in which newcomers wait for this group, and makes it if there is none. Newcomers are let in as
    /// long as the lobby exists.
    pub(in crate::control) fn lobby(&self, group: GroupId, make: impl FnOnce() -> Lobby) -> Arc<Lobby> {
        let mut found = None;
        self.residents.send_modify(|residents| {
            residents.lobbies.retain(|_, lobby| lobby.strong_count() > 0);
            let lobby = residents.lobbies.get(&group).and_then(std::sync::Weak::upgrade);
            let lobby = lobby.unwrap_or_else(|| Arc::new(make()));
            residents.lobbies.insert(group, Arc::downgrade(&lobby));
            found = Some(lobby);
        });
        found.expect("it was set above")
    }

    /// Returns the desk from which newcomers fetch the state of this group, and makes it if there is none.
    pub(in crate::control) fn open_desk(&self, group: GroupId) -> Arc<Desk> {
        let desk = self.desk(group).unwrap_or_default();
        self.residents.send_modify(|residents| {
            residents.desks.retain(|_, desk| desk.strong_count() > 0);
            residents.desks.insert(group, Arc::downgrade(&desk));
        });
        desk
    }

    /// Returns the desk of this group, if there is one.
    pub(in crate::control) fn desk(&self, group: GroupId) -> Option<Arc<Desk>> {
        self.residents.borrow().desks.get(&group).and_then(std::sync::Weak::upgrade)
    }

    /// Hands survivors with this tag to `coordinator`, until the result is dropped.
    pub(crate) fn receive(&self, tag: Tag, coordinator: &Coordinator) -> Box<dyn Send> {
        self.residents.send_modify(|residents| {
            residents.coordinators.insert(tag, coordinator.clone());
        });
        Box::new(Received { tag, residents: self.residents.clone() })
    }

    /// Connects to another member's door. `near`: the door is on this host. Every step may take `patience`.
    pub(in crate::control) async fn knock(
        &self,
        at: &DoorAddress,
        near: bool,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, NoAnswer> {
        let answer = at.knock(self.is_local, near, credentials, opening, patience).await;
        if let Err(NoAnswer::Silent(why)) = &answer {
            self.shortage.note_text(why);
        }
        answer
    }

    /// Connects in order to join the coordinator behind the door. Also returns the address that answered.
    pub(crate) async fn join_at(
        &self,
        at: &DoorAddress,
        near: bool,
        credentials: Credentials,
        tag: Tag,
        patience: Duration,
    ) -> std::result::Result<(BoxedStream, Option<SocketAddr>), NoAnswer> {
        at.reach(self.is_local, near, credentials, &Opening::Join { tag }, patience).await
    }
}

impl DoorAddress {
    /// Connects to a door as [`Door::knock`] does. `is_local`: the door belongs to a thread of this process.
    pub(in crate::control) async fn knock(
        &self,
        is_local: bool,
        near: bool,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<BoxedStream, NoAnswer> {
        self.reach(is_local, near, credentials, opening, patience).await.map(|(stream, _)| stream)
    }

    /// Does the same, and also returns the address that answered.
    async fn reach(
        &self,
        is_local: bool,
        near: bool,
        credentials: Credentials,
        opening: &Opening,
        patience: Duration,
    ) -> std::result::Result<(BoxedStream, Option<SocketAddr>), NoAnswer> {
        let (mut stream, at): (BoxedStream, _) = match is_local {
            true => (Box::new(halls::knock(self.id)?), None),
            false => {
                let (stream, at) = knock_at_port(self, near, credentials, patience).await?;
                (stream, Some(at))
            }
        };
        let introduce = async {
            stream.write_all(&encode(opening)).await?;
            stream.flush().await?;
            match read_frame(&mut stream, MAX_HELLO_FRAME).await? {
                Some(frame) => decode::<Answer>(&frame),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        match tokio::time::timeout(patience.max(HANDSHAKE_TIMEOUT), introduce).await {
            Ok(Ok(Answer::Taken)) => Ok((stream, at)),
            Ok(Ok(Answer::LeftBehind(told))) => Err(NoAnswer::LeftBehind(told)),
            Ok(Ok(Answer::Unknown)) => Err(NoAnswer::Gone("it has left the job".into())),
            Ok(Err(error)) => Err(NoAnswer::Silent(format!("its door: {error}"))),
            Err(_) => Err(NoAnswer::Silent("its door does not answer".into())),
        }
    }

    /// Returns the port, if other processes can connect to this door.
    pub(in crate::control) fn port(&self) -> Option<u16> {
        self.addresses.first().map(SocketAddr::port)
    }

    /// Whether other processes can connect to this door.
    pub(in crate::control) fn has_port(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Whether the door can be reached on its own host only.
    pub(in crate::control) fn is_on_one_host(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }

    /// Drops addresses beyond the number that is kept.
    pub(in crate::control) fn bounded(mut self) -> Self {
        self.addresses.truncate(MAX_DOOR_ADDRESSES);
        self
    }

    /// Returns the keys that open the door.
    pub(in crate::control) fn credentials(&self, spec: &JoinSpec) -> Credentials {
        Credentials { secret: spec.secret.clone(), rendezvous: Some(self.key) }
    }

    /// Returns the addresses to try from this host. On the door's own host it is loopback, because the other addresses
    /// may also be those of other hosts.
    fn candidates(&self, near: bool) -> Vec<SocketAddr> {
        let far: Vec<SocketAddr> = self
            .addresses
            .iter()
            .filter(|a| !a.ip().is_loopback())
            .copied()
            .take(MAX_DOOR_ADDRESSES)
            .collect();
        match self.addresses.first() {
            Some(any) if near => vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), any.port())],
            _ if far.is_empty() => self.addresses.iter().copied().take(1).collect(),
            _ => far,
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if self.is_local {
            halls::close(self.address.id);
        }
        self.porter.abort();
    }
}

/// Returns the pause before the next attempt at a door, after this many failures in a row. It is short at first: an
/// ending process closes its sockets one after another, so its door may still accept and drop a connection after the
/// line to it has ended, and refuse the next one.
pub(super) fn pause_after(setbacks: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (setbacks - 1).min(16)).min(AGREEMENT_BEAT)
}

struct Received {
    tag: Tag,
    residents: Registry,
}

impl Drop for Received {
    fn drop(&mut self) {
        self.residents.send_modify(|residents| {
            residents.coordinators.remove(&self.tag);
            remember(&mut residents.over, self.tag);
        });
    }
}

/// Draws the number and the key of a door.
fn draw() -> Result<(u64, RendezvousKey)> {
    let mut drawn = [0; 24];
    getrandom::fill(&mut drawn)
        .map_err(|e| Error::system("drawing the key of a door", io::Error::other(e.to_string())))?;
    let (id, key) = drawn.split_at(8);
    let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
    Ok((id, key.try_into().expect("sixteen bytes")))
}

/// Connects to a door's port. The member is gone if every address refuses the connection, and silent if one does not
/// answer.
async fn knock_at_port(
    at: &DoorAddress,
    near: bool,
    credentials: Credentials,
    patience: Duration,
) -> std::result::Result<(BoxedStream, SocketAddr), NoAnswer> {
    let mut attempts = JoinSet::new();
    for (i, address) in at.candidates(near).into_iter().enumerate() {
        let credentials = credentials.clone();
        attempts.spawn(async move {
            tokio::time::sleep(STAGGER * i as u32).await;
            attempt(address, &credentials, patience).await.map(|stream| (stream, address))
        });
    }
    let mut worst = None;
    while let Some(outcome) = attempts.join_next().await {
        match outcome {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(NoAnswer::Gone(text))) => worst = worst.or(Some(NoAnswer::Gone(text))),
            Ok(Err(silent)) => worst = Some(silent),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or_else(|| NoAnswer::Silent("it has no port for other members".into())))
}

async fn attempt(
    address: SocketAddr,
    credentials: &Credentials,
    patience: Duration,
) -> std::result::Result<BoxedStream, NoAnswer> {
    let silent = |what: &str| NoAnswer::Silent(format!("{address}: {what}"));
    let mut stream = match tokio::time::timeout(patience, dial(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(NoAnswer::Gone(format!("{address} refuses connections: its process has ended")));
        }
        Ok(Err(error)) => return Err(silent(&error.to_string())),
        Err(_) => return Err(silent("no answer")),
    };
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // The kernel may choose a port without a listener as the connection's own.
        return Err(NoAnswer::Gone(format!("nothing is listening on {address}: its process has ended")));
    }
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(patience, greet_member(&mut stream, credentials)).await {
        Ok(Ok(keys)) => Ok(line::stream(stream, keys.as_ref())),
        Ok(Err(Rejection::Misfit { problem, remedy })) => {
            Err(NoAnswer::Misfit { problem: format!("{address}: {problem}"), remedy })
        }
        Ok(Err(Rejection::Foreign(cause))) => Err(silent(&cause)),
        Err(_) => Err(silent("it accepts connections but says nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::limits::MAX_REMEMBERED;

    #[tokio::test(flavor = "current_thread")]
    async fn a_door_remembers_whom_its_members_have_gone_on_without() {
        let (door, own) = (Door::open_for_threads().unwrap(), Door::open_for_threads().unwrap());
        let mut spec = JoinSpec::new(0, 1, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        let knock = |cookie: Cookie, from: u32| {
            let (own, at, credentials) = (&own, door.address(), door.address().credentials(&spec));
            async move {
                let opening = Opening::Line { cookie, from };
                own.knock(at, true, credentials, &opening, Duration::from_secs(20)).await.err()
            }
        };
        let (this, other): (Cookie, Cookie) = ([7; 16], [8; 16]);
        // These jobs have no members here any more, so a member that asks takes this one for gone.
        assert!(matches!(knock(this, 1).await, Some(NoAnswer::Gone(_))));
        door.leave_behind(this, &[1, 2], 5, false);
        let told = |answer| match answer {
            Some(NoAnswer::LeftBehind(told)) => told,
            Some(other) => panic!("{}", other.text()),
            None => panic!("nobody is there"),
        };
        for rank in [1, 2] {
            let told: LeftBehind = told(knock(this, rank).await);
            assert!(told.is_of(5) && !told.is_of(6), "{told:?}");
        }
        // Neither another rank nor the same rank of another job is told.
        assert!(matches!(knock(this, 3).await, Some(NoAnswer::Gone(_))));
        assert!(matches!(knock(other, 1).await, Some(NoAnswer::Gone(_))));
        // A communicator of all ranks counts for every communicator.
        door.leave_behind(this, &[1], 9, true);
        assert!(told(knock(this, 1).await).is_of(6) && !told(knock(this, 2).await).is_of(6));
        // The oldest entries are forgotten, so that the list does not grow.
        let many: Vec<u32> = (10..10 + MAX_REMEMBERED as u32).collect();
        door.leave_behind(this, &many, 5, false);
        assert!(matches!(knock(this, 2).await, Some(NoAnswer::Gone(_))));
        assert!(told(knock(this, 10).await).is_of(5));
    }

    #[test]
    fn a_door_that_drops_a_connection_is_knocked_at_again_at_once_and_a_silent_one_at_every_beat() {
        let pauses: Vec<Duration> = (1..=40).map(pause_after).collect();
        assert_eq!(pauses[..3], [1, 2, 4].map(Duration::from_millis));
        assert!(pauses.is_sorted() && pauses[7..].iter().all(|pause| *pause == AGREEMENT_BEAT));
    }
}
