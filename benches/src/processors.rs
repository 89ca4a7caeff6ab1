//! Processors that a thread may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors that this thread may use, in ascending order.
///
/// # Errors
/// If the system does not report them.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Pins this thread, and those that it starts from now on, to one processor.
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
