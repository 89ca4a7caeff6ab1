//! Reductions over shards: the same bits for any number of ranks.

use half::{bf16, f16};
use kolo::{Collective, Communicator, DataType, Element, Error, RawCall, ReduceOp};
use kolo_tests::arrangement::{Arrangement, canonical};

/// Returns a number for one element of one shard; the sum of such numbers depends on the order.
fn value(shard: u32, i: usize) -> f64 {
    let sign = if (shard as usize + i).is_multiple_of(3) { -1.0 } else { 1.0 };
    sign / (1.0 + i as f64 + 7.0 * f64::from(shard)) * f64::from(1 + shard % 5)
}

/// Returns this rank's run of the shards.
fn own<T>(comm: &Communicator, shards: u32, count: usize, of: fn(f64) -> T) -> Vec<T> {
    comm.own_shards(shards).flat_map(|shard| (0..count).map(move |i| of(value(shard, i)))).collect()
}

/// An independent implementation of the canonical tree: pairs first, then halves.
fn tree(mut leaves: Vec<f32>) -> f32 {
    let extras = leaves.len() - (1 << leaves.len().ilog2());
    let paired: Vec<f32> = leaves[..2 * extras].chunks(2).map(|pair| pair[0] + pair[1]).collect();
    leaves.splice(..2 * extras, paired);
    while leaves.len() > 1 {
        leaves = leaves.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    leaves[0]
}

fn reduced<T: Element + PartialEq>(
    comm: &Communicator,
    shards: u32,
    count: usize,
    op: ReduceOp,
    of: fn(f64) -> T,
    zero: T,
) -> Vec<T> {
    let input = own(comm, shards, count, of);
    let before = input.clone();
    let mut output = vec![zero; count];
    comm.all_reduce_shards(&input, &mut output, shards, op).unwrap();
    assert!(input == before, "the input stays as it was");
    output
}

/// Returns the bits of sums and averages of all floating-point types, and of sums of integers.
fn bits(comm: &Communicator, shards: &[u32], counts: &[usize]) -> Vec<u64> {
    let mut bits = Vec::new();
    for (shards, count) in shards.iter().flat_map(|shards| counts.iter().map(|count| (*shards, *count))) {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            let halves = reduced(comm, shards, count, op, f16::from_f64, f16::ZERO);
            bits.extend(halves.into_iter().map(|x| u64::from(x.to_bits())));
            let halves = reduced(comm, shards, count, op, bf16::from_f64, bf16::ZERO);
            bits.extend(halves.into_iter().map(|x| u64::from(x.to_bits())));
            let singles = reduced(comm, shards, count, op, |x| x as f32, 0.0);
            bits.extend(singles.into_iter().map(|x| u64::from(x.to_bits())));
            bits.extend(reduced(comm, shards, count, op, |x| x, 0.0_f64).into_iter().map(f64::to_bits));
            let whole = reduced(comm, shards, count, op, |x| (x * 1e6) as i32, 0);
            bits.extend(whole.into_iter().map(|x| x as u64));
        }
    }
    bits
}

#[test]
fn the_bits_are_the_same_for_any_number_of_ranks() {
    let (shards, counts) = ([1, 5, 24, 64], [0, 1, 131]);
    let alone = Arrangement::Exchange.run(1, |comm| bits(&comm, &shards, &counts)).remove(0);
    for ranks in (1..=8).chain([16]) {
        for arrangement in Arrangement::ALL {
            for is_canonical in [false, true] {
                let change = |config| if is_canonical { canonical(config) } else { config };
                let results = arrangement.run_with(ranks, change, |comm| bits(&comm, &shards, &counts));
                for result in results {
                    assert!(result == alone, "{ranks} ranks, {arrangement:?}, canonical: {is_canonical}");
                }
            }
        }
    }
}

#[test]
fn the_bits_are_those_of_the_tree_over_the_shards() {
    for shards in [1, 2, 6, 12, 37, 64] {
        let leaves = |i: usize| (0..shards).map(move |shard| value(shard, i) as f32);
        let wanted: Vec<f32> = (0..999).map(|i| tree(leaves(i).collect())).collect();
        let in_order: Vec<f32> = (0..999).map(|i| leaves(i).sum()).collect();
        assert!(shards < 6 || wanted != in_order, "the order makes a difference");
        for ranks in [1, 3, 4, 6] {
            for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
                for config in [canonical, |config| config] {
                    let found = arrangement.run_with(ranks, config, |comm| {
                        reduced(&comm, shards, 999, ReduceOp::Sum, |x| x as f32, 0.0)
                    });
                    assert!(found.iter().all(|found| *found == wanted), "{ranks} ranks, {shards} shards");
                }
            }
        }
    }
}

