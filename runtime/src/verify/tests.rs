//! Reductions in random orders and trees give the expected bits, and any mistake gives others.

use super::{PERIOD, Problem, count_wrong, count_wrong_bytes, fill_bytes};
use crate::reduce::{divide, kernel, scale};
use crate::types::{DataType, ReduceOp};

fn supported() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let all = DataType::ALL.into_iter().flat_map(|data_type| ReduceOp::ALL.map(|op| (data_type, op)));
    all.filter(|(data_type, op)| op.supports(*data_type))
}

/// A fixed stream of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Returns a rank's contribution after `PremulSum`'s factor.
fn contribution(problem: Problem, rank: u32, offset: u64, count: usize) -> Vec<u8> {
    let data_type = problem.data_type;
    let mut values = vec![0; count * data_type.size()];
    problem.fill(rank, offset, &mut values);
    if let ReduceOp::PremulSum(factor) = problem.op_of(rank) {
        let buffer = values.as_mut_ptr();
        // SAFETY: the buffer holds `count` elements.
        unsafe { scale(data_type, buffer, buffer, count, factor) };
    }
    values
}

/// Combines any two values at a time until one is left.
fn reduce_in_any_order(problem: Problem, mut values: Vec<Vec<u8>>, choices: &mut Choices) -> Vec<u8> {
    let kernel = kernel(problem.data_type, problem.op).unwrap();
    let ranks = values.len() as u32;
    while values.len() > 1 {
        let a = values.swap_remove(choices.below(values.len()));
        let at = choices.below(values.len());
        kernel.accumulate(&mut values[at], &a);
    }
    let mut result = values.pop().unwrap();
    if problem.op == ReduceOp::Avg {
        let count = result.len() / kernel.element_bytes();
        // SAFETY: the buffer holds `count` elements.
        unsafe { divide(problem.data_type, result.as_mut_ptr(), count, ranks) };
    }
    result
}

fn check(data_type: DataType, op: ReduceOp, world_size: u32, choices: &mut Choices) {
    let problem = Problem::new(data_type, op, world_size, choices.0).unwrap();
    // The range begins in the middle of a period and is longer than one.
    let (offset, count) = (choices.below(1 << 40) as u64, PERIOD + 100);
    let inputs: Vec<_> = (0..world_size).map(|rank| contribution(problem, rank, offset, count)).collect();
    let prefixes = [1, world_size / 2, world_size - 1, world_size];
    for ranks in prefixes.into_iter().filter(|&ranks| ranks > 0) {
        let got = reduce_in_any_order(problem, inputs[..ranks as usize].to_vec(), choices);
        if let Some(wrong) = problem.first_wrong(ranks, offset, &got) {
            panic!("{} of {data_type}, {ranks} of {world_size} ranks: {wrong:x?}", op.name());
        }
        assert_eq!(problem.count_wrong(ranks, offset, &got), 0);
    }
}

#[test]
fn any_order_gives_what_is_expected() {
    let mut choices = Choices(1);
    for (data_type, op) in supported() {
        for world_size in [1, 2, 3, 4, 5, 8, 13, 31, 64] {
            check(data_type, op, world_size, &mut choices);
        }
    }
}

#[test]
fn thousands_of_ranks_stay_exact() {
    let mut choices = Choices(2);
    for (data_type, op) in supported().filter(|(data_type, _)| data_type.is_float()) {
        for world_size in if cfg!(debug_assertions) { vec![300] } else { vec![1023, 4097] } {
            check(data_type, op, world_size, &mut choices);
        }
    }
}

#[test]
fn pieces_join_seamlessly() {
    for (data_type, op) in supported() {
        let problem = Problem::new(data_type, op, 5, 77).unwrap();
        let size = data_type.size();
        let count = 3 * PERIOD + 17;
        let (mut inputs, mut result) = (vec![0; count * size], vec![0; count * size]);
        problem.fill(3, 1000, &mut inputs);
        problem.expected(5, 1000, &mut result);
        for (at, length) in [(0, 1), (1, 2), (PERIOD - 1, 2), (100, 600), (count - 1, 1), (count, 0)] {
            let mut piece = vec![0; length * size];
            problem.fill(3, 1000 + at as u64, &mut piece);
            assert!(piece == inputs[at * size..][..length * size]);
            problem.expected(5, 1000 + at as u64, &mut piece);
            assert!(piece == result[at * size..][..length * size]);
        }
    }
}

#[test]
fn every_flipped_bit_is_counted() {
    for (data_type, op) in supported() {
        let problem = Problem::new(data_type, op, 4, 5).unwrap();
        let size = data_type.size();
        let mut got = vec![0; 600 * size];
        problem.expected(4, 9, &mut got);
        let want = got.clone();
        for (n, index) in [0, 1, 254, 255, 256, 599].into_iter().enumerate() {
            got[index * size + n % size] ^= 1 << n;
            assert_eq!(problem.count_wrong(4, 9, &got), n as u64 + 1);
            assert_eq!(count_wrong(data_type, &got, &want), n as u64 + 1);
        }
        assert_eq!(problem.first_wrong(4, 9, &got).unwrap().index, 9);
        assert_eq!(problem.first_wrong(4, 10, &got[size..]).unwrap().index, 10);
    }
}

