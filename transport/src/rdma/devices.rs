//! Events of this side's adapters that no completion reports; they are read from the devices' descriptors.

use kolo_verbs::{AsyncEvent, QueuePairFault};

use rustix::event::epoll;

use super::NAME;
use super::endpoint::RdmaEndpoint;
use crate::endpoint::Event;
use crate::error::{Error, ErrorKind};

impl RdmaEndpoint {
    /// Handles the events of all devices. Peers that depend on a failed device are lost, with this side at fault;
    /// other events cause a warning at most. Returns whether there were any.
    pub(super) fn look_at_devices(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        for at in 0..self.rails.len() {
            while !self.rails[at].mute {
                match self.rails[at].context().async_event() {
                    Ok(Some(event)) => {
                        moved = true;
                        self.befall(at as u8, event, events);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // The descriptor would wake every sleep from now on.
                        let _ = epoll::delete(&self.epoll, self.rails[at].context().async_fd());
                        self.rails[at].mute = true;
                        moved = true;
                        self.lose_behind(at as u8, &format!("is gone: {error}"), events, |_, _| true);
                    }
                }
            }
        }
        moved
    }

    fn befall(&mut self, rail: u8, event: AsyncEvent, events: &mut Vec<Event>) {
        let opened = &self.rails[usize::from(rail)];
        match event {
            AsyncEvent::DeviceFatal => {
                let words = "failed: it was removed, or reset by its driver or firmware; see that host's \
                             kernel log";
                self.lose_behind(rail, words, events, |_, _| true);
            }
            AsyncEvent::QueuePairFailed { number, fault } => {
                let words = match fault {
                    QueuePairFault::Device => {
                        "was taken out of service by the adapter; see that host's kernel log"
                    }
                    QueuePairFault::Request => "got an invalid request from the peer",
                    QueuePairFault::Access => "refused the peer access to memory that it may not touch",
                };
                let words = format!("is out of service: its queue pair {number} {words}");
                self.lose_behind(rail, &words, events, |this, peer| {
                    let link = this.peers[peer as usize].link.as_deref();
                    link.is_some_and(|link| {
                        link.lanes.iter().any(|lane| lane.rail == rail && lane.pair_number() == number)
                    })
                });
            }
            AsyncEvent::CompletionQueueFailed { cookie } => {
                let words = "is out of service for this peer: its completion queue failed or overran";
                self.lose_behind(rail, words, events, |_, peer| peer as usize == cookie);
            }
            AsyncEvent::PortDown { port } if port == opened.path.port => {
                events.push(Event::Warning(format!(
                    "rank {}'s adapter {} port {port} went down: check its cable and switch; transfers in \
                     progress fail within seconds unless it comes back",
                    self.rank, opened.device
                )));
            }
            AsyncEvent::PortUp { port } if port == opened.path.port => {
                events.push(Event::Warning(format!(
                    "rank {}'s adapter {} port {port} is up again",
                    self.rank, opened.device
                )));
            }
            // Events of other ports, and those that change nothing for existing connections.
            _ => {}
        }
    }

    /// Loses the peers that have a queue pair on this rail and for which `concerned` returns `true`.
    fn lose_behind(
        &mut self,
        rail: u8,
        words: &str,
        events: &mut Vec<Event>,
        concerned: impl Fn(&Self, u32) -> bool,
    ) {
        for peer in 0..self.peers.len() as u32 {
            let link = self.peers[peer as usize].link.as_deref();
            let uses = link.is_some_and(|link| link.lanes.iter().any(|lane| lane.rail == rail));
            if uses && concerned(self, peer) {
                let device = &self.rails[usize::from(rail)].device;
                let detail = format!("rank {}'s adapter {device} {words}", self.rank);
                self.lose(peer, Error::new(ErrorKind::Local, NAME, Some(peer), detail), events);
            }
        }
    }
}
