//! Plans over memory that the ranks of a host share give the same bits as the compiled exchange, and behave like all
//! other plans.

use std::sync::Mutex;

use kolo::{Collective, Communicator, Config, DataType, ReduceOp};
use kolo_tests::arrangement::{Arrangement, canonical};
use kolo_tests::reference::{Case, is_defined};
use proptest::prelude::*;

/// All algorithms that use a stage inside one host.
const STAGED: &str = "all_reduce:staged_two_shot,reduce:staged_two_shot,staged,staged_one_shot";
const ONE_SHOT: &str = "staged,staged_one_shot";

fn forced(algorithms: &'static str) -> impl Fn(Config) -> Config + Copy {
    move |mut config| {
        config.algorithms = algorithms.to_owned();
        config
    }
}

/// Selects the compiled exchange for calls of any length.
fn compiled(mut config: Config) -> Config {
    config.exchange_bytes = Some(usize::MAX);
    config
}

/// Fills memory with values whose sum depends on the order; the same for a rank in every run.
fn fill(rank: u32, data_type: DataType, memory: &mut [u8]) {
    let mut state = u64::from(rank) << 32 | 12_345;
    for byte in memory.iter_mut() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8 & if data_type == DataType::Bool { 1 } else { 0xff };
    }
}

/// Returns this rank's output of a case.
fn output(case: &Case, comm: &Communicator) -> Vec<u8> {
    let (inputs, outputs) = case.bytes(comm);
    let (mut input, mut output) = (vec![0; inputs], vec![0; outputs]);
    let mut result = Vec::new();
    case.run_by(comm, &mut input, &mut output, |call, memory| {
        for (at, bytes) in memory {
            // SAFETY: the memory that the call works on, which nothing else uses.
            fill(comm.rank(), case.data_type, unsafe { std::slice::from_raw_parts_mut(at, bytes) });
        }
        // In place, the other buffer holds the same.
        // SAFETY: the buffers are as long as the collective defines, and live until the call returns.
        unsafe { comm.call_raw(call) }?;
        if outputs > 0 {
            // SAFETY: as above.
            result = unsafe { std::slice::from_raw_parts(call.output, outputs) }.to_vec();
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    result
}

fn outputs(ranks: u32, change: impl Fn(Config) -> Config + Sync, cases: &[Case]) -> Vec<Vec<Vec<u8>>> {
    Arrangement::Exchange
        .run_with(ranks, change, |comm| cases.iter().map(|case| output(case, &comm)).collect())
}

fn agree(ranks: u32, cases: &[Case], is_canonical: bool, segment: Option<usize>) {
    let change = |inner: fn(Config) -> Config| move |config: Config| inner(config);
    let order: fn(Config) -> Config = if is_canonical { canonical } else { |config| config };
    let expected = outputs(ranks, |config| order(change(compiled)(config)), cases);
    for algorithms in [STAGED, ONE_SHOT] {
        let staged = |config| {
            let mut config = order(forced(algorithms)(config));
            config.segment_bytes = segment;
            config
        };
        let found = outputs(ranks, staged, cases);
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (case, (found, expected)) in cases.iter().zip(found.iter().zip(expected)) {
                assert!(found == expected, "{algorithms}: rank {rank} of {ranks}, {case:?}, {segment:?}");
            }
        }
    }
}

#[test]
fn long_calls_give_the_bits_of_the_compiled_exchange() {
    for ranks in [2, 3, 4, 8] {
        let mut cases = Vec::new();
        for collective in Collective::ALL {
            for (in_place, count) in [(false, 300_007), (true, 65_536), (true, 40_001)] {
                let op = if in_place { ReduceOp::Sum } else { ReduceOp::Prod };
                let root = ranks - 1;
                cases.push(Case { collective, data_type: DataType::F32, op, count, root, in_place });
            }
        }
        agree(ranks, &cases, false, None);
        agree(ranks, &cases, true, Some(100_000));
    }
}

/// Long all-gathers of more than 4 ranks use stages by default, and other calls the compiled exchange.
#[test]
fn long_all_gathers_take_the_stage() {
    let check = |comm: &Communicator, calls: &[(Collective, usize, &str)]| {
        let (from, mut to) = (vec![0_f32; 6 << 20], vec![0_f32; 6 << 20]);
        for (collective, count, way) in calls.iter().copied() {
            let (input, output) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            let (data_type, op) = (DataType::F32, ReduceOp::Sum);
            let call = kolo::RawCall { collective, input, output, count, data_type, op, root: 0 };
            let text = comm.explain(&call).unwrap();
            assert!(text.starts_with(way), "{collective} of {count}: {text}");
        }
    };
    Arrangement::Exchange.run(4, |comm| {
        let calls = [
            (Collective::AllReduce, 1 << 20, "exchange: "),
            (Collective::Broadcast, 1 << 20, "exchange: "),
            (Collective::AllGather, 1 << 16, "exchange: 262144 bytes per rank in "),
            (Collective::AllGather, 1 << 20, "exchange: 4194304 bytes per rank, read in place "),
            (Collective::AllToAll, 1 << 12, "exchange: 49152 bytes per rank in "),
            (Collective::AllToAll, 1 << 19, "exchange: 6291456 bytes per rank, read in place "),
        ];
        check(&comm, &calls);
    });
    Arrangement::Exchange.run(6, |comm| {
        let calls = [
            (Collective::Broadcast, 1 << 20, "exchange: "),
            (Collective::AllGather, 1 << 18, "exchange: 1048576 bytes per rank in "),
            (Collective::AllGather, 1 << 20, "staged: "),
        ];
        check(&comm, &calls);
    });
}

/// Inside hosts data goes by stages, between them by messages, for hosts of equal and of unequal numbers of ranks.
#[test]
fn several_hosts_use_the_stages_of_each() {
    for (ranks, per_host) in [(4, 2), (8, 4), (7, 4), (5, 2), (3, 2)] {
        for algorithms in ["hierarchical_staged", "leader_staged"] {
            Arrangement::Hosts(per_host).run_with(ranks, forced(algorithms), |comm| {
                for collective in Collective::ALL {
                    for (count, in_place) in [(3, false), (2_003, true), (50_021, false), (300_007, true)] {
                        let (data_type, op, root) = (DataType::F32, ReduceOp::Sum, ranks - 1);
                        let case = Case { collective, data_type, op, count, root, in_place };
                        assert_eq!(case.run(&comm).unwrap(), 0, "{algorithms}, {case:?} on {}", comm.rank());
                    }
                }
            });
        }
    }
}

/// Every rank decides for itself whether its buffers are in place.
#[test]
fn some_ranks_in_place_and_others_not() {
    for ranks in [3, 4] {
        for algorithms in [STAGED, ONE_SHOT] {
            Arrangement::Exchange.run_with(ranks, forced(algorithms), |comm| {
                for collective in Collective::ALL {
                    for count in [67, 17_001] {
                        let in_place = comm.rank() % 2 == 0;
                        let (data_type, op, root) = (DataType::F32, ReduceOp::Sum, 1);
                        let case = Case { collective, data_type, op, count, root, in_place };
                        assert_eq!(case.run(&comm).unwrap(), 0, "{case:?} on rank {}", comm.rank());
                    }
                }
            });
        }
    }
}

/// Ranks that start different calls must learn that, and which rank differs.
#[test]
fn another_call_on_the_stage_is_told() {
    let told = Mutex::new(Vec::new());
    Arrangement::Exchange.run_with(3, forced(STAGED), |comm| {
        let mut data = vec![1.0_f32; if comm.rank() == 1 { 50_000 } else { 50_001 }];
        let error = comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        told.lock().unwrap().push(error.to_string());
    });
    let told = told.into_inner().unwrap();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|told| told.contains("50000") || told.contains("50001")), "{told:#?}");
}

