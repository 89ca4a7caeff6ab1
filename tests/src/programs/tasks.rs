//! Operations awaited as futures, by tasks of tokio.

use std::time::Duration;

use kolo::{Result, Work};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::random::Random;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime needs no resources")
}

fn moment(own: &mut Random) -> Duration {
    Duration::from_micros(own.pick(&[0, 50, 1000, 3000]))
}

/// Awaits an operation in one of many ways; returns nothing if the future was dropped.
pub(super) fn block_on<B: Send + 'static>(mut work: Work<B>, own: &mut Random) -> Result<Option<B>> {
    runtime().block_on(async {
        match own.index(5) {
            0 => work.await.map(Some),
            1 => tokio::spawn(work).await.expect("it does not panic").map(Some),
            2 => match timeout(moment(own), work).await {
                Ok(done) => done.map(Some),
                Err(_) => Ok(None),
            },
            3 => match timeout(moment(own), &mut work).await {
                Ok(done) => done.map(Some),
                Err(_) => work.wait().map(Some),
            },
            _ => loop {
                tokio::select! {
                    done = &mut work => break done.map(Some),
                    () = sleep(moment(own)) => tokio::task::yield_now().await,
                }
            },
        }
    })
}

/// Awaits operations in as many tasks of one thread, some of which are given up; returns the results of the others.
pub(super) fn all<B: Send + 'static>(works: Vec<Work<B>>, own: &mut Random) -> Result<Vec<B>> {
    runtime().block_on(async {
        let mut tasks: Vec<_> = works.into_iter().map(tokio::spawn).collect();
        let mut results = Vec::new();
        while !tasks.is_empty() {
            let task = tasks.swap_remove(own.index(tasks.len()));
            if own.index(10) == 0 {
                sleep(moment(own)).await;
                task.abort();
            }
            match task.await {
                Ok(result) => results.push(result),
                Err(error) => assert!(error.is_cancelled(), "{error}"),
            }
        }
        results.into_iter().collect()
    })
}
