//! Detours: connections to a member that this one does not reach itself, by a third member that reaches both.
//!
//! A firewall or a broken path may part two members that all others reach. If one of them is to be the next rank 0, or
//! collects votes, the other asks members on further hosts ([`Opening::Detour`]). Such a member connects to the listener
//! and from then on passes on the bytes of both. It proves the keys at both listeners, so each half is sealed by itself.
//! It learns nothing new: all members know each other's keys, and any of them could speak for another.
//!
//! The opening is sent only on the way that has won, after the others have been closed. A listener does not take a
//! connection before it has read an opening, so no end takes a connection that the other closes.

use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::io::copy_bidirectional;
use tokio::task::JoinSet;

use super::Task;
use super::acceptor::{Answer, Opening, answer};
use super::attempts::connect_to_port;
use super::listener::{ConnectError, ListenerAddress, Locality, Reached, introduce};
use crate::control::coordinator::BoxedStream;
use crate::control::handshake::Credentials;
use crate::control::member::{CoordinatorStanding, Shared};
use crate::control::wire::PeerInfo;
use crate::job::Cookie;
use crate::join::JoinSpec;

/// Time for which a listener is tried before others are asked. A member that does not answer counts as silent after 1 s
/// by default; the other half of it is for the detour's handshakes.
pub(in crate::control) const ASK_AFTER: Duration = Duration::from_millis(500);

/// Time between asking one member and the next.
const STAGGER: Duration = Duration::from_millis(100);

/// Most members that are asked, each on a host of its own. More would help only where the network is in many parts.
const MOST_ASKED: usize = 3;

/// Failures in a row, with pauses of 0.5 s in all, after which a listener counts as out of reach.
const FAILURES: u32 = 11;

/// The members that may connect this one to a rank of the job.
#[derive(Clone)]
pub(in crate::control) struct Detours {
    cookie: Cookie,
    to: u32,
    /// The listeners of these members, with their keys.
    by: Vec<(ListenerAddress, Credentials)>,
    /// Time until they are asked.
    after: Duration,
}

impl Detours {
    /// Chooses the members to ask among those that are left: one per host, on neither of the two hosts, beginning with
    /// the next rank, so that the members of a large job ask different ones. `None` if there is none.
    pub(in crate::control) fn new(
        shared: &Shared,
        spec: &JoinSpec,
        listeners: &[ListenerAddress],
        to: u32,
        is_left: impl Fn(u32) -> bool,
    ) -> Option<Self> {
        let (own, ranks) = (shared.rank, listeners.len() as u32);
        let host = |rank: u32| shared.peers[rank as usize].host_key;
        let mut hosts = vec![host(own), host(to)];
        let mut by = Vec::new();
        if hosts[0] != hosts[1] {
            for rank in (1..ranks).map(|step| (own + step) % ranks) {
                let at = &listeners[rank as usize];
                if at.has_port() && !hosts.contains(&host(rank)) && is_left(rank) {
                    hosts.push(host(rank));
                    by.push((at.clone(), at.credentials(spec)));
                }
                if by.len() == MOST_ASKED {
                    break;
                }
            }
        }
        (!by.is_empty()).then_some(Self { cookie: shared.cookie, to, by, after: ASK_AFTER })
    }

    /// Returns the same members, which are asked after this time.
    pub(in crate::control) fn asked_after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Waits for a connection to the listener, and asks the members if there is none after a while. The first connection
    /// counts, and the others are closed. A failure that comes before the members are asked is returned, since another
    /// attempt may soon succeed.
    pub(super) async fn or_by_others(
        &self,
        direct: impl Future<Output = Result<Reached, ConnectError>>,
        patience: Duration,
    ) -> Result<Reached, ConnectError> {
        let began = Instant::now();
        let (mut direct, mut asking) = (pin!(direct), pin!(self.ask(patience)));
        let failed = tokio::select! {
            biased;
            outcome = &mut direct => match outcome {
                Err(failed @ (ConnectError::Silent(_) | ConnectError::Refused(_))) => failed,
                outcome => return outcome,
            },
            reached = &mut asking => match reached {
                Some(reached) => return Ok(reached),
                None => return direct.await,
            },
        };
        if began.elapsed() < self.after { Err(failed) } else { asking.await.ok_or(failed) }
    }

