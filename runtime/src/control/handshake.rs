//! The first bytes of a connection: both ends tell their versions and prove that they know the job's keys.
//!
//! Both sides send a preamble of 64 bytes whose layout never changes, so that any two versions can identify each other.
//! Two keys may be shared beforehand: the job's secret (KOLO_JOB_SECRET, or the one in a unique id), and the rendezvous
//! key, which rank 0 draws and publishes beside its address where only the job's ranks can read it (file, store,
//! board). If there is a key, three things happen before anything else is sent or parsed:
//!
//! 1. The rank proves each key by an HMAC-SHA256 over both preambles, and so over both nonces, the version, and the set
//!    of keys. A coordinator that does not know this job's keys learns nothing from the proof, and receives nothing else.
//! 2. The coordinator answers with a verdict and a proof of its own. The proof's key is derived (HKDF-SHA256) from
//!    secret, rendezvous key and preambles, so only a holder of both keys has it.
//! 3. The same derivation yields one key per direction, which seals everything that follows ([`Sealed`]). A relay
//!    between the two can pass bytes on or withhold them, and nothing else.
//!
//! The set of keys is in the preambles, each side compares it, and the proofs cover it, so no third party can talk two
//! ranks out of using their keys. Without any key (`tcp://` and no secret) nothing is sealed, and every process that
//! connects is believed.
//!
//! Secrets should be hard to guess, because an attacker who records a handshake can test guesses against it.

use std::io;

use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use kolo_transport::foreign::printable_bytes;
use kolo_transport::tcp::{OWNER_IS_FULL, OWNER_MAGIC};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[cfg(doc)]
use super::sealed::Sealed;
use super::sealed::SessionKeys;
use crate::job::limits::PROTOCOL;
use crate::job::{JobSecret, RendezvousKey, mac};

const MAGIC: [u8; 8] = OWNER_MAGIC;
const PREAMBLE_BYTES: usize = 64;
const MAC_BYTES: usize = 32;
const FLAG_SECRET: u32 = 1;
const FLAG_RENDEZVOUS: u32 = 2;
/// Flag of a coordinator or member that closes this connection because there are too many. The nonce then begins with the
/// number of connections that it has rejected.
const FLAG_FULL: u32 = OWNER_IS_FULL;

/// Flag of a caller that wants to reach the member at its own port, not the coordinator that may share that port.
const FLAG_MEMBER: u32 = 8;

/// The first bytes of a preamble, which tell what the caller wants.
pub(crate) type Start = [u8; START_BYTES];
const START_BYTES: usize = 16;

/// Length of the rank's proof: one MAC for each key.
const PROOF_BYTES: usize = 2 * MAC_BYTES;

const VERDICT_GOOD: u8 = 0;
const VERDICT_SECRET: u8 = 1;
const VERDICT_RENDEZVOUS: u8 = 2;

/// Most bytes of a stranger's message that are shown.
const SHOWN_BYTES: usize = 64;

/// This crate's version. Ranks must agree on it, because all ranks must make equal plans.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The keys that ranks and coordinator share before they connect.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) secret: Option<JobSecret>,
    pub(crate) rendezvous: Option<RendezvousKey>,
}

impl Credentials {
    /// Whether there is any key.
    pub(crate) fn is_private(&self) -> bool {
        self.secret.is_some() || self.rendezvous.is_some()
    }

    fn flags(&self) -> u32 {
        let secret = if self.secret.is_some() { FLAG_SECRET } else { 0 };
        secret | if self.rendezvous.is_some() { FLAG_RENDEZVOUS } else { 0 }
    }

    /// Returns both keys. An absent key is empty. The preambles, which every proof covers, say that it is absent.
    fn keys(&self) -> [&[u8]; 2] {
        [
            self.secret.as_ref().map_or(&[][..], |secret| secret.bytes()),
            self.rendezvous.as_ref().map_or(&[][..], |key| &key[..]),
        ]
    }

    /// Computes the rank's proof of one key.
    fn proof(&self, which: usize, transcript: &Transcript) -> Hmac<Sha256> {
        let label: &[u8] = [&b"kolo rank, secret"[..], b"kolo rank, rendezvous"][which];
        mac(self.keys()[which], label, &[transcript])
    }

