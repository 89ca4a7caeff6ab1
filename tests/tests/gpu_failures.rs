//! Failing calls on GPU memory. The cases run one after another, since the stand-in fails for the whole
//! process.

use kolo::{
    Cluster, Collective, Communicator, Config, DataType, Error, GpuDirectMode, RawCall, RawMessage, ReduceOp,
};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::gpu::{Count, DeviceMemory, count, fail_copy_after, with_gpu};

fn call(collective: Collective, memory: &DeviceMemory, count: usize) -> RawCall {
    let (input, output) = (memory.address().cast_const(), memory.address());
    RawCall { collective, input, output, count, data_type: DataType::U8, op: ReduceOp::Max, root: 0 }
}

/// A copy fails at the start, in the middle, or at the end: its rank reports it, and the others report that
/// rank.
fn a_copy_fails() {
    let elements = 200_000;
    for arrangement in [Arrangement::Exchange, Arrangement::Shm, Arrangement::Tcp] {
        for after in [0, 3, 5] {
            let small_segments = |config| {
                let mut config = with_gpu(config);
                config.segment_bytes = Some(50_000);
                // An exchange makes two copies on each rank.
                config.exchange_bytes = config.exchange_bytes.or(Some(if after < 5 { elements } else { 0 }));
                config
            };
            fail_copy_after(after);
            let errors = arrangement.run_with(3, small_segments, |comm| {
                let memory = DeviceMemory::holding(&vec![comm.rank() as u8; elements]);
                // SAFETY: the buffers are as long as the call says.
                let first = unsafe { comm.call_raw(&call(Collective::AllReduce, &memory, elements)) };
                // A rank that was done before another one failed fails in the next call.
                // SAFETY: as above.
                let next = unsafe { comm.call_raw(&call(Collective::AllReduce, &memory, elements)) };
                assert!(next.is_err(), "the communicator is gone");
                first.and(next).expect_err("one of them fails")
            });
            fail_copy_after(-1);
            let said = errors.iter().filter(|error| matches!(error, Error::Transport { .. })).count();
            assert!(said >= 1, "{arrangement:?}, {after}: {errors:#?}");
            for error in &errors {
                let text = error.to_string();
                assert!(
                    text.contains("copying from or to GPU 0") && text.contains("illegal memory access"),
                    "{text}"
                );
                assert!(text.contains("all_reduce"), "{text}");
            }
        }
    }
}

/// A copy for a started call fails, on its way to the exchange of the host and on its way back.
fn a_started_copy_fails() {
    for after in [0, 2] {
        fail_copy_after(after);
        let errors = Arrangement::Exchange.run_with(2, with_gpu, |comm| {
            let memory = DeviceMemory::holding(&[comm.rank() as u8; 1000]);
            // SAFETY: the buffers are as long as the call says.
            let first = unsafe { comm.start_raw(&call(Collective::AllReduce, &memory, 1000)) };
            let first = first.and_then(|work| work.wait());
            // SAFETY: as above.
            let next = unsafe { comm.call_raw(&call(Collective::AllReduce, &memory, 1000)) };
            first.and(next).expect_err("one of them fails").to_string()
        });
        fail_copy_after(-1);
        assert!(errors.iter().all(|text| text.contains("illegal memory access")), "{after}: {errors:#?}");
    }
}

fn a_message_fails() {
    fail_copy_after(1);
    let errors = Arrangement::Tcp.run_with(2, with_gpu, |comm| {
        let memory = DeviceMemory::new(100_000);
        let data = memory.address();
        let message = RawMessage { data, bytes: 100_000, data_type: DataType::U8, tag: 0 };
        let batch = comm.batch();
        // SAFETY: the buffers are as long as the message.
        let batch = unsafe {
            match comm.rank() {
                0 => batch.send_message(message, 1),
                _ => batch.recv_message(message, 0),
            }
        };
        // The send may be done before the receive fails.
        let result = batch.run();
        if comm.rank() == 0 { result.and_then(|()| comm.barrier()) } else { result }
            .expect_err("a copy fails")
            .to_string()
    });
    fail_copy_after(-1);
    assert!(errors.iter().all(|text| text.contains("illegal memory access")), "{errors:#?}");
    assert!(errors[1].contains("recv"), "{errors:#?}");
}

/// If staging is refused, only data that the processor reduces is staged; other calls are refused before data
/// is sent, and the communicator keeps working.
fn staging_is_refused() {
    let required = |config| {
        let mut config = with_gpu(config);
        config.gdr = GpuDirectMode::Require;
        config
    };
    Arrangement::Tcp.run_with(2, required, |comm: Communicator| {
        let memory = DeviceMemory::holding(&[comm.rank() as u8; 100]);
        let (data, bytes) = (memory.address(), 100);
        // SAFETY: in the whole block, the buffers are as long as the calls say.
        unsafe {
            let refused = comm.call_raw(&call(Collective::Broadcast, &memory, 100)).expect_err("refused");
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
            let text = refused.to_string();
            for words in ["KOLO_GDR=require", "not all ranks are reached by RDMA", "broadcast(100 x u8"] {
                assert!(text.contains(words), "{text}");
            }
            let message = RawMessage { data, bytes, data_type: DataType::U8, tag: 0 };
            let refused = comm.batch().send_message(message, 1 - comm.rank()).run().expect_err("refused");
            assert!(refused.to_string().contains("KOLO_GDR=require"), "{refused}");
            comm.call_raw(&call(Collective::AllReduce, &memory, 100)).expect("reductions are excepted");
        }
        assert!(memory.bytes().iter().all(|byte| *byte == 1));
        comm.barrier().expect("it is as it was");
    });
}

fn a_library_that_is_none() {
    let config =
        Config::default().with(|config| config.cuda_library = Some("libnothing-cuda.so.1".to_owned()));
    let error = Cluster::with_config(1, &config, |_| ()).expect_err("refused").to_string();
    assert!(error.contains("KOLO_CUDA_LIBRARY") && error.contains("libnothing-cuda.so.1"), "{error}");
}

#[test]
fn failures_are_said_and_leave_nothing_behind() {
    a_copy_fails();
    a_started_copy_fails();
    a_message_fails();
    staging_is_refused();
    a_library_that_is_none();
    assert_eq!(count(Count::Pinned), 0, "bytes are still pinned");
}