    async fn ask(&self, patience: Duration) -> Option<Reached> {
        tokio::time::sleep(self.after).await;
        let mut asked = JoinSet::new();
        for ((at, credentials), place) in self.by.iter().cloned().zip(0..) {
            let opening = Opening::Detour { cookie: self.cookie, to: self.to };
            asked.spawn(async move {
                tokio::time::sleep(STAGGER * place).await;
                let connecting = connect_to_port(&at, Locality::OtherHost, credentials, patience);
                let (stream, address) = connecting.await.ok()?;
                let stream = introduce(stream, &opening, patience).await.ok()?;
                Some(Reached { stream, at: Some(address), by: Some(at.id) })
            });
        }
        let first = async {
            while let Some(outcome) = asked.join_next().await {
                if let Ok(Some(reached)) = outcome {
                    return Some(reached);
                }
            }
            None
        };
        tokio::time::timeout(patience, first).await.ok().flatten()
    }
}

/// Whether one of two ranks is rank 0, and the other has reached it only by a third.
pub(in crate::control) fn are_parted(peers: &[PeerInfo], one: u32, other: u32) -> bool {
    one.min(other) == 0 && peers[one.max(other) as usize].relayed_by.is_some()
}

impl Task {
    /// Returns the members that may connect this one to a rank. As long as there is a coordinator, only those ranks need
    /// them that have reached it by another; and a rank that it does not hear is lost, although others hear it.
    pub(super) fn detours_to(&self, rank: u32) -> Option<Detours> {
        let own = self.shared.rank;
        let are_parted = are_parted(&self.shared.peers, own, rank);
        let has_coordinator = self.shared.lock().coordinator == CoordinatorStanding::Open;
        if !are_parted && (has_coordinator || own.min(rank) == 0) {
            return None;
        }
        let is_left = |other: u32| !self.gone.contains_key(&other);
        let detours = Detours::new(&self.shared, &self.spec, &self.listeners, rank, is_left)?;
        let is_out_of_reach = self.failures.get(&rank).is_some_and(|failures| *failures >= FAILURES);
        let after = if are_parted || is_out_of_reach { Duration::ZERO } else { detours.after };
        Some(detours.asked_after(after))
    }

