//! Newcomers that wait at a member's listener until the members admit them.
//!
//! A newcomer brings the key of the listener, which it has from an invitation, and introduces itself. It is told at
//! once if it does not fit. From then on, both ends send something at every [`BEAT`]: a newcomer that is silent or gone
//! is forgotten, and a newcomer whose member is silent or gone goes to another listener. A waiting list belongs to a
//! group, not to one of its communicators, so newcomers continue to wait while the members shrink.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::listener::{ListenerAddress, RegroupId};
use crate::control::abort::{AbortCause, AbortFlag, AbortKind};
use crate::control::coordinator::{BoxedStream, write_frames};
use crate::control::handshake::VERSION;
use crate::control::wire::{clip, decode, encode, foreign, invalid, read_frame};
use crate::job::limits::{MAX_BLOB_BYTES, MAX_MEMBER_ADDRESSES, MAX_NAME_BYTES, MAX_WAITING_NEWCOMERS};

/// Identifies a group of ranks, however its members change.
pub(crate) type GroupId = [u8; 16];

/// Interval between two signs of life.
pub(in crate::control) const BEAT: Duration = Duration::from_millis(200);

/// A process (or thread) that wants to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Newcomer {
    /// Its own listener. The listener's number distinguishes it from all other processes.
    pub(crate) listener: ListenerAddress,
    #[serde(deserialize_with = "foreign")]
    pub(crate) hostname: String,
    pub(crate) pid: u32,
    pub(crate) host_key: u64,
    #[serde(deserialize_with = "foreign")]
    pub(crate) version: String,
    /// The only slot that it accepts, if it asks for one.
    pub(crate) slot: Option<u32>,
    /// Its settings, which the communicator compares with its own.
    pub(crate) settings: Vec<u8>,
}

impl Newcomer {
    /// Returns the number that distinguishes it from all other processes.
    pub(crate) const fn id(&self) -> u64 {
        self.listener.id
    }

    /// Describes it: "process 4711 on node7".
    pub(crate) fn who(&self) -> String {
        format!("process {} on {}", self.pid, self.hostname)
    }

    /// Cuts what the members tell each other of it: one newcomer must not keep the others from being told.
    fn bounded(mut self) -> Self {
        self.listener = self.listener.bounded();
        self.hostname = clip(self.hostname, MAX_NAME_BYTES);
        self
    }
}

/// A member's listener, with the facts that a newcomer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberAddress {
    pub(crate) listener: ListenerAddress,
    pub(crate) host_key: u64,
}

/// A place in the group, offered to a newcomer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Admission {
    /// Listener at which all members meet.
    pub(crate) at: MemberAddress,
    pub(crate) regroup_id: RegroupId,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) patience: Duration,
    /// Data that the communicator adds.
    pub(crate) lineage: Vec<u8>,
}

/// A message from a newcomer to the member at whose listener it waits.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum FromNewcomer {
    Hello(Newcomer),
    Beat,
}

/// A message from the member to the newcomer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum ToNewcomer {
    /// The newcomer may wait. These are the listeners of the members now.
    Welcome {
        addresses: Vec<MemberAddress>,
    },
    Refused {
        #[serde(deserialize_with = "foreign")]
        problem: String,
        #[serde(deserialize_with = "foreign")]
        remedy: String,
    },
    /// There is no room at this listener for now.
    Full {
        #[serde(deserialize_with = "foreign")]
        problem: String,
    },
    Beat,
    Admitted(Admission),
}

const GONE: &str = "the newcomer is gone";

/// A check of newcomers. It returns the problem and the remedy if a newcomer may not wait.
type Check = Box<dyn Fn(&Newcomer) -> Option<(String, String)> + Send + Sync>;

/// The newcomers that wait at this member's listener.
pub(crate) struct WaitingList {
    group: GroupId,
    check: Check,
    silent_after: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    arrivals: u64,
    addresses: Vec<MemberAddress>,
    /// Listener numbers of all processes that are or were members, as far as this member knows.
    members: BTreeSet<u64>,
    is_closed: bool,
}

/// One waiting newcomer. Its connection ends when this is dropped.
struct Waiting {
    newcomer: Newcomer,
    arrival: u64,
    queue: mpsc::UnboundedSender<Bytes>,
    /// Raised when the newcomer is gone.
    gone: Arc<AbortFlag>,
    is_admitted: bool,
    reader: AbortHandle,
}