    fn derive(&self, transcript: &Transcript) -> Derived {
        let [secret, rendezvous] = self.keys();
        let length = (secret.len() as u64).to_le_bytes();
        let derivation = Hkdf::<Sha256>::new(Some(transcript), &[&length, secret, rendezvous].concat());
        let expand = |label: &[u8]| {
            let mut key = [0; 32];
            derivation.expand(label, &mut key).expect("32 bytes are within what HKDF gives");
            key
        };
        Derived {
            proof: mac(&expand(b"kolo coordinator, proof"), b"kolo coordinator", &[transcript]),
            to_coordinator: expand(b"kolo to coordinator"),
            to_rank: expand(b"kolo to rank"),
        }
    }
}

/// The rank's preamble, followed by the coordinator's.
type Transcript = [u8; 2 * PREAMBLE_BYTES];

/// Keys derived from the job's keys and the transcript.
struct Derived {
    proof: Hmac<Sha256>,
    to_coordinator: [u8; 32],
    to_rank: [u8; 32],
}

fn transcript(rank: &Preamble, coordinator: &Preamble) -> Transcript {
    let mut both = [0; 2 * PREAMBLE_BYTES];
    both[..PREAMBLE_BYTES].copy_from_slice(&rank.to_bytes());
    both[PREAMBLE_BYTES..].copy_from_slice(&coordinator.to_bytes());
    both
}

/// Progress of a connection, by which the coordinator chooses one to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Progress {
    /// Nothing meaningful has arrived yet.
    Silent = 0,
    /// A fitting preamble has arrived. Any process can send one.
    Greeted = 1,
    /// The other side has proven the keys.
    Proven = 2,
}

/// Reason for a failed handshake.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The other side is not Kolo, or the connection broke. Another attempt may succeed, and there is nothing to
    /// report.
    Foreign(String),
    /// The other side is Kolo, but has another rendezvous key or none, so it is not the process that was looked for.
    OtherJob(String),
    /// The other side is Kolo, but its version, secret or settings do not fit.
    Misfit { problem: String, remedy: String },
}

impl Rejection {
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::Foreign(format!("{doing}: {error}"))
    }

    fn misfit(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Misfit { problem: problem.into(), remedy: remedy.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Preamble {
    protocol: u32,
    flags: u32,
    version: [u8; 16],
    nonce: [u8; 32],
}

impl Preamble {
    fn ours(flags: u32) -> io::Result<Self> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
        let mut version = [0; 16];
        let length = VERSION.len().min(version.len());
        version[..length].copy_from_slice(&VERSION.as_bytes()[..length]);
        Ok(Self { protocol: PROTOCOL, flags, version, nonce })
    }

    fn to_bytes(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.version);
        bytes[32..].copy_from_slice(&self.nonce);
        bytes
    }

    fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let (head, nonce) = bytes.split_at(32);
        if head[..8] != MAGIC {
            return None;
        }
        Some(Self {
            protocol: u32::from_le_bytes(head[8..12].try_into().ok()?),
            flags: u32::from_le_bytes(head[12..16].try_into().ok()?),
            version: head[16..32].try_into().ok()?,
            nonce: nonce.try_into().ok()?,
        })
    }

    fn version(&self) -> String {
        let text: String =
            self.version.iter().take_while(|b| b.is_ascii_graphic()).map(|&b| char::from(b)).collect();
        format!("{text} (protocol {})", self.protocol)
    }

    /// Checks that the two preambles fit together. Errors are worded for the side that owns `self`.
    fn check(&self, theirs: &Self, them: &str) -> Result<(), Rejection> {
        if (self.protocol, self.version) != (theirs.protocol, theirs.version) {
            return Err(Rejection::misfit(
                format!("{them} runs Kolo {}, but this process runs {}", theirs.version(), self.version()),
                "Install the same version on every host",
            ));
        }
        let has = |preamble: &Self, flag| preamble.flags & flag != 0;
        // A process of another job is met by chance, and its secret does not matter.
        match (has(self, FLAG_RENDEZVOUS), has(theirs, FLAG_RENDEZVOUS)) {
            (true, false) => {
                return Err(Rejection::OtherJob(format!(
                    "{them} belongs to another job: it has no rendezvous key, but this job's rendezvous named \
                     one"
                )));
            }
            (false, true) => {
                return Err(Rejection::OtherJob(format!(
                    "{them} belongs to another job: it requires the key of a rendezvous (file, store, \
                     board), but this process was only given an address"
                )));
            }
            _ => {}
        }
        match (has(self, FLAG_SECRET), has(theirs, FLAG_SECRET)) {
            (true, false) => Err(Rejection::misfit(
                format!("this process has a job secret, but {them} has none"),
                "Set the same KOLO_JOB_SECRET for every process of the job, or for none of them",
            )),
            (false, true) => Err(Rejection::misfit(
                format!("{them} has a job secret, but this process has none"),
                "Set the same KOLO_JOB_SECRET for every process of the job, or for none of them",
            )),
            _ => Ok(()),
        }
    }
}

