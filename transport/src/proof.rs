//! Proofs that a process knows a shared key, made and checked without sending the key: HMAC-SHA256 under a derived
//! key.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of a proof in bytes.
pub(crate) const PROOF_BYTES: usize = 32;

/// A key for one purpose. Its `Debug` form hides the bytes.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Derives the key for `purpose` from the secrets that both sides share.
    pub(crate) fn derive(shared: &[&[u8]], purpose: &[u8]) -> Self {
        // Each purpose is a constant of this crate, and each shared part has a fixed length, so no two inputs
        // concatenate to the same bytes.
        Self(mac(&shared.concat(), &[purpose]).finalize().into_bytes().into())
    }

    /// Returns a proof about these parts that only a holder of the key can make.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        mac(&self.0, parts).finalize().into_bytes().into()
    }

    /// Returns whether a proof is right, in a time that does not depend on where it differs.
    pub(crate) fn verify(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        mac(&self.0, parts).verify_slice(proof).is_ok()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}
