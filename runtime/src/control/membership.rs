//! A rank's place in one communicator.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Control;
use super::abort::{AbortCause, AbortFlag, AbortKind, Loss};
use super::board::{Status, StatusBoard};
use super::member::CoordinatorStanding;
use super::peers::rounds::RoundKey;
use super::wire::ToCoordinator;

/// Registration of a communicator with the control plane; dropping it unregisters. All ranks taken and given here
/// are ranks within the communicator.
pub struct Membership {
    control: Control,
    communicator: u64,
    members: Arc<[u32]>,
    flag: Arc<AbortFlag>,
    board: Arc<StatusBoard>,
    /// Agreements so far.
    rounds: AtomicU64,
}

impl Membership {
    pub(super) fn new(control: Control, communicator: u64, members: Arc<[u32]>) -> Self {
        let (flag, board) = control.shared().register(communicator, members.clone());
        Self { control, communicator, members, flag, board, rounds: AtomicU64::new(0) }
    }

    /// The control plane that this belongs to.
    #[must_use]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    pub(super) const fn communicator(&self) -> u64 {
        self.communicator
    }

    /// The number of another agreement: all members count them alike.
    pub(super) fn next_round(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed)
    }

    /// The agreement to which this member goes next.
    pub(crate) fn later(&self) -> RoundKey {
        RoundKey { communicator: self.communicator, number: self.rounds.load(Ordering::Relaxed) }
    }

    /// World ranks of the members, by rank in the communicator.
    #[must_use]
    pub const fn members(&self) -> &Arc<[u32]> {
        &self.members
    }

    /// Raised when a member is lost or aborts.
    #[must_use]
    pub const fn abort_flag(&self) -> &Arc<AbortFlag> {
        &self.flag
    }

    /// Aborts the communicator: here at once, on the other members within milliseconds. If it was aborted before,
    /// the earlier cause stays; the others learn that a member has given up.
    pub fn abort(&self, cause: AbortCause) {
        let cause = clip(cause);
        let is_first = self.flag.raise(cause.clone());
        if self.flag.note_given_up() || is_first {
            self.tell(cause);
        }
    }

    /// Ends all calls of all members at once, also where a loss has ended the communicator and its calls still wait for what was
    /// sent before.
    pub(crate) fn revoke(&self, cause: AbortCause) {
        let cause = clip(cause);
        self.flag.raise(cause.clone());
        self.flag.note_given_up();
        self.flag.note_revoked();
        self.tell(cause);
    }

    /// Tells the other members: through the coordinator, or by their doors if it has left.
    fn tell(&self, cause: AbortCause) {
        let (shared, communicator) = (self.control.shared(), self.communicator);
        let standing = shared.lock().coordinator.clone();
        match standing {
            CoordinatorStanding::Open => {
                shared.send(&ToCoordinator::Abort { communicator, members: self.members.to_vec(), cause });
            }
            // The loss of rank 0 itself all notice by themselves.
            CoordinatorStanding::Lost(_) if cause.kind != AbortKind::Revoked => {}
            CoordinatorStanding::Closed | CoordinatorStanding::Lost(_) => {
                self.control.tell_members(&self.members, communicator, cause);
            }
            CoordinatorStanding::Left { .. } => {}
        }
        shared.wake();
    }

    /// Asks a member what it is doing. Its control thread answers, so an answer comes even if its main thread hangs.
    /// `None` if none comes in time, the member is gone, or it has not registered this communicator.
    #[must_use]
    pub fn ask(&self, member: u32, timeout: Duration) -> Option<Status> {
        self.ask_all(&[member], timeout).pop().flatten()
    }

    /// As [`Membership::ask`], of several members at once: none waits for another's answer.
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
                    // A rank that is no member has no answer, and is not waited for.
                    None => drop(shared.lock().answers.insert(ticket, Some(None))),
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
        tickets.map(|ticket| state.answers.remove(&ticket).flatten().flatten()).collect()
    }

    /// This rank's own status, to be kept by the thread that runs its operations.
    #[must_use]
    pub const fn board(&self) -> &Arc<StatusBoard> {
        &self.board
    }

    /// Whether a member has said goodbye.
    #[must_use]
    pub fn departed(&self, member: u32) -> bool {
        let rank = self.members.get(member as usize);
        rank.is_some_and(|rank| self.control.shared().lock().departed.contains(rank))
    }

    /// Cause of a member's loss, if it counts as lost.
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
