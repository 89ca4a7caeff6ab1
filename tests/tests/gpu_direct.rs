//! GPU memory that adapters reach directly: over RDMA in the guest of tests/softroce; elsewhere skipped with the
//! reason. The memory is a stand-in's, which exports it as dma-bufs and kills the process if the processor touches it.

use kolo::{
    Cluster, Collective, Communicator, Config, DataType, GpuDirectMode, GpuPath, RawCall, RawCallV,
    RawMessage, ReduceOp, StagingReason, TransportKind, Transports,
};
use kolo_tests::gpu::{Count, DeviceMemory, OnGpu, count, fail_copy_after, run, with_gpu};
use kolo_tests::reference::{Case, reduces};

/// Returns whether adapters must take dma-bufs, or must not.
fn takes_dma_bufs() -> bool {
    std::env::var("KOLO_EXPECT_DMABUF").as_deref() == Ok("yes")
}

/// Runs `body` over RDMA; if there is none, skips it and prints the reason.
fn over_rdma<R: Send>(
    ranks: u32,
    mode: GpuDirectMode,
    body: impl Fn(Communicator) -> R + Sync,
) -> Option<Vec<R>> {
    let config = with_gpu(Config::default()).with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        config.gdr = mode;
        config.segment_bytes = Some(300_000);
    });
    match Cluster::with_config(ranks, &config, body) {
        Ok(results) => Some(results),
        Err(error) => {
            assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "RDMA is required: {error}");
            println!("skipped: {error}");
            None
        }
    }
}

fn moved() -> impl Iterator<Item = Collective> {
    Collective::ALL.into_iter().filter(|c| !reduces(*c) && *c != Collective::Barrier)
}

#[test]
fn what_is_not_reduced_is_never_copied_through_the_host() {
    let mode = if takes_dma_bufs() { GpuDirectMode::Require } else { GpuDirectMode::Auto };
    for ranks in [2, 3] {
        over_rdma(ranks, mode, |comm| {
            for (at, collective) in moved().enumerate() {
                for count in [0, 1, 5, 1000, 5003, 200_003] {
                    for in_place in [false, true] {
                        let data_type = DataType::ALL[(at + count) % DataType::ALL.len()];
                        let (op, root) = (ReduceOp::Sum, at as u32 % ranks);
                        let case = Case { collective, data_type, op, count, root, in_place };
                        let wrong = run(&case, &comm, OnGpu::BOTH)
                            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
                        assert_eq!(wrong, 0, "{case:?}");
                    }
                }
            }
            let counters = comm.gpu_counters();
            let copied = counters.loaded_bytes + counters.stored_bytes;
            let expected =
                if takes_dma_bufs() { GpuPath::Direct } else { GpuPath::Staged(StagingReason::NoPath) };
            let paths: Vec<GpuPath> = comm.recent().iter().filter_map(|record| record.gpu).collect();
            assert!(!paths.is_empty() && paths.iter().all(|path| *path == expected), "{paths:?}");
            println!("{:?}; {counters:?}; {:?}", comm.gpu_direct(), comm.memory_counters());
            if takes_dma_bufs() {
                assert_eq!((copied, counters.staged_calls), (0, 0), "bytes copied, calls staged");
                assert!(counters.direct_calls > 0 && counters.flushes > 0, "{counters:?}");
                assert!(count(Count::Flushes) >= counters.flushes as i64, "the driver was told");
                assert!(comm.memory_counters().in_place_bytes > 1 << 20, "{:?}", comm.memory_counters());
            } else {
                assert!(copied > 0 && counters.direct_calls == 0, "{counters:?}");
            }
        });
    }
}

