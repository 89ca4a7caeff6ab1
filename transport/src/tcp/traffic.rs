//! Moves bytes: the work of a poll on the links with pending messages.

use std::io;

use super::NAME;
use super::endpoint::{CALL_BYTES, TcpEndpoint};
use super::inbound::Halt;
use super::link::{Link, State, Strands};
use super::options::TcpOptions;
use super::park::{Stir, Whose};
use super::socket::{Stop, is_silence};
use crate::endpoint::Event;
use crate::error::{Error, ErrorKind};

/// Number of busy links up to which a poll tries each; with more, it asks the kernel which are ready. A vain try
/// costs about as much as asking (0.2 to 0.4 µs), and for ready links the cost of asking comes on top.
const FEW: usize = 4;

/// Number of polls between two looks at the acceptor while no connection is expected.
const DOOR_TICKS: u32 = 256;

impl TcpEndpoint {
    /// Makes one round over all pending work.
    pub(super) fn progress(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        self.tick = self.tick.wrapping_add(1);
        let asked = self.listed.len() > FEW;
        if asked {
            self.look();
        }
        let connecting = !self.dialing.is_empty()
            || !self.awaited.is_empty()
            || !self.stranding.is_empty()
            || !self.proving.is_empty();
        let called = self.stirred || self.acceptor.has_news();
        if connecting || called || self.tick.is_multiple_of(DOOR_TICKS) {
            let stirs = self.connect(events);
            // The acceptor may not have taken all connections at once.
            self.stirred = stirs;
            moved |= stirs;
        }
        self.repace();
        let mut at = 0;
        while at < self.listed.len() {
            let number = self.listed[at];
            let before = events.len();
            match self.serve(number, asked, events) {
                // A message without payload, or one that did not fit, brings an event but no byte.
                Ok(bytes) => moved |= bytes > 0 || events.len() > before,
                Err(cause) => {
                    self.lose(self.links[number as usize].channel.peer, cause, events);
                    moved = true;
                }
            }
            let link = &mut self.links[number as usize];
            if link.has_work() {
                at += 1;
            } else {
                link.listed = false;
                self.listed.swap_remove(at);
            }
        }
        moved
    }

    /// Asks the kernel which sockets are ready. The first call registers them all.
    pub(super) fn look(&mut self) {
        if !self.watching {
            self.watch_all();
        }
        let (links, stirred) = (&mut self.links, &mut self.stirred);
        self.park.stirs(|Stir { whose, readable, writable, hung_up }| {
            let Whose::Link(number) = whose else {
                *stirred = true;
                return;
            };
            if let Some(link) = links.get_mut(number as usize) {
                link.readable |= readable;
                link.writable |= writable;
                link.hung_up |= hung_up;
            }
        });
    }

    /// Moves bytes of one link; an error means that its peer is lost.
    fn serve(&mut self, number: u32, asked: bool, events: &mut Vec<Event>) -> Result<usize, Error> {
        // Before the owner sleeps, everything that the kernel has announced already must be handled.
        let (budget, exhaust) = if self.armed { (usize::MAX, true) } else { (CALL_BYTES, false) };
        let link = &mut self.links[number as usize];
        if !matches!(link.state, State::Open(_)) {
            return Ok(0);
        }
        let channel = link.channel;
        let mut total = 0;
        if link.inbound.is_wanted() && (link.readable || link.inbound.is_ready() || !asked) {
            let (bytes, halt) = link.receive(&mut self.work, budget, exhaust, events);
            total += bytes;
            match halt {
                Halt::Idle | Halt::Budget | Halt::Parts => {}
                // The end of the stream may have been announced together with its last bytes.
                Halt::Blocked => link.readable = link.hung_up,
                // A later receive will meet the end again.
                Halt::Closed(_) if link.inbound.queue.is_empty() => link.inbound.probed = false,
                Halt::Closed(source) => {
                    return Err(closed(link, &link.inbound.position(), source, &self.options));
                }
                Halt::Corrupt(what) => {
                    let detail = format!("channel {}: {what}", channel.index);
                    return Err(Error::new(ErrorKind::Corrupt, NAME, Some(channel.peer), detail));
                }
            }
        }
        let paths = &mut self.peers[channel.peer as usize].paths;
        let mut sent = 0;
        while !link.outbound.queue.is_empty() && (link.writable || !asked) && sent < budget {
            match link.transmit(paths, &mut self.work, CALL_BYTES, |token| events.push(Event::Done(token))) {
                Ok((bytes, is_full)) => {
                    sent += bytes;
                    if is_full && !exhaust {
                        link.writable = false;
                        break;
                    }
                }
                Err(Stop::Blocked) => {
                    link.writable = false;
                    break;
                }
                Err(Stop::Closed(source)) => {
                    return Err(closed(link, "while sending", source, &self.options));
                }
            }
        }
        if matches!(link.strands, Strands::Wanted) {
            self.dial_strands(number);
        }
        Ok(total + sent)
    }
}

fn closed(link: &Link, position: &str, source: Option<io::Error>, options: &TcpOptions) -> Error {
    let channel = link.channel;
    let is_relayed = link.route.as_ref().is_some_and(|route| route.is_relayed);
    let cause = if is_silence(source.as_ref()) {
        let whose = if is_relayed { "the host of the rank that relays it" } else { "the peer's host" };
        format!(
            "{whose} does not answer, or the network to it is down; a connection without traffic ends after {} s of \
             silence (KOLO_DEAD_AFTER)",
            options.dead_after.as_secs_f64()
        )
    } else if is_relayed {
        "the rank that relayed it (rank 0, unless the summary names another) has left the job, or the peer's process \
         ended, or it closed its endpoint; that rank must stay until relayed ranks are done"
            .to_owned()
    } else {
        "the peer's process ended, or it closed its endpoint".to_owned()
    };
    let detail = format!("the connection of channel {} ended {position}: {cause}", channel.index);
    let error = Error::new(ErrorKind::PeerLost, NAME, Some(channel.peer), detail);
    Error { source: source.map(std::sync::Arc::new), ..error }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoint::Channel;

    #[test]
    fn a_host_that_does_not_answer_is_not_a_process_that_ended() {
        let link = Link::new(Channel { peer: 3, index: 0 });
        let options = TcpOptions { dead_after: Duration::from_secs(600), ..TcpOptions::default() };
        let text = |code: Option<i32>| {
            closed(&link, "before message 7", code.map(io::Error::from_raw_os_error), &options).to_string()
        };
        for code in [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
            let text = text(Some(code));
            assert!(
                text.contains("600 s of silence (KOLO_DEAD_AFTER)") && !text.contains("ended,"),
                "{text}"
            );
        }
        for code in [None, Some(libc::ECONNRESET)] {
            assert!(text(code).contains("the peer's process ended"), "{}", text(code));
        }
    }
}
