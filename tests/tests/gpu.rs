//! Calls on GPU memory, simulated by a stand-in: a read or write by the processor kills the process.

use kolo::{
    Collective, Communicator, DataType, GpuPath, RawCall, RawCallV, RawMessage, ReduceOp, StagingReason,
};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::gpu::{DeviceMemory, OnGpu, run, with_gpu};
use kolo_tests::reference::{Case, is_defined, reduces};

/// Runs the cases with all buffers on the GPU, and then with some of them, differently on each rank.
fn run_all(comm: &Communicator, cases: &[Case]) {
    for case in cases {
        for on_gpu in [OnGpu::BOTH, OnGpu::mixed(comm.rank()), OnGpu::mixed(comm.rank() + 1)] {
            let wrong =
                run(case, comm, on_gpu).unwrap_or_else(|error| panic!("{case:?}, {on_gpu:?}: {error}"));
            assert_eq!(wrong, 0, "{case:?}, {on_gpu:?} on rank {} of {}", comm.rank(), comm.world_size());
        }
    }
}

fn everything(ranks: u32, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in Collective::ALL {
        for (i, count) in counts.iter().enumerate() {
            for in_place in [false, true] {
                let data_type = DataType::ALL[(i + cases.len()) % DataType::ALL.len()];
                let root = cases.len() as u32 % ranks;
                cases.push(Case { collective, data_type, op: ReduceOp::Sum, count: *count, root, in_place });
            }
        }
    }
    cases
}

#[test]
fn every_collective_everywhere() {
    for arrangement in Arrangement::ALL {
        for ranks in [1, 2, 4, 5] {
            let p = ranks as usize;
            let cases = everything(ranks, &[0, 1, p - 1, p + 1, 251, 5003]);
            arrangement.run_with(ranks, with_gpu, |comm| run_all(&comm, &cases));
        }
    }
}

#[test]
fn long_messages_run_in_segments() {
    for arrangement in [Arrangement::Shm, Arrangement::Tcp] {
        for ranks in [2, 4] {
            let cases = everything(ranks, &[100_003]);
            let small_segments = |config| {
                let mut config = with_gpu(config);
                config.segment_bytes = Some(30_000);
                config
            };
            arrangement.run_with(ranks, small_segments, |comm| run_all(&comm, &cases));
        }
    }
}

#[test]
fn every_type_with_every_operator() {
    const OPS: [ReduceOp; 6] = [
        ReduceOp::Sum,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::PremulSum(2.0),
        ReduceOp::BitXor,
        ReduceOp::LogicalAnd,
    ];
    let mut cases = Vec::new();
    for data_type in DataType::ALL {
        for op in OPS {
            let fit = |c: &Collective| reduces(*c) && is_defined(*c, op, data_type);
            for collective in Collective::ALL.into_iter().filter(fit) {
                for in_place in [false, true] {
                    cases.push(Case { collective, data_type, op, count: 67, root: 1, in_place });
                }
            }
        }
    }
    for arrangement in [Arrangement::Exchange, Arrangement::Shm, Arrangement::Tcp] {
        arrangement.run_with(3, with_gpu, |comm| run_all(&comm, &cases));
    }
}

#[test]
fn every_algorithm_by_name() {
    for algorithm in kolo_collectives::Algorithm::ALL {
        let force = |config| {
            let mut config = with_gpu(config);
            config.algorithms = algorithm.name().to_owned();
            config
        };
        let cases = everything(4, &[5, 1001]);
        Arrangement::Shm.run_with(4, force, |comm| run_all(&comm, &cases));
    }
}

#[test]
fn v_forms() {
    for arrangement in Arrangement::ALL {
        arrangement.run_with(4, with_gpu, |comm| {
            let (me, p) = (comm.rank() as usize, comm.world_size() as usize);
            let counts: Vec<usize> = (0..p).map(|r| [0, 3, 40_000, 17][r]).collect();
            let block = |r: usize| (0..counts[r] * 4).map(move |i| (i * 7 + r) as u8).collect::<Vec<u8>>();
            let all: Vec<u8> = (0..p).flat_map(block).collect();
            let mine = DeviceMemory::holding(&block(me));
            let gathered = DeviceMemory::new(all.len());
            let call = |collective, input: (&DeviceMemory, &[usize]), output: (&DeviceMemory, &[usize])| {
                let call = RawCallV {
                    collective,
                    input: input.0.address(),
                    input_counts: input.1,
                    output: output.0.address(),
                    output_counts: output.1,
                    data_type: DataType::U32,
                    op: ReduceOp::Max,
                    root: 0,
                };
                // SAFETY: the buffers are as long as the counts say, and alive.
                unsafe { comm.call_raw_v(&call) }.unwrap_or_else(|error| panic!("{collective:?}: {error}"));
            };
            call(Collective::AllGather, (&mine, &counts[me..=me]), (&gathered, &counts));
            assert!(gathered.bytes() == all, "all_gather_v");
            let scattered = DeviceMemory::new(counts[me] * 4);
            call(Collective::ReduceScatter, (&gathered, &counts), (&scattered, &counts[me..=me]));
            assert!(scattered.bytes() == block(me), "reduce_scatter_v");
            // Every rank sends every other the block that belongs to the receiver.
            let received = DeviceMemory::new(p * counts[me] * 4);
            call(Collective::AllToAll, (&gathered, &counts), (&received, &vec![counts[me]; p]));
            assert!(received.bytes() == block(me).repeat(p), "all_to_all_v");
        });
    }
}

