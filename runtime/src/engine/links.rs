//! The endpoints of a communicator, and which of them leads to each peer.

use kolo_transport::{
    Armed, Backing, Endpoint, Error, ErrorKind, Event, Features, MemoryCounters, Paced, ParkBy, Piece, Rail,
    Registered, Stage, StageCaps, TransportKind,
};

use super::Lent;

/// Route to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The peer's rank in the communicator.
    pub peer: u32,
    /// Name of the transport.
    pub transport: &'static str,
    /// Details, such as "same host, memfd" or "192.0.2.7:40001 via eth0".
    pub how: String,
    /// Preferred transports that were not taken, with the reasons.
    pub declined: Vec<(String, String)>,
}

impl Route {
    fn features(&self) -> Option<&'static Features> {
        TransportKind::named(self.transport).map(TransportKind::features)
    }

    /// Returns whether adapters move the bytes.
    pub(crate) fn uses_adapters(&self) -> bool {
        self.features().is_some_and(|features| features.uses_adapters)
    }

    /// Returns whether the two ranks share memory.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.features().is_some_and(|features| features.shares_memory)
    }
}

/// Index of no endpoint, for the rank itself.
const NOWHERE: u8 = u8::MAX;

#[derive(Debug)]
pub(crate) struct Links {
    endpoints: Vec<Box<dyn Endpoint>>,
    /// Index of the endpoint for each rank.
    via: Box<[u8]>,
    /// Index of the endpoint whose stage is shared with others, if there is one.
    stage: Option<usize>,
}

impl Links {
    /// Makes the links. `via[rank]` is an index into `endpoints`; `None` for the rank itself.
    pub(crate) fn new(
        endpoints: Vec<Box<dyn Endpoint>>,
        via: impl IntoIterator<Item = Option<usize>>,
    ) -> Self {
        let via = via.into_iter().map(|index| index.map_or(NOWHERE, |i| i as u8)).collect();
        let stage = endpoints
            .iter()
            .position(|endpoint| endpoint.stage().is_some_and(|stage| stage.members().len() > 1));
        Self { endpoints, via, stage }
    }

    /// Returns the memory that the ranks of this host share, if there are other ranks.
    pub(crate) fn stage(&self) -> Option<&dyn Stage> {
        self.endpoints.get(self.stage?)?.stage()
    }

    /// Returns the memory that the ranks of this host share, for publishing.
    pub(crate) fn stage_mut(&mut self) -> Option<&mut dyn Stage> {
        self.endpoints.get_mut(self.stage?)?.stage_mut()
    }

    /// Returns the capabilities of that memory.
    pub(crate) fn stage_caps(&self) -> Option<StageCaps> {
        self.endpoints.get(self.stage?)?.caps().stage
    }

    /// See [`Endpoint::rails`].
    pub(crate) fn rails(&self, peer: u32) -> Vec<Rail> {
        self.at(peer).map_or_else(Vec::new, |endpoint| endpoint.rails(peer))
    }

    /// Calls [`Endpoint::expect`] for some peers.
    pub(crate) fn expect(&mut self, rates: impl IntoIterator<Item = (u32, f64)>) {
        for (peer, bytes_per_second) in rates {
            if let Some(endpoint) = self.at_mut(peer) {
                endpoint.expect(peer, bytes_per_second);
            }
        }
    }

    /// See [`Endpoint::is_hearing`].
    pub(crate) fn is_hearing(&self, peer: u32) -> bool {
        self.at(peer).is_some_and(|endpoint| endpoint.is_hearing(peer))
    }

    /// See [`Endpoint::is_sending`].
    pub(crate) fn is_sending(&self, peer: u32) -> bool {
        self.at(peer).is_some_and(|endpoint| endpoint.is_sending(peer))
    }

    /// See [`Endpoint::is_unheard`].
    pub(crate) fn is_unheard(&self, peer: u32) -> bool {
        self.at(peer).is_some_and(|endpoint| endpoint.is_unheard(peer))
    }

    /// See [`Endpoint::black_hole`].
    pub(crate) fn black_hole(&mut self, peer: u32) -> Option<u32> {
        self.at_mut(peer)?.black_hole(peer)
    }

    /// See [`Endpoint::relayed`].
    pub(crate) fn relayed(&self) -> Vec<u32> {
        self.endpoints.iter().flat_map(|endpoint| endpoint.relayed()).collect()
    }

    /// See [`Endpoint::paced`].
    pub(crate) fn paced(&self) -> Option<&Paced> {
        self.endpoints.iter().find_map(|endpoint| endpoint.paced())
    }

