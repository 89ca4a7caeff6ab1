//! Symmetric buffers: the symmetric path gives the same results as every other path, ends in the same way, and leaves
//! nothing behind.

use std::time::{Duration, Instant};

use kolo::{Collective, Communicator, Config, DataType, Error, RawCall, ReduceOp, SymmetricBuffer};
use kolo_tests::arrangement::{Arrangement, canonical};
use kolo_tests::processes::{Job, environment};
use kolo_tests::reference::{Case, is_defined, reduces};
use kolo_tests::watchdog::{Gate, bounded, within};

/// Collectives that the symmetric path serves.
const SERVED: [Collective; 7] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Scatter,
    Collective::AllToAll,
];

/// Elements of a vector long enough for the symmetric path in every type: an odd number, and not whole pages.
const LONG: usize = 20_011;

/// Lets calls of any length take the symmetric path.
fn any_length(mut config: Config) -> Config {
    config.symmetric_bytes = Some(0);
    config
}

/// Returns the explanation of an all-reduce in place on some memory.
fn explained(comm: &Communicator, memory: &mut [u8]) -> String {
    let at = memory.as_mut_ptr();
    let call = RawCall {
        collective: Collective::AllReduce,
        input: at,
        output: at,
        count: memory.len(),
        data_type: DataType::U8,
        op: ReduceOp::Sum,
        root: 0,
    };
    comm.explain(&call).unwrap()
}

/// Runs cases in two symmetric buffers, at offsets that differ by rank; returns how many took the symmetric path.
fn run_all(comm: &Communicator, cases: &[Case], spread: usize) -> usize {
    let longest = cases.iter().map(|case| {
        let (input, output) = case.bytes(comm);
        // In some collectives the root has more data than the others.
        input.max(output).max(case.count * case.data_type.size() * comm.world_size() as usize)
    });
    let room = longest.max().unwrap_or(0) + 9 * spread + 64;
    let (mut inputs, mut outputs): (SymmetricBuffer<u8>, SymmetricBuffer<u8>) =
        (comm.alloc(room).unwrap(), comm.alloc_raw(room).unwrap());
    let mut direct = 0;
    for (i, case) in cases.iter().enumerate() {
        let (input, output) = case.bytes(comm);
        let (from, to) = (spread * comm.rank() as usize, spread * ((comm.rank() as usize + i) % 9));
        outputs.fill(0x77);
        let wrong = case
            .run_in(comm, &mut inputs[from..from + input], &mut outputs[to..to + output])
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        assert_eq!(wrong, 0, "{case:?} on rank {} of {}", comm.rank(), comm.world_size());
        let spilt = outputs[..to].iter().chain(&outputs[to + output..]).any(|byte| *byte != 0x77);
        assert!(!spilt, "{case:?} wrote beside its output");
        direct += usize::from(explained(comm, &mut outputs).contains("such call: each"));
    }
    direct
}

#[test]
fn every_served_collective_from_1_to_9_ranks() {
    for ranks in 1..=9 {
        let mut cases = Vec::new();
        for collective in SERVED {
            for in_place in [false, true] {
                for root in [0, ranks - 1] {
                    // One block of all, or a vector, is long enough.
                    let data_type = DataType::ALL[cases.len() % DataType::ALL.len()];
                    let op = ReduceOp::Sum;
                    cases.push(Case { collective, data_type, op, count: LONG, root, in_place });
                }
            }
        }
        let short: Vec<Case> =
            cases.iter().flat_map(|case| [0, 1, 1031].map(|count| Case { count, ..*case })).collect();
        for cases in [cases, short] {
            for spread in [0, 8, 4096] {
                let direct =
                    Arrangement::Exchange.run_with(ranks, any_length, |comm| run_all(&comm, &cases, spread));
                // All cases but all-to-all in place.
                let expected = if ranks == 1 { 0 } else { cases.len() / 14 * 13 };
                assert!(direct.iter().all(|n| *n == expected), "{ranks} ranks: {direct:?} of {expected}");
            }
        }
    }
}

#[test]
fn every_type_with_every_operator_at_odd_addresses() {
    let mut cases = Vec::new();
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            let fit = |c: &Collective| reduces(*c) && is_defined(*c, op, data_type);
            for collective in SERVED.into_iter().filter(fit) {
                let in_place = cases.len() % 2 == 0;
                cases.push(Case { collective, data_type, op, count: LONG, root: 1, in_place });
            }
        }
    }
    for ranks in [2, 5] {
        for spread in [0, 13] {
            let direct =
                Arrangement::Exchange.run_with(ranks, any_length, |comm| run_all(&comm, &cases, spread));
            assert!(direct.iter().all(|n| *n == cases.len()), "{direct:?} of {}", cases.len());
        }
    }
}

