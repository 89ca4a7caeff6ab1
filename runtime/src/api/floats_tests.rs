//! Ranks whose threads treat subnormals differently get the same bits.

use super::Communicator;
use super::cluster::Cluster;
use crate::config::{Config, Determinism, TransportKind, Transports};
use crate::reduce::flush_subnormals;
use crate::types::ReduceOp;

/// Subnormal numbers, which a rank with another mode would take for zero, or write as zero.
fn subnormals(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| f32::from_bits(1 + rank * 1000 + 7 * i as u32)).collect()
}

/// Two ranks, of which the second flushes subnormals, and whose `results` must be the sums.
fn one_flushes(
    name: &str,
    config: &Config,
    count: usize,
    results: impl Fn(&Communicator) -> Vec<Vec<f32>> + Sync,
) {
    let sums: Vec<u32> = (0..count).map(|i| 2 + 1000 + 14 * i as u32).collect();
    let bits = Cluster::with_config(2, config, |comm| {
        if comm.rank() == 1 {
            flush_subnormals();
        }
        let results = results(&comm);
        comm.barrier().expect("works");
        results.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
    });
    let bits: Vec<Vec<Vec<u32>>> = bits.expect("the cluster");
    for (rank, results) in bits.iter().enumerate() {
        for result in results {
            assert!(*result == sums, "{name}: rank {rank} of {count} elements: {:?}", &result[..4]);
        }
    }
}

fn over(transport: TransportKind) -> Config {
    Config { transports: Transports::Only(vec![transport]), ..Config::default() }
}

#[test]
fn a_rank_that_flushes_subnormals_gets_the_bits_of_the_others() {
    let plans = Config { exchange_bytes: Some(0), ..over(TransportKind::Shm) };
    let ways = [("exchange", over(TransportKind::Shm)), ("plans", plans), ("tcp", over(TransportKind::Tcp))];
    for (name, config) in ways {
        for count in [5, 40_000] {
            one_flushes(name, &config, count, |comm| {
                let mut blocking = subnormals(comm.rank(), count);
                comm.all_reduce(&mut blocking, ReduceOp::Sum).expect("works");
                let work =
                    comm.all_reduce_start(subnormals(comm.rank(), count), ReduceOp::Sum).expect("starts");
                let started = work.wait().expect("works");
                // A factor of 1 scales, which is arithmetic too.
                let mut scaled = subnormals(comm.rank(), count);
                comm.all_reduce(&mut scaled, ReduceOp::PremulSum(1.0)).expect("works");
                vec![blocking, started, scaled]
            });
        }
    }
}

#[test]
fn so_does_one_with_symmetric_buffers() {
    let config = Config { symmetric_bytes: Some(0), ..over(TransportKind::Shm) };
    let count = 40_000;
    one_flushes("symmetric", &config, count, |comm| {
        let mut buffer = comm.alloc::<f32>(count).expect("memory");
        buffer.copy_from_slice(&subnormals(comm.rank(), count));
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("works");
        vec![buffer.to_vec()]
    });
}

#[test]
fn so_does_one_that_folds_its_own_shards() {
    let config = Config { determinism: Determinism::Canonical, ..over(TransportKind::Shm) };
    one_flushes("shards", &config, 100, |comm| {
        // Each rank's second shard adds nothing, and is added all the same.
        let mut input = subnormals(comm.rank(), 100);
        input.resize(200, 0.0);
        let mut output = vec![0.0; 100];
        comm.all_reduce_shards(&input, &mut output, 4, ReduceOp::Sum).expect("works");
        vec![output]
    });
}