    /// Says goodbye: see [`Endpoint::leave`]. [`Engine::abort`](super::Engine::abort) or
    /// [`Engine::close`](super::Engine::close) follows.
    pub(crate) fn leave(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.leave());
    }

    /// Registers memory with all endpoints, or with none if one fails. Returns the outcome for each.
    ///
    /// # Safety
    /// See [`Endpoint::register`].
    pub(crate) unsafe fn register(
        &mut self,
        memory: Piece,
        backing: Backing<'_>,
    ) -> Result<Vec<(&'static str, Option<&'static str>)>, Error> {
        let mut standing = Vec::with_capacity(self.endpoints.len());
        for at in 0..self.endpoints.len() {
            let name = self.endpoints[at].caps().name;
            // SAFETY: the caller's promise.
            match unsafe { self.endpoints[at].register(memory, backing) } {
                Ok(Registered::Yes) => standing.push((name, None)),
                Ok(Registered::NotNeeded(because)) => standing.push((name, Some(because))),
                Err(error) => {
                    self.endpoints[..at].iter_mut().for_each(|earlier| earlier.deregister(memory));
                    return Err(error);
                }
            }
        }
        Ok(standing)
    }

    /// Tells all endpoints which memory an operation works on.
    ///
    /// # Safety
    /// See [`Endpoint::lend`].
    pub(crate) unsafe fn lend(&mut self, memory: Lent) {
        for piece in memory.pieces() {
            // SAFETY: the caller's promise.
            self.endpoints.iter_mut().for_each(|endpoint| unsafe { endpoint.lend(piece) });
        }
    }

    /// Tells all endpoints that the operation no longer works on this memory.
    pub(crate) fn reclaim(&mut self, memory: Lent) {
        for piece in memory.pieces() {
            self.endpoints.iter_mut().for_each(|endpoint| endpoint.reclaim(piece));
        }
    }

    pub(crate) fn deregister(&mut self, memory: Piece) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.deregister(memory));
    }

    pub(crate) fn memory_counters(&self) -> MemoryCounters {
        self.endpoints.iter().fold(MemoryCounters::default(), |mut all, endpoint| {
            all += endpoint.memory_counters();
            all
        })
    }

    /// Returns a transport that cannot distinguish messages before they are received, if there is one.
    pub(crate) fn without_probing(&self) -> Option<&'static str> {
        self.endpoints.iter().find(|endpoint| !endpoint.caps().can_probe).map(|endpoint| endpoint.caps().name)
    }

    /// Returns the number of ranks, including this one.
    pub(crate) fn ranks(&self) -> usize {
        self.via.len()
    }

    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        for endpoint in &mut self.endpoints {
            moved |= endpoint.poll(events);
        }
        moved
    }

    pub(crate) fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        for endpoint in &mut self.endpoints {
            endpoint.abort(cause, events);
        }
    }

    /// Drops all endpoints.
    pub(crate) fn close(&mut self) {
        self.endpoints.clear();
    }

    /// Returns whether the links could be dropped without losing anything that was reported done.
    pub(crate) fn is_flushed(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.is_flushed())
    }

    /// Arms all endpoints: see [`kolo_transport::arm_all`].
    pub(crate) fn arm(&mut self, each: impl FnMut(Armed<'_>)) -> ParkBy {
        kolo_transport::arm_all(&mut self.endpoints, each)
    }

    pub(crate) fn disarm(&mut self) {
        for endpoint in &mut self.endpoints {
            endpoint.disarm();
        }
    }

    /// See [`kolo_transport::Endpoint::rouse`].
    pub(crate) fn rouse(&mut self) {
        for endpoint in &mut self.endpoints {
            endpoint.rouse();
        }
    }

    fn at(&self, peer: u32) -> Option<&dyn Endpoint> {
        let via = *self.via.get(peer as usize)?;
        Some(&**self.endpoints.get(via as usize)?)
    }

    fn at_mut(&mut self, peer: u32) -> Option<&mut dyn Endpoint> {
        let via = *self.via.get(peer as usize)?;
        Some(&mut **self.endpoints.get_mut(via as usize)?)
    }

    /// Returns the endpoint that leads to a peer.
    ///
    /// # Errors
    /// If there is none: the peer is this rank, or the links are closed.
    pub(crate) fn endpoint(&mut self, peer: u32) -> Result<&mut dyn Endpoint, Error> {
        self.at_mut(peer).ok_or_else(|| {
            Error::new(ErrorKind::Usage, "kolo", Some(peer), "there is no transport to this rank".to_owned())
        })
    }
}
