//! Panics that leave a call, in every form of call: the caller's memory is not written afterwards, and the other
//! ranks hear of the panic.

use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;

use super::Communicator;

use super::cluster::Cluster;
use crate::config::{Config, TransportKind, Transports};
use crate::drive::injected;
use crate::error::{Error, Result};
use crate::types::ReduceOp;

/// Number of steps of a test that are done.
#[derive(Default)]
struct Steps(Mutex<u32>, Condvar);

impl Steps {
    fn done(&self, step: u32) {
        *self.0.lock().unpoisoned() = step;
        self.1.notify_all();
    }

    fn wait(&self, step: u32) {
        let until = Instant::now() + Duration::from_secs(20);
        let mut done = self.0.lock().unpoisoned();
        while *done < step {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "step {step} never comes");
            (done, _) = self.1.wait_timeout(done, left).unpoisoned();
        }
    }
}

/// Elements of a buffer: more than a transport takes in before a receive is posted.
const ELEMENTS: usize = 1 << 20;

fn config(transport: TransportKind, exchange_bytes: Option<usize>) -> Config {
    let transports = Transports::Only(vec![transport]);
    Config { transports, exchange_bytes, timeout: Duration::from_secs(20), ..Config::default() }
}

#[derive(Clone, Copy)]
enum Memory {
    Private,
    Symmetric,
}

/// Rank 0 makes a call that panics while it waits for rank 1; rank 1 then makes its part of the call. The values that
/// rank 0 writes to its buffer afterwards must stay there.
fn nobody_writes_after(
    what: &str,
    config: &Config,
    memory: Memory,
    call: impl Fn(&Communicator, &mut [u32]) -> Result<()> + Sync,
) {
    let steps = Steps::default();
    let result = Cluster::with_config(2, config, |comm| {
        let mut buffer: Box<dyn DerefMut<Target = [u32]>> = match memory {
            Memory::Private => Box::new(vec![1; ELEMENTS]),
            Memory::Symmetric => Box::new(comm.alloc::<u32>(ELEMENTS).expect("memory")),
        };
        comm.barrier().expect("both are there");
        if comm.rank() == 1 {
            steps.wait(1);
            let error = call(&comm, &mut buffer).expect_err("rank 0 has panicked");
            assert!(error.to_string().contains("panicked"), "{what}: {error}");
            assert!(matches!(error, Error::PeerLost { peer: 0, .. }), "{what}: {error}");
            steps.done(2);
            return;
        }
        injected::at_next_pause();
        catch_unwind(AssertUnwindSafe(|| call(&comm, &mut buffer))).expect_err("injected");
        buffer.fill(5);
        steps.done(1);
        steps.wait(2);
        let error = comm.barrier().expect_err("it cannot be used any more");
        assert!(error.to_string().contains("panicked"), "{what}: {error}");
        // Drops the rest of the engine, which may drive it; the buffer keeps its memory.
        drop(comm);
        assert!(buffer.iter().all(|value| *value == 5), "{what}: written after the call");
    });
    assert!(result.is_ok(), "{what}: {result:?}");
}

fn all_reduce(comm: &Communicator, buffer: &mut [u32]) -> Result<()> {
    comm.all_reduce(buffer, ReduceOp::Sum)
}

/// Sends a message from rank 1 to rank 0.
fn message(comm: &Communicator, buffer: &mut [u32]) -> Result<()> {
    // The barrier tells rank 1 of rank 0's error, if there is one.
    if comm.rank() == 0 { comm.recv(buffer, 1) } else { comm.send(buffer, 0).and_then(|()| comm.barrier()) }
}

fn scoped(comm: &Communicator, buffer: &mut [u32]) -> Result<()> {
    comm.scope(|scope| scope.all_reduce(buffer, ReduceOp::Sum))
}

#[test]
fn a_panic_in_a_plan() {
    for transport in [TransportKind::Tcp, TransportKind::Shm] {
        nobody_writes_after(
            &format!("all_reduce, {transport:?}"),
            &config(transport, Some(0)),
            Memory::Private,
            all_reduce,
        );
    }
}

#[test]
fn a_panic_in_a_receive() {
    for transport in [TransportKind::Tcp, TransportKind::Shm] {
        nobody_writes_after(
            &format!("recv, {transport:?}"),
            &config(transport, Some(0)),
            Memory::Private,
            message,
        );
    }
}

#[test]
fn a_panic_at_the_end_of_a_scope() {
    for (transport, exchange_bytes) in
        [(TransportKind::Tcp, None), (TransportKind::Shm, Some(0)), (TransportKind::Shm, None)]
    {
        let what = format!("scope, {transport:?}, {exchange_bytes:?}");
        nobody_writes_after(&what, &config(transport, exchange_bytes), Memory::Private, scoped);
    }
}

/// All-to-all, in which rank 1 may read the contribution while rank 0 panics.
fn all_to_all(comm: &Communicator, buffer: &mut [u32]) -> Result<()> {
    let input = vec![1; buffer.len()];
    comm.all_to_all(&input, buffer)
}

#[test]
fn a_panic_while_buffers_are_read_in_place() {
    nobody_writes_after("in place", &config(TransportKind::Shm, None), Memory::Private, all_to_all);
}

#[test]
fn a_panic_in_an_exchange() {
    nobody_writes_after("exchange", &config(TransportKind::Shm, None), Memory::Private, all_reduce);
}

#[test]
fn a_panic_on_symmetric_buffers() {
    nobody_writes_after("symmetric", &config(TransportKind::Shm, None), Memory::Symmetric, all_reduce);
}

#[test]
fn a_panic_in_a_wait_for_a_started_operation() {
    let steps = Steps::default();
    Cluster::with_config(2, &config(TransportKind::Tcp, None), |comm| {
        let start = || comm.all_reduce_start(vec![1_u32; ELEMENTS], ReduceOp::Sum).expect("starts");
        comm.barrier().expect("both are there");
        if comm.rank() == 0 {
            let work = start();
            injected::at_next_pause();
            catch_unwind(AssertUnwindSafe(|| work.wait())).expect_err("injected");
            steps.done(1);
        } else {
            steps.wait(1);
        }
        let error = comm.barrier().expect_err("rank 0 has panicked").to_string();
        assert!(error.contains("panicked"), "{error}");
    })
    .expect("the cluster");
}

/// Most exchanges are over within the first polls, before the full wait begins.
#[test]
fn a_panic_at_the_first_poll_of_an_exchange() {
    let steps = Steps::default();
    Cluster::with_config(2, &config(TransportKind::Shm, None), |comm| {
        comm.barrier().expect("both are there");
        if comm.rank() == 0 {
            injected::at_next_exchange();
            catch_unwind(AssertUnwindSafe(|| comm.barrier())).expect_err("injected");
            steps.wait(1);
            return;
        }
        let error = comm.barrier().expect_err("rank 0 has panicked").to_string();
        steps.done(1);
        assert!(error.contains("panicked"), "{error}");
    })
    .expect("the cluster");
}