    /// Connects a member to a rank, and passes on their bytes until both have closed.
    pub(super) fn serve_detour(&self, to: u32, mut from: BoxedStream) {
        let Some(at) = self.listeners.get(to as usize).cloned() else { return };
        let (locality, credentials) = (self.localities[to as usize], at.credentials(&self.spec));
        let (patience, rank) = (self.rounds.longest_silence(), self.shared.rank);
        tokio::spawn(async move {
            let Ok((mut target, _)) = connect_to_port(&at, locality, credentials, patience).await else {
                return drop(answer(&mut from, &Answer::Unknown).await);
            };
            if answer(&mut from, &Answer::Taken).await.is_ok() {
                tracing::info!(rank, to, "passes on a connection of a member that does not reach another");
                let _ = copy_bidirectional(&mut from, &mut target).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::super::Event;
    use super::super::listener::Listener;
    use super::*;
    use crate::join::Locator;

    const COOKIE: Cookie = [7; 16];
    const LONG: Duration = Duration::from_secs(20);

    fn spec() -> JoinSpec {
        let mut spec = JoinSpec::new(0, 3, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        spec
    }

    async fn member() -> (Listener, mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>) {
        let listener = Listener::open_port(&spec()).await.unwrap();
        let (events, inbox) = mpsc::unbounded_channel();
        listener.move_in(COOKIE, &events);
        (listener, events, inbox)
    }

    /// Passes on connections to this listener, as a member's task does.
    async fn pass_on(mut inbox: mpsc::UnboundedReceiver<Event>, at: ListenerAddress) {
        while let Some(Event::Detour { to: 1, stream: mut from }) = inbox.recv().await {
            let connecting = connect_to_port(&at, Locality::SameHost, at.credentials(&spec()), LONG);
            let (mut target, _) = connecting.await.unwrap();
            tokio::spawn(async move {
                // The caller may have got through by then.
                answer(&mut from, &Answer::Taken).await?;
                copy_bidirectional(&mut from, &mut target).await
            });
        }
    }

    fn by(third: &Listener, after: Duration) -> Detours {
        let at = third.address().clone();
        let credentials = at.credentials(&spec());
        Detours { cookie: COOKIE, to: 1, by: vec![(at, credentials)], after }
    }

    async fn reach(at: &ListenerAddress, detours: &Detours) -> Result<Reached, ConnectError> {
        let own = Listener::open_port(&spec()).await.unwrap();
        let opening = Opening::Connect { cookie: COOKIE, from: 2 };
        let credentials = at.credentials(&spec());
        own.reach(at, Locality::OtherHost, credentials, &opening, LONG, Some(detours)).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_third_member_connects_two_of_which_one_does_not_reach_the_other() {
        let ((to, _to, mut accepted), (third, _third, inbox)) = (member().await, member().await);
        tokio::spawn(pass_on(inbox, to.address().clone()));
        // Connections to this port are taken and never answered.
        let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut at = to.address().clone();
        at.addresses = vec![mute.local_addr().unwrap()];
        let reached = reach(&at, &by(&third, Duration::ZERO)).await.map_err(ConnectError::text);
        let Reached { mut stream, by, .. } = reached.unwrap_or_else(|text| panic!("{text}"));
        assert_eq!(by, Some(third.address().id()));
        let Some(Event::Accepted { rank: 2, stream: mut far }) = accepted.recv().await else {
            panic!("who?")
        };
        stream.write_all(b"there").await.unwrap();
        far.write_all(b"back").await.unwrap();
        let (mut there, mut back) = ([0; 5], [0; 4]);
        far.read_exact(&mut there).await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!((&there, &back), (b"there", b"back"));
        drop(stream);
        assert_eq!(far.read(&mut [0]).await.unwrap_or(0), 0, "the end of one is the end for the other");
    }

    /// A connection that the other end has taken and this end closes would lose what the other end sends on it.
    #[tokio::test(flavor = "current_thread")]
    async fn the_other_end_takes_one_connection_although_two_ways_lead_there() {
        let ((to, _to, mut accepted), (third, _third, inbox)) = (member().await, member().await);
        tokio::spawn(pass_on(inbox, to.address().clone()));
        for _ in 0..50 {
            let reached = reach(to.address(), &by(&third, Duration::ZERO)).await.map_err(ConnectError::text);
            let Reached { mut stream, .. } = reached.unwrap_or_else(|text| panic!("{text}"));
            let Some(Event::Accepted { stream: mut far, .. }) = accepted.recv().await else { panic!("who?") };
            far.write_all(b"x").await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'x', "it is the one that this end keeps");
        }
        assert!(accepted.try_recv().is_err(), "there is no other");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_failure_before_others_are_asked_is_told_at_once() {
        let (third, _third, _inbox) = member().await;
        let mut at = third.address().clone();
        let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        at.addresses = vec![nobody.local_addr().unwrap()];
        drop(nobody);
        let outcome = tokio::time::timeout(LONG, reach(&at, &by(&third, 10 * LONG))).await.expect("at once");
        assert!(matches!(outcome.err(), Some(ConnectError::Refused(_))));
    }
}
