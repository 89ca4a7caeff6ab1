//! Copies of a member's state, which newcomers fetch at its listener while the member continues to work.
//!
//! A newcomer presents the key of the listener and waits. The members notice the request and take a copy at the same
//! step. Each member then serves chunks of its copy, and their hashes. A copy is kept while a newcomer is fetching it,
//! but no more than two are: newcomers that fetch an older one must connect again, and continue with the next.
//! The newcomer says something at every beat, because the end of its host closes no connection.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::control::coordinator::BoxedStream;
use crate::control::wire::{decode, encode, invalid, read_frame};
use crate::job::limits::{COPY_UNHEARD, FETCHER_TIMEOUT, MAX_COPIES, MAX_HELLO_FRAME, MAX_WAITING_NEWCOMERS};

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
    Chunk {
        index: u32,
    },
    Hash {
        index: u32,
    },
    /// The newcomer is there.
    Beat,
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
    copy: watch::Sender<Option<Arc<Served>>>,
    /// The copies that are served or still fetched, the oldest first.
    kept: Mutex<Vec<Weak<Served>>>,
    visitors: AtomicUsize,
    /// Number of visitors for whom there is no copy yet.
    waiting: AtomicUsize,
}

/// A copy of the state that is served.
#[derive(Debug)]
struct Served {
    snapshot: Arc<Snapshot>,
    /// Time of the last word from a visitor that has this copy.
    heard: Mutex<Instant>,
    /// Whether the visits of those that fetch it must end.
    is_over: watch::Sender<bool>,
}

impl Served {
    fn new(snapshot: Snapshot) -> Self {
        let heard = Mutex::new(Instant::now());
        Self { snapshot: Arc::new(snapshot), heard, is_over: watch::Sender::new(false) }
    }

    fn heard(&self) -> MutexGuard<'_, Instant> {
        self.heard.lock().unpoisoned()
    }
}

