//! Copies of a member's state, which newcomers fetch at its listener while the member continues to work.
//!
//! A newcomer presents the key of the listener and waits. The members notice the request and take a copy at the same
//! step. Each member then serves chunks of its copy, and their hashes. A copy is kept while a newcomer is fetching it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::control::coordinator::BoxedStream;
use crate::control::wire::{decode, encode, invalid, read_frame};
use crate::job::limits::{MAX_HELLO_FRAME, MAX_WAITING_NEWCOMERS};

pub(crate) type Hash = [u8; 32];

/// The state at one step.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    /// Digest that distinguishes lists of parts.
    pub(crate) digest: Hash,
    pub(crate) chunks: Vec<Box<[u8]>>,
}

/// A request from a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum FromFetcher {
    Chunk { index: u32 },
    Hash { index: u32 },
}

/// A message from the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::control) enum ToFetcher {
    /// The copy that is served, sent once there is one.
    Offered {
        version: u64,
        digest: Hash,
        chunks: u32,
    },
    /// This many bytes follow.
    Chunk {
        bytes: u32,
    },
    Hash {
        hash: Hash,
    },
}

/// A member's snapshot server, which serves a copy of its state.
#[derive(Debug, Default)]
pub(crate) struct SnapshotServer {
    copy: watch::Sender<Option<Arc<Snapshot>>>,
    visitors: AtomicUsize,
    /// Number of visitors for whom there is no copy yet.
    waiting: AtomicUsize,
}

impl SnapshotServer {
    /// Whether a newcomer is waiting for a copy.
    pub(crate) fn is_asked(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the version of the copy that is served.
    pub(crate) fn version(&self) -> Option<u64> {
        self.copy.borrow().as_ref().map(|copy| copy.version)
    }

    /// Serves this copy from now on, if a newcomer is there to fetch it.
    pub(crate) fn serve(&self, copy: Snapshot) {
        if self.visitors.load(Ordering::Relaxed) > 0 {
            self.copy.send_replace(Some(Arc::new(copy)));
        }
        // The last newcomer may have left before the copy was there.
        self.release();
    }

    fn release(&self) {
        if self.visitors.load(Ordering::Relaxed) == 0 {
            self.copy.send_replace(None);
        }
    }

    /// Whether one more newcomer may come.
    pub(super) fn has_room(&self) -> bool {
        self.visitors.load(Ordering::Relaxed) < MAX_WAITING_NEWCOMERS
    }

    /// Serves a newcomer until it leaves or the snapshot server is dropped.
    pub(super) async fn receive(self: Arc<Self>, stream: BoxedStream) -> io::Result<()> {
        let visit = Visit::new(&self, |server| &server.visitors);
        let (mut read, mut write) = tokio::io::split(stream);
        let mut copies = self.copy.subscribe();
        let waits = Visit::new(&self, |server| &server.waiting);
        // The copy at hand may have been taken for a newcomer that is about to leave. It serves this one as well.
        drop(self);
        let copy = tokio::select! {
            copy = copies.wait_for(Option::is_some) => copy.ok().and_then(|copy| copy.clone()),
            _ = read_frame(&mut read, MAX_HELLO_FRAME) => None,
        };
        drop(waits);
        let Some(copy) = copy else { return Ok(()) };
        let chunks = u32::try_from(copy.chunks.len()).map_err(|_| invalid("too many chunks".to_owned()))?;
        let offered = ToFetcher::Offered { version: copy.version, digest: copy.digest, chunks };
        say(&mut write, &offered, &[]).await?;
        while let Some(frame) = read_frame(&mut read, MAX_HELLO_FRAME).await? {
            if visit.server.strong_count() == 0 {
                break;
            }
            answer(&mut write, &copy, decode(&frame)?).await?;
        }
        Ok(())
    }
}

async fn answer(
    write: &mut (impl AsyncWrite + Unpin),
    copy: &Arc<Snapshot>,
    asked: FromFetcher,
) -> io::Result<()> {
    let chunk = |index: u32| {
        let chunk = copy.chunks.get(index as usize);
        chunk.ok_or_else(|| invalid(format!("chunk {index} does not exist")))
    };
    match asked {
        FromFetcher::Chunk { index } => {
            let chunk = chunk(index)?;
            say(write, &ToFetcher::Chunk { bytes: chunk.len() as u32 }, chunk).await
        }
        FromFetcher::Hash { index } => {
            chunk(index)?;
            let copy = copy.clone();
            // Hashing must not delay the control thread, on which the members agree.
            let hash =
                tokio::task::spawn_blocking(move || Sha256::digest(&copy.chunks[index as usize]).into());
            let hash = hash.await.map_err(io::Error::other)?;
            say(write, &ToFetcher::Hash { hash }, &[]).await
        }
    }
}

async fn say(write: &mut (impl AsyncWrite + Unpin), frame: &ToFetcher, bytes: &[u8]) -> io::Result<()> {
    write.write_all(&encode(frame)).await?;
    write.write_all(bytes).await?;
    write.flush().await
}

/// Reads a message from a member. If it is a chunk, it must have `expected` bytes.
pub(in crate::control) async fn hear(
    read: &mut (impl AsyncRead + Unpin),
    expected: usize,
) -> io::Result<(ToFetcher, Vec<u8>)> {
    use tokio::io::AsyncReadExt;
    let frame = read_frame(read, MAX_HELLO_FRAME).await?;
    let said = decode(&frame.ok_or(io::ErrorKind::UnexpectedEof)?)?;
    let mut chunk = Vec::new();
    if let ToFetcher::Chunk { bytes } = said {
        if bytes as usize != expected {
            return Err(invalid(format!("a chunk of {bytes} bytes, but {expected} were expected")));
        }
        chunk.resize(expected, 0);
        read.read_exact(&mut chunk).await?;
    }
    Ok((said, chunk))
}

/// Counts a visitor at a snapshot server, until it is dropped.
struct Visit {
    server: Weak<SnapshotServer>,
    count: fn(&SnapshotServer) -> &AtomicUsize,
}

impl Visit {
    fn new(server: &Arc<SnapshotServer>, count: fn(&SnapshotServer) -> &AtomicUsize) -> Self {
        count(server).fetch_add(1, Ordering::Relaxed);
        Self { server: Arc::downgrade(server), count }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            (self.count)(&server).fetch_sub(1, Ordering::Relaxed);
            server.release();
        }
    }
}
