//! The first bytes of a connection: who speaks which version, and whether both know the job's secret.
//!
//! Both sides send a preamble of 64 bytes whose layout never changes, so that two versions can always tell each
//! other apart. With a secret, each then proves that it knows it by an HMAC-SHA256 over both preambles (and so over
//! both nonces), the rank first. Nothing else from the network is parsed before. This keeps strangers and other
//! jobs out; it does not encrypt what follows.

use std::fmt;
use std::io;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::limits::PROTOCOL;

const MAGIC: [u8; 8] = *b"KOLOctl\n";
const PREAMBLE_BYTES: usize = 64;
const MAC_BYTES: usize = 32;
const FLAG_SECRET: u32 = 1;

/// This crate's version; ranks must agree on it, because equal plans on all ranks depend on it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A secret that all processes of a job share. Not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret(Vec<u8>);

impl JobSecret {
    /// A secret from text, such as KOLO_JOB_SECRET. `None` if it is empty.
    #[must_use]
    pub fn new(text: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = text.into();
        if bytes.is_empty() { None } else { Some(Self(bytes)) }
    }

    fn mac(&self, label: &[u8], parts: [&[u8]; 2]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(..)")
    }
}

/// How a handshake failed.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The other side is not Kolo, or the connection broke: trying again may help, nobody needs to know.
    Stranger(String),
    /// The other side is Kolo but does not fit.
    Misfit { problem: String, remedy: String },
}

impl Rejection {
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::Stranger(format!("{doing}: {error}"))
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
    fn ours(secret: Option<&JobSecret>) -> io::Result<Self> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
        let mut version = [0; 16];
        let length = VERSION.len().min(version.len());
        version[..length].copy_from_slice(&VERSION.as_bytes()[..length]);
        Ok(Self { protocol: PROTOCOL, flags: if secret.is_some() { FLAG_SECRET } else { 0 }, version, nonce })
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

    /// Whether the two fit together, in the words of the side that owns `self`.
    fn check(&self, theirs: &Self, them: &str) -> Result<(), Rejection> {
        if (self.protocol, self.version) != (theirs.protocol, theirs.version) {
            return Err(Rejection::misfit(
                format!("{them} runs Kolo {}, this process {}", theirs.version(), self.version()),
                "Install the same version on every host",
            ));
        }
        match (self.flags & FLAG_SECRET != 0, theirs.flags & FLAG_SECRET != 0) {
            (true, false) => Err(Rejection::misfit(
                format!("this process has a job secret, {them} has none"),
                "Set the same KOLO_JOB_SECRET for every process of the job, or for none",
            )),
            (false, true) => Err(Rejection::misfit(
                format!("{them} has a job secret, this process has none"),
                "Set the same KOLO_JOB_SECRET for every process of the job, or for none",
            )),
            _ => Ok(()),
        }
    }
}

fn different_secrets(them: &str) -> Rejection {
    Rejection::misfit(
        format!("{them} has a different job secret"),
        "Set the same KOLO_JOB_SECRET for every process of the job",
    )
}