/// Fills data with values whose sum depends on the order.
fn rough(comm: &Communicator, data: &mut [f32]) {
    for (i, value) in data.iter_mut().enumerate() {
        *value = 1.0 / (1.0 + (i as f32) + 7.0 * comm.rank() as f32);
    }
}

#[test]
fn canonical_results_are_those_of_every_other_path() {
    for ranks in [2, 3, 6, 8] {
        let sums = |arrangement: Arrangement, is_symmetric: bool| {
            arrangement.run_with(ranks, canonical, |comm| {
                let mut symmetric = comm.alloc::<f32>(LONG).unwrap();
                let mut private = vec![0.0; LONG];
                let data = if is_symmetric { &mut symmetric[..] } else { &mut private[..] };
                rough(&comm, data);
                comm.all_reduce(data, ReduceOp::Sum).unwrap();
                data.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            })
        };
        let want = sums(Arrangement::Tcp, false);
        assert!(sums(Arrangement::Exchange, true) == want, "{ranks} ranks, direct");
        assert!(sums(Arrangement::Exchange, false) == want, "{ranks} ranks, private");
        assert!(sums(Arrangement::Hosts(2), true) == want, "{ranks} ranks, several hosts");
    }
}

/// The plan on windows gives the same bits as private memory if both reduce along the canonical tree: for each
/// reduction and any length.
#[test]
fn canonical_bits_are_those_of_private_memory() {
    let canonical_of_any_length = |config| any_length(canonical(config));
    for ranks in [2, 3, 5, 7, 8] {
        Arrangement::Exchange.run_with(ranks, canonical_of_any_length, |comm| {
            let all = ranks as usize;
            for collective in [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter] {
                for (count, in_place, root) in
                    [(1, false, 0), (700, true, 1), (1031, false, 1), (LONG, true, 0)]
                {
                    let (mut symmetric, mut private) =
                        (comm.alloc::<f32>(2 * all * count).unwrap(), vec![0.0; 2 * all * count]);
                    let bits = [&mut symmetric[..], &mut private[..]]
                        .map(|memory| reduced(&comm, collective, memory, (count, in_place, root)).unwrap());
                    let case = format!("{collective} of {count} on rank {} of {ranks}", comm.rank());
                    assert!(bits[0] == bits[1], "{case}, in place {in_place}");
                }
            }
        });
    }
}

/// Returns the bits of a rank's reduction of such values in some memory.
fn reduced(
    comm: &Communicator,
    collective: Collective,
    memory: &mut [f32],
    (count, in_place, root): (usize, bool, u32),
) -> kolo::Result<Vec<u32>> {
    let blocks = if collective == Collective::ReduceScatter { comm.world_size() as usize } else { 1 };
    let (input, output) = memory.split_at_mut(blocks * count);
    rough(comm, input);
    let result = &mut output[..count];
    match collective {
        Collective::AllReduce if in_place => {
            comm.all_reduce(input, ReduceOp::Sum)?;
            result.copy_from_slice(input);
        }
        Collective::AllReduce => comm.all_reduce_into(input, result, ReduceOp::Sum)?,
        Collective::Reduce => comm.reduce(input, result, ReduceOp::Sum, root)?,
        _ => comm.reduce_scatter(input, result, ReduceOp::Sum)?,
    }
    let has_result = collective != Collective::Reduce || comm.rank() == root;
    Ok(if has_result { result.iter().map(|value| value.to_bits()).collect() } else { Vec::new() })
}

