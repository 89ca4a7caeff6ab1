//! Which processors a thread may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may use, ascending.
///
/// # Errors
/// If the system does not say.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Keeps this thread, and those that it starts from now on, on one processor.
///
/// # Errors
/// If this process may not use that processor.
pub fn pin(processor: usize) -> io::Result<()> {
    allow(&[processor])
}

/// Lets this thread, and those that it starts from now on, use these processors.
///
/// # Errors
/// If this process may use none of them.
pub fn allow(processors: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    Ok(sched_setaffinity(None, &set)?)
}