/// The rank's side. The caller bounds the time.
pub(crate) async fn greet_hub<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: Option<&JobSecret>,
) -> Result<(), Rejection> {
    let them = "rank 0";
    let ours = Preamble::ours(secret).map_err(|e| Rejection::io("drawing a nonce", &e))?;
    stream.write_all(&ours.to_bytes()).await.map_err(|e| Rejection::io("greeting", &e))?;
    let mut bytes = [0; PREAMBLE_BYTES];
    let mut have = 0;
    while have < bytes.len() {
        match stream.read(&mut bytes[have..]).await {
            Ok(0) if have == 0 => {
                return Err(Rejection::Stranger("the connection was closed without an answer".into()));
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
        return Err(Rejection::Stranger("connected to itself".into()));
    }
    ours.check(&theirs, them)?;
    if let Some(secret) = secret {
        let (a, b) = (ours.to_bytes(), theirs.to_bytes());
        let proof = secret.mac(b"kolo rank", [&a, &b]).finalize().into_bytes();
        stream.write_all(&proof).await.map_err(|e| Rejection::io("sending the proof", &e))?;
        let mut answer = [0; 1 + MAC_BYTES];
        stream.read_exact(&mut answer).await.map_err(|e| Rejection::io("waiting for the proof", &e))?;
        if answer[0] != 0 || secret.mac(b"kolo hub", [&a, &b]).verify_slice(&answer[1..]).is_err() {
            return Err(different_secrets(them));
        }
    }
    Ok(())
}

/// The hub's side. The caller bounds the time.
pub(crate) async fn greet_rank<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: Option<&JobSecret>,
) -> Result<(), Rejection> {
    let them = "a process that tried to join";
    let mut bytes = [0; PREAMBLE_BYTES];
    // The magic first: a stranger that sends eight other bytes and then waits is dropped at once.
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    stream.read_exact(magic).await.map_err(|e| Rejection::io("waiting for the greeting", &e))?;
    if magic != MAGIC {
        return Err(not_kolo(magic));
    }
    stream.read_exact(rest).await.map_err(|e| Rejection::io("waiting for the greeting", &e))?;
    let theirs = Preamble::parse(&bytes).ok_or_else(|| not_kolo(&bytes))?;
    let ours = Preamble::ours(secret).map_err(|e| Rejection::io("drawing a nonce", &e))?;
    stream.write_all(&ours.to_bytes()).await.map_err(|e| Rejection::io("greeting", &e))?;
    ours.check(&theirs, them)?;
    if let Some(secret) = secret {
        let (a, b) = (theirs.to_bytes(), ours.to_bytes());
        let mut proof = [0; MAC_BYTES];
        stream.read_exact(&mut proof).await.map_err(|e| Rejection::io("waiting for the proof", &e))?;
        let mut answer = [1; 1 + MAC_BYTES];
        let good = secret.mac(b"kolo rank", [&a, &b]).verify_slice(&proof).is_ok();
        if good {
            answer[0] = 0;
            answer[1..].copy_from_slice(&secret.mac(b"kolo hub", [&a, &b]).finalize().into_bytes());
        }
        stream.write_all(&answer).await.map_err(|e| Rejection::io("answering the proof", &e))?;
        if !good {
            return Err(different_secrets(them));
        }
    }
    Ok(())
}

fn not_kolo(start: &[u8]) -> Rejection {
    Rejection::Stranger(format!("something that is not Kolo answered (\"{}\")", start.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn both(rank: Option<&str>, hub: Option<&str>) -> (Result<(), Rejection>, Result<(), Rejection>) {
        let (mut a, mut b) = tokio::io::duplex(1024);
        let rank = rank.and_then(JobSecret::new);
        let hub = hub.and_then(JobSecret::new);
        tokio::join!(
            async {
                let result = greet_hub(&mut a, rank.as_ref()).await;
                drop(a);
                result
            },
            async {
                let result = greet_rank(&mut b, hub.as_ref()).await;
                drop(b);
                result
            }
        )
    }

    fn problem(result: Result<(), Rejection>) -> String {
        match result {
            Err(Rejection::Misfit { problem, .. }) => problem,
            other => panic!("expected a misfit, got {other:?}"),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn secrets_must_agree() {
        for secret in [None, Some("open sesame")] {
            let (rank, hub) = both(secret, secret).await;
            assert!(rank.is_ok() && hub.is_ok(), "{rank:?} {hub:?}");
        }
        let (rank, hub) = both(Some("one"), Some("two")).await;
        assert!(problem(rank).contains("rank 0 has a different job secret"));
        assert!(problem(hub).contains("different job secret"));
        let (rank, hub) = both(None, Some("two")).await;
        assert!(problem(rank).contains("rank 0 has a job secret, this process has none"));
        assert!(problem(hub).contains("this process has a job secret"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_version_is_named_on_both_sides() {
        let other = Preamble { version: *b"9.9.9\0\0\0\0\0\0\0\0\0\0\0", ..Preamble::ours(None).unwrap() };
        let (mut a, mut b) = tokio::io::duplex(1024);
        a.write_all(&other.to_bytes()).await.unwrap();
        assert!(problem(greet_rank(&mut b, None).await).contains("runs Kolo 9.9.9 (protocol 1)"));
        let (mut a, mut b) = tokio::io::duplex(1024);
        b.write_all(&other.to_bytes()).await.unwrap();
        assert!(problem(greet_hub(&mut a, None).await).contains("rank 0 runs Kolo 9.9.9"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn strangers_are_told_apart() {
        let (mut a, mut b) = tokio::io::duplex(1024);
        a.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        assert!(matches!(greet_rank(&mut b, None).await, Err(Rejection::Stranger(_))));
        let (mut a, mut b) = tokio::io::duplex(1024);
        b.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
        match greet_hub(&mut a, None).await {
            Err(Rejection::Stranger(problem)) => assert!(problem.contains("HTTP/1.1"), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
}
