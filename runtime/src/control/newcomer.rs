//! A process that wants to become a member of a running group. It waits at a member's listener until the members call
//! it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, BufReader, ReadHalf};
use tokio::sync::{mpsc as queue, oneshot};
use tokio::task::AbortHandle;

use super::Control;
use super::coordinator::{BoxedStream, write_frames};
use super::handshake::VERSION;
use super::invitation::Invitation;
use super::peers::acceptor::Opening;
use super::peers::listener::{ConnectError, Listener, Locality};
use super::peers::waiting_list::{Admission, FromNewcomer, MemberAddress, Newcomer, ToNewcomer, beat, hear};
use super::regroup::{Absence, Regroup};
use super::runtime::ControlRuntime;
use super::wire::{clip, encode};
use crate::error::{Error, JoinFailure, Result};
use crate::job::limits::{CONNECT_TIMEOUT, MAX_NAME_BYTES, RETRY_MOST};
use crate::join::{self, JoinSpec, Locator, host_key, hostname};

/// Time after which a refusal is final if every listener of an invitation refuses and none is merely silent. A listener
/// may be full for a moment.
const CLOSED_AFTER: Duration = Duration::from_secs(1);

/// A process that wants to become a member, with its own listener.
pub(crate) struct Applicant {
    listener: Arc<Listener>,
    runtime: ControlRuntime,
    spec: JoinSpec,
    newcomer: Newcomer,
    silent_after: Duration,
}

/// A place in the group that a newcomer has been offered, with its connection to the member that offered it.
pub(crate) struct Offer {
    pub(crate) admission: Admission,
    alarm: Option<oneshot::Receiver<Absence>>,
    reader: AbortHandle,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Reason why an attempt at one listener failed.
enum AttemptError {
    Closed(String),
    Silent(String),
    /// The member lives and has no room for the moment.
    Full(String),
    /// The newcomer has waited there, and the member is gone.
    Lost(String),
    /// The member refuses it. Another may let it in: the port may belong to another job by now.
    Misfit(Error),
}

impl Applicant {
    /// Opens the newcomer's own listener. `spec` holds all that is known apart from rank and world size.
    ///
    /// # Errors
    /// The errors of [`Listener::open`].
    pub(crate) fn new(
        invitation: &Invitation,
        mut spec: JoinSpec,
        settings: Vec<u8>,
        slot: Option<u32>,
        silent_after: Duration,
        runtime: ControlRuntime,
    ) -> Result<Self> {
        let is_local = invitation.addresses.iter().all(|address| !address.listener.has_port());
        spec.one_host |= invitation.addresses.iter().all(|address| address.listener.is_on_one_host());
        spec.secret = invitation.job_secret(spec.secret.as_ref());
        let (report, opened) = mpsc::sync_channel(1);
        let task = spec.clone();
        runtime.spawn(async move {
            let listener = match is_local {
                true => Listener::open_for_threads(),
                false => Listener::open_port(&task).await,
            };
            let _ = report.send(listener);
        });
        let listener = Arc::new(opened.recv().map_err(|_| interrupted())??);
        let newcomer = Newcomer {
            listener: listener.address().clone(),
            hostname: clip(hostname(), MAX_NAME_BYTES),
            pid: std::process::id(),
            host_key: host_key(),
            version: VERSION.into(),
            slot,
            settings,
        };
        Ok(Self { listener, runtime, spec, newcomer, silent_after })
    }

