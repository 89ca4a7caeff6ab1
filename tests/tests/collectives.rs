//! Every collective in every arrangement of transports, compared with a serial reference to the last bit.

use kolo::{Collective, Communicator, DataType, ReduceOp};
use kolo_tests::arrangement::{Arrangement, canonical};
use kolo_tests::reference::{Case, is_defined, reduces};
use proptest::prelude::*;

fn run_all(comm: &Communicator, cases: &[Case]) {
    for case in cases {
        let wrong = case.run(comm).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        assert_eq!(wrong, 0, "{case:?} on rank {} of {}", comm.rank(), comm.world_size());
    }
}

/// Returns every collective with odd counts, both placements, and the first and last rank as root.
fn everything(ranks: u32, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in Collective::ALL {
        for (i, count) in counts.iter().enumerate() {
            for in_place in [false, true] {
                for root in [0, ranks - 1] {
                    let data_type = DataType::ALL[(i + cases.len()) % DataType::ALL.len()];
                    cases.push(Case {
                        collective,
                        data_type,
                        op: ReduceOp::Sum,
                        count: *count,
                        root,
                        in_place,
                    });
                }
            }
        }
    }
    cases
}

#[test]
fn every_collective_everywhere() {
    for arrangement in Arrangement::ALL {
        for ranks in 1..=9 {
            let p = ranks as usize;
            let cases = everything(ranks, &[0, 1, p - 1, p, p + 1, 251]);
            arrangement.run(ranks, |comm| run_all(&comm, &cases));
        }
    }
}

#[test]
fn long_messages_run_in_segments() {
    for arrangement in Arrangement::ALL {
        for ranks in [2, 3, 5] {
            let cases = everything(ranks, &[100_003]);
            let small_segments = |mut config: kolo::Config| {
                config.segment_bytes = Some(30_000);
                config
            };
            arrangement.run_with(ranks, small_segments, |comm| run_all(&comm, &cases));
        }
    }
}

/// The path of a call must not depend on where this rank's buffers lie.
#[test]
fn some_ranks_in_place_and_others_not() {
    for arrangement in Arrangement::ALL {
        for ranks in [3, 4, 8] {
            arrangement.run(ranks, |comm| {
                let mut cases = everything(ranks, &[67, 17_001, 1_000_003]);
                // For both roots, in both assignments of placements.
                cases.iter_mut().for_each(|case| case.in_place ^= comm.rank() % 2 == 0);
                run_all(&comm, &cases);
            });
        }
    }
}

/// Inside a host, results too long for the caches are written with streaming stores.
#[test]
fn very_long_results_are_the_same() {
    for ranks in [2, 3] {
        // The buffers together are longer than 32 MiB.
        let cases = [
            (Collective::AllReduce, 12 << 20),
            (Collective::Broadcast, 17 << 20),
            (Collective::AllGather, 6 << 20),
            (Collective::AllToAll, 5 << 20),
        ]
        .into_iter()
        .flat_map(|(collective, bytes)| [(collective, bytes, false), (collective, bytes, true)])
        .map(|(collective, bytes, in_place)| Case {
            collective,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            count: bytes + 3,
            root: ranks - 1,
            in_place,
        })
        .collect::<Vec<_>>();
        Arrangement::Exchange.run(ranks, |comm| run_all(&comm, &cases));
    }
}

#[test]
fn every_type_with_every_operator() {
    let mut cases = Vec::new();
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            let fit = |c: &Collective| reduces(*c) && is_defined(*c, op, data_type);
            for collective in Collective::ALL.into_iter().filter(fit) {
                let in_place = cases.len() % 2 == 0;
                cases.push(Case { collective, data_type, op, count: 67, root: 1, in_place });
            }
        }
    }
    for arrangement in Arrangement::ALL {
        for ranks in [2, 5] {
            arrangement.run(ranks, |comm| run_all(&comm, &cases));
        }
    }
}

#[test]
fn every_algorithm_by_name() {
    for arrangement in [Arrangement::Shm, Arrangement::Tcp, Arrangement::Hosts(2)] {
        for algorithm in kolo_collectives::Algorithm::ALL {
            for ranks in [4, 7] {
                let force = |mut config: kolo::Config| {
                    config.algorithms = algorithm.name().to_owned();
                    config
                };
                let cases = everything(ranks, &[5, 1001]);
                arrangement.run_with(ranks, force, |comm| run_all(&comm, &cases));
            }
        }
    }
}

