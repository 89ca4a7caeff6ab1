//! Rendezvous through a key-value store that the program provides, such as PyTorch's.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, JoinFailure, Result};

/// A place where rank 0 leaves a notice of some hundred bytes, which the other ranks read.
///
/// The calls come from a thread of Kolo's and may block, reading for as short a time as the place allows: the deadline
/// for joining is looked at between two readings.
pub trait Board: fmt::Debug + Send + Sync {
    /// Leaves the notice where the other ranks read it.
    ///
    /// # Errors
    /// The problem, in words; joining fails.
    fn publish(&self, notice: &[u8]) -> Result<(), String>;

    /// Reads the notice.
    ///
    /// # Errors
    /// Why there is no notice yet, in words; it is read again later.
    fn read(&self) -> Result<Vec<u8>, String>;

    /// Name of this place in messages.
    fn name(&self) -> String;

    /// The host that serves this place, if one does: rank 0 puts the address by which it reaches that host first.
    fn served_by(&self) -> Option<String> {
        None
    }
}

pub(super) async fn publish(board: &Arc<dyn Board>, notice: Vec<u8>) -> Result<()> {
    let place = Arc::clone(board);
    // On a thread for blocking, since the one that joins also answers the other ranks.
    let published = tokio::task::spawn_blocking(move || place.publish(&notice)).await;
    let problem = match published {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(problem)) => problem,
        Err(panic) => panic.to_string(),
    };
    Err(Error::Join {
        rank: Some(0),
        kind: JoinFailure::MeetingPlace,
        problem: format!("leaving the address at {}: {problem}", board.name()),
        remedy: "See whether it is still served".to_owned(),
    })
}

pub(super) async fn read(board: &Arc<dyn Board>) -> Result<Vec<u8>, String> {
    let place = Arc::clone(board);
    let read = tokio::task::spawn_blocking(move || place.read()).await;
    read.map_err(|panic| panic.to_string())
        .flatten()
        .map_err(|problem| format!("{}: {problem}", board.name()))
}
