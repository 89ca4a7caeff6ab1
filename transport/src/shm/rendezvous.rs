//! Rendezvous: long messages that stay where they are until the receiver fetches them.
//!
//! # Protocol
//! In place of the pieces of a message the sender puts one cell into the ring, with the `rts` bit (ready to send) and a list of the
//! ranges of its memory that make up the message. The receiver, once it has posted the receive whose turn it is,
//! reads them with `process_vm_readv`, straight to where they belong, some part in each poll. Then it releases the
//! cell, and that is what completes the send: until then it is pending, so the ranges are stable by the contract.
//!
//! A message that is to be consumed gains nothing, since it would have to be read into a buffer first; there the
//! ring is that buffer, and the sender's processor helps to fill it. So the receiver *declines*: it notes the number of
//! the cell in its line before it releases it, and the bytes follow in pieces. Until a request is answered nothing else
//! goes into the ring, so the order of a channel is the order of its cells.
//!
//! A request is made only if the receiver has said in the segment that it can read the sender's memory (CMA), for which it has read a known word of
//! the sender's memory (see the `remote` module), and if the message is long enough, lies in huge pages (see
//! the `pages` module) and has at most [`FAR_RUNS`] pieces. Otherwise the bytes go through the ring.
//!
//! # Taking a request back
//! A sender that gives up (abort, abandon, the loss of the peer, drop) may let go of the memory at once, while the
//! receiver is reading it. It does not wait: nothing bounds how long a peer takes, or whether it lives. It writes the
//! word `withdrawn` of the channel, then a fence, and only then returns to its owner. The receiver reads
//! the memory, then a fence, then the word. If any byte that it read was written after the owner had its memory back,
//! the write came after the sender's fence; so the receiver's look, after its own fence, finds the word set, and the
//! receive fails. If the word is not set, every byte was read before the owner had its memory back, and the message
//! is whole: it is reported done although the sender has reported a failure since, as it may be with any message
//! that was on its way. One word serves all requests of a channel, because a sender only ever gives up all of them,
//! together with the channel. Memory that has been unmapped is an error of the system call, and a process that has
//! ended, has started another program, or whose number was given to another, is found out by the beacon.
//!
//! A state with "taken" would buy nothing: the receiver needs no permission to read, since reading does no
//! harm to the sender, and what it has read counts only if the word is still unset afterwards.
//!
//! # Trust
//! Addresses from a peer are handed to the kernel as addresses *of that peer* and used in no other way, between
//! threads of one process too. Number and sum of the ranges are checked against the message's length. What is read
//! is payload, which a hostile peer could garble anyway.

use super::remote::FAR_RUNS;

/// Words of the longest list of ranges: address and length of each.
pub(crate) const RTS_WORDS: usize = 2 * FAR_RUNS;

/// A list of ranges of this process's memory, as it goes into a cell.
#[derive(Debug)]
pub(crate) struct Rts {
    words: [u64; RTS_WORDS],
    count: usize,
}

impl Rts {
    /// No ranges yet.
    pub(crate) fn new() -> Self {
        Self { words: [0; RTS_WORDS], count: 0 }
    }

    /// Appends a range; `false` if there is no room.
    pub(crate) fn push(&mut self, at: *const u8, len: usize) -> bool {
        if self.count == FAR_RUNS {
            return false;
        }
        // The address leaves the language here: another process, or the kernel for it, will use it.
        self.words[2 * self.count] = at.expose_provenance() as u64;
        self.words[2 * self.count + 1] = len as u64;
        self.count += 1;
        true
    }

    /// Words to write into the ring.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..2 * self.count]
    }
}
