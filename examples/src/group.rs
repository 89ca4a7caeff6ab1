//! What data-parallel training asks of communication, and two ways to have it without a network.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Result;

/// The ranks that train together. All ranks make the same calls in the same order.
pub trait Group {
    /// A sum under way.
    type Pending;

    /// This rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Starts to sum the ranks' values element by element, and returns at once.
    ///
    /// # Errors
    /// As the communication has it.
    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Self::Pending>;

    /// Waits for a sum. Every rank gets the same bits.
    ///
    /// # Errors
    /// As the communication has it.
    fn wait(&self, pending: Self::Pending) -> Result<Vec<f32>>;

    /// Gives all ranks the values of rank `root`.
    ///
    /// # Errors
    /// As the communication has it.
    fn broadcast(&self, values: &mut [f32], root: u32) -> Result<()>;
}

/// One rank, which has nobody to talk to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Group for Alone {
    type Pending = Vec<f32>;

    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn start_all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn wait(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn broadcast(&self, _values: &mut [f32], _root: u32) -> Result<()> {
        Ok(())
    }
}

/// A rank among threads of this process, which meet under a lock: slow and simple, to compare others with.
#[derive(Debug)]
pub struct Threads {
    rank: u32,
    calls: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    world_size: u32,
    /// Calls not yet finished by all, by number.
    meetings: Mutex<HashMap<u64, Meeting>>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Meeting {
    /// What each rank brought, by rank.
    brought: Vec<(u32, Vec<f32>)>,
    /// Ranks that have taken the result away.
    left: u32,
}

impl Threads {
    /// As many ranks, one for each thread.
    #[must_use]
    pub fn new(world_size: u32) -> Vec<Self> {
        let shared = Arc::new(Shared { world_size, meetings: Mutex::default(), arrived: Condvar::default() });
        (0..world_size).map(|rank| Self { rank, calls: AtomicU64::new(0), shared: shared.clone() }).collect()
    }

    fn meetings(&self) -> MutexGuard<'_, HashMap<u64, Meeting>> {
        self.shared.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bring(&self, values: Vec<f32>) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.meetings().entry(call).or_default().brought.push((self.rank, values));
        self.shared.arrived.notify_all();
        call
    }

    /// Waits until all have come, and makes something of what they brought, in rank order.
    fn meet<R>(&self, call: u64, make: impl FnOnce(&[(u32, Vec<f32>)]) -> R) -> R {
        let mut meetings = self.meetings();
        loop {
            let meeting = meetings.entry(call).or_default();
            if meeting.brought.len() == self.shared.world_size as usize {
                meeting.brought.sort_by_key(|(rank, _)| *rank);
                let made = make(&meeting.brought);
                meeting.left += 1;
                if meeting.left == self.shared.world_size {
                    meetings.remove(&call);
                }
                return made;
            }
            meetings = self.shared.arrived.wait(meetings).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Group for Threads {
    type Pending = u64;

    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.shared.world_size
    }

    fn start_all_reduce(&self, values: Vec<f32>) -> Result<u64> {
        Ok(self.bring(values))
    }

    fn wait(&self, call: u64) -> Result<Vec<f32>> {
        Ok(self.meet(call, |brought| {
            let mut sum = brought[0].1.clone();
            for (_, values) in &brought[1..] {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            sum
        }))
    }

    fn broadcast(&self, values: &mut [f32], root: u32) -> Result<()> {
        let call = self.bring(values.to_vec());
        self.meet(call, |brought| values.copy_from_slice(&brought[root as usize].1));
        Ok(())
    }
}
