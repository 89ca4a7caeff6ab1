//! The abort flag of a communicator, which is raised once and which every waiting thread sees.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};

use crate::error::{AbortReason, Error, ErrorContext, LossCause};

/// Kind of failure that ended a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AbortKind {
    /// A member's process ended or its connection broke.
    PeerLost,
    /// Members made calls that do not match.
    Mismatch,
    /// A member's deadline passed.
    Timeout,
    /// A member called `abort`.
    User,
    /// A connection between two living members broke, or an adapter failed.
    Transport,
    /// World rank 0, which runs the control plane and is not a member of this communicator, is lost.
    CoordinatorLost,
    /// A member called `revoke`.
    Revoked,
    /// The other members have gone on without this rank.
    Fenced,
}

impl AbortKind {
    /// Returns the reason as [`Error::Aborted`](crate::Error::Aborted) names it.
    pub(crate) const fn reason(self) -> AbortReason {
        match self {
            Self::Mismatch => AbortReason::Mismatch,
            Self::Timeout => AbortReason::Timeout,
            Self::User => AbortReason::Requested,
            Self::CoordinatorLost => AbortReason::CoordinatorLost,
            Self::Revoked => AbortReason::Revoked,
            Self::Fenced => AbortReason::Fenced,
            // The loss of a member has an error variant of its own, so this reason is not used for it.
            Self::Transport | Self::PeerLost => AbortReason::Transport,
        }
    }
}

/// Cause of a rank's loss, as a value and in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The cause as a value.
    pub cause: LossCause,
    /// The cause in words.
    #[serde(deserialize_with = "super::wire::foreign")]
    pub text: String,
}

impl Loss {
    pub(crate) fn new(cause: LossCause, text: impl Into<String>) -> Self {
        Self { cause, text: text.into() }
    }

    /// Makes the error for a call that needed the rank.
    pub(crate) fn error(self, context: ErrorContext, peer: u32) -> Error {
        Error::PeerLost { context, peer, cause: self.cause, detail: self.text }
    }

    /// Puts the rank's name before the text, and cuts the text to the length that a message may carry.
    pub(crate) fn of(self, who: &str) -> Self {
        Self { text: super::wire::clip(format!("{who}: {}", self.text), usize::MAX), ..self }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Cause of an abort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortCause {
    /// Rank within the communicator: the lost member for [`AbortKind::PeerLost`], this rank itself for
    /// [`AbortKind::CoordinatorLost`], and otherwise the member that gave up.
    pub by: u32,
    /// Kind of failure.
    pub kind: AbortKind,
    /// Cause of the member's loss, for [`AbortKind::PeerLost`].
    pub loss: Option<LossCause>,
    /// The cause in words.
    #[serde(deserialize_with = "super::wire::foreign")]
    pub reason: String,
    /// Sequence number of the operation in which the failure was noticed, if it has one.
    pub sequence: Option<u64>,
    /// Text of that operation; empty outside operations.
    #[serde(deserialize_with = "super::wire::foreign")]
    pub operation: String,
}

impl AbortCause {
    /// Makes a cause that was noticed outside operations.
    #[must_use]
    pub fn new(by: u32, kind: AbortKind, reason: impl Into<String>) -> Self {
        Self { by, kind, loss: None, reason: reason.into(), sequence: None, operation: String::new() }
    }

    /// Makes the cause for the loss of a member.
    pub(crate) fn lost(member: u32, loss: &Loss) -> Self {
        Self { loss: Some(loss.cause), ..Self::new(member, AbortKind::PeerLost, &*loss.text) }
    }

    /// Returns the cause of the member's loss.
    pub(crate) fn loss(&self) -> Loss {
        Loss::new(self.loss.unwrap_or(LossCause::Closed), &*self.reason)
    }

    /// Adds the operation in which the failure was noticed.
    #[must_use]
    pub fn during(mut self, operation: impl Into<String>, sequence: impl Into<Option<u64>>) -> Self {
        self.operation = operation.into();
        self.sequence = sequence.into();
        self
    }
}

impl fmt::Display for AbortCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            AbortKind::PeerLost => write!(f, "rank {} is lost: {}", self.by, self.reason)?,
            AbortKind::Mismatch => write!(f, "mismatch seen by rank {}: {}", self.by, self.reason)?,
            AbortKind::Timeout => write!(f, "deadline of rank {}: {}", self.by, self.reason)?,
            AbortKind::User | AbortKind::Transport => {
                write!(f, "aborted by rank {}: {}", self.by, self.reason)?
            }
            AbortKind::Revoked => write!(f, "revoked by rank {}", self.by)?,
            AbortKind::CoordinatorLost | AbortKind::Fenced => f.write_str(&self.reason)?,
        }
        match self.sequence {
            _ if self.operation.is_empty() => Ok(()),
            Some(sequence) => write!(f, " (in {}, operation #{sequence})", self.operation),
            None => write!(f, " (in {})", self.operation),
        }
    }
}

