//! Agreement among the members of a communicator, though any of them may die at any time.
//!
//! Every member votes: its call, some flags and a random seed. All members that survive get the same
//! [`Decision`]: the members that took part, the flags that all of these have set, and one seed. There is no master. Any
//! member may propose, and the lowest one that is neither gone nor silent does.
//!
//! A member whose program has not called takes part in decisions of the others, but no decision is made while its vote
//! is missing. Once the deadline of a caller has passed ([`Agreement::wait_no_longer`]), the late members' own
//! [`Agreement`]s cast the missing votes, with no flag set. A program that calls later gets that decision like the
//! others.
//!
//! # The protocol
//! Single-decree Paxos (L. Lamport, "Paxos Made Simple", 2001), with the members of the communicator as acceptors. It
//! is the smallest consensus that is safe in a partition, and it needs no log and no stable storage, because a process
//! that restarts is no longer a member. Quorums need only intersect across phases (H. Howard, D. Malkhi, A. Spiegelman,
//! "Flexible Paxos", 2016). A set of answers is a quorum if it contains
//!
//! 1. more than half of the members; or
//! 2. half of them with member 0 among them (dynamic-linear voting: S. Jajodia, D. Mutchler, TODS 15(2), 1990); or
//! 3. all members but those that are **gone**.
//!
//! *Gone* is a fact, not a suspicion: the system has reported that the process has ended. A *silent* member may be
//! stopped or cut off, and still counts. A job on one host therefore goes on down to its last process, and at most one
//! side of a partition goes on.
//!
//! # Why rule 3 is safe
//! With each request, a proposer sends the members that it considers gone, and an acceptor that answers takes them
//! over. From then on, the acceptor ignores all messages that these members have sent. A request counts by rule 3 only
//! if every answer has taken over all members that the proposer considers gone. Suppose that value v was chosen by a
//! quorum Q, and a later ballot counts its promises by rule 3. If a member of Q lives, its promise is among them and
//! reports v. If none lives, the living can know v only from the dead. A member that had learned v before its promise
//! reports it. A member that had not will never learn it, since it ignores the dead from then on. So the living never
//! hold two decisions. A member that died may have held a third one, but no survivor has seen it.
//!
//! The simulator (`simulator/`) runs the members under loss, delay, duplication, partitions, pauses and deaths. It
//! checks this property, and that all members that live and are connected reach a decision. It also finds each of a
//! list of errors seeded into the rules.

#![forbid(unsafe_code)]

mod agreement;
mod attempt;
mod message;
mod set;
#[cfg(test)]
mod simulator;

pub use agreement::{Agreement, Settings, State};
pub use message::{Ballot, Decision, Message, Vote};
pub use set::Set;
