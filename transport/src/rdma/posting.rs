//! Posts from the owner: if queues are empty, as much as possible is done at once; the rest is left to polls.

use super::NAME;
use super::channel::{Chan, Landing, RecvOp, SendOp, Way};
use super::endpoint::{MESSAGE_MAX, Peer, RdmaEndpoint};
use super::failure::given_up;
use super::link::Stage;
use super::progress::{Hands, Pass};
use super::trouble::Trouble;
use super::wire::{CHANNELS, EAGER_BYTES};
use super::{receiving, sending};
use crate::endpoint::{Channel, Event, OnMisfit, Piece, Posted, Sink, Token};
use crate::error::{Error, ErrorKind};
use crate::pieces::{Cursor, Eater, Pieces};

impl RdmaEndpoint {
    /// Takes a send.
    ///
    /// # Safety
    /// As [`Endpoint::post_send`](crate::Endpoint::post_send).
    pub(super) unsafe fn enqueue_send(
        &mut self,
        on: Channel,
        tag: u64,
        src: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        self.usable(on)?;
        if let Some(cause) = self.peers[on.peer as usize].down.clone() {
            self.say_down(on.peer);
            return Err(cause);
        }
        let (pieces, total) = Pieces::new(src);
        let len = total.ok_or_else(|| too_long(on.peer))?;
        self.start(on.peer)?;
        *self.flush_wanted.get_mut() = false;
        let channel = on.index as u8;
        let device_copiers = self.device_copiers.clone();
        let mut events = std::mem::take(&mut self.backlog);
        let (peer, mut hands) = self.parts(on, &mut events);
        let mut op = SendOp {
            token,
            tag,
            len,
            pieces,
            cursor: Cursor::default(),
            written: 0,
            noticed: false,
            held: None,
            copied: None,
            stalled: 0,
            device_copiers,
        };
        let up = peer.link.as_deref_mut().filter(|link| link.stage == Stage::Up);
        let mut result = Ok(Posted::Pending);
        let mut trouble = None;
        if let Some(chan) = peer.channels[usize::from(channel)].as_deref_mut() {
            if let Some(link) = up {
                result = sending::send_now(link, chan, &mut op, &mut hands);
                if matches!(result, Ok(Posted::Pending)) {
                    chan.sends.push_back(op);
                    if chan.sends.len() == 1 && len > EAGER_BYTES {
                        trouble = sending::pump(link, chan, Pass::Ordinary, &mut hands).err();
                    }
                }
            } else {
                chan.sends.push_back(op);
            }
        }
        if matches!(result, Ok(Posted::Pending)) {
            peer.busy |= 1 << channel;
            peer.touched |= 1 << channel;
        }
        self.backlog = events;
        if let Some(trouble) = trouble {
            // The message stays posted: it fails together with the others of this peer.
            let _ = self.refuse(on.peer, trouble);
        }
        result.map_err(|trouble| match trouble {
            Trouble::Message(error) => error,
            trouble => self.refuse(on.peer, trouble),
        })
    }

    /// Takes a receive, which may be conditional.
    ///
    /// # Safety
    /// As [`Endpoint::post_recv`](crate::Endpoint::post_recv).
    pub(super) unsafe fn enqueue_recv(
        &mut self,
        on: Channel,
        tag: u64,
        dst: Sink<'_>,
        on_misfit: OnMisfit,
        token: Token,
    ) -> Result<Posted, Error> {
        self.usable(on)?;
        let (landing, len) = landing(dst);
        let len = len.ok_or_else(|| too_long(on.peer))?;
        let down = self.peers[on.peer as usize].down.clone();
        if down.is_none() {
            self.start(on.peer)?;
        }
        let channel = on.index as u8;
        let device_copiers = self.device_copiers.clone();
        let mut events = std::mem::take(&mut self.backlog);
        let (peer, mut hands) = self.parts(on, &mut events);
        let mut op = RecvOp {
            token,
            tag,
            len,
            conditional: on_misfit == OnMisfit::Return,
            landing,
            way: Way::Open,
            granted: 0,
            granted_to: Cursor::default(),
            filled: 0,
            device_copiers,
            failed: None,
        };
        let chan =
            &mut **peer.channels[usize::from(channel)].get_or_insert_with(|| Box::new(Chan::new(channel)));
        chan.probed = false;
        let taken = receiving::receive_now(chan, on.peer, &mut op);
        peer.touched |= 1 << channel;
        let mut trouble = None;
        let result = match (taken, down) {
            (Ok(Ok(Posted::Pending)), None) => {
                chan.recvs.push_back(op);
                peer.busy |= 1 << channel;
                if let Some(link) = peer.link.as_deref_mut().filter(|link| link.stage == Stage::Up)
                    && len > EAGER_BYTES
                {
                    trouble = receiving::grant(link, chan, &mut hands).err();
                }
                Ok(Ok(Posted::Pending))
            }
            // A message has arrived that does not fit this receive.
            (Ok(Ok(Posted::Pending)), Some(_)) if chan.unfit => {
                chan.recvs.push_back(op);
                self.late.push(on.peer);
                Ok(Ok(Posted::Pending))
            }
            (Ok(Ok(Posted::Pending)), Some(cause)) => Ok(Err(cause)),
            (taken, _) => taken,
        };
        self.backlog = events;
        if let Some(trouble) = trouble {
            // The receive stays posted: it fails together with the others of this peer.
            let _ = self.refuse(on.peer, trouble);
        } else if matches!(result, Ok(Err(_))) && self.peers[on.peer as usize].down.is_some() {
            self.say_down(on.peer);
        }
        result.unwrap_or_else(|trouble| Err(self.refuse(on.peer, trouble)))
    }