    /// Waits at a listener until the newcomer is admitted. Blocks as long as one of the members lives, at most for
    /// `reach` while none lets it wait, and until `until` at most. `invite` returns the invitation, and is called again
    /// whenever no listener lets the newcomer in. A refusal is final once all listeners have been tried and none was
    /// silent or full, or at the end of `reach`.
    pub(crate) fn wait(
        &self,
        invite: &dyn Fn() -> Result<Invitation>,
        reach: Duration,
        until: Option<Instant>,
    ) -> Result<Offer> {
        let mut known: Vec<MemberAddress> = Vec::new();
        let (mut closed_since, mut reach_by) = (None, Instant::now() + reach);
        // The last refusal. It may be that of another job at the port of a member that has ended.
        let mut refusal = None;
        loop {
            let invitation = invite()?;
            let mut addresses = invitation.addresses.clone();
            addresses.extend(known.iter().filter(|address| !invitation.addresses.contains(address)).cloned());
            let mut causes = Vec::new();
            let (mut any_silent, mut has_waited, mut misfit, mut lacks_room) = (false, false, None, None);
            for address in addresses {
                match self.try_listener(&invitation, &address, &mut known, until)? {
                    Ok(offer) => return Ok(offer),
                    Err(AttemptError::Closed(cause)) => causes.push(cause),
                    Err(AttemptError::Silent(cause)) => {
                        any_silent = true;
                        causes.push(cause);
                    }
                    Err(AttemptError::Full(problem)) => lacks_room = Some(full(problem)),
                    Err(AttemptError::Lost(cause)) => {
                        has_waited = true;
                        causes.push(cause);
                    }
                    Err(AttemptError::Misfit(error)) => misfit = misfit.or(Some(error)),
                }
                out_of_time(until)?;
            }
            if has_waited {
                (closed_since, reach_by) = (None, Instant::now() + reach);
                refusal = misfit.or(refusal);
                continue;
            }
            let since = *closed_since.get_or_insert_with(Instant::now);
            let may_change = any_silent || lacks_room.is_some();
            let is_over = !may_change && (misfit.is_some() || since.elapsed() > CLOSED_AFTER);
            refusal = misfit.or(refusal);
            if is_over || Instant::now() >= reach_by {
                causes.truncate(4);
                return Err(refusal.or(lacks_room).unwrap_or_else(|| nobody(&causes.join("; "))));
            }
            std::thread::sleep(RETRY_MOST);
        }
    }

    /// Connects to one listener and waits there.
    fn try_listener(
        &self,
        invitation: &Invitation,
        address: &MemberAddress,
        known: &mut Vec<MemberAddress>,
        until: Option<Instant>,
    ) -> Result<std::result::Result<Offer, AttemptError>> {
        let (report, outcome) = mpsc::sync_channel(1);
        let (listener, silent_after) = (self.listener.clone(), self.silent_after);
        let (at, newcomer) = (address.clone(), self.newcomer.clone());
        let (credentials, group) = (address.listener.credentials(&self.spec), invitation.group);
        let (tell, told) = mpsc::channel();
        self.runtime.spawn(async move {
            let locality = Locality::of_hosts(newcomer.host_key, at.host_key);
            let opening = Opening::Wait { group };
            let connected =
                listener.connect(&at.listener, locality, credentials, &opening, CONNECT_TIMEOUT).await;
            let offered = match connected {
                Ok(stream) => wait_for_admission(stream, newcomer, silent_after, &tell, until).await,
                Err(ConnectError::Silent(cause)) => Err(AttemptError::Silent(cause)),
                Err(ConnectError::Misfit { problem, remedy }) => {
                    Err(AttemptError::Misfit(misfit(problem, remedy)))
                }
                Err(error) => Err(AttemptError::Closed(error.text())),
            };
            let _ = report.send(offered);
        });
        let outcome = outcome.recv().map_err(|_| interrupted())?;
        if let Some(latest) = told.try_iter().last() {
            *known = latest;
        }
        Ok(outcome)
    }

