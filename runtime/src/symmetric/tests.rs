//! Ranks that end while others read their memory. One thread steps the calls of all ranks.

use std::sync::Mutex;
use std::time::Duration;

use kolo_collectives::plan::Collective;
use kolo_transport::{Error, ErrorKind, Unpoisoned};

use super::{Step, SymmetricCall};
use crate::api::{Communicator, SymmetricBuffer};
use crate::call::{Call, RawCall};
use crate::communicator::Core;
use crate::config::{Config, TransportKind, Transports};
use crate::reduce::combine_nothing;
use crate::types::{DataType, ReduceOp};

/// Bytes of a block, which take several steps.
const BLOCK: usize = 1 << 20;

struct Rank {
    comm: Communicator,
    /// The input of the root, from which the others read.
    input: SymmetricBuffer<u8>,
    output: Vec<u8>,
}

impl Rank {
    fn scatter(&mut self) -> Call {
        let raw = RawCall {
            collective: Collective::Scatter,
            input: self.input.as_ptr(),
            output: self.output.as_mut_ptr(),
            count: BLOCK,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        Call::check(&raw, self.comm.member()).expect("sound")
    }

    /// Makes an all-reduce in place on the input, which other ranks write.
    fn all_reduce(&mut self) -> Call {
        let raw = RawCall {
            collective: Collective::AllReduce,
            input: self.input.as_ptr(),
            output: self.input.as_mut_ptr(),
            count: self.input.len(),
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        Call::check(&raw, self.comm.member()).expect("sound")
    }

    /// Returns the first byte of another rank's input, as this rank sees it.
    fn sees(&self, rank: usize) -> u8 {
        let core = self.comm.shared.core();
        let at = core.symmetric.allocations[0].at(rank, 0, 1).expect("it is inside");
        // SAFETY: the byte is mapped, and nobody writes it now.
        unsafe { at.read() }
    }

    fn enter<'a>(&self, call: &'a Call) -> SymmetricCall<'a> {
        let mut core = self.comm.shared.core();
        let Core { exchange: Some(exchange), symmetric, .. } = &mut *core else { panic!("one host") };
        symmetric.enter(&mut exchange.compiled, call, combine_nothing, 7)
    }

    fn step(&self, running: &mut SymmetricCall<'_>) -> Step {
        let mut core = self.comm.shared.core();
        let Core { exchange: Some(exchange), symmetric, .. } = &mut *core else { panic!("one host") };
        // SAFETY: the buffers of a rank live as long as the test, and only a call that is over or aborted has them
        // changed.
        unsafe { symmetric.advance(&mut exchange.compiled, running) }.expect("no mismatch")
    }

    /// Steps until the call ends, or waits.
    fn go_on(&self, running: &mut SymmetricCall<'_>) -> Step {
        loop {
            match self.step(running) {
                Step::Works => {}
                step => return step,
            }
        }
    }
}

/// Makes the ranks, whose threads are over when this returns.
fn ranks(count: u32) -> Vec<Rank> {
    let transports = Transports::Only(vec![TransportKind::Shm]);
    let config = Config { transports, timeout: Duration::from_secs(20), ..Config::default() };
    let made = Mutex::new(Vec::new());
    crate::Cluster::with_config(count, &config, |comm| {
        let mut input = comm.alloc::<u8>(count as usize * BLOCK).expect("memory");
        input.fill(1);
        let output = vec![0; BLOCK];
        made.lock().unpoisoned().push(Rank { comm, input, output });
    })
    .expect("they join");
    let mut made = made.into_inner().unpoisoned();
    made.sort_by_key(|rank| rank.comm.rank());
    made
}

#[test]
fn a_rank_does_not_succeed_with_memory_of_a_root_that_has_failed() {
    let mut ranks = ranks(2);
    let calls: Vec<Call> = ranks.iter_mut().map(Rank::scatter).collect();
    let mut root = ranks[0].enter(&calls[0]);
    let mut reader = ranks[1].enter(&calls[1]);
    assert_eq!(ranks[0].step(&mut root), Step::Waits);
    assert_eq!(ranks[1].step(&mut reader), Step::Works, "the block takes several steps");
    assert_eq!(ranks[0].go_on(&mut root), Step::Waits);

    let cause = Error::new(ErrorKind::Aborted, "test", None, "on purpose");
    ranks[0].comm.shared.core().abort(&cause);
    drop(root);
    ranks[0].input.fill(2);
    assert_eq!(ranks[1].go_on(&mut reader), Step::Waits, "it must not end well");
    assert_eq!(ranks[1].step(&mut reader), Step::Waits);
}

#[test]
fn a_rank_that_leaves_after_its_call_does_not_fail_those_that_still_read() {
    let mut ranks = ranks(3);
    let calls: Vec<Call> = ranks.iter_mut().map(Rank::scatter).collect();
    let mut running: Vec<_> = ranks.iter().zip(&calls).map(|(rank, call)| rank.enter(call)).collect();
    assert_eq!(ranks[2].step(&mut running[2]), Step::Waits);
    assert_eq!(ranks[0].step(&mut running[0]), Step::Waits);
    assert_eq!(ranks[1].go_on(&mut running[1]), Step::Done);
    assert_eq!(ranks[2].step(&mut running[2]), Step::Works);

    drop(running.remove(1));
    let Rank { comm, .. } = ranks.remove(1);
    drop(comm);
    assert_eq!(ranks[1].go_on(&mut running[1]), Step::Done);
    assert!(ranks[1].output.iter().all(|byte| *byte == 1));
    assert_eq!(ranks[0].go_on(&mut running[0]), Step::Done);
}

#[test]
fn a_buffer_is_taken_back_if_the_others_have_heard_of_it() {
    let mut ranks = ranks(2);
    let calls: Vec<Call> = ranks.iter_mut().map(Rank::all_reduce).collect();
    let cause = Error::new(ErrorKind::Aborted, "test", None, "on purpose");

    drop(ranks[0].enter(&calls[0]));
    ranks[0].input.fill(3);
    assert_eq!(ranks[1].sees(0), 3, "it is still shared");

    let mut running = ranks[1].enter(&calls[1]);
    assert_eq!(ranks[1].step(&mut running), Step::Waits);
    ranks[1].comm.shared.core().abort(&cause);
    drop(running);
    assert!(ranks[1].input.iter().all(|byte| *byte == 1));
    assert_eq!(ranks[0].sees(1), 0, "its pages are free");
}