#[test]
fn the_plan_can_be_asked_for() {
    let forced = |algorithms: &'static str| {
        move |mut config: Config| {
            config.algorithms = algorithms.to_owned();
            config
        }
    };
    // If named for a collective, the algorithm must serve it at any length.
    Arrangement::Exchange.run_with(3, forced("all_reduce:window"), |comm| {
        let (mut symmetric, mut private) = (comm.alloc::<u32>(8).unwrap(), [1_u32; 8]);
        symmetric.fill(1);
        comm.all_reduce(&mut symmetric, ReduceOp::Sum).unwrap();
        assert!(symmetric.iter().all(|value| *value == 3));
        let said = explained(&comm, &mut comm.alloc_raw(8).unwrap());
        assert!(
            said.starts_with("symmetric: by window") && said.contains("such call: each rank reduces"),
            "{said}"
        );
        let error = comm.all_reduce(&mut private, ReduceOp::Sum).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}");
        assert!(text.contains("window was requested") && text.contains("Communicator::alloc"), "{text}");
        assert_eq!(private, [1; 8]);
        // All ranks fail alike, and keep working.
        comm.broadcast(&mut private, 0).unwrap();
        comm.all_reduce(&mut symmetric, ReduceOp::Sum).unwrap();
        assert!(symmetric.iter().all(|value| *value == 9));
    });
    // If named for no collective, the algorithm is used where it can serve.
    for algorithms in ["window", "window,ring"] {
        Arrangement::Exchange.run_with(3, forced(algorithms), |comm| {
            let (mut symmetric, mut private) = (comm.alloc::<u32>(8).unwrap(), [1_u32; 8]);
            symmetric.fill(1);
            comm.all_reduce(&mut symmetric, ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut private, ReduceOp::Sum).unwrap();
            assert!(symmetric.iter().chain(&private).all(|value| *value == 3));
            comm.all_reduce(&mut symmetric, ReduceOp::Sum).unwrap();
            let said = explained(&comm, &mut comm.alloc_raw(8).unwrap());
            assert!(said.contains("such call: each rank reduces"), "{said}");
            comm.barrier().unwrap();
        });
    }
    // The first name in the list has priority.
    Arrangement::Exchange.run_with(2, forced("ring,window"), |comm| {
        let mut symmetric = comm.alloc::<u32>(LONG).unwrap();
        symmetric.fill(1);
        comm.all_reduce(&mut symmetric, ReduceOp::Sum).unwrap();
        assert!(symmetric.iter().all(|value| *value == 2));
        let said = explained(&comm, &mut comm.alloc_raw(LONG).unwrap());
        assert!(said.starts_with("not symmetric: KOLO_ALGO names"), "{said}");
    });
}

#[test]
fn all_take_another_way_if_one_has_private_memory() {
    Arrangement::Exchange.run_with(3, any_length, |comm| {
        let mut symmetric = comm.alloc::<u32>(LONG).unwrap();
        for odd_one in 0..4 {
            let mut private = vec![0; LONG];
            let data = if comm.rank() == odd_one { &mut private[..] } else { &mut symmetric[..] };
            data.fill(comm.rank() + 1);
            comm.all_reduce(data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|value| *value == 6));
            let mut bytes = comm.alloc_raw(LONG).unwrap();
            let said = explained(&comm, &mut bytes);
            if odd_one < 3 {
                assert!(
                    said.contains(&format!("rank {odd_one}'s input is not in a symmetric buffer")),
                    "{said}"
                );
            } else {
                assert!(said.contains("each rank reduces a slice"), "{said}");
            }
            let said = explained(&comm, &mut vec![0; LONG]);
            assert!(said.starts_with("not symmetric: the input is not in a symmetric buffer"), "{said}");
        }
    });
}

#[test]
fn two_communicators_and_a_split() {
    Arrangement::Exchange.run(4, |comm| {
        let part = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
        let (mut of_all, mut of_part) = (comm.alloc::<u64>(LONG).unwrap(), part.alloc::<u64>(LONG).unwrap());
        for _ in 0..3 {
            of_all.fill(u64::from(comm.rank()));
            of_part.fill(u64::from(comm.rank()));
            comm.all_reduce(&mut of_all, ReduceOp::Sum).unwrap();
            part.all_reduce(&mut of_part, ReduceOp::Sum).unwrap();
            assert!(of_all.iter().all(|value| *value == 6));
            assert!(of_part.iter().all(|value| *value == if comm.rank() % 2 == 0 { 2 } else { 4 }));
            // Memory of another communicator is private memory for this one.
            of_part.fill(1);
            comm.all_reduce(&mut of_part, ReduceOp::Sum).unwrap();
            assert!(of_part.iter().all(|value| *value == 4));
        }
    });
}

#[test]
fn buffers_outlive_the_communicator_and_work_everywhere() {
    for arrangement in Arrangement::ALL {
        let buffers = arrangement.run(3, |comm| {
            let mut data = comm.alloc::<i32>(LONG).unwrap();
            assert!(data.iter().all(|value| *value == 0));
            data.fill(2);
            comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            comm.scope(|scope| scope.all_reduce(&mut data, ReduceOp::Max)).unwrap();
            let empty = comm.alloc::<f64>(0).unwrap();
            assert!(empty.is_empty());
            data
        });
        assert!(buffers.iter().all(|data| data.iter().all(|value| *value == 6)), "{arrangement:?}");
    }
}