    /// Joins the members. Blocks until all have come or the attempt is given up.
    pub(crate) fn join(&self, offer: &mut Offer) -> Result<Control> {
        let locality = Locality::of_hosts(self.newcomer.host_key, offer.admission.at.host_key);
        let regroup = Regroup {
            listener: self.listener.clone(),
            at: offer.admission.at.listener.clone(),
            locality,
            regroup_id: offer.admission.regroup_id,
            detours: None,
            began: Instant::now(),
            // If that rank is stopped, the members notice first.
            reach_within: Some(CONNECT_TIMEOUT.max(2 * self.silent_after)),
            was_reached: false.into(),
        };
        let spec = JoinSpec {
            rank: offer.admission.rank,
            world_size: offer.admission.world_size,
            locator: Locator::Survivors(join::SurvivorRendezvous(Arc::new(regroup))),
            timeout: offer.admission.patience,
            source: "an invitation".to_owned(),
            ..self.spec.clone()
        };
        Control::join_watching(&spec, &self.runtime, offer.alarm.take().into_iter().collect())
    }
}

/// Reads the invitation, and waits for it if its file does not exist yet.
pub(crate) fn first_invitation(
    invite: &dyn Fn() -> Result<Invitation>,
    patience: Duration,
) -> Result<Invitation> {
    let deadline = Instant::now() + patience;
    loop {
        match invite() {
            Err(Error::System { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound && Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY_MOST);
            }
            invitation => return invitation,
        }
    }
}

/// Introduces the newcomer and waits until it is admitted.
async fn wait_for_admission(
    stream: BoxedStream,
    newcomer: Newcomer,
    silent_after: Duration,
    tell: &mpsc::Sender<Vec<MemberAddress>>,
    until: Option<Instant>,
) -> std::result::Result<Offer, AttemptError> {
    let mut stream = stream;
    let gone = |error: std::io::Error| AttemptError::Silent(format!("waiting at a listener: {error}"));
    stream.write_all(&encode(&FromNewcomer::Hello(newcomer))).await.map_err(gone)?;
    stream.flush().await.map_err(gone)?;
    let (read, write) = tokio::io::split(stream);
    let (queue, frames) = queue::unbounded_channel();
    tokio::spawn(write_frames(write, frames, |_| ()));
    tokio::spawn(beat(queue.downgrade(), encode(&FromNewcomer::Beat)));
    let mut reader = BufReader::new(read);
    let admitted = async {
        loop {
            match hear(&mut reader, silent_after).await {
                Some(ToNewcomer::Welcome { addresses }) => drop(tell.send(addresses)),
                Some(ToNewcomer::Beat) => {}
                Some(ToNewcomer::Full { problem }) => return Err(AttemptError::Full(problem)),
                Some(ToNewcomer::Admitted(admission)) => return Ok(admission),
                Some(ToNewcomer::Refused { problem, remedy }) => {
                    return Err(AttemptError::Misfit(misfit(problem, remedy)));
                }
                None => {
                    return Err(AttemptError::Lost(
                        "the member at whose listener it was waiting is gone".to_owned(),
                    ));
                }
            }
        }
    };
    let admission = match until {
        None => admitted.await?,
        Some(until) => match tokio::time::timeout_at(until.into(), admitted).await {
            Ok(admitted) => admitted?,
            Err(_) => return Err(AttemptError::Lost("it was not admitted in time".to_owned())),
        },
    };
    let (sound, alarm) = oneshot::channel();
    let reader = tokio::spawn(listen(reader, queue, silent_after, sound)).abort_handle();
    Ok(Offer { admission, alarm: Some(alarm), reader })
}

/// Raises the alarm when the member that admitted it gives up the attempt or is gone.
async fn listen(
    mut reader: BufReader<ReadHalf<BoxedStream>>,
    queue: queue::UnboundedSender<bytes::Bytes>,
    silent_after: Duration,
    sound: oneshot::Sender<Absence>,
) {
    while let Some(ToNewcomer::Beat | ToNewcomer::Welcome { .. }) = hear(&mut reader, silent_after).await {}
    let why = "the members have abandoned the attempt for now".to_owned();
    let _ = sound.send(Absence { rank: None, why });
    drop(queue);
}

fn out_of_time(until: Option<Instant>) -> Result<()> {
    match until {
        Some(until) if Instant::now() >= until => Err(Error::Join {
            rank: None,
            kind: JoinFailure::Absent,
            problem: "the group did not admit this newcomer within its time limit".to_owned(),
            remedy: "Check whether its members call grow, and whether it is full".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn nobody(causes: &str) -> Error {
    Error::Join {
        rank: None,
        kind: JoinFailure::Invitation,
        problem: format!("none of the members that the invitation names can be reached: {causes}"),
        remedy: "Check whether the job is still running, and ask one of its members for a new invitation"
            .to_owned(),
    }
}

fn full(problem: String) -> Error {
    let remedy = "Let the group admit some of them first".to_owned();
    Error::Join { rank: None, kind: JoinFailure::Absent, problem, remedy }
}

fn misfit(problem: String, remedy: String) -> Error {
    Error::Join { rank: None, kind: JoinFailure::Disagreement, problem, remedy }
}

fn interrupted() -> Error {
    Error::Join {
        rank: None,
        kind: JoinFailure::Interrupted,
        problem: "the control thread ended while joining".to_owned(),
        remedy: "Keep the ControlRuntime alive until the communicator is made".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::peers::waiting_list::WaitingList;
    use super::*;
    use crate::control::GroupId;
    use crate::job::limits::MAX_WAITING_NEWCOMERS;

    const GROUP: GroupId = [9; 16];
    const LONG: Duration = Duration::from_secs(20);

    fn spec() -> JoinSpec {
        JoinSpec::local(1).remove(0)
    }

    /// Opens a listener with a waiting list that refuses newcomers with these settings.
    fn open(runtime: &ControlRuntime, refused: &'static [u8]) -> (Arc<Listener>, Arc<WaitingList>) {
        let (report, opened) = mpsc::sync_channel(1);
        runtime.spawn(async move { report.send(Listener::open_for_threads().unwrap()).unwrap() });
        let listener = Arc::new(opened.recv_timeout(LONG).unwrap());
        let refuses = move |newcomer: &Newcomer| {
            (newcomer.settings == refused).then(|| ("other settings".to_owned(), "change them".to_owned()))
        };
        let list = listener.waiting_list(GROUP, || WaitingList::new(GROUP, LONG, Box::new(refuses)));
        (listener, list)
    }

    fn address(listener: &Listener) -> MemberAddress {
        MemberAddress { listener: listener.address().clone(), host_key: 3 }
    }

    fn invitation(listeners: &[&Arc<Listener>]) -> Invitation {
        let addresses = listeners.iter().map(|listener| address(listener)).collect();
        Invitation { group: GROUP, addresses, secret: None }
    }

    fn applicant(invitation: &Invitation, settings: &[u8], runtime: &ControlRuntime) -> Applicant {
        Applicant::new(invitation, spec(), settings.to_vec(), None, LONG, runtime.clone()).unwrap()
    }

    /// Fills a waiting list. The newcomers wait as long as the result exists.
    fn fill(list: &WaitingList, listener: &Arc<Listener>, runtime: &ControlRuntime) -> Vec<BoxedStream> {
        let (report, done) = mpsc::sync_channel(1);
        let at = listener.clone();
        runtime.spawn(async move {
            let mut streams = Vec::new();
            for _ in 0..MAX_WAITING_NEWCOMERS {
                let own = Listener::open_for_threads().unwrap();
                let (credentials, opening) =
                    (at.address().credentials(&spec()), Opening::Wait { group: GROUP });
                let connect = own.connect(at.address(), Locality::SameHost, credentials, &opening, LONG);
                let mut stream = connect.await.unwrap();
                let listener = own.address().clone();
                let (hostname, version) = ("node7".to_owned(), VERSION.to_owned());
                let hello = Newcomer {
                    listener,
                    hostname,
                    pid: 1,
                    host_key: 3,
                    version,
                    slot: None,
                    settings: vec![0],
                };
                stream.write_all(&encode(&FromNewcomer::Hello(hello))).await.unwrap();
                streams.push(stream);
            }
            report.send(streams).unwrap();
        });
        let streams = done.recv_timeout(LONG).unwrap();
        wait_for("the list is full", || list.newcomers().len() == MAX_WAITING_NEWCOMERS);
        streams
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + LONG;
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_newcomer_that_one_listener_does_not_let_in_waits_at_the_next() {
        let runtime = ControlRuntime::new().unwrap();
        let (refuses, full, fits) = (open(&runtime, &[1]), open(&runtime, &[]), open(&runtime, &[]));
        let _others = fill(&full.1, &full.0, &runtime);
        let invitation = invitation(&[&refuses.0, &full.0, &fits.0]);
        std::thread::scope(|scope| {
            let applicant = applicant(&invitation, &[1], &runtime);
            let waits = scope.spawn(move || applicant.wait(&|| Ok(invitation.clone()), LONG, None));
            wait_for("the newcomer waits", || waits.is_finished() || !fits.1.newcomers().is_empty());
            let id = fits.1.newcomers().first().map(Newcomer::id);
            let Some(id) = id else { panic!("{}", waits.join().unwrap().err().expect("it does not wait")) };
            let (at, lineage) = (address(&fits.0), Vec::new());
            let admission =
                Admission { at, regroup_id: [1; 32], rank: 2, world_size: 3, patience: LONG, lineage };
            let _admitted = fits.1.admit(id, admission, Box::new(|| ())).expect("it waits");
            assert!(waits.join().unwrap().is_ok());
        });
    }

    /// Another job may have the port of a member that has ended, while the living members are full for a moment.
    #[test]
    fn a_refusal_is_not_final_while_another_listener_may_let_the_newcomer_in() {
        let runtime = ControlRuntime::new().unwrap();
        let (refuses, full) = (open(&runtime, &[1]), open(&runtime, &[]));
        let others = fill(&full.1, &full.0, &runtime);
        let applicant = applicant(&invitation(&[&refuses.0, &full.0]), &[1], &runtime);
        let attempts = AtomicU32::new(0);
        let invite = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            Ok(invitation(&[&refuses.0, &full.0]))
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| applicant.wait(&invite, LONG, Some(Instant::now() + LONG)));
            wait_for("an attempt at all", || waits.is_finished() || attempts.load(Ordering::Relaxed) > 1);
            drop(others);
            let id = applicant.newcomer.id();
            let is_in = || full.1.newcomers().iter().any(|newcomer| newcomer.id() == id);
            wait_for("it is let in", || waits.is_finished() || is_in());
            let offered = || waits.join().unwrap().err().map(|error| error.to_string());
            assert!(is_in(), "{:?}", offered());
            let (at, lineage) = (address(&full.0), Vec::new());
            let admission =
                Admission { at, regroup_id: [1; 32], rank: 2, world_size: 3, patience: LONG, lineage };
            let _admitted = full.1.admit(id, admission, Box::new(|| ())).expect("it waits");
            assert_eq!(offered(), None);
        });
    }

    #[test]
    fn a_newcomer_for_which_there_is_no_room_is_told_so() {
        let runtime = ControlRuntime::new().unwrap();
        let full = open(&runtime, &[]);
        let _others = fill(&full.1, &full.0, &runtime);
        let invitation = invitation(&[&full.0]);
        let applicant = applicant(&invitation, &[1], &runtime);
        let error = applicant.wait(&|| Ok(invitation.clone()), Duration::from_millis(1), None);
        let error = error.err().expect("no place").to_string();
        assert!(error.contains("64 newcomers are already waiting"), "{error}");
        assert!(
            error.contains("Let the group admit some of them first") && !error.contains("reached"),
            "{error}"
        );
    }

    #[test]
    fn a_refusal_is_final_if_no_listener_lets_the_newcomer_in() {
        let runtime = ControlRuntime::new().unwrap();
        let (refuses, full) = (open(&runtime, &[1]), open(&runtime, &[]));
        let _others = fill(&full.1, &full.0, &runtime);
        for (listeners, reach) in
            [(&[&refuses.0][..], LONG), (&[&refuses.0, &full.0], Duration::from_millis(1))]
        {
            let invitation = invitation(listeners);
            let applicant = applicant(&invitation, &[1], &runtime);
            let begun = Instant::now();
            let error = applicant.wait(&|| Ok(invitation.clone()), reach, None).err().expect("no place");
            assert!(error.to_string().contains("other settings") && begun.elapsed() < LONG, "{error}");
        }
    }

    /// The members reach rank 0, and only the newcomer's own error ends their wait for it.
    #[test]
    fn a_newcomer_that_does_not_reach_rank_0_gives_up_long_before_the_members_would() {
        let runtime = ControlRuntime::new().unwrap();
        let (own, _list) = open(&runtime, &[]);
        let mut applicant = applicant(&invitation(&[&own]), &[1], &runtime);
        let (report, opened) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            let port = JoinSpec { one_host: true, ..spec() };
            let (near, far) = (Listener::open_port(&port).await, Listener::open_port(&port).await);
            // A firewall may refuse connections as a port does at which nobody listens any more.
            let far = far.unwrap().address().clone();
            let reader = tokio::spawn(std::future::pending::<()>()).abort_handle();
            report.send((near.unwrap(), far, reader)).unwrap();
        });
        let (near, far, reader) = opened.recv_timeout(LONG).unwrap();
        let port = format!(":{}", far.port().unwrap());
        (applicant.listener, applicant.silent_after) = (Arc::new(near), Duration::from_millis(1));
        let (patience, at) = (20 * CONNECT_TIMEOUT, MemberAddress { listener: far, host_key: 3 });
        let admission =
            Admission { at, regroup_id: [1; 32], rank: 1, world_size: 2, patience, lineage: Vec::new() };
        let began = Instant::now();
        let mut offer = Offer { admission, alarm: None, reader };
        let error = applicant.join(&mut offer).expect_err("nobody answers");
        assert!(began.elapsed() < patience / 2, "{:?}", began.elapsed());
        let text = error.to_string();
        assert!(
            matches!(error, Error::Join { kind: JoinFailure::Unreachable, .. }) && text.contains(&port),
            "{text}"
        );
    }
}
