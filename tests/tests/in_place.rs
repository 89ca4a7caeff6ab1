//! Long all-to-alls and all-gathers inside a host, whose ranks read each other's buffers directly if these
//! lie in huge pages. Results are right whichever path a call takes, and wherever the buffers lie.

use std::ops::Range;
use std::time::Duration;

use kolo::{Cluster, Communicator, Config};
use rustix::mm::{Advice, madvise};

/// Elements of a block: longer than the least length for direct reads, and not a multiple of anything.
const BLOCK: usize = (600 << 10) / 8 + 13;

const HUGE: usize = 2 << 20;

/// A buffer in huge pages, or in whatever pages the system gives.
struct Buffer {
    words: Vec<u64>,
    range: Range<usize>,
}

impl Buffer {
    fn new(elements: usize, is_huge: bool) -> Self {
        let mut words = Vec::<u64>::with_capacity(elements + 2 * HUGE / 8);
        let skip = words.as_ptr().align_offset(HUGE);
        if is_huge {
            let start = words.as_mut_ptr().wrapping_add(skip);
            let bytes = (elements * 8).next_multiple_of(HUGE);
            // SAFETY: the range is inside the vector's memory, of which nothing is used yet.
            let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
        }
        words.resize(skip + elements, 0);
        Self { words, range: skip..skip + elements }
    }

    fn all(&mut self) -> &mut [u64] {
        &mut self.words[self.range.clone()]
    }
}

/// Returns an element of the block that one rank has for another in a call.
fn element(call: usize, from: usize, to: usize, index: usize) -> u64 {
    (call as u64) << 48 | (from as u64) << 40 | (to as u64) << 32 | index as u64
}

fn calls(comm: &Communicator, is_huge: impl Fn(usize, usize) -> bool) {
    let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
    let mut plain = [Buffer::new(ranks * BLOCK, false), Buffer::new(ranks * BLOCK, false)];
    let mut huge = [Buffer::new(ranks * BLOCK, true), Buffer::new(ranks * BLOCK, true)];
    // Enough calls for all kinds of trials.
    for call in 0..24 {
        let [input, output] = if is_huge(rank, call) { &mut huge } else { &mut plain };
        let (input, output) = (input.all(), output.all());
        for (at, value) in input.iter_mut().enumerate() {
            *value = element(call, rank, at / BLOCK, at % BLOCK);
        }
        let is_right = |output: &[u64], to: usize| {
            let mut all = output.iter().enumerate();
            all.all(|(at, value)| *value == element(call, at / BLOCK, to, at % BLOCK))
        };
        comm.all_to_all(input, output).expect("all call it");
        assert!(is_right(output, rank), "all_to_all, call {call}, rank {rank} of {ranks}");
        comm.all_gather(&input[..BLOCK], output).expect("all call it");
        assert!(is_right(output, 0), "all_gather, call {call}, rank {rank} of {ranks}");
        // Among the calls in place, one declines direct reads and one does not.
        output[rank * BLOCK..][..BLOCK].copy_from_slice(&input[..BLOCK]);
        comm.all_gather_in_place(output).expect("all call it");
        assert!(is_right(output, 0), "all_gather in place, call {call}, rank {rank} of {ranks}");
        if rank == 0 {
            comm.all_to_all_in_place(input).expect("all call it");
            output.copy_from_slice(input);
        } else {
            comm.all_to_all(input, output).expect("all call it");
        }
        assert!(is_right(output, rank), "all_to_all in place, call {call}, rank {rank} of {ranks}");
    }
}

#[test]
fn results_are_right_whichever_way_calls_go() {
    for ranks in [2, 3, 4, 5] {
        let config = Config::default().with(|config| config.timeout = Duration::from_secs(60));
        let ways: [fn(usize, usize) -> bool; 3] =
            [|_, _| true, |rank, _| rank != 1, |rank, call| call % 2 == 0 || rank > 0];
        for is_huge in ways {
            Cluster::with_config(ranks, &config, |comm| calls(&comm, is_huge)).expect("all succeed");
        }
    }
}
