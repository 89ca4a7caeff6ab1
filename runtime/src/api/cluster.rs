//! A cluster in one process, with threads as ranks, for tests, examples and experiments.

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
        let body = &body;
        let results: Vec<std::thread::Result<Result<R>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = JoinSpec::local(ranks)
                .into_iter()
                .enumerate()
                .map(|(rank, spec)| {
                    std::thread::Builder::new()
                        .name(format!("kolo-rank-{rank}"))
                        .spawn_scoped(scope, move || connect(spec).map(body))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| match thread {
                    Ok(thread) => thread.join(),
                    Err(error) => Ok(Err(Error::system("starting a thread for a rank", error))),
                })
                .collect()
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