#[test]
fn v_forms() {
    over_rdma(3, GpuDirectMode::Auto, |comm| {
        let (me, counts) = (comm.rank() as usize, [17_usize, 0, 60_000]);
        let block = |r: usize| (0..counts[r] * 4).map(move |i| (i * 7 + r) as u8).collect::<Vec<u8>>();
        let all: Vec<u8> = (0..3).flat_map(block).collect();
        let (mine, gathered) = (DeviceMemory::holding(&block(me)), DeviceMemory::new(all.len()));
        let call = RawCallV {
            collective: Collective::AllGather,
            input: mine.address(),
            input_counts: &counts[me..=me],
            output: gathered.address(),
            output_counts: &counts,
            data_type: DataType::U32,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: the buffers are as long as the counts say.
        unsafe { comm.call_raw_v(&call) }.expect("all_gather_v");
        assert!(gathered.bytes() == all);
        assert_eq!(comm.gpu_counters().loaded_bytes > 0, !takes_dma_bufs() && counts[me] > 0);
    });
}

/// Reductions stage, and so do calls with one buffer on the host; each rank decides for itself.
#[test]
fn the_rest_is_staged_and_says_why() {
    over_rdma(2, GpuDirectMode::Auto, |comm| {
        for collective in Collective::ALL.into_iter().filter(|c| *c != Collective::Barrier) {
            for count in [3, 70_001] {
                for on_gpu in [OnGpu::mixed(comm.rank()), OnGpu::mixed(comm.rank() + 1), OnGpu::BOTH] {
                    let (data_type, op, root) = (DataType::I32, ReduceOp::Max, 1);
                    let case = Case { collective, data_type, op, count, root, in_place: false };
                    let wrong = run(&case, &comm, on_gpu).unwrap_or_else(|error| panic!("{case:?}: {error}"));
                    assert_eq!(wrong, 0, "{case:?}, {on_gpu:?}");
                }
            }
        }
        let paths: Vec<GpuPath> = comm.recent().iter().filter_map(|record| record.gpu).collect();
        assert!(
            paths.contains(&GpuPath::Staged(StagingReason::Reduces))
                && paths.contains(&GpuPath::Staged(StagingReason::Mixed))
        );
        assert_eq!(paths.contains(&GpuPath::Direct), takes_dma_bufs(), "{paths:?}");
    });
}

/// Messages of all lengths: in order, by tag, unexpected, and to the rank itself.
#[test]
fn messages() {
    over_rdma(2, GpuDirectMode::Auto, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        // The last request of a message of 512 KiB and a little is as short as a header.
        for bytes in [1_usize, 4096, 4097, 20_001, (512 << 10) + 64, 1_000_003] {
            let pattern = |rank: u32, tag: u8| vec![tag ^ (rank as u8) << 6; bytes];
            let sent: Vec<DeviceMemory> =
                (0..3).map(|tag| DeviceMemory::holding(&pattern(me, tag))).collect();
            let got: Vec<DeviceMemory> = (0..3).map(|_| DeviceMemory::new(bytes)).collect();
            let message = |memory: &DeviceMemory, tag: u32| RawMessage {
                data: memory.address(),
                bytes,
                data_type: DataType::U8,
                tag,
            };
            // SAFETY: all of it lives until the batch has run.
            let batch = unsafe {
                comm.batch()
                    .send_message(message(&sent[0], 0), other)
                    .send_message(message(&sent[1], 1), other)
                    .send_message(message(&sent[2], 2), me)
                    // Received in another order, so that one of the messages is buffered first.
                    .recv_message(message(&got[1], 1), other)
                    .recv_message(message(&got[0], 0), other)
                    .recv_message(message(&got[2], 2), me)
            };
            batch.run().expect("batch");
            for (tag, got) in got.iter().enumerate() {
                let from = if tag == 2 { me } else { other };
                assert!(got.bytes() == pattern(from, tag as u8), "{bytes} bytes, tag {tag}");
            }
        }
        let counters = comm.gpu_counters();
        if takes_dma_bufs() {
            let calls = (counters.direct_calls, counters.staged_calls);
            assert_eq!(calls, (6 * 4, 6 * 2), "what a rank sends to itself is staged");
        } else {
            assert_eq!(counters.direct_calls, 0);
        }
    });
}

