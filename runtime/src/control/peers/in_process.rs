//! Doors of threads, for other threads of the same process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::acceptor::{Residents, receive};
use super::listener::NoAnswer;

/// Buffer of an in-memory pipe, in each direction.
const PIPE_BYTES: usize = 16 << 10;

type Halls = HashMap<u64, mpsc::UnboundedSender<DuplexStream>>;

/// The doors of this process's threads, by their numbers. The table is global because an invitation is text, which may
/// reach any thread of the process.
static HALLS: LazyLock<Mutex<Halls>> = LazyLock::new(Mutex::default);

fn halls() -> MutexGuard<'static, Halls> {
    HALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the door with this number. Incoming connections come out of the result.
pub(super) fn open(id: u64) -> mpsc::UnboundedReceiver<DuplexStream> {
    let (knock, knocks) = mpsc::unbounded_channel();
    halls().insert(id, knock);
    knocks
}

pub(super) fn close(id: u64) {
    halls().remove(&id);
}

pub(super) fn knock(id: u64) -> Result<DuplexStream, NoAnswer> {
    let knock = halls().get(&id).cloned();
    let gone = || NoAnswer::Gone("its thread has ended".to_owned());
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    knock.ok_or_else(gone)?.send(far).map_err(|_| gone())?;
    Ok(near)
}

/// Serves incoming connections.
pub(super) async fn serve(
    mut knocks: mpsc::UnboundedReceiver<DuplexStream>,
    residents: Arc<watch::Sender<Residents>>,
) {
    let mut callers = JoinSet::new();
    while let Some(stream) = knocks.recv().await {
        callers.spawn(receive(Box::new(stream), residents.clone(), false));
        while callers.try_join_next().is_some() {}
    }
}