/// Tries wrong ways of reducing, where the operator can tell: min, max, and, or do not notice a value that is counted
/// twice.
#[test]
fn mistakes_are_noticed() {
    let mut choices = Choices(3);
    for (data_type, op) in supported() {
        let forgets = matches!(
            op,
            ReduceOp::Min
                | ReduceOp::Max
                | ReduceOp::BitAnd
                | ReduceOp::BitOr
                | ReduceOp::LogicalAnd
                | ReduceOp::LogicalOr
        ) || (data_type == DataType::Bool
            && !matches!(op, ReduceOp::BitXor | ReduceOp::LogicalXor));
        for world_size in [2, 3, 8, 64] {
            // Another test covers averages over another number of ranks.
            let problem = Problem::new(data_type, op, world_size, 11).unwrap();
            let count = 2 * PERIOD;
            let inputs: Vec<_> = (0..world_size).map(|r| contribution(problem, r, 0, count)).collect();
            let mut wrong_of = |values: Vec<Vec<u8>>| {
                let got = reduce_in_any_order(problem, values, &mut choices);
                problem.count_wrong(world_size, 0, &got)
            };
            let what = format!("{} of {data_type}, {world_size} ranks", op.name());
            for rank in [0, world_size as usize - 1] {
                let mut lost = inputs.clone();
                lost.remove(rank);
                assert!(wrong_of(lost) > 0, "{what}: rank {rank} lost");
                let mut twice = inputs.clone();
                twice.push(inputs[rank].clone());
                assert!(forgets || wrong_of(twice) > 0, "{what}: rank {rank} twice");
                let mut moved = inputs.clone();
                moved[rank].rotate_left(data_type.size());
                assert!(wrong_of(moved) > 0, "{what}: rank {rank} from the next index");
            }
            // These values are all from another period, which has the same patterns.
            let shifted = (0..world_size).map(|r| contribution(problem, r, PERIOD as u64, count)).collect();
            assert!(wrong_of(shifted) > 0, "{what}: from the next period");
            let other = Problem::new(data_type, op, world_size, 12).unwrap();
            let stale = (0..world_size).map(|r| contribution(other, r, 0, count)).collect();
            assert!(wrong_of(stale) > 0, "{what}: of another seed");
        }
    }
}

#[test]
fn values_are_ordinary() {
    for (data_type, op) in supported() {
        for world_size in [1, 4, 1000] {
            let problem = Problem::new(data_type, op, world_size, 3).unwrap();
            let mut values = vec![0; 4 * PERIOD * data_type.size()];
            problem.fill(world_size - 1, 0, &mut values);
            let what = format!("{} of {data_type}, {world_size} ranks", op.name());
            let float = |bits: &[u8]| match data_type {
                DataType::F16 => half::f16::from_ne_bytes(bits.try_into().unwrap()).to_f64(),
                DataType::BF16 => half::bf16::from_ne_bytes(bits.try_into().unwrap()).to_f64(),
                DataType::F32 => f64::from(f32::from_ne_bytes(bits.try_into().unwrap())),
                DataType::F64 => f64::from_ne_bytes(bits.try_into().unwrap()),
                _ => 1.0,
            };
            assert!(values.chunks_exact(data_type.size()).all(|v| float(v).is_finite()), "{what}");
            assert!(data_type != DataType::Bool || values.iter().all(|&b| b <= 1), "{what}");
            let mut result = values.clone();
            problem.expected(world_size, 0, &mut result);
            let first = &result[..data_type.size()];
            // A byte that wraps and is divided by many ranks is 0.
            let vanishes = op == ReduceOp::Avg && data_type.size() == 1;
            let varies = result.chunks_exact(data_type.size()).any(|v| v != first);
            assert!(varies || vanishes, "{what}: all equal");
        }
    }
}

#[test]
fn bytes_differ_between_ranks_and_seeds() {
    let bytes = |seed, rank, offset, len| {
        let mut bytes = vec![0; len];
        fill_bytes(seed, rank, offset, &mut bytes);
        bytes
    };
    let all = bytes(1, 2, 5, 10_000);
    assert!(bytes(1, 2, 1005, 77) == all[1000..1077]);
    assert_eq!(count_wrong_bytes(1, 2, 5, &all), 0);
    for other in [bytes(2, 2, 5, 10_000), bytes(1, 3, 5, 10_000), bytes(1, 2, 6, 10_000), vec![0; 10_000]] {
        // One byte in 256 is equal by chance.
        assert!(count_wrong(DataType::U8, &other, &all) > 9_900);
    }
    let mut flipped = all;
    flipped[9_999] ^= 1;
    assert_eq!(count_wrong_bytes(1, 2, 5, &flipped), 1);
}