impl State {
    fn forget(&mut self, id: u64) {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.newcomer.id() == id) {
            let waiting = self.waiting.swap_remove(at);
            waiting.gone.raise(AbortCause::new(0, AbortKind::PeerLost, GONE));
        }
    }
}

impl std::fmt::Debug for WaitingList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WaitingList")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl WaitingList {
    pub(crate) fn new(group: GroupId, silent_after: Duration, check: Check) -> Self {
        Self { group, check, silent_after, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    pub(crate) const fn group(&self) -> GroupId {
        self.group
    }

    /// Sets the listeners of the members. Newcomers try them when this member is gone.
    pub(crate) fn set_members(&self, mut addresses: Vec<MemberAddress>) {
        let mut state = self.lock();
        state.members.extend(addresses.iter().map(|address| address.listener.id));
        // A few listeners are enough, and fit into a frame.
        addresses.truncate(MAX_MEMBER_ADDRESSES);
        let news = encode(&ToNewcomer::Welcome { addresses: addresses.clone() });
        for waiting in &state.waiting {
            let _ = waiting.queue.send(news.clone());
        }
        state.addresses = addresses;
    }

    /// Returns the listeners of the members.
    pub(crate) fn addresses(&self) -> Vec<MemberAddress> {
        self.lock().addresses.clone()
    }

    /// Closes the waiting list, since the others have gone on without this member. Newcomers no longer wait here.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiting.clear();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_closed
    }

    /// Returns the waiting newcomers in order of arrival.
    pub(crate) fn newcomers(&self) -> Vec<Newcomer> {
        let state = self.lock();
        let mut all: Vec<&Waiting> = state.waiting.iter().filter(|waiting| !waiting.is_admitted).collect();
        all.sort_by_key(|waiting| waiting.arrival);
        all.into_iter().map(|waiting| waiting.newcomer.clone()).collect()
    }

    /// Admits a waiting newcomer. `lost` runs if the newcomer goes before the result is dropped. Returns
    /// `None` if it is already gone.
    pub(crate) fn admit(
        self: &Arc<Self>,
        id: u64,
        admission: Admission,
        lost: Box<dyn Fn() + Send + Sync>,
    ) -> Option<AdmittedNewcomer> {
        let (gone, arrival) = {
            let mut state = self.lock();
            let waiting = state.waiting.iter_mut().find(|waiting| waiting.newcomer.id() == id)?;
            waiting.is_admitted = true;
            waiting.queue.send(encode(&ToNewcomer::Admitted(admission))).ok()?;
            (waiting.gone.clone(), waiting.arrival)
        };
        gone.on_raise(lost);
        Some(AdmittedNewcomer { id, arrival, waiting_list: self.clone() })
    }

    /// Tells a waiting newcomer why it cannot become a member, and removes it.
    pub(crate) fn refuse(&self, id: u64, problem: String, remedy: &str) {
        let mut state = self.lock();
        if let Some(at) = state.waiting.iter().position(|waiting| waiting.newcomer.id() == id) {
            let problem = clip(problem, usize::MAX);
            let refused = ToNewcomer::Refused { problem, remedy: remedy.to_owned() };
            let _ = state.waiting[at].queue.send(encode(&refused));
            // Queued messages are still sent.
            state.waiting.swap_remove(at);
        }
    }

    fn forget(&self, id: u64, arrival: u64) {
        self.lock().waiting.retain(|waiting| (waiting.newcomer.id(), waiting.arrival) != (id, arrival));
    }

    /// Reads a newcomer's introduction. Returns when it is refused, or waits.
    pub(super) async fn receive(self: Arc<Self>, mut stream: BoxedStream) -> io::Result<()> {
        let frame = read_frame(&mut stream, MAX_BLOB_BYTES).await?;
        let hello = decode(&frame.ok_or_else(|| invalid("it has not said who it is".into()))?)?;
        let FromNewcomer::Hello(newcomer) = hello else {
            return Err(invalid("it has not said who it is".into()));
        };
        let newcomer = newcomer.bounded();
        let objection = self
            .objection(&newcomer)
            .map(|(problem, remedy)| ToNewcomer::Refused { problem: clip(problem, usize::MAX), remedy });
        if let Some(answer) = objection.or_else(|| self.lack_of_room()) {
            stream.write_all(&encode(&answer)).await?;
            return stream.flush().await;
        }
        let (read, write) = tokio::io::split(stream);
        let (queue, frames) = mpsc::unbounded_channel();
        tokio::spawn(write_frames(write, frames, |_| ()));
        tokio::spawn(beat(queue.downgrade(), encode(&ToNewcomer::Beat)));
        let gone = Arc::new(AbortFlag::default());
        let mut state = self.lock();
        if state.is_closed {
            return Err(invalid("this member is leaving".into()));
        }
        // The newcomer has given up its earlier connection.
        state.forget(newcomer.id());
        tracing::info!(who = newcomer.who(), slot = newcomer.slot, "a newcomer is waiting");
        let _ = queue.send(encode(&ToNewcomer::Welcome { addresses: state.addresses.clone() }));
        state.arrivals += 1;
        let arrival = state.arrivals;
        let who = (newcomer.id(), arrival);
        let listening = listen(Arc::downgrade(&self), who, read, self.silent_after, gone.clone());
        let reader = tokio::spawn(listening).abort_handle();
        state.waiting.push(Waiting { newcomer, arrival, queue, gone, is_admitted: false, reader });
        Ok(())
    }

    fn objection(&self, newcomer: &Newcomer) -> Option<(String, String)> {
        if newcomer.version != VERSION {
            let problem =
                format!("the group runs Kolo {VERSION}, but the newcomer runs {}", newcomer.version);
            return Some((problem, "Install the same version on every host".to_owned()));
        }
        if self.lock().members.contains(&newcomer.id()) {
            let problem = format!("{} has the identity of a current or former member", newcomer.who());
            let remedy = "Join with a new builder: each builder draws a new identity";
            return Some((problem, remedy.to_owned()));
        }
        (self.check)(newcomer)
    }

    fn lack_of_room(&self) -> Option<ToNewcomer> {
        let problem = format!(
            "{MAX_WAITING_NEWCOMERS} newcomers are already waiting at this listener, which is the maximum"
        );
        (self.lock().waiting.len() >= MAX_WAITING_NEWCOMERS).then_some(ToNewcomer::Full { problem })
    }
}

