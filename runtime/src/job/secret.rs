//! Secrets that only the processes of a job know.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret that all processes of a job share. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret {
    bytes: Vec<u8>,
    /// Random bytes that were drawn for this job and that newcomers are told: the whole secret, or the part that was
    /// mixed with a secret that newcomers must know already.
    drawn: Option<Vec<u8>>,
}

impl JobSecret {
    /// Makes a secret from text, such as KOLO_JOB_SECRET. `None` if the text is empty.
    #[must_use]
    pub fn new(text: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = text.into();
        if bytes.is_empty() { None } else { Some(Self { bytes, drawn: None }) }
    }

    /// Makes a secret from random bytes that were drawn for this job, so no variable contains it.
    pub(crate) fn drawn(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), drawn: Some(bytes.to_vec()) }
    }

    /// Returns the part that newcomers cannot know unless they are told.
    pub(crate) fn for_newcomers(&self) -> Option<&[u8]> {
        self.drawn.as_deref()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Mixes two secrets into one that only processes with both can compute.
    #[must_use]
    pub(crate) fn mixed_with(&self, other: &Self) -> Self {
        let bytes = mac(&self.bytes, b"kolo mixed secrets", &[&other.bytes]).finalize().into_bytes().to_vec();
        Self { bytes, drawn: self.drawn.clone() }
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(..)")
    }
}

/// A key that rank 0 draws and publishes with its address. A process that knows it has read what only the job's ranks
/// can read.
pub(crate) type RendezvousKey = [u8; 16];

/// Starts an HMAC over a label and parts.
pub(crate) fn mac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    // A label ends with a zero and everything after it has a fixed length, so different inputs never give the same
    // bytes.
    mac.update(label);
    mac.update(&[0]);
    for part in parts {
        mac.update(part);
    }
    mac
}
