//! Owners of buffers whose `drop` calls the communicator again.

use std::sync::mpsc;
use std::time::Duration;

use super::Communicator;
use super::cluster::Cluster;
use crate::call::RawCall;
use crate::config::{Config, TransportKind, Transports};
use crate::drive;
use crate::types::{DataType, ReduceOp};
use kolo_collectives::plan::Collective;

const ELEMENTS: usize = 1000;

/// Starts an all-reduce on registered memory, which the operation keeps. Dropping it ends the registration, for which
/// the communicator is needed.
fn start(comm: &Communicator) -> crate::Work<crate::RegisteredBuffer<Vec<f32>>> {
    let mut buffer = comm.register(vec![1.0_f32; ELEMENTS]).expect("registers");
    let output: *mut u8 = buffer.as_mut_ptr().cast();
    let call = RawCall {
        collective: Collective::AllReduce,
        input: output.cast_const(),
        output,
        count: ELEMENTS,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: 0,
    };
    // SAFETY: the operation keeps the only owner of the memory, which does not move.
    unsafe { comm.start_raw_keeping(&call, buffer) }.expect("starts")
}

/// Runs two ranks, which must come to their end.
fn both(transport: TransportKind, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let transports = Transports::Only(vec![transport]);
        let config = Config { transports, timeout: Duration::from_secs(20), ..Config::default() };
        let _ = done.send(Cluster::with_config(2, &config, |comm| body(&comm)));
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("nobody hangs").expect("the cluster");
}

#[test]
fn owners_of_forgotten_operations_may_call_the_communicator_when_they_are_dropped() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        both(transport, |comm| {
            // Forgotten before it is done, unless the other rank was quicker.
            drop(start(comm));
            comm.barrier().expect("works");
            // Forgotten when it is done.
            let work = start(comm);
            comm.barrier().expect("works");
            while !work.is_done() {
                std::thread::yield_now();
            }
            drop(work);
            // Never begun, since the message cannot be sent.
            let buffer = comm.register(vec![0_u8; 8]).expect("registers");
            let message =
                crate::RawMessage { data: std::ptr::null_mut(), bytes: 0, data_type: DataType::U8, tag: 0 };
            // SAFETY: the message is empty.
            let refused = unsafe { comm.send_raw_keeping(&message, 7, buffer) };
            assert!(refused.is_err());
            comm.barrier().expect("works");
        });
    }
}

/// An owner that tells whether the thread that drops it has taken words to sleep on.
struct Tells {
    _data: Box<[u8; 8]>,
    is_armed: mpsc::Sender<bool>,
}

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.is_armed.send(drive::armed::is());
    }
}

/// An owner may have the last handle of the communicator. The words on which the helper sleeps must not be freed.
#[test]
fn no_owner_is_dropped_between_arming_and_the_sleep() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        both(transport, move |comm| {
            if comm.rank() == 1 {
                comm.recv(&mut [0_u8; 1], 0).expect("rank 0 has started");
                comm.send(&[1_u8; 8], 0).expect("works");
                comm.recv(&mut [0_u8; 1], 0).expect("the owner is dropped");
                comm.send_tagged(&[1_u8], 0, 7).expect("works");
                return;
            }
            let (is_armed, told) = mpsc::channel();
            let mut data = Box::new([0_u8; 8]);
            let message = crate::RawMessage {
                data: data.as_mut_ptr().cast(),
                bytes: data.len(),
                data_type: DataType::U8,
                tag: 0,
            };
            // SAFETY: the operation keeps the only owner of the memory, which does not move.
            let received =
                unsafe { comm.recv_raw_keeping(&message, Some(1), Tells { _data: data, is_armed }) };
            drop(received.expect("starts"));
            let other = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
            comm.send(&[1_u8], 1).expect("works");
            // Meanwhile only the helper drives.
            let is_armed = told.recv_timeout(Duration::from_secs(20)).expect("the operation ends");
            assert!(!is_armed, "{transport:?}: between arming and the sleep");
            comm.send(&[1_u8], 1).expect("works");
            other.wait().expect("works");
        });
    }
}
