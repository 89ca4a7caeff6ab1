//! Mistakes of the caller: an error that names the remedy, and a communicator that keeps working.

use kolo::{
    Bool, Cluster, Collective, Communicator, Config, DataType, Determinism, Error, RawCall, ReduceOp, Result,
    TransportKind, Transports,
};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

/// Checks the error of a call that must be refused.
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("accepted, where {words:?} was wanted") };
    assert!(matches!(error, Error::Usage { .. }), "{error:?}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(!text.contains('\n'), "{text}");
}

fn mistakes(comm: &Communicator) {
    let (mut four, mut five) = ([0_i32; 4], [0_i32; 5]);
    let sum = ReduceOp::Sum;
    refused(comm.all_reduce_into(&four, &mut five, sum), &["all_reduce", "5 elements, but 4"]);
    refused(comm.all_gather(&four, &mut five), &["all_gather", "5 elements, but 12"]);
    refused(comm.all_gather_in_place(&mut five), &["cannot be cut into 3 equal blocks"]);
    refused(comm.reduce_scatter(&five, &mut four, sum), &["5 elements, but 12"]);
    refused(comm.all_to_all(&five, &mut four), &["4 elements, but 5"]);
    refused(comm.all_to_all(&four, &mut [0_i32; 4]), &["cannot be cut into 3"]);
    refused(comm.scan_into(&four, &mut five, sum), &["scan", "5 elements, but 4"]);
    refused(comm.broadcast(&mut four, 3), &["root 3 is out of range: ranks are 0 to 2"]);
    refused(comm.reduce(&five, &mut four, sum, 9), &["root 9"]);
    refused(comm.all_reduce(&mut [0.5_f32], ReduceOp::BitAnd), &["bit_and", "f32"]);
    refused(comm.all_reduce(&mut [Bool::from(true)], ReduceOp::Avg), &["avg", "bool"]);
    refused(comm.scan(&mut [0.5_f32], ReduceOp::Avg), &["avg", "prefixes"]);
    refused(comm.all_gather_v(&four, &mut five, &[4, 1]), &["all_gather", "2"]);
    refused(comm.send(&four, 3), &["send", "rank 3 is out of range"]);
    refused(comm.recv(&mut four, u32::MAX), &["recv", "out of range"]);
    refused(comm.group(&[0, 1, 2, 3]), &["group", "rank 3 is out of range"]);
    refused(comm.group(&[0, 1, 2, 1]), &["rank 1 is listed twice"]);
    refused(comm.group(&[(comm.rank() + 1) % 3]), &["this rank is not in the list"]);
    refused(comm.group(&[]), &["this rank is not in the list"]);
    refused(comm.reduce_scatter_start(vec![0_i32; 5], sum), &["reduce_scatter", "5 elements, but 3"]);
    refused(comm.all_to_all_start(vec![0_i32; 5]), &["all_to_all"]);
    refused(comm.broadcast_start(vec![0_i32; 5], 7), &["root 7"]);
    refused(comm.scope(|scope| scope.all_gather(&four, &mut five)), &["5 elements, but 12"]);
    raw_mistakes(comm);
    // None of these calls has affected the communicator.
    let mut one = [1_i32];
    comm.all_reduce(&mut one, sum).expect("as it was");
    assert_eq!(one, [3]);
    assert_eq!(comm.recent().len(), 1, "refused calls are not numbered");
}

fn raw_mistakes(comm: &Communicator) {
    let mut memory = [0_u8; 64];
    let good = RawCall {
        collective: Collective::AllReduce,
        input: memory.as_ptr(),
        output: memory.as_mut_ptr(),
        count: 8,
        data_type: DataType::F64,
        op: ReduceOp::Sum,
        root: 99,
    };
    let call = |change: &dyn Fn(&mut RawCall)| {
        let mut call = good;
        change(&mut call);
        // SAFETY: these are refused before any memory is touched.
        unsafe { comm.call_raw(&call) }
    };
    refused(call(&|call| call.input = std::ptr::null()), &["null"]);
    refused(call(&|call| call.output = std::ptr::null_mut()), &["null"]);
    refused(call(&|call| call.count = usize::MAX / 4), &["more than can be addressed"]);
    refused(call(&|call| (call.collective, call.root) = (Collective::Gather, 3)), &["root 3"]);
    assert!(comm.explain(&RawCall { count: usize::MAX, ..good }).is_err());
}