#[test]
fn different_sizes_are_refused_and_nothing_is_lost() {
    Arrangement::Exchange.run(3, |comm| {
        let error = comm.alloc::<u8>(1000 + usize::from(comm.rank() == 1)).unwrap_err();
        assert!(matches!(error, Error::Usage { .. }), "{error}");
        assert!(error.to_string().contains("1001"), "{error}");
        assert!(comm.alloc::<u64>(usize::MAX / 4).is_err());
        // One rank's size makes no sense: all hear of it, and their next calls match.
        let size = if comm.rank() == 0 { usize::MAX } else { 64 };
        let error = comm.alloc::<u8>(size).unwrap_err();
        assert!(matches!(error, Error::Usage { .. }), "{error}");
        assert_eq!(comm.alloc::<u8>(1000).unwrap().len(), 1000);
        comm.barrier().unwrap();
    });
}

#[test]
fn memory_comes_back() {
    within(Duration::from_secs(50), "allocations", || {
        let bytes = 4 << 20;
        let program = env!("CARGO_BIN_EXE_kolo_rank");
        let settings = |rank| environment(Arrangement::Exchange, rank);
        let mut job = Job::start(program, 2, 2, &["allocate", &bytes.to_string()], settings);
        for rank in &mut job.ranks {
            let line = rank.expect("@memory ");
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            let [before, mappings_before, after, mappings_after] = numbers[..] else { panic!("{line}") };
            assert!(after <= before + bytes / 2, "{line}");
            assert!(mappings_after <= mappings_before, "{line}");
        }
        assert!(job.ended().iter().all(|ended| *ended));
    });
}

/// Makes calls that the ranks of a communicator make at the same time, and that do not match.
fn clash(name: &'static str, call: fn(&Communicator, &mut [i32]) -> kolo::Result<()>) {
    bounded(name, move || {
        let results = Arrangement::Exchange.run(3, |comm| {
            let mut data = comm.alloc::<i32>(LONG).unwrap();
            let begin = Instant::now();
            let result = call(&comm, &mut data).and_then(|()| comm.barrier());
            (result, begin.elapsed())
        });
        for (rank, (result, took)) in results.into_iter().enumerate() {
            let error = result.expect_err("they do not match");
            // An uninvolved rank learns of the mismatch, too.
            let is_told = matches!(error, Error::Mismatch { .. } | Error::Aborted { .. });
            assert!(is_told && error.to_string().contains(" called "), "{name}, rank {rank}: {error}");
            assert!(took < Duration::from_secs(10), "{name}, rank {rank}: {took:?}");
        }
    });
}

#[test]
fn calls_that_do_not_match_are_noticed() {
    clash("lengths", |comm, data| comm.all_reduce(&mut data[usize::from(comm.rank() == 2)..], ReduceOp::Sum));
    clash("operators", |comm, data| {
        comm.all_reduce(data, if comm.rank() == 1 { ReduceOp::Min } else { ReduceOp::Max })
    });
    clash("collectives", |comm, data| {
        if comm.rank() == 0 { comm.all_reduce(data, ReduceOp::Sum) } else { comm.broadcast(data, 1) }
    });
    clash("long and short", |comm, data| {
        let len = if comm.rank() == 0 { LONG } else { 10 };
        comm.all_reduce(&mut data[..len], ReduceOp::Sum)
    });
    clash("blocking and not", |comm, data| {
        if comm.rank() > 0 {
            return comm.all_reduce(data, ReduceOp::Sum);
        }
        comm.scope(|scope| scope.all_reduce(data, ReduceOp::Sum))
    });
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_until_the_deadline() {
    let short = |mut config: Config| {
        config.timeout = Duration::from_secs(3);
        config
    };
    let gate = Gate::new(3);
    let errors = Arrangement::Exchange.run_with(3, short, |comm| {
        let mut data = comm.alloc::<i32>(LONG).unwrap();
        data.fill(7);
        let is_late = comm.rank() == 0;
        if is_late {
            gate.wait(); // the others have given up
        }
        let begin = Instant::now();
        let result = comm.all_reduce(&mut data, ReduceOp::Sum);
        assert!(begin.elapsed() < Duration::from_secs(10));
        // The buffer belongs to the caller again, whatever the late rank does afterwards.
        data.fill(3);
        if !is_late {
            gate.wait();
        }
        gate.wait(); // the late call is over
        comm.abort("over");
        drop(comm);
        assert!(data.iter().all(|value| *value == 3));
        result.unwrap_err()
    });
    assert!(errors.iter().any(|error| matches!(error, Error::Timeout { .. })), "{errors:?}");
}
