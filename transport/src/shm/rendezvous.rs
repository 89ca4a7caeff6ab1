//! Rendezvous: long messages stay in the sender's memory until the receiver fetches them.
//!
//! # Protocol
//! Instead of the pieces of a message, the sender puts one cell into the ring, with the `rts` bit (ready to send) and
//! a list of the ranges of its memory that make up the message. When the matching receive is posted, the receiver
//! reads the ranges with `process_vm_readv`, straight to their destination, a part in each poll. Then it releases the
//! cell, which completes the send. Until then the send is pending, so the contract keeps the ranges stable.
//!
//! A message for a consumer gains nothing, since it would have to be read into a buffer first. The ring is that
//! buffer, and the sender's processor helps to fill it. The receiver therefore *declines*: it writes the number of
//! the cell to its line before it releases the cell, and the bytes follow in pieces. Nothing else goes into the ring
//! until a request is answered, so the order of a channel is the order of its cells.
//!
//! The sender makes a request only if the receiver has said in the segment that it can read the sender's memory
//! (CMA), which it has tested by reading a known word there (see the `remote` module). The message must also be long
//! enough, have at most [`FAR_RUNS`] pieces, and lie in huge pages (see the `pages` module) unless the lane's other
//! messages show that a request pays (see the `tried` module). Otherwise the bytes go through the ring.
//!
//! # Taking a request back
//! A sender that gives up (abort, abandon, the loss of the peer, drop) may release the memory at once, while the
//! receiver is reading it. It does not wait, because nothing bounds how long a peer takes, or whether it is alive. It
//! writes the word `withdrawn` of the channel, executes a fence, and only then returns to its owner. The receiver
//! reads the memory, executes a fence, then reads the word. Suppose that any byte it read was written after the owner
//! had its memory back. Then the write came after the sender's fence, so the receiver finds the word set after its
//! own fence, and the receive fails. If the word is not set, every byte was read before the owner had its memory
//! back, and the message is whole. It is then reported done although the sender has reported a failure since, as can
//! happen with any message that was on its way. One word serves all requests of a channel, and all memory that is
//! exposed on it (see the `exposed` module), because a sender only ever gives up all of them, together with the
//! channel. For memory that has been unmapped, the system call returns an error. The beacon reveals a process that has ended, has started another program, or whose number was given to
//! another.
//!
//! A state "taken" would add nothing: the receiver needs no permission to read, since reading does the sender no
//! harm, and the bytes that it has read count only if the word is still unset afterwards.
//!
//! # Trust
//! Addresses from a peer are passed to the kernel as addresses *of that peer* and used in no other way, also between
//! threads of one process. Number and sum of the ranges are checked against the message's length. The bytes read are
//! payload, which a hostile peer could garble anyway.

use super::remote::FAR_RUNS;

/// Number of words of the longest list of ranges, with address and length of each.
pub(crate) const RTS_WORDS: usize = 2 * FAR_RUNS;

/// A list of ranges of this process's memory, in the form in which it goes into a cell.
#[derive(Debug)]
pub(crate) struct Rts {
    words: [u64; RTS_WORDS],
    count: usize,
}

impl Rts {
    /// Returns an empty list.
    pub(crate) fn new() -> Self {
        Self { words: [0; RTS_WORDS], count: 0 }
    }

    /// Appends a range; returns `false` if there is no room.
    pub(crate) fn push(&mut self, at: *const u8, len: usize) -> bool {
        if self.count == FAR_RUNS {
            return false;
        }
        // The address leaves the language here: another process will use it, or the kernel on that process's behalf.
        self.words[2 * self.count] = at.expose_provenance() as u64;
        self.words[2 * self.count + 1] = len as u64;
        self.count += 1;
        true
    }

    /// Returns the words to write into the cell.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..2 * self.count]
    }
}
