//! Listeners of threads, for other threads of the same process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use kolo_transport::Unpoisoned;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::acceptor::{Services, receive};
use super::listener::ConnectError;
use crate::control::OnSilence;

/// Buffer of an in-memory pipe, in each direction.
const PIPE_BYTES: usize = 16 << 10;

type Listeners = HashMap<u64, mpsc::UnboundedSender<DuplexStream>>;

/// The listeners of this process's threads, by their numbers. The table is global because an invitation is text, which
/// may reach any thread of the process.
static LISTENERS: LazyLock<Mutex<Listeners>> = LazyLock::new(Mutex::default);

fn listeners() -> MutexGuard<'static, Listeners> {
    LISTENERS.lock().unpoisoned()
}

/// Opens the listener with this number. Incoming connections come out of the result.
pub(super) fn open(id: u64) -> mpsc::UnboundedReceiver<DuplexStream> {
    let (connect, incoming) = mpsc::unbounded_channel();
    listeners().insert(id, connect);
    incoming
}

pub(super) fn close(id: u64) {
    listeners().remove(&id);
}

pub(super) fn connect(id: u64) -> Result<DuplexStream, ConnectError> {
    let connect = listeners().get(&id).cloned();
    let gone = || ConnectError::Gone("its thread has ended".to_owned());
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    connect.ok_or_else(gone)?.send(far).map_err(|_| gone())?;
    Ok(near)
}

/// Serves incoming connections.
pub(super) async fn serve(
    mut incoming: mpsc::UnboundedReceiver<DuplexStream>,
    services: Arc<watch::Sender<Services>>,
) {
    let mut tasks = JoinSet::new();
    while let Some(stream) = incoming.recv().await {
        tasks.spawn(receive(Box::new(stream), services.clone(), OnSilence::Ignore));
        while tasks.try_join_next().is_some() {}
    }
}
