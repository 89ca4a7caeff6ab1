//! Measurements on one transport, on every rank: the raw times from which a profile is made.

use std::time::Instant;

use kolo::{Collective, Communicator};
use kolo_collectives::caches::{FIRST_BYTES, POINTS};
use kolo_collectives::{Algorithm, Task};
use serde::{Deserialize, Serialize};

use super::fit::{Sample, median};
use super::timing::{Buffers, call, in_turn};
use crate::error::Result;

/// Lengths at which the fixed cost of a message is measured.
const SHORT: [usize; 5] = [8, 64, 512, 4 << 10, 16 << 10];

/// Returns lengths from what the nearest caches hold to what none holds. Two ranks that exchange this many bytes in
/// place, copy them, or reduce twice as many, have buffers of four times as many bytes.
fn long() -> impl Iterator<Item = usize> {
    (0..POINTS).map(|i| (FIRST_BYTES as usize / 4) << i)
}

/// Numbers of successive messages: few enough that a receiver does not take several with one system call, as it never
/// does from different peers.
const BURSTS: [usize; 4] = [1, 2, 4, 8];

/// Number of rounds; their median counts.
const ROUNDS: usize = 7;

/// Duration of a round of copies, in seconds: long enough for the clock, and for the caches to fill.
const COPY_ROUND_SECONDS: f64 = 1e-3;

/// Measurements between two ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// Times of a message one way, by its bytes.
    pub one_way: Vec<Sample>,
    /// Times of a message each way at the same time, by the bytes of one.
    pub exchange: Vec<Sample>,
    /// Times of an exchange in which halves are reduced and one in which the results go back, by the bytes of a half.
    pub reduce: Vec<Sample>,
    /// Times of messages of 8 bytes one way, by their number.
    pub burst: Vec<Sample>,
    /// Times of short all-reduces over one channel, and over two.
    pub channels: [f64; 2],
    /// Times of copies on both ranks at once, by the bytes of one.
    pub copy: Vec<Sample>,
}

/// Algorithms with which ranks that share processors are measured: each rank waits for one other, for all at once, or
/// for one that waits for it.
pub(crate) const FORMS: [Algorithm; 3] = [Algorithm::Ring, Algorithm::Direct, Algorithm::Halving];

/// Measurements between more ranks than processors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crowd {
    /// Number of ranks.
    pub ranks: u32,
    /// Seconds of an all-gather of 8 bytes per rank by each of the [`FORMS`]; `None` if a form cannot serve this many
    /// ranks.
    pub seconds: [Option<f64>; FORMS.len()],
}

/// Makes a communicator of the same ranks with a fixed algorithm and without the exchange, so that messages are
/// measured.
fn forced(comm: &Communicator, algorithm: &str) -> Result<Communicator> {
    let config = comm.config().clone().with(|config| {
        config.algorithms = algorithm.to_owned();
        config.exchange_bytes = Some(0);
    });
    Ok(comm.duplicate(config)?)
}

/// Measures the times between two ranks.
pub(crate) fn pair(comm: &Communicator) -> Result<Pair> {
    let direct = forced(comm, "all_gather:ring,broadcast:binomial")?;
    let ring = forced(comm, "all_reduce:ring")?;
    let tree = forced(comm, "all_reduce:tree")?;
    let mut buffers = Buffers::new(2 * long().max().unwrap_or(0));
    let mut found = Pair::default();
    for bytes in SHORT.into_iter().chain(long()) {
        let whole = 2 * bytes;
        // Each collective is timed by itself, so that what it leaves in the caches does not affect the next.
        let mut time = |of: &Communicator, collective, size| -> Result<Sample> {
            let times =
                in_turn(comm, 1, ROUNDS, |_, number| call(of, collective, size, number, &mut buffers))?;
            Ok(Sample { amount: bytes as f64, seconds: times[0] })
        };
        found.one_way.push(time(&direct, Collective::Broadcast, bytes)?);
        found.exchange.push(time(&direct, Collective::AllGather, whole)?);
        found.reduce.push(time(&ring, Collective::AllReduce, whole)?);
    }
    let times = in_turn(comm, 2, ROUNDS, |thing, number| {
        call([&ring, &tree][thing], Collective::AllReduce, SHORT[1], number, &mut buffers)
    })?;
    found.channels = [times[0], times[1]];
    let times = in_turn(comm, BURSTS.len(), ROUNDS, |thing, number| burst(comm, BURSTS[thing], number))?;
    found.burst =
        BURSTS.iter().zip(times).map(|(count, seconds)| Sample { amount: *count as f64, seconds }).collect();
    for bytes in long() {
        found.copy.push(Sample { amount: bytes as f64, seconds: copy_seconds(comm, bytes)? });
    }
    Ok(found)
}

/// Sends `count` messages from one rank to the other, and the next time in the other direction.
fn burst(comm: &Communicator, count: usize, number: usize) -> Result<()> {
    let sends = comm.rank() as usize == number % 2;
    let peer = 1 - comm.rank();
    let mut words = vec![1_u64; count];
    let mut batch = comm.batch();
    for word in &mut words {
        let word = std::slice::from_mut(word);
        batch = if sends { batch.send(word, peer) } else { batch.recv(word, peer) };
    }
    Ok(batch.run()?)
}

fn copy_seconds(comm: &Communicator, bytes: usize) -> Result<f64> {
    let from = vec![1_u8; bytes];
    let mut to = vec![2_u8; bytes];
    let mut time = |copies: usize| -> Result<f64> {
        comm.barrier()?;
        let began = Instant::now();
        for _ in 0..copies {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        Ok(began.elapsed().as_secs_f64() / copies as f64)
    };
    // The first call causes the page faults.
    time(1)?;
    let copies = ((COPY_ROUND_SECONDS / time(1)?.max(1e-9)) as usize).clamp(1, 1000);
    let mut times = (0..ROUNDS).map(|_| time(copies)).collect::<Result<Vec<_>>>()?;
    Ok(median(&mut times))
}

/// Measures the times between more ranks than processors.
pub(crate) fn crowd(comm: &Communicator) -> Result<Crowd> {
    let ranks = comm.world_size();
    let task = Task::new(Collective::AllGather, ranks);
    let able = FORMS.map(|form| form.supports(&task).is_ok());
    let forms = FORMS
        .iter()
        .zip(able)
        .filter(|(_, able)| *able)
        .map(|(form, _)| forced(comm, &format!("all_gather:{form}")))
        .collect::<Result<Vec<_>>>()?;
    let mut buffers = Buffers::new(8 * ranks as usize);
    let times = in_turn(comm, forms.len(), ROUNDS, |thing, number| {
        call(&forms[thing], Collective::AllGather, 8 * ranks as usize, number, &mut buffers)
    })?;
    let mut times = times.into_iter();
    Ok(Crowd { ranks, seconds: able.map(|able| if able { times.next() } else { None }) })
}
