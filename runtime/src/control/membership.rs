//! A rank's place in one communicator.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;

use super::Control;
use super::abort::{AbortCause, AbortFlag, AbortKind, Loss};
use super::board::{Account, Status, StatusBoard};
use super::member::CoordinatorStanding;
use super::peers::rounds::RoundKey;
use super::wire::ToCoordinator;

/// Registration of a communicator with the control plane. Dropping it unregisters the communicator. All ranks in its
/// methods are ranks within the communicator.
pub struct Membership {
    control: Control,
    communicator: u64,
    members: Arc<[u32]>,
    /// The communicators that this one was split off, directly or not.
    ancestors: Arc<[u64]>,
    flag: Arc<AbortFlag>,
    board: Arc<StatusBoard>,
    /// Number of agreements so far.
    rounds: AtomicU64,
    /// Members that have answered that they have dropped the communicator.
    dropped_by: Mutex<BTreeSet<u32>>,
}

impl Membership {
    pub(super) fn new(
        control: Control,
        communicator: u64,
        members: Arc<[u32]>,
        ancestors: Arc<[u64]>,
    ) -> Self {
        let (flag, board) = control.shared().register(communicator, members.clone(), ancestors.clone());
        let (rounds, dropped_by) = (AtomicU64::new(0), Mutex::default());
        Self { control, communicator, members, ancestors, flag, board, rounds, dropped_by }
    }