    /// Asks for a report of the next message.
    pub(super) fn probe_channel(&mut self, on: Channel) -> Result<(), Error> {
        self.usable(on)?;
        let down = self.peers[on.peer as usize].down.clone();
        if down.is_none() {
            self.start(on.peer)?;
        }
        let peer = &mut self.peers[on.peer as usize];
        let chan =
            peer.channels[usize::from(on.index)].get_or_insert_with(|| Box::new(Chan::new(on.index as u8)));
        if let Some(cause) = down {
            if chan.arrival().is_none() {
                return Err(cause);
            }
            self.late.push(on.peer);
        }
        chan.probed = true;
        peer.busy |= 1 << on.index;
        peer.touched |= 1 << on.index;
        Ok(())
    }

    /// Cancels [`Self::probe_channel`].
    pub(super) fn cancel_probe_on(&mut self, on: Channel) {
        let Some(peer) = self.peers.get_mut(on.peer as usize) else { return };
        if let Some(Some(chan)) = peer.channels.get_mut(usize::from(on.index)) {
            chan.probed = false;
            // The next poll finds out whether the channel is still busy.
            peer.touched |= 1 << on.index;
        }
    }

    fn usable(&self, on: Channel) -> Result<(), Error> {
        let usage = |what: String| Err(Error::new(ErrorKind::Usage, NAME, Some(on.peer), what));
        if on.peer as usize >= self.peers.len() {
            return usage(format!("no such rank in a world of {}", self.peers.len()));
        }
        if on.peer == self.rank {
            return usage("a rank has no channel to itself".into());
        }
        if usize::from(on.index) >= CHANNELS {
            return usage(format!("channel {} of at most {CHANNELS}", on.index));
        }
        Ok(())
    }

    /// Returns the peer, with the channel made if necessary, and the resources that an operation on it needs.
    fn parts<'a>(&'a mut self, on: Channel, events: &'a mut Vec<Event>) -> (&'a mut Peer, Hands<'a>) {
        let peer = &mut self.peers[on.peer as usize];
        peer.channels[usize::from(on.index)].get_or_insert_with(|| Box::new(Chan::new(on.index as u8)));
        let hands = Hands {
            rails: &self.rails,
            registrations: &mut self.registrations,
            counters: &mut self.counters,
            options: &self.options,
            events,
        };
        (peer, hands)
    }

    /// Reports the loss of a peer with the next poll.
    fn say_down(&mut self, peer: u32) {
        let mut backlog = std::mem::take(&mut self.backlog);
        self.tell_down(peer, &mut backlog);
        self.backlog = backlog;
    }

    /// Handles an error of a post that concerns the whole peer. The token is spent; a poll reports the rest.
    fn refuse(&mut self, peer: u32, trouble: Trouble) -> Error {
        let error = trouble.words(self.rank, peer, &self.way_to(peer));
        let mut backlog = std::mem::take(&mut self.backlog);
        self.lose(peer, error.clone(), &mut backlog);
        self.backlog = backlog;
        Error { kind: given_up(error.kind), ..error }
    }
}

/// Returns the destination of a message, and its length unless that is more than memory can have.
fn landing(dst: Sink<'_>) -> (Landing, Option<usize>) {
    match dst {
        Sink::Place(list) => {
            let (pieces, total) = Pieces::new(list);
            (Landing::Place { pieces, cursor: Cursor::default() }, total)
        }
        Sink::Consume { len, consumer } => {
            (Landing::Eat(Eater::new(consumer)), Some(len).filter(|&len| len <= MESSAGE_MAX))
        }
    }
}

fn too_long(peer: u32) -> Error {
    Error::new(ErrorKind::Usage, NAME, Some(peer), "a message longer than memory")
}
