//! The meaning of a failed completion.

use std::fmt;

/// Outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The request succeeded.
    Success,
    /// `IBV_WC_LOC_LEN_ERR`.
    LocalLength,
    /// `IBV_WC_LOC_QP_OP_ERR`.
    LocalOperation,
    /// `IBV_WC_LOC_PROT_ERR`.
    LocalProtection,
    /// `IBV_WC_WR_FLUSH_ERR`.
    Flushed,
    /// `IBV_WC_BAD_RESP_ERR`.
    BadResponse,
    /// `IBV_WC_LOC_ACCESS_ERR`.
    LocalAccess,
    /// `IBV_WC_REM_INV_REQ_ERR`.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`.
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`.
    RemoteOperation,
    /// `IBV_WC_RETRY_EXC_ERR`.
    RetriesExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`.
    ReceiverNotReady,
    /// `IBV_WC_REM_ABORT_ERR`.
    RemoteAborted,
    /// `IBV_WC_FATAL_ERR`.
    Fatal,
    /// `IBV_WC_RESP_TIMEOUT_ERR`.
    ResponseTimeout,
    /// `IBV_WC_GENERAL_ERR`.
    General,
    /// A status that reliable connections do not have, by libibverbs' number.
    Other(u32),
}

/// The side to examine first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// None: the failure follows from another one, or from closing.
    Consequence,
    /// This process.
    Local,
    /// The peer's process, by the requests, registrations or permissions that it made.
    Remote,
    /// The path between, or a peer that is gone.
    Path,
    /// The device.
    Device,
}

impl Status {
    /// Returns the status of libibverbs' number.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetriesExceeded,
            13 => Self::ReceiverNotReady,
            16 => Self::RemoteAborted,
            19 => Self::Fatal,
            20 => Self::ResponseTimeout,
            21 => Self::General,
            other => Self::Other(other),
        }
    }

    /// Returns the side to examine first.
    #[must_use]
    pub fn blame(self) -> Blame {
        match self {
            Self::Success | Self::Flushed => Blame::Consequence,
            Self::LocalLength | Self::LocalOperation | Self::LocalProtection | Self::LocalAccess => {
                Blame::Local
            }
            Self::RemoteInvalidRequest
            | Self::RemoteAccess
            | Self::RemoteOperation
            | Self::ReceiverNotReady => Blame::Remote,
            Self::BadResponse | Self::RetriesExceeded | Self::ResponseTimeout | Self::RemoteAborted => {
                Blame::Path
            }
            Self::Fatal | Self::General | Self::Other(_) => Blame::Device,
        }
    }

    /// Returns a description of the failure.
    #[must_use]
    pub fn cause(self) -> &'static str {
        self.words().0
    }

    /// Returns the usual reasons.
    #[must_use]
    pub fn reasons(self) -> &'static str {
        self.words().1
    }

    /// Returns the remedy.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        self.words().2
    }

    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Success => ("done", "", ""),
            Self::LocalLength => (
                "a message was longer than the receive posted for it, or longer than the port allows",
                "the two sides disagree on lengths",
                "compare what the peer sent with what was posted",
            ),
            Self::LocalOperation => (
                "the work request was malformed",
                "too many pieces, or an operation that the queue pair was not created for",
                "compare the request with the queue pair's capabilities",
            ),
            Self::LocalProtection => (
                "local memory of the request is not registered",
                "region dropped too early, range beyond it, key from another protection domain, or a receive \
                 into memory without local write access",
                "keep the region until the completion",
            ),
            Self::Flushed => (
                "not carried out, since the queue pair had already failed or been closed",
                "another request of this queue pair failed first, or this side gave up",
                "look for the first completion that is not of this kind",
            ),
            Self::BadResponse => (
                "the peer's answer made no sense",
                "a damaged or old packet; both ends started from different packet numbers",
                "reconnect both ends",
            ),
            Self::LocalAccess => (
                "the peer's write with immediate failed on local memory",
                "protection of local memory changed during the operation",
                "keep the region until the connection ends",
            ),
            Self::RemoteInvalidRequest => (
                "the peer's adapter refused the request",
                "message longer than the peer's receive, more reads at once than it serves, or an operation it does \
                 not support",
                "compare both ends' lengths and read depths",
            ),
            Self::RemoteAccess => (
                "the peer does not allow access to that memory",
                "wrong key or address, region dropped at the peer, or registered, or the queue pair set up, \
                 without remote access",
                "look at what the peer registered and sent as its key",
            ),
            Self::RemoteOperation => (
                "the peer's adapter could not carry out the request",
                "the peer's receive names memory that is not registered, or its queue pair failed",
                "look at the peer's first failed completion",
            ),
            Self::RetriesExceeded => (
                "the peer did not acknowledge, after all retries",
                "peer process or host gone, its queue pair not yet or no longer connected, cable or switch, a \
                 firewall that drops UDP port 4791, or an MTU that does not get through",
                "check whether the peer is alive, then ping it with packets of the full MTU",
            ),
            Self::ReceiverNotReady => (
                "the peer had no receive posted, after all retries",
                "flow control: more messages sent than the peer made room for",
                "send only against credits, or set the RNR retry count to 7, which retries forever",
            ),
            Self::RemoteAborted => (
                "the peer gave up the operation",
                "its queue pair was closed in the middle",
                "look at the peer's log",
            ),
            Self::Fatal => ("the device failed", "driver reset or hardware error", "see the kernel log"),
            Self::ResponseTimeout => {
                ("the peer did not answer in time", "peer gone, or overloaded", "see whether it is alive")
            }
            Self::General | Self::Other(_) => (
                "a failure without a more specific name",
                "device-specific: see the vendor code",
                "see the kernel log and the vendor's documentation",
            ),
        }
    }
}

/// A completion that reports a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The outcome.
    pub status: Status,
    /// The vendor's code for it.
    pub vendor_code: u32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cause, reasons, remedy) = self.status.words();
        write!(
            f,
            "{cause} ({:?}, vendor code {:#x}); likely: {reasons}; {remedy}",
            self.status, self.vendor_code
        )
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn every_failure_has_words_and_somebody_to_look_at() {
        for raw in 1..=sys::IBV_WC_TM_RNDV_INCOMPLETE + 1 {
            let failure = Failure { status: Status::from_raw(raw), vendor_code: 0x81 };
            assert_ne!(failure.status, Status::Success);
            let (cause, reasons, remedy) = failure.status.words();
            assert!(!cause.is_empty() && !reasons.is_empty() && !remedy.is_empty(), "{raw}");
            assert!(failure.to_string().contains("0x81"));
        }
        assert_eq!(Status::from_raw(0), Status::Success);
        assert_eq!(Status::from_raw(12).blame(), Blame::Path);
        assert_eq!(Status::from_raw(10).blame(), Blame::Remote);
        assert_eq!(Status::from_raw(5).blame(), Blame::Consequence);
    }
}