/// A group of messages uses more allocations than stay registered between calls.
#[test]
fn a_group_of_messages_keeps_its_own_registrations() {
    const MESSAGES: usize = 300;
    over_rdma(2, GpuDirectMode::Auto, |comm| {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        for round in 0..2_u8 {
            let pattern = |at: usize| vec![at as u8 ^ round; 20_000];
            let before = |at: usize| if me == 0 { pattern(at) } else { vec![0; 20_000] };
            let memory: Vec<DeviceMemory> =
                (0..MESSAGES).map(|at| DeviceMemory::holding(&before(at))).collect();
            let mut batch = comm.batch();
            for memory in &memory {
                let (data, bytes) = (memory.address(), 20_000);
                let message = RawMessage { data, bytes, data_type: DataType::U8, tag: 0 };
                // SAFETY: the memory lives until the batch has run.
                batch = unsafe {
                    match me {
                        0 => batch.send_message(message, other),
                        _ => batch.recv_message(message, other),
                    }
                };
            }
            batch.run().expect("batch");
            assert!((0..MESSAGES).all(|at| memory[at].bytes() == pattern(at)), "round {round}");
        }
    });
}

/// The registration of a freed allocation is dropped before another allocation at its address is used.
#[test]
fn memory_that_comes_back_at_the_same_address() {
    over_rdma(2, GpuDirectMode::Auto, |comm| {
        for round in 0..5_u8 {
            let bytes = 100_000;
            let memory = DeviceMemory::holding(&vec![round ^ comm.rank() as u8; bytes]);
            let (collective, op, root) = (Collective::Broadcast, ReduceOp::Sum, 1);
            let (input, output) = (memory.address().cast_const(), memory.address());
            let call = RawCall { collective, input, output, count: bytes, data_type: DataType::U8, op, root };
            // SAFETY: the buffers are as long as the call says.
            unsafe { comm.call_raw(&call) }.expect("broadcast");
            assert!(memory.bytes().iter().all(|byte| *byte == round ^ 1), "round {round}");
        }
        if takes_dma_bufs() {
            assert!(count(Count::Exports) >= 5, "each allocation is exported anew");
        }
    });
}

/// The driver copies messages that are too short for an adapter to fetch; if it cannot, the call fails with that
/// reason.
#[test]
fn a_copy_of_a_short_message_fails() {
    over_rdma(2, GpuDirectMode::Auto, |comm| {
        let memory = DeviceMemory::new(100);
        let call = RawCall {
            collective: Collective::Broadcast,
            input: memory.address(),
            output: memory.address(),
            count: 100,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: in the whole block, the buffers are as long as the call says.
        let broadcast = || unsafe { comm.call_raw(&call) };
        broadcast().expect("the driver copies");
        comm.barrier().expect("both are here");
        if comm.rank() == 0 {
            fail_copy_after(0);
        }
        comm.barrier().expect("both know");
        // The root may be done before the other rank fails; then the next call fails.
        let result = broadcast().and_then(|()| comm.barrier()).and_then(|()| comm.barrier());
        let text = result.expect_err("a copy fails").to_string();
        assert!(text.contains("illegal memory access"), "{text}");
    });
    fail_copy_after(-1);
}

/// If the direct path is required, adapters without dma-bufs are an error.
#[test]
fn a_direct_way_can_be_required() {
    if std::env::var("KOLO_EXPECT_DMABUF").as_deref() != Ok("no") {
        return println!("skipped: for adapters that are known to take no dma-bufs");
    }
    let config = with_gpu(Config::default()).with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        config.gdr = GpuDirectMode::Require;
    });
    let error = Cluster::with_config(2, &config, |_| ()).expect_err("refused").to_string();
    assert!(error.contains("KOLO_GDR") && error.contains("rxe0 does not accept dma-bufs"), "{error}");
}
