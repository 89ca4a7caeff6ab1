//! A cluster in one process, with threads as ranks, for tests, examples and experiments.

use std::io;
use std::sync::Mutex;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use kolo_transport::Unpoisoned;

use super::Communicator;
use crate::config::Config;
use crate::control::ControlRuntime;
use crate::error::{Error, Result};
use crate::join::JoinSpec;

/// Runs ranks as threads of this process.
#[derive(Debug)]
pub struct Cluster;

impl Cluster {
    /// Runs `body` on `ranks` threads, each with its own communicator over real transports, and returns their results
    /// in rank order. Blocks until all threads are done.
    ///
    /// # Errors
    /// [`Error::Configuration`] for 0 ranks; otherwise the first rank's error in joining.
    ///
    /// # Panics
    /// If `body` panics on any rank, with the same panic, after all ranks are done.
    pub fn local<R: Send>(ranks: u32, body: impl Fn(Communicator) -> R + Sync) -> Result<Vec<R>> {
        Self::with_config(ranks, &Config::from_env()?, body)
    }

    /// Like [`Cluster::local`], for a body that uses `?`: returns the ranks' results without their `Result`s.
    ///
    /// ```
    /// let sums = kolo::Cluster::try_local(3, |comm| {
    ///     let mut sum = [comm.rank()];
    ///     comm.all_reduce(&mut sum, kolo::ReduceOp::Sum)?;
    ///     Ok(sum[0])
    /// })?;
    /// assert_eq!(sums, [3, 3, 3]);
    /// # Ok::<(), kolo::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Cluster::local`]. If the body fails, the error of the lowest rank whose error does not follow from
    /// another rank's.
    ///
    /// # Panics
    /// See [`Cluster::local`].
    pub fn try_local<R: Send>(ranks: u32, body: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
        let (mut returned, mut failed) = (Vec::new(), Vec::new());
        for result in Self::local(ranks, body)? {
            match result {
                Ok(value) => returned.push(value),
                Err(error) => failed.push(error),
            }
        }
        // Of several errors, the one from which the others follow.
        let follows = |error: &Error| matches!(error, Error::Aborted { .. } | Error::PeerLost { .. });
        let cause = failed.iter().position(|error| !follows(error)).unwrap_or(0);
        if failed.is_empty() { Ok(returned) } else { Err(failed.swap_remove(cause)) }
    }

    /// Like [`Cluster::local`], with settings.
    ///
    /// # Errors
    /// See [`Cluster::local`].
    ///
    /// # Panics
    /// See [`Cluster::local`].
    pub fn with_config<R: Send>(
        ranks: u32,
        config: &Config,
        body: impl Fn(Communicator) -> R + Sync,
    ) -> Result<Vec<R>> {
        Self::with_configs(ranks, |_| config.clone(), body)
    }

    /// Like [`Cluster::local`], with settings for each rank.
    ///
    /// # Errors
    /// See [`Cluster::local`].
    ///
    /// # Panics
    /// See [`Cluster::local`].
    pub fn with_configs<R: Send>(
        ranks: u32,
        config: impl Fn(u32) -> Config + Sync,
        body: impl Fn(Communicator) -> R + Sync,
    ) -> Result<Vec<R>> {
        if ranks == 0 {
            return Err(Error::configuration(
                "ranks",
                "a cluster of 0 ranks was asked for",
                "Use at least 1",
            ));
        }
        let runtime = ControlRuntime::new()?;
        let connect = |spec: JoinSpec| {
            Communicator::builder()
                .config(config(spec.rank))
                .join(spec)
                .control_runtime(runtime.clone())
                .connect()
        };
        let (connect, body) = (&connect, &body);
        // Locked until all threads have been started: ranks would wait for one that never comes.
        let is_complete = Mutex::new(false);
        let lock = || is_complete.lock().unpoisoned();
        let lock = &lock;
        let results: Vec<std::thread::Result<Result<R>>> = std::thread::scope(|scope| {
            let mut gate = lock();
            let mut threads = Vec::with_capacity(ranks as usize);
            for (rank, spec) in JoinSpec::local(ranks).into_iter().enumerate() {
                let run = move || {
                    let is_complete = *lock();
                    is_complete.then(|| connect(spec).map(body))
                };
                match start(scope, rank, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        return vec![Ok(Err(Error::system("starting a thread for a rank", error)))];
                    }
                }
            }
            *gate = true;
            drop(gate);
            threads.into_iter().filter_map(|thread| thread.join().transpose()).collect()
        });
        let mut returned = Vec::with_capacity(results.len());
        let mut failure = None;
        for result in results {
            match result {
                Ok(Ok(value)) => returned.push(value),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failure.map_or(Ok(returned), Err)
    }
}

/// Starts the thread of a rank.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    rank: usize,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    if tests::refuses(rank) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Builder::new().name(format!("kolo-rank-{rank}")).spawn_scoped(scope, run)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use super::*;

    thread_local! {
        /// The rank for which the system has no thread.
        static REFUSED: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub(super) fn refuses(rank: usize) -> bool {
        REFUSED.get() == Some(rank)
    }

    #[test]
    fn ranks_do_not_wait_for_one_whose_thread_the_system_refuses() {
        REFUSED.set(Some(2));
        let config = Config::default().with(|config| config.join_timeout = Duration::from_secs(600));
        let begin = Instant::now();
        let error = Cluster::with_config(4, &config, |_| ()).expect_err("one is missing");
        assert!(matches!(error, Error::System { .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(300), "the others have waited for it");
    }
}
