//! Calls of a rank, blocking and started, and the ways of waiting for them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kolo::internal::verify::Problem;
use kolo::{Collective, Communicator, DataType, RawCall, ReduceOp, Work};

use super::data::{Call, Prepared, length};
use super::failure::{Failure, Result};
pub(super) use super::memory::Memory;
use super::tasks;
use crate::futures;
use crate::random::Random;

/// Waits for a started operation, and checks its result.
pub(super) type Finish = Box<dyn FnOnce(&mut Random) -> Result + Send>;

/// Runs or starts a call.
pub(super) fn run(
    comm: &Communicator,
    memory: &Memory,
    call: Call,
    is_started: bool,
    own: &mut Random,
) -> Result<Vec<Finish>> {
    let mut prepared = {
        let (none, uses_buffers) = (&mut Vec::new(), own.index(8) > 0);
        let mut buffers = memory.buffers();
        call.prepare(comm.rank() as usize, own, if uses_buffers { &mut buffers } else { none })
    };
    let counts = prepared.counts();
    let kept = memory.clone();
    let back = move |prepared: Prepared| {
        kept.put(prepared.check()?);
        Ok(())
    };
    let is_even = call.is_even();
    let describe = move |error: kolo::Error| Failure::from(error).during(&format!("{call:?}"));
    if !is_started || (is_even && own.index(5) == 0) {
        // SAFETY: the memory is this rank's own, and as long as the call says.
        let result = unsafe {
            match (is_even, is_started, own.index(2)) {
                (true, true, _) => comm.start_raw_and_wait(&prepared.raw(), LONG),
                (true, _, 0) => comm.call_raw(&prepared.raw()),
                (true, ..) => comm.call_raw_within(&prepared.raw(), LONG),
                (false, _, 0) => comm.call_raw_v(&prepared.raw_v(&counts)),
                (false, ..) => comm.call_raw_v_within(&prepared.raw_v(&counts), LONG),
            }
        };
        return match result {
            Ok(()) => back(prepared).map(|()| Vec::new()),
            Err(error) => {
                memory.note(prepared.failed()?);
                Err(describe(error))
            }
        };
    }
    let work = if is_even {
        let raw = prepared.raw();
        // SAFETY: as above; the operation keeps the memory, which does not move.
        unsafe { comm.start_raw_keeping(&raw, prepared) }
    } else {
        let raw = prepared.raw_v(&counts);
        // SAFETY: as above.
        unsafe { comm.start_raw_v_keeping(&raw, prepared) }
    };
    let work = work.map_err(&describe)?;
    Ok(vec![Box::new(move |own: &mut Random| match wait(work, own).map_err(describe)? {
        Some(prepared) => back(prepared),
        None => Ok(()),
    })])
}

const LONG: Duration = Duration::from_secs(40);

/// Makes many short calls, more than there are buffers for.
pub(super) fn burst(
    comm: &Communicator,
    memory: &Memory,
    common: &mut Random,
    own: &mut Random,
    halved: u32,
) -> Result<Vec<Finish>> {
    let calls: Vec<Call> = (0..1 + common.index(3))
        .map(|_| Call::draw(common, comm.world_size() as usize, halved + common.clone().index(12) as u32))
        .collect();
    let (number, is_started) = (common.index(120), common.index(3));
    let mut all = Vec::new();
    for number in 0..number {
        let is_started = is_started == 0 || (is_started == 1 && common.index(2) == 0);
        all.extend(run(comm, memory, calls[number % calls.len()].again(number as u64), is_started, own)?);
        if all.len() > 40 {
            all.swap_remove(own.index(40))(own)?;
        }
    }
    Ok(all)
}

/// Starts calls, and awaits them in tasks of one thread.
pub(super) fn awaited(comm: &Communicator, common: &mut Random, own: &mut Random, halved: u32) -> Result {
    let number = 1 + common.index(20);
    let start = |_| {
        let call = Call::draw(common, comm.world_size() as usize, halved + 2);
        let mut prepared = call.prepare(comm.rank() as usize, own, &mut Vec::new());
        let raw = prepared.raw();
        let counts = prepared.counts();
        // SAFETY: the operation keeps the memory, which does not move and is as long as the call says.
        let work = unsafe {
            match call.is_even() {
                true => comm.start_raw_keeping(&raw, prepared),
                false => comm.start_raw_v_keeping(&prepared.raw_v(&counts), prepared),
            }
        };
        work.map_err(|error| Failure::from(error).during(&format!("{call:?}")))
    };
    let works = (0..number).map(start).collect::<Result<Vec<_>>>()?;
    tasks::all(works, own)?.into_iter().try_for_each(|prepared| prepared.check().map(drop))?;
    Ok(())
}

/// Reduces shards.
pub(super) fn shards(comm: &Communicator, common: &mut Random, own: &mut Random, halved: u32) -> Result {
    let shards = 1 + common.index(20) as u32;
    let data_type = common.pick(&DataType::ALL);
    let op =
        common.pick(&[ReduceOp::Sum, ReduceOp::Min, ReduceOp::Prod, ReduceOp::Avg, ReduceOp::LogicalXor]);
    let op = if op.supports(data_type) { op } else { ReduceOp::Max };
    let count = length(common, data_type.size(), halved + 1);
    let problem = Problem::new(data_type, op, shards, common.number()).map_err(|error| error.to_string())?;
    let (block, shift) = (count * data_type.size(), own.index(3));
    let run = comm.own_shards(shards);
    let mut input = vec![0; shift + run.len() * block];
    for (at, shard) in run.enumerate() {
        problem.fill(shard, 0, &mut input[shift + at * block..][..block]);
    }
    let mut output = vec![0xA5; block];
    let (from, to) = (input[shift..].as_ptr(), output.as_mut_ptr());
    let collective = Collective::AllReduce;
    let call = RawCall { collective, input: from, output: to, count, data_type, op, root: 0 };
    // SAFETY: the memory is this rank's own, and as long as the call says.
    unsafe { comm.call_raw_shards(&call, shards, None) }?;
    match problem.count_wrong(shards, 0, &output) {
        0 => Ok(()),
        wrong => Err(format!("{wrong} of {count} wrong, {shards} shards, {data_type}, {op:?}").into()),
    }
}

/// Waits for an operation in one of many ways; returns nothing if the handle was dropped.
pub(super) fn wait<B: Send + 'static>(mut work: Work<B>, own: &mut Random) -> kolo::Result<Option<B>> {
    let poll = |work: &mut Work<B>| {
        let waker = Waker::from(futures::unpark());
        Pin::new(work).poll(&mut Context::from_waker(&waker))
    };
    match own.index(28) {
        0 => return Ok(None),
        1..=4 => {
            // Polls for a message do not end when its sender has left.
            let until = Instant::now() + Duration::from_secs(2);
            while !work.is_done() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        5..=8 => return futures::run(work).0.map(Some),
        9..=11 => {
            if let Poll::Ready(result) = poll(&mut work) {
                return result.map(Some);
            }
        }
        12 => {
            let result = poll(&mut work);
            return if let Poll::Ready(result) = result { result.map(Some) } else { Ok(None) };
        }
        13..=16 => return tasks::block_on(work, own),
        17..=20 => return work.wait_within(LONG).map(Some),
        _ => {}
    }
    work.wait().map(Some)
}

/// Comes late: mostly not, sometimes by a moment, rarely by so much that others sleep.
pub(super) fn delay(own: &mut Random) {
    let micros = own.pick(&[0, 0, 0, 0, 0, 0, 20, 100, 800, 5000]);
    let micros = if own.index(300) == 0 { 400_000 } else { micros };
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}
