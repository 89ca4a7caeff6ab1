//! All-reduces of which a rank has noticed busy processes beside it: one exchange instead of two, with the same bits.

use std::time::{Duration, Instant};

use super::Communicator;
use super::cluster::Cluster;
use crate::config::{Config, TransportKind, Transports};
use crate::error::Result;
use crate::types::ReduceOp;

const RANKS: u32 = 4;

/// Returns values whose sum depends on the order of the ranks.
fn values(rank: u32, count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| 1e-3 * (i * 7919 % 1009) as f32 * 10_f32.powi((rank as i32 + i as i32) % 7))
        .collect()
}

/// Runs the calls, and returns their results.
fn results(comm: &Communicator, count: usize, notice: impl Fn()) -> Result<Vec<Vec<u32>>> {
    let mut results = Vec::new();
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PremulSum(0.3), ReduceOp::Max] {
        let input = values(comm.rank(), count);
        let mut output = vec![0.0; count];
        notice();
        comm.all_reduce_into(&input, &mut output, op)?;
        let mut in_place = input;
        notice();
        comm.all_reduce(&mut in_place, op)?;
        for result in [output, in_place] {
            results.push(result.into_iter().map(f32::to_bits).collect());
        }
    }
    Ok(results)
}

#[test]
fn beside_busy_processes_all_ranks_reduce_at_once_with_the_same_bits() -> Result<()> {
    let transports = Transports::Only(vec![TransportKind::Shm]);
    let config = Config { transports, timeout: Duration::from_secs(20), ..Config::default() };
    let rank = |comm: Communicator| -> Result<()> {
        let note = |until: Option<Instant>| {
            let mut core = comm.shared.core();
            core.exchange.as_mut().expect("ranks of a host have one").compiled.note_others(until);
        };
        let exchanges =
            || comm.shared.core().exchange.as_ref().expect("it is there").compiled.exchanges_made();
        for count in [10_000, 60_001, 120_000, 200_000] {
            let alone = exchanges();
            let expected = results(&comm, count, || note(None))?;
            let one_notices = exchanges();
            let later = Instant::now() + Duration::from_secs(600);
            let found = results(&comm, count, || note((comm.rank() == 2).then_some(later)))?;
            assert!(found == expected, "{count} elements");
            // The longest vector is not reduced by every rank.
            let share = if count < 200_000 { 2 } else { 1 };
            let (all, fewer) = (one_notices - alone, exchanges() - one_notices);
            assert_eq!(all, share * fewer, "{count} elements: {all} exchanges, and {fewer}");
        }
        Ok(())
    };
    Cluster::with_config(RANKS, &config, rank)?.into_iter().collect()
}