#[test]
fn mistakes_are_refused_and_harm_nothing() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(3, |comm| mistakes(&comm));
        });
    }
}

#[test]
fn a_mistake_in_a_batch_sends_nothing_of_it() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(2, |comm| {
                let peer = 1 - comm.rank();
                refused(comm.batch().send(&[1_u8; 3], peer).send(&[1_u8; 3], 2).run(), &["rank 2"]);
                let mut got = [0_u8; 5];
                comm.send_recv(&[7_u8; 5], peer, &mut got, peer).expect("not mixed up with the refused one");
                assert_eq!(got, [7; 5]);
            });
        });
    }
}

#[test]
fn no_ranks_at_all() {
    let error = Cluster::local(0, drop).expect_err("nobody");
    assert!(
        matches!(error, Error::Configuration { .. }) && error.to_string().contains("at least 1"),
        "{error}"
    );
}

#[test]
fn one_rank_alone_can_do_everything() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(1, |comm| {
                let mut data = [5_i32; 10];
                comm.all_reduce(&mut data, ReduceOp::Avg).expect("alone");
                comm.all_reduce_start(vec![1_u8; 100_000], ReduceOp::Max)
                    .expect("alone")
                    .wait()
                    .expect("alone");
                comm.barrier().expect("alone");
                let part = comm.split(Some(1), 1).expect("alone").expect("itself");
                part.broadcast(&mut data, 0).expect("alone");
                assert_eq!(data, [5; 10]);
            });
        });
    }
}

#[test]
fn settings_that_make_no_sense() {
    let with = |name: &'static str, value: &'static str| {
        Config::from_lookup(&move |wanted| (wanted == name).then(|| value.to_owned()))
    };
    for (name, value) in [
        ("KOLO_TRANSPORT", "smoke"),
        ("KOLO_TRANSPORT", "shm,,tcp"),
        ("KOLO_DETERMINISM", "yes"),
        ("KOLO_TIMEOUT", "soon"),
        ("KOLO_TIMEOUT", "0"),
        ("KOLO_TIMEOUT", "nan"),
        ("KOLO_TIMEOUT", "inf"),
        ("KOLO_TIMEOUT", "1e300"),
        ("KOLO_JOIN_TIMEOUT", "-3"),
        ("KOLO_SEGMENT_BYTES", "64Q"),
        ("KOLO_SEGMENT_BYTES", "K"),
        ("KOLO_WINDOW", "-1"),
        ("KOLO_EXCHANGE_BYTES", "99999999999999999999"),
        ("KOLO_ONE_SHOT_BYTES", "few"),
        ("KOLO_SPIN_US", "1.5"),
    ] {
        let Err(error) = with(name, value) else { panic!("{name}={value} was accepted") };
        let text = error.to_string();
        assert!(matches!(error, Error::Configuration { .. }), "{error:?}");
        assert!(text.contains(name) && text.contains("Use ") && !text.contains('\n'), "{text}");
    }
}