/// Makes the message of a coordinator or member to a connection that it closes for lack of room.
pub(crate) fn too_many(rejected: u64) -> Option<[u8; PREAMBLE_BYTES]> {
    let mut preamble = Preamble::ours(FLAG_FULL).ok()?;
    preamble.nonce[..8].copy_from_slice(&rejected.to_le_bytes());
    Some(preamble.to_bytes())
}

fn other_job(them: &str) -> Rejection {
    Rejection::OtherJob(format!("{them} belongs to another job: it has another rendezvous key"))
}

fn different_secrets(them: &str) -> Rejection {
    Rejection::misfit(
        format!("{them} has a different job secret"),
        "Set the same KOLO_JOB_SECRET for every process of the job",
    )
}

/// Performs the rank's side of the handshake. The caller limits the time. The rest of the stream must be sealed with
/// the keys, if any.
pub(crate) async fn greet_coordinator<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
) -> Result<Option<SessionKeys>, Rejection> {
    greet_for(("rank 0", 0), stream, credentials).await
}

/// Performs the rank's side of the handshake at the port of a member: see [`greet_coordinator`].
pub(crate) async fn greet_member<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
) -> Result<Option<SessionKeys>, Rejection> {
    greet_for(("the member", FLAG_MEMBER), stream, credentials).await
}

async fn greet_for<S: AsyncRead + AsyncWrite + Unpin>(
    (them, purpose): (&str, u32),
    stream: &mut S,
    credentials: &Credentials,
) -> Result<Option<SessionKeys>, Rejection> {
    let ours =
        Preamble::ours(credentials.flags() | purpose).map_err(|e| Rejection::io("drawing a nonce", &e))?;
    stream.write_all(&ours.to_bytes()).await.map_err(|e| Rejection::io("greeting", &e))?;
    let mut bytes = [0; PREAMBLE_BYTES];
    let mut have = 0;
    while have < bytes.len() {
        match stream.read(&mut bytes[have..]).await {
            Ok(0) if have == 0 => {
                return Err(Rejection::Foreign("the connection was closed without an answer".into()));
            }
            Ok(0) => return Err(not_kolo(&bytes[..have])),
            Ok(n) => have += n,
            Err(error) => return Err(Rejection::io("waiting for the greeting", &error)),
        }
        if have >= MAGIC.len() && bytes[..MAGIC.len()] != MAGIC {
            return Err(not_kolo(&bytes[..have]));
        }
    }
    let theirs = Preamble::parse(&bytes).ok_or_else(|| not_kolo(&bytes))?;
    if theirs.nonce == ours.nonce {
        return Err(Rejection::Foreign("connected to itself".into()));
    }
    if (theirs.protocol, theirs.flags & FLAG_FULL) == (PROTOCOL, FLAG_FULL) {
        let mut count = [0; 8];
        count.copy_from_slice(&theirs.nonce[..8]);
        return Err(Rejection::Foreign(format!(
            "{them} has too many pending connections: it has rejected {}, including this one",
            u64::from_le_bytes(count)
        )));
    }
    ours.check(&theirs, them)?;
    if !credentials.is_private() {
        return Ok(None);
    }
    let transcript = transcript(&ours, &theirs);
    let mut proof = [0; PROOF_BYTES];
    for (which, part) in proof.chunks_exact_mut(MAC_BYTES).enumerate() {
        part.copy_from_slice(&credentials.proof(which, &transcript).finalize().into_bytes());
    }
    stream.write_all(&proof).await.map_err(|e| Rejection::io("sending the proof", &e))?;
    let mut answer = [0; 1 + MAC_BYTES];
    stream.read_exact(&mut answer).await.map_err(|e| Rejection::io("waiting for the proof", &e))?;
    let derived = credentials.derive(&transcript);
    match answer[0] {
        VERDICT_SECRET => Err(different_secrets(them)),
        VERDICT_RENDEZVOUS => Err(other_job(them)),
        VERDICT_GOOD if derived.proof.verify_slice(&answer[1..]).is_ok() => {
            Ok(Some(SessionKeys { outward: derived.to_coordinator, inward: derived.to_rank }))
        }
        // A process in between must not get the bytes meant for the other. That one may answer the next attempt.
        _ => Err(Rejection::Foreign(format!(
            "the process that answered does not know this job's keys ({them}?)"
        ))),
    }
}

