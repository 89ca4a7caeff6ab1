//! Waiting for the ranks of a job.

use std::io::Read;
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until all ranks, whose errors are piped, have ended, and kills those that have not after `patience`. Returns
/// what the ranks that failed have written.
pub(crate) fn failures(children: Vec<Child>, patience: Duration) -> String {
    let deadline = Instant::now() + patience;
    // A rank that writes more than a pipe holds must not wait for the ranks before it.
    let ranks: Vec<_> = children.into_iter().map(read_errors).collect();
    let mut failures = String::new();
    for (rank, (mut child, errors)) in ranks.into_iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let text = errors.recv_timeout(left).unwrap_or_else(|_| {
            child.kill().unwrap();
            format!("did not end in {patience:?}\n{}", errors.recv().unwrap_or_default())
        });
        let status = child.wait().unwrap();
        if !status.success() {
            failures += &format!("rank {rank}: {status}\n{text}\n");
        }
    }
    failures
}

/// Reads a rank's errors until it ends.
fn read_errors(mut child: Child) -> (Child, mpsc::Receiver<String>) {
    let (mut errors, (send, text)) = (child.stderr.take().expect("piped"), mpsc::channel());
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = errors.read_to_end(&mut all);
        let _ = send.send(String::from_utf8_lossy(&all).into_owned());
    });
    (child, text)
}
