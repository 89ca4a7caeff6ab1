//! Calls inside a host whose ranks have a processor each, which are cut at other lengths than where ranks share
//! processors.

use kolo::{Cluster, Collective, Communicator, Config, DataType, RawCall, ReduceOp};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const RANKS: u32 = 3;

/// Returns sets of processors that all differ, so that no two ranks share the same ones; `None` if there are too few.
fn masks() -> Option<[CpuSet; RANKS as usize]> {
    let all = sched_getaffinity(None).ok()?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor));
    let of = |processors: &[usize]| {
        let mut set = CpuSet::new();
        processors.iter().for_each(|processor| set.set(*processor));
        set
    };
    let (first, second) = (usable.next()?, usable.next()?);
    Some([of(&[first]), of(&[second]), of(&[first, second])])
}

/// Returns the words in which the communicator describes the path of a call on `bytes` bytes.
fn path(comm: &Communicator, collective: Collective, bytes: usize) -> String {
    let mut buffer = vec![0_u8; bytes];
    let call = RawCall {
        collective,
        input: buffer.as_ptr(),
        output: buffer.as_mut_ptr(),
        count: bytes / 4,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: 0,
    };
    comm.explain(&call).expect("a valid call").to_string()
}

fn check(comm: &Communicator) {
    let described = path(comm, Collective::Broadcast, 256 << 10);
    assert!(described.contains("in 8 exchanges"), "{described}");
    let described = path(comm, Collective::AllReduce, 26 << 10);
    assert!(described.contains("in 2 exchanges"), "{described}");
    let value = |rank: u32, call: usize, at: usize| (at * 7 + call * 31) as u32 ^ (rank << 28);
    // Lengths on both sides of each limit, and some that divide by nothing.
    for (call, elements) in
        [1, 2047, 2049, 6143, 6145, 8192, 8193, 30_011, 262_144, 262_145].into_iter().enumerate()
    {
        for root in 0..RANKS {
            let mut data: Vec<u32> = (0..elements).map(|at| value(comm.rank(), call, at)).collect();
            comm.broadcast(&mut data, root).unwrap();
            assert!(
                data.iter().enumerate().all(|(at, got)| *got == value(root, call, at)),
                "{elements} from {root}"
            );
        }
        let mut data: Vec<u32> = (0..elements).map(|at| value(comm.rank(), call, at)).collect();
        comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        let sum = |at| (0..RANKS).fold(0_u32, |sum, rank| sum.wrapping_add(value(rank, call, at)));
        assert!(data.iter().enumerate().all(|(at, got)| *got == sum(at)), "sum of {elements}");
    }
}

#[test]
fn calls_are_cut_elsewhere_and_results_are_the_same() {
    let Some(masks) = masks() else {
        println!("skipped: fewer than 2 processors");
        return;
    };
    let config = |rank: u32| {
        sched_setaffinity(None, &masks[rank as usize]).expect("a subset of the allowed processors");
        Config::default()
    };
    Cluster::with_configs(RANKS, config, |comm| check(&comm)).expect("the ranks join");
}