/// Started calls of several groups at once, with blocking calls between them.
#[test]
fn started_calls_use_stages_of_their_own() {
    for ranks in [2, 4] {
        Arrangement::Exchange.run_with(ranks, forced(STAGED), |comm| {
            let expected = (0..ranks).sum::<u32>() as f32;
            for round in 0..20 {
                let started: Vec<_> = (0..5)
                    .map(|i| {
                        let data = vec![comm.rank() as f32; 10_000 * (i + 1) + round];
                        comm.all_reduce_start(data, ReduceOp::Sum).unwrap()
                    })
                    .collect();
                let mut data = vec![comm.rank() as f32; 33_333];
                comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data.iter().all(|value| *value == expected));
                for work in started {
                    let data = work.wait().unwrap();
                    assert!(data.iter().all(|value| *value == expected));
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn staged_plans_give_the_bits_of_the_compiled_exchange(
        ranks in 2_u32..=8,
        is_canonical in any::<bool>(),
        segment in proptest::option::of(100_usize..50_000),
        calls in proptest::collection::vec(
            (0_usize..11, 0_usize..11, 0_usize..12, 0_u32..16, 0_usize..100, 0_u32..8, any::<bool>()), 1..8),
    ) {
        let cases: Vec<Case> = calls
            .into_iter()
            .map(|(collective, data_type, op, magnitude, more, root, in_place)| {
                let (collective, data_type) = (Collective::ALL[collective], DataType::ALL[data_type]);
                let op = ReduceOp::ALL[op];
                let op = if is_defined(collective, op, data_type) { op } else { ReduceOp::Max };
                let op = if is_defined(collective, op, data_type) { op } else { ReduceOp::Sum };
                let count = (1 << magnitude) * (100 + more) / 100;
                Case { collective, data_type, op, count, root: root % ranks, in_place }
            })
            .collect();
        agree(ranks, &cases, is_canonical, segment);
    }
}