/// Performs the coordinator's side from the first byte on. The caller limits the time. The rest of the stream must be
/// sealed with the keys, if any.
#[cfg(any(test, fuzzing))]
pub(crate) async fn greet_rank<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    progress: impl Fn(Progress),
) -> Result<Option<SessionKeys>, Rejection> {
    let magic = read_magic(stream).await?;
    let start = read_start(magic, stream).await?;
    greet_after(start, stream, credentials, progress).await
}

/// Reads the first bytes of a connection. These are few, so that a stranger that sends eight other bytes and then waits
/// is dropped at once.
pub(crate) async fn read_magic<S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; MAGIC.len()], Rejection> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await.map_err(|e| Rejection::io("waiting for the greeting", &e))?;
    Ok(magic)
}

/// Reads the bytes after those of [`read_magic`], from a caller that is Kolo.
pub(crate) async fn read_start<S: AsyncRead + Unpin>(
    magic: [u8; MAGIC.len()],
    stream: &mut S,
) -> Result<Start, Rejection> {
    if magic != MAGIC {
        return Err(not_kolo(&magic));
    }
    let mut start = [0; START_BYTES];
    let (first, rest) = start.split_at_mut(MAGIC.len());
    first.copy_from_slice(&magic);
    stream.read_exact(rest).await.map_err(|e| Rejection::io("waiting for the greeting", &e))?;
    Ok(start)
}

/// Whether a caller of this version wants to reach the member, not its coordinator.
pub(crate) fn is_for_member(start: &Start) -> bool {
    let flags = u32::from_le_bytes([start[12], start[13], start[14], start[15]]);
    start[8..12] == PROTOCOL.to_le_bytes() && flags & FLAG_MEMBER != 0
}

/// Performs the coordinator's side as [`greet_rank`] does, after the first bytes.
pub(crate) async fn greet_after<S: AsyncRead + AsyncWrite + Unpin>(
    start: Start,
    stream: &mut S,
    credentials: &Credentials,
    progress: impl Fn(Progress),
) -> Result<Option<SessionKeys>, Rejection> {
    let them = "a process that tried to join";
    let mut bytes = [0; PREAMBLE_BYTES];
    let (first, rest) = bytes.split_at_mut(START_BYTES);
    first.copy_from_slice(&start);
    stream.read_exact(rest).await.map_err(|e| Rejection::io("waiting for the greeting", &e))?;
    let theirs = Preamble::parse(&bytes).ok_or_else(|| not_kolo(&bytes))?;
    let ours = Preamble::ours(credentials.flags()).map_err(|e| Rejection::io("drawing a nonce", &e))?;
    stream.write_all(&ours.to_bytes()).await.map_err(|e| Rejection::io("greeting", &e))?;
    ours.check(&theirs, them)?;
    progress(Progress::Greeted);
    if !credentials.is_private() {
        return Ok(None);
    }
    let transcript = transcript(&theirs, &ours);
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await.map_err(|e| Rejection::io("waiting for the proof", &e))?;
    let proven = |which: usize| {
        let given = &proof[which * MAC_BYTES..(which + 1) * MAC_BYTES];
        credentials.proof(which, &transcript).verify_slice(given).is_ok()
    };
    let rejection = match (proven(0), proven(1)) {
        (true, true) => None,
        // If the rank belongs to another job, its secret does not matter. Its next attempt may find its own
        // coordinator.
        (_, false) if credentials.rendezvous.is_some() => Some((VERDICT_RENDEZVOUS, other_job(them))),
        _ => Some((VERDICT_SECRET, different_secrets(them))),
    };
    let mut answer = [0; 1 + MAC_BYTES];
    let derived = match &rejection {
        Some((verdict, _)) => {
            answer[0] = *verdict;
            None
        }
        None => {
            progress(Progress::Proven);
            let derived = credentials.derive(&transcript);
            answer[0] = VERDICT_GOOD;
            answer[1..].copy_from_slice(&derived.proof.clone().finalize().into_bytes());
            Some(derived)
        }
    };
    stream.write_all(&answer).await.map_err(|e| Rejection::io("answering the proof", &e))?;
    match (rejection, derived) {
        (None, Some(derived)) => {
            Ok(Some(SessionKeys { outward: derived.to_rank, inward: derived.to_coordinator }))
        }
        (Some((_, rejection)), _) => Err(rejection),
        (None, None) => Ok(None),
    }
}

fn not_kolo(start: &[u8]) -> Rejection {
    Rejection::Foreign(format!(
        "something that is not Kolo answered (\"{}\")",
        printable_bytes(start, SHOWN_BYTES)
    ))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