#[test]
fn values_at_the_edge_do_not_panic() {
    let change: [fn(&mut Config); 9] = [
        |config| config.timeout = std::time::Duration::MAX,
        |config| config.join_timeout = std::time::Duration::MAX,
        |config| config.segment_bytes = Some(1),
        |config| config.segment_bytes = Some(usize::MAX),
        |config| config.window = Some(usize::MAX),
        |config| config.window = Some(1),
        |config| config.exchange_bytes = Some(usize::MAX),
        |config| config.spin = Some(std::time::Duration::from_secs(3600)),
        |config| config.socket_congestion = Some("nonesuch".to_owned()),
    ];
    for (i, change) in change.into_iter().enumerate() {
        for arrangement in Arrangement::ALL {
            bounded(&format!("{arrangement:?}, change {i}"), move || {
                let changed = move |mut config: Config| {
                    change(&mut config);
                    config
                };
                let outcome = Cluster::with_configs(
                    2,
                    |rank| changed(arrangement.config(rank)),
                    |comm| comm.all_reduce(&mut [1_i32; 700], ReduceOp::Sum),
                );
                // An error is acceptable if it names the setting at fault.
                if let Err(error) = outcome.and_then(|ranks| ranks.into_iter().collect::<Result<Vec<()>>>()) {
                    assert!(error.to_string().contains("KOLO_"), "{arrangement:?}, change {i}: {error}");
                }
            });
        }
    }
}

#[test]
fn settings_that_differ_across_ranks() {
    type Change = fn(&mut Config);
    let change: [(&str, Change); 8] = [
        ("KOLO_ALGO", |config| config.algorithms = "ring".to_owned()),
        ("KOLO_DETERMINISM", |config| config.determinism = Determinism::Canonical),
        ("KOLO_SEGMENT_BYTES", |config| config.segment_bytes = Some(4096)),
        ("KOLO_WINDOW", |config| config.window = Some(7)),
        ("KOLO_EXCHANGE_BYTES", |config| config.exchange_bytes = Some(3)),
        ("KOLO_ONE_SHOT_BYTES", |config| config.one_shot_bytes = Some(3)),
        ("KOLO_SYMMETRIC_BYTES", |config| config.symmetric_bytes = Some(3)),
        ("KOLO_TRANSPORT", |config| {
            config.transports = Transports::Only(vec![TransportKind::Tcp, TransportKind::Shm])
        }),
    ];
    for (name, change) in change {
        bounded(name, move || {
            let error = Cluster::with_configs(
                3,
                |rank| {
                    let mut config = Arrangement::Tcp.config(rank);
                    if rank == 1 {
                        change(&mut config);
                    }
                    config
                },
                drop,
            )
            .expect_err("they differ");
            let text = error.to_string();
            assert!(
                text.contains(name)
                    && text.contains("rank ")
                    && text.contains("Use the same settings on all ranks"),
                "{text}"
            );
        });
    }
}

#[test]
fn transports_that_do_not_reach() {
    bounded("shm between hosts", || {
        let error = Cluster::with_configs(
            2,
            |rank| Arrangement::Shm.config(rank).with(|config| config.host_id = Some(format!("host-{rank}"))),
            drop,
        )
        .expect_err("two hosts share no memory");
        let text = error.to_string();
        assert!(text.contains("no transport reaches rank") && text.contains("KOLO_TRANSPORT=auto"), "{text}");
    });
}

#[test]
fn an_unknown_algorithm() {
    bounded("algorithm", || {
        let wrong = |mut config: Config| {
            config.algorithms = "all_reduce:magic".to_owned();
            config
        };
        let error =
            Cluster::with_configs(2, |rank| wrong(Arrangement::Tcp.config(rank)), drop).expect_err("magic");
        let text = error.to_string();
        assert!(text.contains("magic") && text.contains("KOLO_ALGO"), "{text}");
    });
}

