//! Transfer of state beside training: members keep a copy of one step and serve it at their ports, and a newcomer
//! fetches it before it joins.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::orders::{Found, Orders};
use super::{CHUNK_BYTES, Hash, Part, Shared, State, describe, digest};
use crate::api::{Communicator, Survivors};
use crate::config::check_unicode;
use crate::control::{Fetcher, Invitation, Job, News, Requests, Snapshot};
use crate::error::{Error, ErrorContext, JoinFailure, Result};
use crate::job::deadline_after;
use crate::join::{JoinSpec, process_environment};

/// Requests outstanding at a member: while it answers one, the other is on its way.
const JOBS_AT_ONCE: usize = 2;

impl State {
    /// Takes a copy of this rank's state if newcomers ask for one by [`State::fetch`], and serves it to them while
    /// the program goes on. Returns whether it has taken a copy. All members call it between two steps, with the
    /// memory of this version. They agree after each step whether a newcomer asks, so all copies are of the same
    /// version. A member that no newcomer has connected to, since its invitation names other members, takes none. In a
    /// child made by `fork`, the answer is false.
    ///
    /// Costs nothing without requests. A copy takes as long as copying the memory, and as much memory again until the
    /// newcomers that fetch it have gone. Meanwhile these newcomers share network and processor time with the
    /// program. Local; never waits for other ranks.
    pub fn offer(&mut self, group: &Survivors, parts: &[Part<'_>]) -> bool {
        self.offer_if(group.comm(), group.is_asked_for_state(), parts)
    }

    /// Like [`State::offer`], where all members have agreed in another way whether a newcomer asks. For Kolo's own
    /// bindings.
    #[doc(hidden)]
    pub fn offer_if(&mut self, comm: &Communicator, is_asked: bool, parts: &[Part<'_>]) -> bool {
        // A child made by fork must not take the locks of the control plane.
        if !comm.shared.is_ours() {
            return false;
        }
        if self.server.as_ref().is_none_or(|(of, _)| *of != comm.identity()) {
            let server = comm.shared.world.control.open_snapshot_server(comm.shared.group_id());
            self.server = server.map(|server| (comm.identity(), server));
        }
        let (Some((_, server)), Some(version)) = (&self.server, self.version) else { return false };
        if !is_asked || server.version() == Some(version) || !server.has_visitors() {
            return false;
        }
        // Makes room for the next copy.
        server.drop_copy();
        let chunks = parts.iter().flat_map(|part| part.bytes.chunks(CHUNK_BYTES).map(Box::from)).collect();
        server.serve(Snapshot { version, digest: digest(parts, CHUNK_BYTES), chunks });
        true
    }

    /// Returns whether a copy is kept for newcomers: see [`State::offer`].
    #[must_use]
    pub fn is_offering(&self) -> bool {
        self.server.as_ref().is_some_and(|(_, server)| server.version().is_some())
    }

    /// Fetches a copy of the members' state while they go on. A newcomer calls it before it joins by the same
    /// invitation. Afterwards the memory is of [`State::version`], and the first [`State::share`] transfers only the
    /// chunks that have changed since. State that changes in every step is therefore sent twice, while the members do
    /// not pause for the rest (frozen layers, tables, data).
    ///
    /// Members that call [`State::offer`] take the copy at the end of a step. Chunks come from several members at a
    /// time, those of this host first, and each is checked against a hash that another member has made. If a member
    /// dies, the others send the chunks that it has not sent. Blocks for `limit` at most. After a failure, chunks
    /// that have arrived are kept, for a second attempt and for `share`.
    ///
    /// # Errors
    /// [`Error::Join`] with [`JoinFailure::Invitation`] if the members have not offered their state, or not sent all
    /// of it, in time. [`Error::Usage`] if the parts differ from the members', or if the members' bytes differ. The
    /// version is `None` then. The newcomer may join all the same.
    pub fn fetch(
        &mut self,
        invitation: &Invitation,
        parts: &mut [Part<'_>],
        limit: Duration,
    ) -> Result<Shared> {
        check_unicode()?;
        let mut spec = JoinSpec::newcomer(&process_environment)?;
        spec.timeout = limit;
        let fetcher = Fetcher::new(invitation, &spec)?;
        let names = describe(parts, CHUNK_BYTES);
        let own = digest(parts, CHUNK_BYTES);
        let chunks = parts.iter_mut().flat_map(|part| part.bytes.chunks_mut(CHUNK_BYTES)).collect();
        let may_have_some = self.is_begun || self.version.is_some();
        (self.version, self.is_begun) = (None, true);
        self.settled.clear();
        let orders = Orders::new(names.len(), fetcher.near(), may_have_some);
        let until = deadline_after(limit);
        let requests = fetcher.near().iter().map(|_| None).collect();
        let shared = Shared::default();
        let mut fetch = Fetch { fetcher, requests, orders, chunks, names, digest: own, shared };
        let version = fetch.run(until)?;
        (self.version, self.is_begun) = (Some(version), false);
        Ok(fetch.shared)
    }
}

struct Fetch<'b> {
    fetcher: Fetcher,
    /// The queue of requests to each member that offers its state.
    requests: Vec<Option<Requests>>,
    orders: Orders,
    chunks: Vec<&'b mut [u8]>,
    names: Vec<String>,
    digest: Hash,
    shared: Shared,
}

impl Fetch<'_> {
    /// Fetches until all chunks are there and right, and returns their version.
    fn run(&mut self, until: Instant) -> Result<u64> {
        let mut last = None;
        loop {
            for index in self.orders.unhashed() {
                self.orders.hashed(index, Sha256::digest(&*self.chunks[index]).into(), None);
            }
            if let Some(version) = self.orders.done() {
                return Ok(version);
            }
            for (source, requests) in self.requests.iter().enumerate() {
                let Some(requests) = requests else { continue };
                while self.orders.under_way(source) < JOBS_AT_ONCE
                    && let Some(job) = self.orders.next(source, |index| self.chunks[index].len())
                {
                    requests.ask(job);
                }
            }
            match self.fetcher.hear(until) {
                Some(News::Gone { source, why }) => {
                    self.orders.gone(source);
                    self.requests[source] = None;
                    last = Some(why);
                }
                Some(news) => self.take(news)?,
                None => return Err(self.out_of_time(last)),
            }
        }
    }

    fn take(&mut self, news: News) -> Result<()> {
        match news {
            News::Offered { digest, .. } if digest != self.digest => {
                let problem = "the members and this newcomer have registered different parts".to_owned();
                return Err(usage(problem));
            }
            News::Offered { source, version, requests, .. } => {
                self.orders.offered(source, version);
                self.requests[source] = Some(requests);
            }
            News::Chunk { source, index, bytes } => {
                self.orders.answered(source, Job::Chunk { index, bytes: bytes.len() });
                self.shared.received += bytes.len() as u64;
                self.chunks[index].copy_from_slice(&bytes);
                self.orders.hashed(index, Sha256::digest(&bytes).into(), Some(source));
            }
            News::Hash { source, index, hash } => {
                self.orders.answered(source, Job::Hash { index });
                match self.orders.compared(index, &hash) {
                    Found::Right => {}
                    Found::Wrong { from: None } => {}
                    Found::Wrong { from: Some(from) } => {
                        let what = &self.names[index];
                        tracing::error!(
                            from,
                            "{what} do not match their hash and will be fetched from another member"
                        );
                        self.shared.refetched.push(from as u32);
                    }
                    Found::Hopeless => {
                        let problem = format!(
                            "{} do not match their hash, whichever member sends them: the members' bytes \
                             differ",
                            self.names[index]
                        );
                        return Err(usage(problem));
                    }
                }
            }
            News::Gone { .. } => {}
        }
        Ok(())
    }

    fn out_of_time(&self, last: Option<String>) -> Error {
        let why = last.map_or_else(String::new, |why| format!("; the last report was: {why}"));
        let problem = match self.orders.left() {
            Some(left) => {
                let all = self.names.len();
                format!("{left} of {all} chunks of the members' state did not arrive in time{why}")
            }
            None => format!("no member offered its state in time{why}"),
        };
        let remedy =
            "Check that the members call offer between their steps, and allow more time; or join without the \
             state: share sends what is missing"
                .to_owned();
        Error::Join { rank: None, kind: JoinFailure::Invitation, problem, remedy }
    }
}

fn usage(problem: String) -> Error {
    Error::Usage { context: ErrorContext::unnumbered(None, "fetch"), problem }
}