/// A newcomer that was admitted. Dropping this ends its connection: by then it has become a member, or it comes back
/// and waits again.
pub(crate) struct AdmittedNewcomer {
    id: u64,
    arrival: u64,
    waiting_list: Arc<WaitingList>,
}

impl Drop for AdmittedNewcomer {
    fn drop(&mut self) {
        self.waiting_list.forget(self.id, self.arrival);
    }
}

/// Signals that this end is alive, until the connection is given up.
pub(in crate::control) async fn beat(queue: mpsc::WeakUnboundedSender<Bytes>, sign: Bytes) {
    loop {
        tokio::time::sleep(BEAT).await;
        if queue.upgrade().is_none_or(|queue| queue.send(sign.clone()).is_err()) {
            return;
        }
    }
}

/// Reads one frame from a peer that sends something at every beat. Returns `None` if the peer is gone or silent.
pub(in crate::control) async fn hear<T: serde::de::DeserializeOwned>(
    reader: &mut BufReader<ReadHalf<BoxedStream>>,
    silent_after: Duration,
) -> Option<T> {
    let silent_after = silent_after.max(4 * BEAT);
    let frame = tokio::time::timeout(silent_after, read_frame(reader, MAX_BLOB_BYTES)).await;
    decode(&frame.ok()?.ok()??).ok()
}

async fn listen(
    waiting_list: Weak<WaitingList>,
    (id, arrival): (u64, u64),
    read: ReadHalf<BoxedStream>,
    silent_after: Duration,
    gone: Arc<AbortFlag>,
) {
    let mut reader = BufReader::new(read);
    while let Some(FromNewcomer::Beat) = hear(&mut reader, silent_after).await {}
    gone.raise(AbortCause::new(0, AbortKind::PeerLost, GONE));
    if let Some(waiting_list) = waiting_list.upgrade() {
        tracing::info!("a newcomer has gone");
        waiting_list.forget(id, arrival);
    }
}

#[cfg(test)]
#[path = "waiting_list_tests.rs"]
mod tests;
