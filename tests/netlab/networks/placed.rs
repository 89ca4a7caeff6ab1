//! An endpoint on a host of a laboratory. Any thread that drives the endpoint is on that host meanwhile.

use std::time::Instant;

use kolo_netlab::Host;
use kolo_transport::{
    Armed, Caps, Channel, Endpoint, Error, Event, OnMisfit, ParkBy, Piece, Posted, Rail, Reach, Sink,
    TcpEndpoint, TcpOptions, Token,
};

/// A TCP endpoint on a host.
#[derive(Debug)]
pub(crate) struct Placed {
    host: Host,
    inner: TcpEndpoint,
}

impl Placed {
    pub(crate) fn new(host: &Host, rank: u32, world_size: u32, options: TcpOptions) -> Self {
        let host = host.clone();
        host.move_here().expect("a thread goes to a host");
        Self { host, inner: TcpEndpoint::new(rank, world_size, options).expect("an endpoint") }
    }

    /// Returns the congestion control of a channel, once it is connected.
    pub(crate) fn congestion(&self, on: Channel) -> Option<String> {
        self.inner.route(on).map(|(_, congestion)| congestion)
    }

    /// Returns the number of connections that carry the channel's long messages.
    pub(crate) fn connections(&self, on: Channel) -> usize {
        self.inner.connections(on)
    }

    fn there(&mut self) -> &mut TcpEndpoint {
        self.host.move_here().expect("a thread goes to a host");
        &mut self.inner
    }
}

impl Endpoint for Placed {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn address(&self) -> &[u8] {
        self.inner.address()
    }

    fn introduce(&mut self, peer: u32, address: &[u8]) -> Result<Reach, Error> {
        self.there().introduce(peer, address)
    }

    fn establish(&mut self, is_aborted: &dyn Fn() -> bool, deadline: Instant) -> Result<(), Error> {
        self.there().establish(is_aborted, deadline)
    }

    unsafe fn post_send(
        &mut self,
        on: Channel,
        tag: u64,
        pieces: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.there().post_send(on, tag, pieces, token) }
    }

    unsafe fn post_recv(
        &mut self,
        on: Channel,
        tag: u64,
        sink: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.there().post_recv(on, tag, sink, on_misfit, token) }
    }

    fn cancel_recvs(&mut self, on: Channel, events: &mut Vec<Event>) -> bool {
        self.there().cancel_recvs(on, events)
    }

    fn probe(&mut self, on: Channel) -> Result<(), Error> {
        self.there().probe(on)
    }

    fn cancel_probe(&mut self, on: Channel) {
        self.there().cancel_probe(on);
    }

    fn look_for(&mut self, peer: u32) -> Result<(), Error> {
        self.there().look_for(peer)
    }

    fn is_hearing(&self, peer: u32) -> bool {
        self.inner.is_hearing(peer)
    }

    fn is_unheard(&self, peer: u32) -> bool {
        self.inner.is_unheard(peer)
    }

    fn rails(&self, peer: u32) -> Vec<Rail> {
        self.inner.rails(peer)
    }

    fn leave(&mut self) {
        self.there().leave();
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.there().poll(events)
    }

    fn arm(&mut self, by: ParkBy) -> Armed<'_> {
        self.there().arm(by)
    }

    fn rouse(&mut self) {
        self.inner.rouse();
    }

    fn disarm(&mut self) {
        self.there().disarm();
    }

    fn abandon(&mut self, peer: u32, cause: &Error, events: &mut Vec<Event>) {
        self.there().abandon(peer, cause, events);
    }

    fn abort(&mut self, cause: &Error, events: &mut Vec<Event>) {
        self.there().abort(cause, events);
    }

    fn is_flushed(&self) -> bool {
        self.inner.is_flushed()
    }
}