    /// Returns the control plane of this registration.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    pub(super) const fn communicator(&self) -> u64 {
        self.communicator
    }

    /// Returns the number of the next agreement and counts it. All members count alike.
    pub(super) fn next_round(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the key of this member's next agreement, without counting it.
    pub(crate) fn later(&self) -> RoundKey {
        RoundKey { communicator: self.communicator, number: self.rounds.load(Ordering::Relaxed) }
    }

    /// Returns the world ranks of the members, by rank in the communicator.
    #[must_use]
    pub const fn members(&self) -> &Arc<[u32]> {
        &self.members
    }

    /// Returns the ancestors of a communicator that is split off this one.
    pub(crate) fn ancestors_of_children(&self) -> Arc<[u64]> {
        self.ancestors.iter().copied().chain([self.communicator]).collect()
    }

    /// Returns the flag that is raised when a member is lost or aborts.
    #[must_use]
    pub const fn abort_flag(&self) -> &Arc<AbortFlag> {
        &self.flag
    }

    /// Aborts the communicator: here at once, and on the other members within milliseconds. If it was already aborted,
    /// the earlier cause stays, and the others learn that a member has given up.
    pub fn abort(&self, cause: AbortCause) {
        let cause = clip(cause);
        let is_first = self.flag.raise(cause.clone());
        if self.flag.note_given_up() || is_first {
            self.control.shared().end_below(self.communicator, &cause);
            self.tell(cause);
        }
    }

    /// Ends all calls of all members at once. This includes calls that still wait for data sent before a loss that has
    /// already ended the communicator. Communicators that were split off this one end too.
    pub(crate) fn revoke(&self, cause: AbortCause) {
        let cause = clip(cause);
        self.flag.raise(cause.clone());
        self.flag.note_given_up();
        self.flag.note_revoked();
        self.control.shared().end_below(self.communicator, &cause);
        self.tell(cause);
    }

    /// Records that the members have come together. From now on the communicator no longer ends with the one that it was
    /// split off, unless that is revoked.
    pub(crate) fn note_made(&self) {
        self.control.shared().note_made(self.communicator);
    }

    /// Tells the other members, through the coordinator or, if it is gone or stopped, through their listeners.
    fn tell(&self, cause: AbortCause) {
        let (shared, communicator) = (self.control.shared(), self.communicator);
        let standing = shared.lock().coordinator.clone();
        match standing {
            CoordinatorStanding::Open => {
                let abort =
                    |cause| ToCoordinator::Abort { communicator, members: self.members.to_vec(), cause };
                shared.send(&abort(cause.clone()));
                // A coordinator that was left behind says nothing, and this rank may leave at once.
                if shared.left_behind().contains(&0) {
                    self.control.tell_members(&self.members, communicator, cause);
                } else {
                    self.control.tell_members_unless_echoed(&self.members, communicator, cause);
                }
            }
            // All ranks notice the loss of rank 0 by themselves.
            CoordinatorStanding::Lost(_) if cause.kind != AbortKind::Revoked => {}
            CoordinatorStanding::Closed | CoordinatorStanding::Lost(_) => {
                self.control.tell_members(&self.members, communicator, cause);
            }
            CoordinatorStanding::Left { .. } => {}
        }
        shared.wake();
    }

    /// Asks a member what it is doing. The member's control thread answers, so an answer comes even if its main thread
    /// hangs. Blocks for `timeout` at most. Returns `None` if no answer comes in time, the member is gone, or it has
    /// not registered this communicator.
    #[must_use]
    pub fn ask(&self, member: u32, timeout: Duration) -> Option<Status> {
        self.ask_all(&[member], timeout).pop().flatten()
    }

    /// Asks several members at once, as [`Membership::ask`] does. All wait in parallel, for `timeout` at most.
    #[must_use]
    pub fn ask_all(&self, members: &[u32], timeout: Duration) -> Vec<Option<Status>> {
        let until = Instant::now() + timeout;
        let shared = self.control.shared();
        let mut state = shared.lock();
        let first = state.next_ticket;
        state.next_ticket += members.len() as u64;
        let tickets = first..state.next_ticket;
        if state.coordinator == CoordinatorStanding::Open {
            state.answers.extend(tickets.clone().map(|ticket| (ticket, None)));
            drop(state);
            for (ticket, member) in tickets.clone().zip(members) {
                match self.members.get(*member as usize).copied() {
                    Some(target) => {
                        shared.send(&ToCoordinator::Ask { ticket, target, communicator: self.communicator });
                    }
                    // A rank that is not a member has no answer and is not waited for.
                    None => drop(shared.lock().answers.insert(ticket, Some(Account::Unknown))),
                }
            }
            state = shared.lock();
            loop {
                let is_answered = |ticket| matches!(state.answers.get(&ticket), Some(Some(_)));
                let is_over = state.coordinator != CoordinatorStanding::Open || Instant::now() >= until;
                if is_over || tickets.clone().all(is_answered) {
                    break;
                }
                state = shared.wait(state, until);
            }
        }
        let accounts: Vec<_> = tickets.map(|ticket| state.answers.remove(&ticket).flatten()).collect();
        drop(state);
        let status = |(member, account): (&u32, Option<Account>)| match account {
            Some(Account::Here(status)) => Some(status),
            Some(Account::Dropped) => {
                self.dropped_by().insert(*member);
                None
            }
            Some(Account::Unknown) | None => None,
        };
        members.iter().zip(accounts).map(status).collect()
    }

    fn dropped_by(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.dropped_by.lock().unpoisoned()
    }

    /// Tells members that ask that this rank has dropped the communicator. All of its data has left.
    pub(crate) fn close(&self) {
        self.control.shared().note_dropped(self.communicator);
    }

    /// Returns this rank's own status board, which the thread that runs its operations keeps up to date.
    #[must_use]
    pub const fn board(&self) -> &Arc<StatusBoard> {
        &self.board
    }

    /// Whether a member has said goodbye, or has answered that it has dropped the communicator.
    #[must_use]
    pub fn departed(&self, member: u32) -> bool {
        let rank = self.members.get(member as usize);
        rank.is_some_and(|rank| self.control.shared().lock().departed.contains(rank))
            || self.dropped_by().contains(&member)
    }

    /// Returns the cause of a member's loss, if it counts as lost.
    #[must_use]
    pub fn lost(&self, member: u32) -> Option<Loss> {
        let rank = self.members.get(member as usize)?;
        self.control.shared().lock().lost.get(rank).cloned()
    }
}

fn clip(mut cause: AbortCause) -> AbortCause {
    cause.reason = super::wire::clip(cause.reason, usize::MAX);
    cause.operation = super::wire::clip(cause.operation, usize::MAX);
    cause
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.control.shared().unregister(self.communicator, &self.flag);
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("communicator", &self.communicator)
            .field("members", &self.members)
            .field("abort", &self.flag)
            .finish_non_exhaustive()
    }
}