/// A function that runs once, when the flag is raised.
type Hook = Box<dyn Fn() + Send + Sync>;

/// Abort flag of one communicator. The first cause stays, and the flag is never lowered.
///
/// `raise` stores the cause, then sets the word (release), then runs the hooks. A thread that sees the word set
/// (acquire) therefore finds the cause, and a sleeping thread is woken only after the word was set.
#[derive(Default)]
pub struct AbortFlag {
    word: AtomicU32,
    /// Whether a member has called `revoke`, before the flag was raised or after.
    revoked: AtomicBool,
    /// Whether a member has given up, for this cause or another.
    given_up: AtomicBool,
    cause: OnceLock<AbortCause>,
    hooks: Mutex<Vec<Hook>>,
}

impl AbortFlag {
    /// Whether the communicator was aborted. One atomic load, cheap enough for every iteration of a waiting loop.
    #[must_use]
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }

    /// Returns the word itself: 0 until the flag is raised, then 1.
    #[must_use]
    pub const fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Whether a member has called `revoke`. If so, calls no longer wait for anything, whatever the first cause was.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Records that a member has called `revoke`. Returns whether that is new.
    pub(crate) fn note_revoked(&self) -> bool {
        !self.revoked.swap(true, Ordering::AcqRel)
    }

    /// Whether a member is known to have given up. After a loss, members that do not need the lost one may go on until
    /// then.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Records that a member has given up. Returns whether that is new.
    pub(crate) fn note_given_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::AcqRel)
    }

    /// Returns the cause, once the flag is raised.
    #[must_use]
    pub fn cause(&self) -> Option<AbortCause> {
        if self.is_raised() { self.cause.get().cloned() } else { None }
    }

    /// Raises the flag on this rank only. Returns false if it was already raised; the earlier cause then stays.
    pub fn raise(&self, cause: AbortCause) -> bool {
        if self.cause.set(cause).is_err() {
            return false;
        }
        let mut hooks = self.hooks.lock().unpoisoned();
        self.word.store(1, Ordering::Release);
        let waiting = std::mem::take(&mut *hooks);
        drop(hooks);
        for hook in waiting {
            // A panic here would end the control thread's task, and with it this rank's place in the job.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
                tracing::error!("an abort hook panicked");
            }
        }
        true
    }

    /// Blocks until the flag is raised or the deadline passes.
    pub fn wait(&self, until: Instant) {
        let waiter = std::thread::current();
        self.on_raise(Box::new(move || waiter.unpark()));
        while !self.is_raised() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Adds a hook that wakes a waiting thread. If the flag is already raised, the hook runs now. Otherwise it runs on
    /// the thread that raises the flag, often the control thread, so it must not block. A hook should hold the owner of
    /// this flag by a `Weak`, or both would be kept alive.
    pub fn on_raise(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let mut hooks = self.hooks.lock().unpoisoned();
        if self.is_raised() {
            drop(hooks);
            hook();
        } else {
            hooks.push(hook);
        }
    }
}

impl fmt::Debug for AbortFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortFlag").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_is_woken_by_the_cause() {
        let flag = Arc::new(AbortFlag::default());
        let began = Instant::now();
        flag.wait(began);
        assert!(!flag.is_raised(), "the deadline has passed");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| flag.wait(began + Duration::from_secs(60)));
            assert!(flag.raise(AbortCause::new(3, AbortKind::User, "a reason")));
            waits.join().expect("no panic");
        });
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_cause_names_its_operation_and_its_number_if_it_has_one() {
        let during =
            |number: Option<u64>| AbortCause::new(3, AbortKind::Timeout, "late").during("recv", number);
        assert_eq!(during(Some(7)).to_string(), "deadline of rank 3: late (in recv, operation #7)");
        assert_eq!(during(None).to_string(), "deadline of rank 3: late (in recv)");
    }

    #[test]
    fn the_first_cause_stays_and_hooks_run_once() {
        let flag = AbortFlag::default();
        let count = Arc::new(AtomicU32::new(0));
        let hook = |count: &Arc<AtomicU32>| -> Box<dyn Fn() + Send + Sync> {
            let count = count.clone();
            Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        flag.on_raise(hook(&count));
        assert!(!flag.is_raised() && flag.cause().is_none());
        assert!(flag.raise(AbortCause::new(3, AbortKind::User, "first")));
        assert!(!flag.raise(AbortCause::new(4, AbortKind::User, "second")));
        assert_eq!(flag.cause().map(|c| c.by), Some(3));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        flag.on_raise(hook(&count));
        assert_eq!(count.load(Ordering::Relaxed), 2, "a late hook runs at once");
    }
}