#[test]
fn started_calls_run_beside_each_other() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
        arrangement.run_with(4, with_gpu, |comm| {
            let count = 50_000;
            let value = |rank: u32, turn: u32| (rank + 1) * (turn + 3);
            let buffers: Vec<DeviceMemory> = (0..6)
                .map(|turn| DeviceMemory::holding(&value(comm.rank(), turn).to_ne_bytes().repeat(count)))
                .collect();
            let works: Vec<_> = buffers
                .iter()
                .map(|buffer| {
                    let call = RawCall {
                        collective: Collective::AllReduce,
                        input: buffer.address(),
                        output: buffer.address(),
                        count,
                        data_type: DataType::U32,
                        op: ReduceOp::Sum,
                        root: 0,
                    };
                    // SAFETY: kept until all are waited for.
                    unsafe { comm.start_raw(&call) }.expect("start")
                })
                .collect();
            works.into_iter().for_each(|work| work.wait().expect("all_reduce"));
            for (turn, buffer) in buffers.iter().enumerate() {
                let sum: u32 = (0..4).map(|rank| value(rank, turn as u32)).sum();
                assert!(buffer.bytes() == sum.to_ne_bytes().repeat(count), "turn {turn}");
            }
        });
    }
}

fn message(memory: &DeviceMemory, bytes: usize, tag: u32) -> RawMessage {
    RawMessage { data: memory.address(), bytes, data_type: DataType::U8, tag }
}

#[test]
fn messages_keep_their_order_and_their_tags() {
    for arrangement in Arrangement::ALL {
        for bytes in [1_usize, 3000, 70_001, 3_000_001] {
            arrangement.run_with(2, with_gpu, |comm| {
                let other = 1 - comm.rank();
                let pattern = |rank: u32, number: u8| vec![number ^ (rank as u8) << 6; bytes];
                // Messages from the GPU and from the host alternate: none may overtake another.
                let there: Vec<DeviceMemory> =
                    (0..4).map(|n| DeviceMemory::holding(&pattern(comm.rank(), n))).collect();
                let here: Vec<Vec<u8>> = (4..8).map(|n| pattern(comm.rank(), n)).collect();
                let mut got_here = vec![vec![0; bytes]; 4];
                let got_there: Vec<DeviceMemory> = (0..4).map(|_| DeviceMemory::new(bytes)).collect();
                let mut batch = comm.batch();
                for (at, got) in got_here.iter_mut().enumerate() {
                    // SAFETY: all of it lives until the batch has run.
                    batch = unsafe {
                        batch
                            .send_message(message(&there[at], bytes, 0), other)
                            .send_tagged(&here[at], other, 0)
                            // Data sent from the other rank's GPU is received on the host, and the reverse.
                            .recv_tagged(got, other, 0)
                            .recv_message(message(&got_there[at], bytes, 0), other)
                    };
                }
                batch.run().expect("batch");
                for at in 0..4 {
                    assert!(got_here[at] == pattern(other, at as u8), "{bytes} bytes from the GPU, {at}");
                    assert!(
                        got_there[at].bytes() == pattern(other, 4 + at as u8),
                        "{bytes} to the GPU, {at}"
                    );
                }
                // Messages are received by tag, in another order than they are sent; one of them comes from
                // the rank itself.
                let me = comm.rank();
                // SAFETY: as above.
                let batch = unsafe {
                    comm.batch()
                        .send_message(message(&there[0], bytes, 1), other)
                        .send_message(message(&there[1], bytes, 2), other)
                        .send_message(message(&there[2], bytes, 3), me)
                        .recv_message(message(&got_there[1], bytes, 2), other)
                        .recv_message(message(&got_there[0], bytes, 1), other)
                        .recv_message(message(&got_there[2], bytes, 3), me)
                };
                batch.run().expect("batch by tag");
                assert!(
                    got_there[0].bytes() == pattern(other, 0) && got_there[1].bytes() == pattern(other, 1)
                );
                assert!(got_there[2].bytes() == pattern(me, 2), "to oneself");
                // This message arrives before it is asked for, and is received from any source.
                if me == 0 {
                    // SAFETY: as above.
                    unsafe { comm.batch().send_message(message(&there[3], bytes, 9), 1) }
                        .run()
                        .expect("send");
                    comm.send(&[1_u8], 1).expect("send");
                } else {
                    comm.recv(&mut [0_u8], 0).expect("recv");
                    let mut source = 7;
                    // SAFETY: as above.
                    unsafe { comm.batch().recv_any_message(message(&got_there[3], bytes, 9), &mut source) }
                        .run()
                        .expect("recv_any");
                    assert!(source == 0 && got_there[3].bytes() == pattern(0, 3), "{source}");
                }
            });
        }
    }
}