#[test]
fn long_vectors_run_in_segments() {
    let (shards, count) = (12, 100_003);
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for ranks in [1, 2, 3, 5] {
        for arrangement in Arrangement::ALL {
            for segment in [None, Some(30_000)] {
                let change = |mut config: kolo::Config| {
                    config.segment_bytes = segment;
                    config
                };
                seen.extend(arrangement.run_with(ranks, change, |comm| {
                    reduced(&comm, shards, count, ReduceOp::Avg, |x| x as f32, 0.0)
                }));
            }
        }
    }
    assert!(seen.iter().all(|result| *result == seen[0]));
}

#[test]
fn either_form_may_be_asked_for_and_other_names_say_nothing_of_shards() {
    for algorithms in ["shards_one_shot", "all_reduce:shards_two_shot", "all_reduce:ring", "ring"] {
        let change = |mut config: kolo::Config| {
            config.algorithms = algorithms.to_owned();
            config
        };
        let results = Arrangement::Exchange.run_with(3, change, |comm| {
            let mut vector = vec![1.0_f32; 77];
            comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
            assert_eq!(vector, [3.0; 77]);
            reduced(&comm, 8, 77, ReduceOp::Sum, |x| x as f32, 0.0)
        });
        let wanted: Vec<f32> =
            (0..77).map(|i| tree((0..8).map(|shard| value(shard, i) as f32).collect())).collect();
        assert!(results.iter().all(|result| *result == wanted), "{algorithms}");
    }
}

#[test]
fn nonsense_is_refused_before_anything_is_sent() {
    Arrangement::Exchange.run(2, |comm| {
        let mut out = [0.0_f32; 4];
        let mut text = |input: &[f32], shards, op| {
            let error = comm.all_reduce_shards(input, &mut out, shards, op).unwrap_err();
            assert!(!error.is_fatal(), "{error}");
            error.to_string()
        };
        assert!(text(&[0.0; 8], 0, ReduceOp::Sum).contains("0 shards were given; 1 to 16384"));
        assert!(text(&[0.0; 8], 20_000, ReduceOp::Sum).contains("20000 shards were given"));
        let short = text(&[0.0; 11], 6, ReduceOp::Sum);
        assert!(short.contains("11 elements, but 12 are needed: shards"), "{short}");
        assert!(text(&[0.0; 8], 4, ReduceOp::PremulSum(2.0)).contains("scale them"));
        let mut memory = [0.0_f32; 12];
        let raw = RawCall {
            collective: Collective::AllReduce,
            input: memory.as_ptr().cast(),
            output: memory.as_mut_ptr().wrapping_add(4).cast(),
            count: 4,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            root: 0,
        };
        // SAFETY: it is refused, since the buffers overlap.
        let error = unsafe { comm.call_raw_shards(&raw, 6, None) }.unwrap_err().to_string();
        assert!(error.contains("with shards they must not overlap"), "{error}");
        let raw = RawCall { collective: Collective::Scan, ..raw };
        // SAFETY: it is refused.
        let error = unsafe { comm.call_raw_shards(&raw, 6, None) }.unwrap_err().to_string();
        assert!(error.contains("scan does not support shards"), "{error}");
        // The communicator is unaffected.
        comm.all_reduce_shards(&[1.0; 8], &mut out, 4, ReduceOp::Sum).unwrap();
        assert_eq!(out, [4.0; 4]);
    });
}

/// Both numbers suit two ranks, so both calls take the path of vectors.
#[test]
fn ranks_that_disagree_on_the_number_of_shards_are_told() {
    for change in [canonical, |config| config] {
        Arrangement::Exchange.run_with(2, change, |comm| {
            let shards = 4 + 4 * comm.rank();
            let mut out = [0.0_f32; 2];
            let input = vec![0.0; 2 * comm.own_shards(shards).len()];
            let error = comm.all_reduce_shards(&input, &mut out, shards, ReduceOp::Sum).unwrap_err();
            let text = error.to_string();
            let blamed = matches!(error, Error::Mismatch { .. } | Error::Aborted { .. });
            assert!(blamed && text.contains("4 shards") && text.contains("8 shards"), "{text}");
        });
    }
}
