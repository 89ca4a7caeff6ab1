//! Number of registrations with adapters, over the stand-in for libibverbs.

use kolo::{
    Cluster, Collective, Communicator, Config, DataType, GpuDirectMode, RawCall, ReduceOp, TransportKind,
    Transports,
};
use kolo_tests::gpu::{Count, DeviceMemory, count, is_stand_in, with_gpu};
use kolo_transport::MemoryCounters;

#[path = "../../transport/verbs/tests/common/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod fake;
#[path = "../../transport/verbs/tests/common/knob.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod knob;

use fake::{Fake, Knob};

/// A vector that is cut into more pieces than the 256 regions that the cache keeps, as 640 MiB are with segments of
/// 4 MiB.
const BYTES: usize = 32 << 20;
const SEGMENT_BYTES: usize = 128 << 10;

fn config(fake: &Fake) -> Config {
    fake.set(Knob::Address, 0x7f00_0001);
    Config::default().with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        config.ib_library = Some(fake.file.display().to_string());
        config.segment_bytes = Some(SEGMENT_BYTES);
        config.timeout = std::time::Duration::from_secs(60);
    })
}

/// Returns how the counters change by one more all-reduce of this vector.
fn counted(comm: &Communicator, data: &mut [u8]) -> MemoryCounters {
    let before = comm.memory_counters();
    let value = data[0].max(1);
    data.fill(value + comm.rank() as u8);
    comm.all_reduce(data, ReduceOp::Max).expect("all_reduce");
    assert!(data.iter().all(|byte| *byte == value + 1));
    let after = comm.memory_counters();
    let mut made = MemoryCounters::default();
    made.in_place_bytes = after.in_place_bytes - before.in_place_bytes;
    made.staged_bytes = after.staged_bytes - before.staged_bytes;
    made.registrations = after.registrations - before.registrations;
    made.cache_hits = after.cache_hits - before.cache_hits;
    made
}

#[test]
fn a_vector_is_registered_once_however_many_pieces_it_is_cut_into() {
    let fake = Fake::new();
    Cluster::with_config(2, &config(&fake), |comm| {
        let policy = comm.registration_policy().expect("over RDMA");
        assert!(comm.summary().contains(&policy), "{}", comm.summary());
        let is_kept = policy.starts_with("kept, and released when the kernel reports");
        let mut data = vec![1_u8; BYTES];
        let first = counted(&comm, &mut data);
        assert!(first.registrations <= 1, "{first:?}");
        assert!(first.cache_hits > 256, "{first:?}");
        // The same through another communicator of this process.
        let group = comm.split(Some(0), 0).expect("split").expect("a part");
        for comm in [&comm, &group, &comm, &group] {
            let next = counted(comm, &mut data);
            assert!(next.registrations <= 1 && next.in_place_bytes > 0, "{next:?}");
        }
        if !is_kept {
            return println!("skipped: registrations are {policy}");
        }
        for comm in [&comm, &group] {
            let next = counted(comm, &mut data);
            assert_eq!((next.registrations, next.staged_bytes), (0, 0), "{next:?}");
        }
    })
    .expect("they join");
}

/// The stand-in for libibverbs takes no dma-buf, so each buffer is refused, if it is exported at all.
#[test]
fn a_gpu_buffer_that_cannot_be_registered_is_tried_once() {
    const RANKS: u32 = 2;
    if !is_stand_in() {
        return;
    }
    let fake = Fake::new();
    let config = with_gpu(config(&fake)).with(|config| config.gdr = GpuDirectMode::Auto);
    let before = count(Count::AskedExports);
    Cluster::with_config(RANKS, &config, |comm| {
        let buffers =
            [1, 2].map(|value| DeviceMemory::holding(&vec![value * (1 - comm.rank() as u8); 100_000]));
        for round in 0..20_u8 {
            let buffer = &buffers[usize::from(round % 2)];
            let call = RawCall {
                collective: Collective::Broadcast,
                input: buffer.address(),
                output: buffer.address(),
                count: 100_000,
                data_type: DataType::U8,
                op: ReduceOp::Sum,
                root: 0,
            };
            // SAFETY: the buffer is as long as the call says.
            unsafe { comm.call_raw(&call) }.expect("broadcast");
            assert!(buffer.bytes().iter().all(|byte| *byte == round % 2 + 1));
        }
        let counters = comm.gpu_counters();
        assert_eq!((counters.staged_calls, counters.direct_calls), (20, 0), "{counters:?}");
        comm.barrier().expect("all have counted");
    })
    .expect("they join");
    let asked = count(Count::AskedExports) - before;
    assert!((1..=2 * i64::from(RANKS)).contains(&asked), "{asked} exports were asked for");
}
