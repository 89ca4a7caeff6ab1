//! Memory that a rank exposes to a peer, and the peer gets.
//!
//! A [rendezvous request](super::rendezvous) waits in the ring, so the messages behind it wait as well. An owner that
//! matches messages by itself cannot let them wait. It tells its peer in a message of its own where a long message
//! lies, and the peer's owner gets the message from there once a receive has matched it. Nothing waits in the ring, and
//! the memory belongs to its owner again when the peer's owner says so in a message.
//!
//! Trust, and the way in which a rank takes its memory back, are those of a rendezvous: the word `withdrawn` of the
//! channel serves exposed memory as well, because a rank only ever takes back all of it, together with the channel.
//!
//! The receiver chooses between this and a message through the ring, by the time that each takes from its choice to the
//! last byte. It has the better view: the sender's time also contains the time until a receive matches the message.

use super::endpoint::{ShmEndpoint, too_long, total};
use super::lane::Handed;
use super::options::SingleCopy;
use crate::endpoint::{Channel, Piece, Posted, Token};
use crate::error::Error;

impl ShmEndpoint {
    /// Returns whether the peer of a channel reads this process's memory. Makes the lane, through which the memory can
    /// be taken back.
    pub(super) fn is_read_on(&mut self, on: Channel) -> bool {
        let lane = self.peer_for_post(on).and_then(|peer| {
            self.check_can_send(peer)?;
            self.send_lane(peer, on.index)
        });
        lane.is_ok_and(|id| self.send_lanes[id as usize].may_rendezvous())
    }

    /// Returns whether a message of `len` bytes that the peer has exposed should be fetched.
    pub(super) fn chooses_get(&mut self, on: Channel, len: usize) -> bool {
        if len < self.options.rendezvous_min() {
            return false;
        }
        let lane = self.peer_for_post(on).and_then(|peer| self.recv_lane(peer, on.index));
        let is_tried = self.options.single_copy == SingleCopy::Auto;
        lane.is_ok_and(|id| !is_tried || self.recv_lanes[id as usize].prefers_get(len))
    }

    /// Hands a get to its lane.
    ///
    /// # Safety
    /// As [`Endpoint::post_get`](crate::Endpoint::post_get).
    pub(super) unsafe fn hand_get(
        &mut self,
        on: Channel,
        from: u64,
        dst: &[Piece],
        token: Token,
    ) -> Result<Posted, Error> {
        let peer = self.peer_for_post(on)?;
        let Some(len) = total(dst) else { return Err(too_long(on.peer)) };
        self.check_can_receive(peer)?;
        let id = self.recv_lane(peer, on.index)?;
        // SAFETY: the caller's promise is the one that the lane asks for.
        match unsafe { self.recv_lanes[id as usize].hand_get(from, dst, len, token) } {
            Handed::Over => Ok(Posted::Done),
            Handed::Queued { .. } => {
                self.pending += 1;
                self.list_recv(id);
                Ok(Posted::Pending)
            }
        }
    }
}