#[test]
fn too_much_at_a_time() {
    bounded("too many operations", || {
        Arrangement::Exchange.run(1, |comm| {
            let mut works = Vec::new();
            let error = loop {
                match comm.all_reduce_start(vec![1_u8], ReduceOp::Sum) {
                    Ok(work) => works.push(work),
                    Err(error) => break error,
                }
                assert!(works.len() < 100_000, "no limit");
            };
            let text = error.to_string();
            assert!(matches!(error, Error::Usage { .. }) && text.contains("wait for some"), "{text}");
            for work in works {
                assert_eq!(work.wait().expect("done"), [1]);
            }
            let data = vec![[1_u8]; 70_000];
            let mut batch = comm.batch();
            for one in &data {
                batch = batch.send(one, 0);
            }
            refused(batch.run(), &["use smaller groups"]);
            comm.all_reduce_start(vec![1_u8], ReduceOp::Sum).expect("as it was").wait().expect("done");
        });
    });
}

#[test]
fn an_algorithm_for_one_collective_leaves_the_others_as_they_are() {
    bounded("KOLO_ALGO for some calls", || {
        let change = |config: Config| {
            config.with(|config| config.algorithms = "broadcast:binomial,all_reduce@64K-:ring".into())
        };
        Arrangement::Exchange.run_with(3, change, |comm| {
            let (from, mut to) = (vec![0_f32; 1 << 20], vec![0_f32; 1 << 20]);
            let mut explain = |collective, count| {
                let output = to.as_mut_ptr().cast();
                let (data_type, op) = (DataType::F32, ReduceOp::Sum);
                let input = from.as_ptr().cast();
                let call = RawCall { collective, input, output, count, data_type, op, root: 0 };
                comm.explain(&call).expect("explained")
            };
            for (collective, count, way) in [
                (Collective::AllReduce, 8, "exchange: "),
                (Collective::AllReduce, 16 << 10, "ring: "),
                (Collective::Broadcast, 8, "binomial: "),
                (Collective::Broadcast, 1 << 20, "binomial: "),
                (Collective::AllGather, 8, "exchange: "),
                (Collective::Barrier, 0, "exchange: "),
            ] {
                let text = explain(collective, count);
                assert!(text.starts_with(way), "{collective} of {count}: {text}");
            }
            // All ranks take the same paths, one after another.
            for count in [8, 16 << 10] {
                let mut data = vec![comm.rank(); count];
                comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it");
                assert!(data.iter().all(|value| *value == 3));
                comm.broadcast(&mut data, 2).expect("all call it");
            }
        });
    });
}

/// A call that no algorithm serves is over. Otherwise the rank would tell others that it is inside the call.
#[test]
fn a_refused_call_is_over() {
    bounded("refused", || {
        let change = |config: Config| config.with(|config| config.algorithms = "barrier:ring".into());
        Arrangement::Tcp.run_with(2, change, |comm| {
            let error = comm.barrier().expect_err("a ring is no barrier");
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            let record = *comm.recent().last().expect("it was numbered");
            assert!(record.sequence == 1 && record.took.is_some(), "{record}");
            let mut data = [1_u8];
            comm.all_reduce(&mut data, ReduceOp::Sum).expect("as before");
            assert_eq!(data, [2]);
        });
    });
}

#[test]
fn a_truth_value_that_is_neither_0_nor_1_is_true() {
    bounded("a byte of 2", || {
        for arrangement in Arrangement::ALL {
            arrangement.run(2, |comm| {
                // Sends the bytes that a rank in C would send.
                let mut bytes = [2_u8 * u8::from(comm.rank() == 0); 3];
                let mut values = [Bool::default(); 3];
                let output = match comm.rank() {
                    0 => bytes.as_mut_ptr(),
                    _ => values.as_mut_ptr().cast(),
                };
                let call = RawCall {
                    collective: Collective::Broadcast,
                    input: output,
                    output,
                    count: 3,
                    data_type: DataType::Bool,
                    op: ReduceOp::Sum,
                    root: 0,
                };
                // SAFETY: both arrays live until it returns, and have three bytes.
                unsafe { comm.call_raw(&call) }.expect("all call it");
                if comm.rank() == 1 {
                    assert_eq!(values, [true; 3]);
                    assert!(values.iter().all(|value| value.get()));
                }
            });
        }
    });
}
