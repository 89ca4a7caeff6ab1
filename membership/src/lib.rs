//! How the members of a communicator agree, though any of them may die at any time.
//!
//! Every member brings a part (what it wants, some flags, a random seed). All members that live on get the same [`Decision`]: who
//! took part, the flags that all of these brought, and one seed. There is no master: any member may propose, and the lowest one
//! that is neither gone nor silent does.
//!
//! A member whose program has not called takes part in decisions of the others, but none is made while its part is missing. Once the time
//! of one that has called is over ([`Agreement::wait_no_longer`]), the missing parts are brought for them, with no flag set, by their own
//! ends. A program that calls later gets that decision like the others.
//!
//! # The protocol
//! Single-decree Paxos (L. Lamport, "Paxos Made Simple", 2001), with the members of the communicator as acceptors. It is the
//! smallest consensus that is safe in a partition, and needs no log and no stable storage: a process that starts again is no member.
//! Quorums need only meet across phases (H. Howard, D. Malkhi, A. Spiegelman, "Flexible Paxos", 2016). A set of answers is a quorum if it is
//!
//! 1. more than half of the members; or
//! 2. half of them with member 0 among them (dynamic-linear voting: S. Jajodia, D. Mutchler, TODS 15(2), 1990); or
//! 3. all members but those that are **gone**.
//!
//! *Gone* is a fact, not a suspicion: the system has said that the process has ended. A *silent* member may be stopped or cut off, and
//! counts. So a job on one host goes on with its last process, and of a partition at most one side goes on.
//!
//! # Why rule 3 is safe
//! A proposer sends the members that it holds for gone with each request, and an acceptor that answers takes them over. From then on it
//! hears nothing that these have sent. A request counts by rule 3 only if every answer has taken over all that the proposer holds for
//! gone. Suppose that value v was chosen by a quorum Q, and a later ballot counts its promises by rule 3. If a member of Q lives, it is
//! among the promises and reports v. If none does, the living can know v only from the dead. A member that had learned v before its
//! promise reports it; one that had not will never learn it, since it hears the dead no more. So the living never hold two decisions. A
//! member that died may have held a third one: no survivor has seen it.
//!
//! The simulator (`simulator/`) runs the members under loss, delay, duplication, partitions, pauses and deaths, and checks this, and
//! that all who live and are connected come to a decision. It also finds each of a list of seeded errors in the rules.

#![forbid(unsafe_code)]

mod agreement;
mod message;
mod set;
#[cfg(test)]
mod simulator;

pub use agreement::{Agreement, Settings, Stand};
pub use message::{Ballot, Decision, Message, Part};
pub use set::Set;