/// The sum of these values depends on the order: the canonical mode must give the same bits in every
/// arrangement.
#[test]
fn canonical_results_depend_on_nothing() {
    for ranks in [2, 3, 4, 6, 7, 8] {
        let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
        for arrangement in Arrangement::ALL {
            for (segment, algorithms) in
                [(None, ""), (Some(40), ""), (None, "all_reduce:one_shot"), (None, "all_reduce:halving")]
            {
                let change = |config| {
                    let mut config = canonical(config);
                    config.segment_bytes = segment;
                    config.algorithms = algorithms.to_owned();
                    config
                };
                let results = arrangement.run_with(ranks, change, |comm| {
                    let value = |i: usize| 1.0_f32 / (1.0 + (i as f32) + 7.0 * comm.rank() as f32);
                    let mut data: Vec<f32> = (0..131).map(value).collect();
                    comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                for bits in results {
                    seen.push((format!("{arrangement:?} {segment:?} {algorithms}"), bits));
                }
            }
        }
        for (name, bits) in &seen {
            assert_eq!(*bits, seen[0].1, "{ranks} ranks: {name} differs from {}", seen[0].0);
        }
    }
}

/// A scan's results are those of canonical reductions over the ranks before, wherever these are.
#[test]
fn canonical_scans_depend_on_nothing() {
    for ranks in [1, 2, 3, 5, 8] {
        let mut seen: Vec<(Arrangement, Vec<Vec<u32>>)> = Vec::new();
        for arrangement in Arrangement::ALL {
            let results = arrangement.run_with(ranks, canonical, |comm| {
                let value = |i: usize| 1.0_f32 / (1.0 + (i as f32) + 7.0 * comm.rank() as f32);
                let input: Vec<f32> = (0..131).map(value).collect();
                let (mut inclusive, mut exclusive) = (vec![0.0_f32; 131], vec![0.0_f32; 131]);
                comm.scan_into(&input, &mut inclusive, ReduceOp::Sum).expect("all call it");
                comm.exscan_into(&input, &mut exclusive, ReduceOp::Sum).expect("all call it");
                let mut total = input;
                comm.all_reduce(&mut total, ReduceOp::Sum).expect("all call it");
                if comm.rank() + 1 == ranks {
                    assert_eq!(
                        inclusive, total,
                        "{ranks} ranks, {arrangement:?}: the last one's is the total"
                    );
                }
                let both = inclusive.into_iter().chain(exclusive);
                both.map(f32::to_bits).collect::<Vec<_>>()
            });
            seen.push((arrangement, results));
        }
        for (arrangement, results) in &seen {
            assert_eq!(*results, seen[0].1, "{ranks} ranks: {arrangement:?} differs from {:?}", seen[0].0);
        }
    }
}

/// The same for long calls, in which ranks share the reduction.
#[test]
fn canonical_results_of_long_calls_depend_on_nothing_either() {
    for (ranks, count) in [(3, 20_003), (4, 400_003), (5, 70_001)] {
        let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
        for arrangement in Arrangement::ALL {
            let results = arrangement.run_with(ranks, canonical, |comm| {
                let value = |i: usize| 1.0_f32 / (1.0 + (i as f32) + 7.0 * comm.rank() as f32);
                let input: Vec<f32> = (0..count).map(value).collect();
                let (mut data, mut output) = (input.clone(), vec![0.0_f32; count]);
                comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                comm.all_reduce_into(&input, &mut output, ReduceOp::Sum).unwrap();
                assert!(data == output, "in place and not, rank {}", comm.rank());
                data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            seen.extend(results.into_iter().map(|bits| (format!("{arrangement:?}"), bits)));
        }
        for (name, bits) in &seen {
            assert!(*bits == seen[0].1, "{ranks} ranks: {name} differs from {}", seen[0].0);
        }
    }
}

/// In one shot or two, ranks of a host compute the same sums in the same order.
#[test]
fn shots_do_not_change_results() {
    fn check<T: kolo::Element + PartialEq + std::fmt::Debug>(
        ranks: u32,
        counts: &[usize],
        value: fn(usize) -> T,
    ) {
        let results = |one_shot_bytes| {
            let change = move |mut config: kolo::Config| {
                config.one_shot_bytes = Some(one_shot_bytes);
                config
            };
            Arrangement::Exchange.run_with(ranks, change, |comm| {
                let sum = |count: &usize| {
                    let mut data: Vec<T> = (0..*count).map(|i| value(i * 7 + comm.rank() as usize)).collect();
                    comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    data
                };
                counts.iter().map(sum).collect::<Vec<_>>()
            })
        };
        assert!(results(0) == results(usize::MAX), "{ranks} ranks");
    }
    for ranks in [3, 4, 5, 8] {
        check(ranks, &[1, 2, 31, 33, 257, 1000, 8191, 20_000], |i| 1.0_f32 / (1.0 + i as f32));
        check(ranks, &[1, 3, 127, 129, 5003], |i| i as u8);
        check(ranks, &[1, 17, 2049], |i| 1.0_f64 / (3.0 + i as f64));
    }
}

#[test]
fn v_forms() {
    for arrangement in Arrangement::ALL {
        for ranks in 1..=5_u32 {
            arrangement.run(ranks, |comm| {
                let (me, p) = (comm.rank() as usize, ranks as usize);
                // Blocks of no elements, of a few and of many.
                let count = |from: usize, to: usize| match (from * 3 + to) % 4 {
                    0 => 0,
                    1 => 40_000,
                    n => n * 5 + from,
                };
                let value = |from: usize, to: usize, i: usize| (from * 1_000_000 + to * 100_000 + i) as u64;
                let counts: Vec<usize> = (0..p).map(|r| count(r, 0)).collect();
                let mine: Vec<u64> = (0..counts[me]).map(|i| value(me, 0, i)).collect();
                let all: Vec<u64> =
                    (0..p).flat_map(|r| (0..counts[r]).map(move |i| value(r, 0, i))).collect();
                let mut gathered = vec![0; all.len()];
                comm.all_gather_v(&mine, &mut gathered, &counts).unwrap();
                assert!(gathered == all);
                for root in [0, ranks - 1] {
                    let at_root = comm.rank() == root;
                    let mut gathered = vec![0; if at_root { all.len() } else { 0 }];
                    comm.gather_v(&mine, &mut gathered, &counts, root).unwrap();
                    assert!(!at_root || gathered == all);
                    let mut part = vec![0; counts[me]];
                    comm.scatter_v(if at_root { &all } else { &[] }, &mut part, &counts, root).unwrap();
                    assert!(part == mine);
                }
                let mut part = vec![0; counts[me]];
                comm.reduce_scatter_v(&all, &mut part, &counts, ReduceOp::Sum).unwrap();
                assert!(part.iter().zip(&mine).all(|(sum, one)| *sum == one * u64::from(ranks)));
                let send_counts: Vec<usize> = (0..p).map(|to| count(me, to)).collect();
                let recv_counts: Vec<usize> = (0..p).map(|from| count(from, me)).collect();
                let send: Vec<u64> =
                    (0..p).flat_map(|to| (0..count(me, to)).map(move |i| value(me, to, i))).collect();
                let want: Vec<u64> =
                    (0..p).flat_map(|from| (0..count(from, me)).map(move |i| value(from, me, i))).collect();
                let mut received = vec![0; want.len()];
                comm.all_to_all_v(&send, &send_counts, &mut received, &recv_counts).unwrap();
                assert!(received == want);
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls(
        ranks in 1_u32..=9,
        arrangement in 0_usize..4,
        calls in proptest::collection::vec(
            (0_usize..11, 0_usize..11, 0_usize..12, 0_usize..3000, 0_u32..9, any::<bool>()), 1..12),
    ) {
        let cases: Vec<Case> = calls
            .into_iter()
            .map(|(collective, data_type, op, count, root, in_place)| {
                let data_type = DataType::ALL[data_type];
                let collective = Collective::ALL[collective];
                let op = ReduceOp::ALL[op];
                let op = if is_defined(collective, op, data_type) { op } else { ReduceOp::Sum };
                Case { collective, data_type, op, count, root: root % ranks, in_place }
            })
            .collect();
        Arrangement::ALL[arrangement].run(ranks, |comm| run_all(&comm, &cases));
    }
}
