//! Reductions of a single operand, as on one rank or for the first rank of a scan: the operand itself, as in MPI.

use super::Communicator;
use super::cluster::Cluster;
use crate::config::{Config, TransportKind, Transports};
use crate::types::ReduceOp;

/// Neither 0 nor 1, as a logical operator has for its result.
const VALUE: u8 = 4;

const LOGICAL: [ReduceOp; 3] = [ReduceOp::LogicalAnd, ReduceOp::LogicalOr, ReduceOp::LogicalXor];

/// Returns what becomes of equal values on all ranks.
fn of_all(call: impl Fn(&mut [u8])) -> [u8; 9] {
    let mut values = [VALUE; 9];
    call(&mut values);
    values
}

fn check(comm: &Communicator) {
    let (rank, ranks) = (comm.rank() as usize, comm.world_size() as usize);
    for op in LOGICAL {
        // For as many values other than 0 as there are operands.
        let result = |operands: usize| match (operands, op) {
            (1, _) => VALUE,
            (_, ReduceOp::LogicalXor) => (operands % 2) as u8,
            _ => 1,
        };
        let sums = of_all(|values| comm.all_reduce(values, op).expect("all come"));
        assert_eq!(sums, [result(ranks); 9], "{op:?}");
        let scanned = of_all(|values| comm.scan(values, op).expect("all come"));
        assert_eq!(scanned, [result(rank + 1); 9], "{op:?}, rank {rank}");
        let before = of_all(|values| comm.exscan(values, op).expect("all come"));
        if rank > 0 {
            assert_eq!(before, [result(rank); 9], "{op:?}, rank {rank}");
        }
    }
}

#[test]
fn every_way_of_a_call_leaves_a_single_operand_as_it_is() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        for exchange_bytes in [None, Some(0)] {
            let transports = Transports::Only(vec![transport]);
            let config = Config { transports, exchange_bytes, ..Config::default() };
            for ranks in 1..=3 {
                Cluster::with_config(ranks, &config, |comm| check(&comm)).expect("the cluster");
            }
        }
    }
}
