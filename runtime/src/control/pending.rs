//! Connections that have not identified themselves yet, and the choice of the one to close when there are too many.
//!
//! Every process that reaches the port can connect and stay silent, so the number of such connections is bounded. The
//! newest is always let in. The connection to close is chosen among those that have proven least: the oldest one from
//! the address with the most of them. A flood from one address therefore closes its own connections, not those of ranks
//! on other hosts. Ranks that share its address get through within milliseconds, or try again. There is no limit per
//! address, because all ranks of a job may share one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;
use tokio::task::Id;

use super::handshake::Progress;

/// Progress of one connection, which the connection's task writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressCell(Arc<AtomicU8>);

impl ProgressCell {
    pub(crate) fn set(&self, progress: Progress) {
        self.0.store(progress as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Progress::Silent as u8
    }
}

#[derive(Debug)]
struct Pending {
    task: Id,
    source: IpAddr,
    progress: ProgressCell,
    evict: oneshot::Sender<u64>,
}

/// Connections in the handshake, oldest first.
#[derive(Debug)]
pub(crate) struct PendingConnections {
    connections: Vec<Pending>,
    most: usize,
}

impl PendingConnections {
    pub(crate) fn new(most: usize) -> Self {
        Self { connections: Vec::new(), most }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.connections.len() >= self.most
    }

    pub(crate) fn enter(
        &mut self,
        task: Id,
        source: IpAddr,
        progress: ProgressCell,
        evict: oneshot::Sender<u64>,
    ) {
        self.connections.push(Pending { task, source: network(source), progress, evict });
    }

    /// Removes a connection whose task has ended.
    pub(crate) fn leave(&mut self, task: Id) {
        self.connections.retain(|connection| connection.task != task);
    }

    /// Closes one connection, and tells it how many were rejected so far. Returns false if there is none.
    pub(crate) fn make_room(&mut self, rejected: u64) -> bool {
        let least = self.connections.iter().map(|n| n.progress.0.load(Ordering::Relaxed)).min();
        let Some(least) = least else { return false };
        let candidates = || {
            let stands = |(_, n): &(usize, &Pending)| n.progress.0.load(Ordering::Relaxed) <= least;
            self.connections.iter().enumerate().filter(stands)
        };
        let mut from = HashMap::new();
        for (_, connection) in candidates() {
            *from.entry(connection.source).or_insert(0u32) += 1;
        }
        let most = from.values().copied().max().unwrap_or_default();
        let goes = candidates().find(|(_, connection)| from.get(&connection.source) == Some(&most));
        // Another connection may have advanced between the two passes. In that case the oldest is closed.
        let goes = goes.map_or(0, |(at, _)| at);
        let connection = self.connections.remove(goes);
        let _ = connection.evict.send(rejected);
        true
    }
}

/// Returns the unit that counts as one source: an IPv4 address, or the /64 network of an IPv6 address, in which one
/// host can choose any address.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pending(of: &[(&str, Progress)]) -> (PendingConnections, Vec<oneshot::Receiver<u64>>) {
        let mut pending = PendingConnections::new(of.len());
        let mut told = Vec::new();
        for (source, reached) in of {
            let (evict, evicted) = oneshot::channel();
            let progress = ProgressCell::default();
            progress.set(*reached);
            let task = tokio::spawn(async {}).id();
            pending.enter(task, source.parse().unwrap(), progress, evict);
            told.push(evicted);
        }
        (pending, told)
    }

    async fn order(of: &[(&str, Progress)]) -> Vec<usize> {
        let (mut pending, mut told) = pending(of).await;
        assert!(pending.is_full());
        let mut order = Vec::new();
        while pending.make_room(7) {
            let gone = (0..told.len()).find(|&i| !order.contains(&i) && told[i].try_recv() == Ok(7));
            order.push(gone.expect("one is told"));
        }
        order
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_oldest_of_the_largest_source_goes_and_proof_is_respected() {
        use Progress::{Greeted, Proven, Silent};
        let flood = ("10.0.0.1", Silent);
        assert_eq!(order(&[("10.0.0.9", Silent), flood, flood, flood]).await, [1, 2, 0, 3]);
        assert_eq!(order(&[flood, flood, ("10.0.0.9", Greeted), flood]).await, [0, 1, 3, 2]);
        assert_eq!(order(&[("10.0.0.1", Proven), ("10.0.0.1", Greeted), flood]).await, [2, 1, 0]);
        // One host has a whole /64. An IPv4 address is the same source in either notation.
        assert_eq!(
            order(&[("10.0.0.9", Silent), ("2001:db8::1", Silent), ("2001:db8::2", Silent)]).await,
            [1, 0, 2]
        );
        assert_eq!(order(&[("10.0.0.9", Silent), ("::ffff:10.0.0.1", Silent), flood]).await, [1, 0, 2]);
    }
}
