//! Rendezvous through a key-value store that the program provides, such as PyTorch's.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, JoinFailure, Result};

/// A place where rank 0 leaves a notice of some hundred bytes for the other ranks to read.
///
/// A thread of Kolo's makes the calls, which may block. A read should return as soon as the place allows, because the
/// deadline for joining is only checked between two reads.
pub trait Board: fmt::Debug + Send + Sync {
    /// Publishes the notice for the other ranks.
    ///
    /// # Errors
    /// The problem in words. Joining then fails.
    fn publish(&self, notice: &[u8]) -> Result<(), String>;

    /// Reads the notice.
    ///
    /// # Errors
    /// The reason why there is no notice yet, in words. Kolo reads again later.
    fn read(&self) -> Result<Vec<u8>, String>;

    /// Returns the name of this place for messages.
    fn name(&self) -> String;

    /// Returns the host that serves this place, if there is one. Rank 0 then lists first the address from which it
    /// reaches that host.
    fn served_by(&self) -> Option<String> {
        None
    }
}

pub(super) async fn publish(board: &Arc<dyn Board>, notice: Vec<u8>) -> Result<()> {
    let place = Arc::clone(board);
    // The call runs on a thread for blocking work, since the joining thread also answers the other ranks.
    let published = tokio::task::spawn_blocking(move || place.publish(&notice)).await;
    let problem = match published {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(problem)) => problem,
        Err(panic) => panic.to_string(),
    };
    Err(Error::Join {
        rank: Some(0),
        kind: JoinFailure::Rendezvous,
        problem: format!("leaving the address at {}: {problem}", board.name()),
        remedy: "Check whether it is still being served".to_owned(),
    })
}

pub(super) async fn read(board: &Arc<dyn Board>) -> Result<Vec<u8>, String> {
    let place = Arc::clone(board);
    let read = tokio::task::spawn_blocking(move || place.read()).await;
    read.map_err(|panic| panic.to_string())
        .flatten()
        .map_err(|problem| format!("{}: {problem}", board.name()))
}