impl SnapshotServer {
    /// Whether a newcomer is waiting for a copy.
    pub(crate) fn is_asked(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the version of the copy that is served.
    pub(crate) fn version(&self) -> Option<u64> {
        self.copy.borrow().as_ref().map(|copy| copy.snapshot.version)
    }

    /// Whether a newcomer is there to fetch a copy. It connects only to the members that its invitation names.
    pub(crate) fn has_visitors(&self) -> bool {
        self.visitors.load(Ordering::Relaxed) > 0
    }

    /// Drops the copy that is served. Newcomers that are fetching it keep it, and others wait for the next one.
    pub(crate) fn drop_copy(&self) {
        self.copy.send_replace(None);
    }

    /// Serves this copy from now on, if a newcomer is there to fetch it.
    pub(crate) fn serve(&self, copy: Snapshot) {
        if self.has_visitors() {
            let copy = Arc::new(Served::new(copy));
            self.copy.send_replace(Some(copy.clone()));
            self.keep(&copy);
        }
        // The last newcomer may have left before the copy was there.
        self.release();
    }

    /// Ends the visits of those that fetch too old a copy. The words of a newcomer do not show that it will ever have
    /// fetched all of its copy.
    fn keep(&self, newest: &Arc<Served>) {
        let mut kept = self.kept.lock().unpoisoned();
        kept.retain(|copy| copy.strong_count() > 0);
        kept.push(Arc::downgrade(newest));
        let old = kept.len().saturating_sub(MAX_COPIES);
        for copy in kept.drain(..old).filter_map(|copy| copy.upgrade()) {
            copy.is_over.send_replace(true);
        }
    }

    fn release(&self) {
        if !self.has_visitors() {
            self.drop_copy();
        }
    }

    /// Drops the copy if the newcomers for which it was made have fallen silent. They may still fetch it if they are
    /// there after all.
    fn drop_unheard(&self) {
        let copy = self.copy.borrow().clone();
        if copy.is_some_and(|copy| copy.heard().elapsed() > COPY_UNHEARD) {
            self.drop_copy();
        }
    }

    /// Whether one more newcomer may come.
    pub(super) fn has_room(&self) -> bool {
        self.visitors.load(Ordering::Relaxed) < MAX_WAITING_NEWCOMERS
    }

    /// Serves a newcomer until it leaves or falls silent, or the snapshot server is dropped.
    pub(super) async fn receive(self: Arc<Self>, stream: BoxedStream) -> io::Result<()> {
        self.drop_unheard();
        let _visit = Visit::new(&self, |server| &server.visitors);
        let (read, mut write) = tokio::io::split(stream);
        let mut copies = self.copy.subscribe();
        let waits = Visit::new(&self, |server| &server.waiting);
        // The copy at hand may have been taken for a newcomer that is about to leave. It serves this one as well.
        let server = Arc::downgrade(&self);
        drop(self);
        let own = OnceLock::<Arc<Served>>::new();
        let heard = || {
            if let Some(copy) = own.get() {
                *copy.heard() = Instant::now();
            }
            server.strong_count() > 0
        };
        let mut request = Box::pin(next_request(read, heard));
        let copy = tokio::select! {
            copy = copies.wait_for(Option::is_some) => copy.ok().and_then(|copy| copy.clone()),
            _ = &mut request => None,
        };
        drop(waits);
        let Some(copy) = copy else { return Ok(()) };
        let served = own.get_or_init(|| copy);
        let mut is_over = served.is_over.subscribe();
        let visit = Self::offer(&served.snapshot, &mut write, request, heard);
        tokio::select! {
            ended = visit => ended,
            () = async { drop(is_over.wait_for(|is_over| *is_over).await) } => Ok(()),
        }
    }

    /// Offers a copy to a newcomer, and answers its requests. `request` is the first.
    async fn offer<R: AsyncRead + Unpin>(
        copy: &Arc<Snapshot>,
        write: &mut (impl AsyncWrite + Unpin),
        request: impl Future<Output = (R, io::Result<Option<FromFetcher>>)>,
        heard: impl Fn() -> bool + Copy,
    ) -> io::Result<()> {
        let chunks = u32::try_from(copy.chunks.len()).map_err(|_| invalid("too many chunks".to_owned()))?;
        let offered = ToFetcher::Offered { version: copy.version, digest: copy.digest, chunks };
        timeout(FETCHER_TIMEOUT, say(write, &offered, &[])).await??;
        let (mut read, mut asked) = request.await;
        while let Some(request) = asked?.filter(|_| heard()) {
            // The newcomer's beats are heard while it waits for a long answer.
            let answered = async { timeout(FETCHER_TIMEOUT, answer(write, copy, request)).await? };
            let next = async { io::Result::Ok(next_request(read, heard).await) };
            ((), (read, asked)) = tokio::try_join!(answered, next)?;
        }
        Ok(())
    }
}

/// Reads the next request. Returns `None` once the newcomer has left or is silent, or `heard`, which is told of every
/// beat, wants no more.
async fn next_request<R: AsyncRead + Unpin>(
    mut read: R,
    heard: impl Fn() -> bool,
) -> (R, io::Result<Option<FromFetcher>>) {
    let request = async {
        loop {
            let frame = timeout(FETCHER_TIMEOUT, read_frame(&mut read, MAX_HELLO_FRAME)).await;
            let Some(frame) = frame.unwrap_or(Ok(None))? else { return Ok(None) };
            match decode(&frame)? {
                FromFetcher::Beat if heard() => {}
                FromFetcher::Beat => return Ok(None),
                request => return Ok(Some(request)),
            }
        }
    };
    let request = request.await;
    (read, request)
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
        FromFetcher::Beat => Ok(()),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::DuplexStream;

    use super::*;

    fn snapshot(version: u64) -> Snapshot {
        Snapshot { version, digest: [0; 32], chunks: vec![Box::new([1; 8])] }
    }

    /// Connects a newcomer, which the server then serves.
    async fn visit(server: &Arc<SnapshotServer>, visitors: usize) -> DuplexStream {
        let (near, far) = tokio::io::duplex(4096);
        tokio::spawn(server.clone().receive(Box::new(far)));
        while server.visitors.load(Ordering::Relaxed) < visitors {
            tokio::task::yield_now().await;
        }
        near
    }

    async fn offered(stream: &mut DuplexStream) -> u64 {
        match hear(stream, 0).await.unwrap().0 {
            ToFetcher::Offered { version, .. } => version,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_copy_of_a_newcomer_whose_host_has_vanished_is_dropped() {
        let server = Arc::new(SnapshotServer::default());
        let mut vanished = visit(&server, 1).await;
        server.serve(snapshot(3));
        assert_eq!(offered(&mut vanished).await, 3);
        tokio::time::sleep(FETCHER_TIMEOUT + Duration::from_secs(1)).await;
        assert!(server.version().is_none() && server.visitors.load(Ordering::Relaxed) == 0);
        // It may also vanish before there is a copy.
        let _vanished = visit(&server, 1).await;
        assert!(server.is_asked());
        tokio::time::sleep(FETCHER_TIMEOUT + Duration::from_secs(1)).await;
        assert!(!server.is_asked(), "no copy is made for it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_whose_newcomers_are_silent_is_not_for_a_further_one() {
        let server = Arc::new(SnapshotServer::default());
        let mut first = visit(&server, 1).await;
        server.serve(snapshot(3));
        assert_eq!(offered(&mut first).await, 3);
        for _ in 0..100 {
            first.write_all(&encode(&FromFetcher::Beat)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut second = visit(&server, 2).await;
        assert_eq!(offered(&mut second).await, 3, "the first one still fetches it");
        tokio::time::sleep(COPY_UNHEARD + Duration::from_millis(100)).await;
        let mut third = visit(&server, 3).await;
        assert!(server.is_asked() && server.version().is_none());
        server.serve(snapshot(9));
        assert_eq!(offered(&mut third).await, 9);
        // Words from one that has the old copy do not keep the new one.
        tokio::time::sleep(COPY_UNHEARD).await;
        first.write_all(&encode(&FromFetcher::Beat)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _fourth = visit(&server, 4).await;
        assert!(server.is_asked() && server.version().is_none());
        // Those that were only slow go on with their copy.
        first.write_all(&encode(&FromFetcher::Chunk { index: 0 })).await.unwrap();
        assert_eq!(hear(&mut first, 8).await.unwrap().1, [1; 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_is_dropped_for_the_next_one_is_still_fetched() {
        let server = Arc::new(SnapshotServer::default());
        assert!(!server.has_visitors());
        let mut first = visit(&server, 1).await;
        server.serve(snapshot(3));
        assert_eq!(offered(&mut first).await, 3);
        server.drop_copy();
        assert!(server.has_visitors() && server.version().is_none());
        let mut second = visit(&server, 2).await;
        server.serve(snapshot(4));
        assert_eq!(offered(&mut second).await, 4);
        first.write_all(&encode(&FromFetcher::Chunk { index: 0 })).await.unwrap();
        assert_eq!(hear(&mut first, 8).await.unwrap().1, [1; 8]);
    }

    /// Its words are no reason to keep a copy for ever.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_that_fetches_nothing_does_not_keep_a_third_copy() {
        let server = Arc::new(SnapshotServer::default());
        let mut idle = Vec::new();
        for version in 0..8 {
            let visitors = server.visitors.load(Ordering::Relaxed) + 1;
            let mut next = visit(&server, visitors).await;
            server.serve(snapshot(version));
            assert_eq!(offered(&mut next).await, version);
            server.drop_copy();
            idle.push(next);
            // Visits that are over have ended by then.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let count = server.kept.lock().unwrap().iter().filter(|copy| copy.strong_count() > 0).count();
            assert_eq!(count, MAX_COPIES.min(idle.len()));
            assert_eq!(server.visitors.load(Ordering::Relaxed), count);
            for stream in &mut idle {
                let _ = stream.write_all(&encode(&FromFetcher::Beat)).await;
            }
        }
        let [.., ended, before, _] = &mut idle[..] else { panic!("eight have come") };
        hear(ended, 0).await.expect_err("it must connect again");
        before.write_all(&encode(&FromFetcher::Chunk { index: 0 })).await.unwrap();
        assert_eq!(hear(before, 8).await.unwrap().1, [1; 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_is_heard_while_it_waits_for_a_long_chunk() {
        let server = Arc::new(SnapshotServer::default());
        let mut first = visit(&server, 1).await;
        // More than the connection holds.
        server.serve(Snapshot { chunks: vec![vec![1; 1 << 20].into()], ..snapshot(3) });
        assert_eq!(offered(&mut first).await, 3);
        first.write_all(&encode(&FromFetcher::Chunk { index: 0 })).await.unwrap();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            first.write_all(&encode(&FromFetcher::Beat)).await.unwrap();
        }
        let mut second = visit(&server, 2).await;
        assert_eq!(offered(&mut second).await, 3, "the first one still fetches it");
    }
}