#[test]
fn pinned_memory_is_bounded() {
    const PINNED_BYTES: usize = 32 << 20;
    let count = 20 << 20;
    // If as many segments were in flight as there are channels, twice as much would be needed.
    let many = |config| {
        with_gpu(config).with(|config| {
            config.window = Some(64);
            config.segment_bytes = Some(1 << 20);
        })
    };
    Arrangement::Shm.run_with(4, many, |comm| {
        let mine = DeviceMemory::holding(&vec![comm.rank() as u8; count]);
        let all = DeviceMemory::new(4 * count);
        let call = RawCall {
            collective: Collective::AllGather,
            input: mine.address(),
            output: all.address(),
            count,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: the buffers are as long as the call says.
        unsafe { comm.call_raw(&call) }.expect("all_gather");
        let staging = comm.staging_bytes();
        assert!(staging > 0 && staging <= PINNED_BYTES, "{staging} bytes of staging");
        let bytes = all.bytes();
        assert!(bytes.chunks(count).enumerate().all(|(rank, block)| block.iter().all(|b| *b == rank as u8)));
        let counters = comm.gpu_counters();
        assert_eq!((counters.loaded_bytes, counters.stored_bytes), (count as u64, 4 * count as u64));
    });
}

/// A call's path is recorded with its reason; memory that the processor can reach counts as the host's.
#[test]
fn what_was_done_is_said() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
        arrangement.run_with(2, with_gpu, |comm| {
            let call = |collective, memory: &DeviceMemory| RawCall {
                collective,
                input: memory.address(),
                output: memory.address(),
                count: 100,
                data_type: DataType::U8,
                op: ReduceOp::Max,
                root: 0,
            };
            let memory = DeviceMemory::holding(&[7; 100]);
            let managed = DeviceMemory::managed(100);
            for call in [
                call(Collective::AllReduce, &memory),
                call(Collective::Broadcast, &memory),
                call(Collective::Broadcast, &managed),
            ] {
                // SAFETY: the buffers are as long as the call says.
                unsafe { comm.call_raw(&call) }.expect("a call");
            }
            let paths: Vec<Option<GpuPath>> = comm.recent().iter().map(|record| record.gpu).collect();
            let staged = |why| Some(GpuPath::Staged(why));
            assert_eq!(paths, [staged(StagingReason::Reduces), staged(StagingReason::NotRdma), None]);
            assert!(comm.recent()[1].to_string().contains("copied through host memory: not all ranks"));
            let text = comm.explain(&call(Collective::AllReduce, &memory)).expect("explained");
            assert!(text.contains("memory: GPU memory, copied through host memory: the processor"), "{text}");
            let text = comm.explain(&call(Collective::AllReduce, &managed)).expect("explained");
            assert!(!text.contains("memory: a GPU"), "{text}");
            assert_eq!(comm.gpu_counters().staged_calls, 2);
        });
    }
}

#[test]
fn communicators_split_off_another_know_it_too() {
    Arrangement::Shm.run_with(4, with_gpu, |comm| {
        let half = comm.split(Some(comm.rank() % 2), 0).expect("split").expect("a part");
        let case = |collective| {
            let (data_type, op, count) = (DataType::F32, ReduceOp::Sum, 1000);
            Case { collective, data_type, op, count, root: 1, in_place: false }
        };
        run_all(&half, &[case(Collective::AllReduce), case(Collective::Broadcast)]);
        assert!(half.gpu_counters().staged_calls > 0 && comm.gpu_counters().staged_calls == 0);
    });
}

/// If the others' buffers are symmetric, one rank with GPU memory makes all ranks take another path.
#[test]
fn symmetric_buffers_meet_a_gpu() {
    Arrangement::Exchange.run_with(3, with_gpu, |comm| {
        let count = 300_000;
        let mut symmetric = comm.alloc::<u8>(count).expect("alloc");
        symmetric.fill(comm.rank() as u8 + 1);
        let there = DeviceMemory::holding(&vec![comm.rank() as u8 + 1; count]);
        let is_odd_one = comm.rank() == 1;
        let at = if is_odd_one { there.address() } else { symmetric.as_mut_ptr() };
        for collective in [Collective::AllReduce, Collective::Broadcast] {
            let (op, root) = (ReduceOp::Max, 2);
            let call =
                RawCall { collective, input: at, output: at, count, data_type: DataType::U8, op, root };
            // SAFETY: the buffers are as long as the call says.
            unsafe { comm.call_raw(&call) }.expect("a call");
            let bytes = if is_odd_one { there.bytes() } else { symmetric.to_vec() };
            assert!(bytes.iter().all(|byte| *byte == 3), "{collective:?}");
        }
    });
}
