//! Errors of transports, as fields.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The message that arrived differs from the one that the receiver posted.
    Mismatch {
        /// Tag that the receiver posted.
        expected_tag: u64,
        /// Tag that arrived.
        tag: u64,
        /// Length that the receiver posted, in bytes.
        expected_len: u64,
        /// Length that arrived, in bytes.
        len: u64,
    },
    /// The peer is gone: its process ended, or the connection broke.
    PeerLost,
    /// Nothing arrived in time.
    Timeout,
    /// This side gave up, by abort or abandon.
    Aborted,
    /// The peer sent bytes that no peer of this version sends.
    Corrupt,
    /// The caller exceeded the capabilities of the transport.
    Usage,
    /// The operating system refused.
    System,
    /// A resource of this rank failed: its adapter, or its limit on locked memory. The peer is alive but cannot be
    /// reached.
    Local,
}

/// An error of a transport: what failed, with which peer, and the remedy.
#[derive(Clone, Debug)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// Name of the transport.
    pub transport: &'static str,
    /// The peer concerned.
    pub peer: Option<u32>,
    /// Plain words: the operation that failed, and the remedy where there is one.
    pub detail: String,
    /// The operating system's error, where there was one.
    pub source: Option<Arc<io::Error>>,
}

impl Error {
    /// Returns an error that has no system error as its cause.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        transport: &'static str,
        peer: Option<u32>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, transport, peer, detail: detail.into(), source: None }
    }

    /// Returns an error that the operating system reported.
    #[must_use]
    pub fn system(
        transport: &'static str,
        peer: Option<u32>,
        detail: impl Into<String>,
        source: io::Error,
    ) -> Self {
        Self {
            kind: ErrorKind::System,
            transport,
            peer,
            detail: detail.into(),
            source: Some(Arc::new(source)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transport)?;
        if let Some(peer) = self.peer {
            write!(f, ", peer {peer}")?;
        }
        write!(f, ": {}", self.detail)?;
        if let ErrorKind::Mismatch { expected_len, len, .. } = self.kind {
            write!(f, " (expected {expected_len} bytes, got {len})")?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}
