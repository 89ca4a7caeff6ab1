//! Programs can act on errors without reading their text: each error carries its cause as a value, and says
//! whether the communicator can still be used.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kolo::{AbortReason, Cluster, Communicator, Config, Error, LossCause, ReduceOp, Result};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{Gate, bounded};

/// Returns the errors of 3 ranks that run `body`, in every arrangement.
fn errors_of(
    what: &'static str,
    change: impl Fn(u32, &mut Config) + Send + Sync + Copy + 'static,
    body: impl Fn(Communicator, &Gate) -> Result<()> + Send + Sync + Copy + 'static,
    check: impl Fn(&[Option<Error>]) + Send + Copy + 'static,
) {
    for arrangement in Arrangement::ALL {
        bounded(what, move || {
            let gate = Gate::new(3);
            let config = |rank| {
                let mut config = arrangement.config(rank);
                change(rank, &mut config);
                config
            };
            let results = Cluster::with_configs(3, config, |comm| body(comm, &gate)).expect("they join");
            let errors: Vec<_> = results.into_iter().map(Result::err).collect();
            println!("{what}, {arrangement:?}: {errors:#?}");
            check(&errors);
        });
    }
}

/// Makes a call and checks that the communicator has ended exactly if the error is fatal.
fn call(comm: &Communicator, elements: usize) -> Result<()> {
    let result = comm.all_reduce(&mut vec![1_u32; elements], ReduceOp::Sum);
    if let Err(error) = &result {
        assert_eq!(error.is_fatal(), comm.error().is_some(), "{error}");
        assert_eq!(error.is_fatal(), comm.barrier().is_err(), "{error}");
    }
    result
}

/// Lets ranks 0 and 1 make a call that needs rank 2, which waits for a message and hears that they have given up.
fn without_the_third(
    what: &'static str,
    change: impl Fn(u32, &mut Config) + Send + Sync + Copy + 'static,
    made: impl Fn(&Communicator) -> Result<()> + Send + Sync + Copy + 'static,
) {
    let body = move |comm: Communicator, gate: &Gate| {
        let result = if comm.rank() == 2 { comm.recv(&mut [0_u8], 0).map(drop) } else { made(&comm) };
        let error = result.expect_err("one is missing");
        assert!(error.is_fatal() && comm.error().is_some(), "{error}");
        gate.wait();
        Err(error)
    };
    errors_of(what, change, body, |errors| {
        assert!(errors[..2].iter().any(|error| matches!(error, Some(Error::Timeout { .. }))), "{errors:?}");
        let Some(Error::Aborted { kind, .. }) = &errors[2] else { panic!("{:?}", errors[2]) };
        assert_eq!(*kind, AbortReason::Timeout);
    });
}

#[test]
fn a_split_that_one_rank_does_not_call() {
    let change = |_, config: &mut Config| config.join_timeout = Duration::from_secs(5);
    without_the_third("splitting", change, |comm| comm.split(Some(0), 0).map(drop));
}

#[test]
fn an_allocation_that_one_rank_does_not_call() {
    let change =
        |rank, config: &mut Config| config.timeout = Duration::from_secs(if rank == 2 { 60 } else { 1 });
    without_the_third("allocating", change, |comm| comm.alloc::<u8>(1).map(drop));
}

#[test]
fn a_group_that_one_rank_does_not_call() {
    let body = |comm: Communicator, gate: &Gate| {
        let result = match comm.rank() {
            0 => comm.recv(&mut [0_u8], 2).map(drop),
            1 => comm.group_within(&[2, 1], None, Duration::from_secs(1)).map(drop),
            _ => Ok(()),
        };
        gate.wait();
        result
    };
    errors_of(
        "grouping",
        |_, _| (),
        body,
        |errors| {
            let Some(Error::Timeout { waiting_for, context, .. }) = &errors[1] else {
                panic!("{:?}", errors[1])
            };
            // Not by its number in the new communicator.
            assert_eq!((context.rank, waiting_for[0].rank), (Some(1), 2));
            assert!(matches!(errors[0], Some(Error::Aborted { by: 1, .. })), "{:?}", errors[0]);
        },
    );
}

#[test]
fn a_rank_that_leaves() {
    let body = |comm: Communicator, _: &Gate| {
        if comm.rank() == 1 {
            return Ok(());
        }
        call(&comm, 1000)
    };
    errors_of(
        "leaving",
        |_, _| (),
        body,
        |errors| {
            assert!(errors[1].is_none());
            for error in [&errors[0], &errors[2]] {
                let Some(Error::PeerLost { peer: 1, cause, .. }) = error else { panic!("{error:?}") };
                assert_eq!(*cause, LossCause::Left);
            }
        },
    );
}

#[test]
fn a_rank_that_panics() {
    let body = |comm: Communicator, _: &Gate| {
        if comm.rank() == 1 {
            let panic = catch_unwind(AssertUnwindSafe(move || {
                let _dropped_by_unwinding = comm;
                std::panic::resume_unwind(Box::new("on purpose"))
            }));
            let _: Box<dyn std::any::Any + Send> = panic.expect_err("it has panicked");
            return Ok(());
        }
        call(&comm, 1000)
    };
    errors_of(
        "panicking",
        |_, _| (),
        body,
        |errors| {
            for error in [&errors[0], &errors[2]] {
                let Some(Error::PeerLost { peer: 1, cause, detail, .. }) = error else { panic!("{error:?}") };
                assert_eq!(*cause, LossCause::Panicked);
                assert!(detail.contains("panicked"), "{detail}");
            }
        },
    );
}

#[test]
fn a_rank_that_aborts() {
    let body = |comm: Communicator, gate: &Gate| {
        if comm.rank() == 1 {
            comm.abort("the loss is not a number");
        }
        let result = call(&comm, 1000);
        gate.wait();
        result
    };
    errors_of(
        "aborting",
        |_, _| (),
        body,
        |errors| {
            for error in errors {
                let Some(Error::Aborted { by: 1, kind, reason, .. }) = error else { panic!("{error:?}") };
                assert_eq!(*kind, AbortReason::Requested);
                assert!(reason.contains("the loss is not a number"), "{reason}");
            }
        },
    );
}

#[test]
fn a_rank_whose_deadline_passes() {
    let body = |comm: Communicator, gate: &Gate| {
        let result = if comm.rank() == 2 { Ok(()) } else { call(&comm, 1000) };
        gate.wait();
        result
    };
    let change = |rank, config: &mut Config| {
        config.timeout = Duration::from_secs(if rank == 0 { 1 } else { 20 });
    };
    errors_of("timing out", change, body, |errors| {
        assert!(matches!(errors[0], Some(Error::Timeout { .. })), "{:?}", errors[0]);
        let Some(Error::Aborted { by: 0, kind, .. }) = &errors[1] else { panic!("{:?}", errors[1]) };
        assert_eq!(*kind, AbortReason::Timeout);
    });
}

#[test]
fn ranks_that_called_the_same_hear_of_a_mismatch_of_others() {
    let body = |comm: Communicator, gate: &Gate| {
        let result = call(&comm, if comm.rank() == 1 { 999 } else { 1000 });
        gate.wait();
        result
    };
    errors_of(
        "calling different things",
        |_, _| (),
        body,
        |errors| {
            for error in errors {
                match error {
                    Some(Error::Mismatch { .. }) => {}
                    Some(Error::Aborted { kind, .. }) => assert_eq!(*kind, AbortReason::Mismatch),
                    _ => panic!("{error:?}"),
                }
            }
        },
    );
}

#[test]
fn a_call_that_makes_no_sense_is_not_fatal() {
    let body = |comm: Communicator, _: &Gate| {
        let error = comm.broadcast(&mut [0_u8; 4], 3).expect_err("there is no rank 3");
        assert!(matches!(error, Error::Usage { .. }) && !error.is_fatal(), "{error}");
        comm.barrier()
    };
    errors_of(
        "usage",
        |_, _| (),
        body,
        |errors| {
            assert!(errors.iter().all(Option::is_none), "{errors:?}");
        },
    );
}

#[test]
fn a_rank_that_leaves_is_named_whatever_was_sent_to_others_after_its_message() {
    const ELEMENTS: usize = 1 << 20;
    for arrangement in Arrangement::ALL {
        bounded("a rank leaves a scatter", move || {
            let config = |rank| {
                arrangement.config(rank).with(|config| {
                    config.algorithms = "scatter:direct".to_owned();
                    config.timeout = Duration::from_secs(20);
                })
            };
            let results = Cluster::with_configs(4, config, |comm| match comm.rank() {
                1 => Ok(()),
                3 => comm.scatter(&vec![1_u32; 4 * ELEMENTS], &mut vec![0; ELEMENTS], 3),
                _ => comm.scatter(&[], &mut vec![0_u32; ELEMENTS], 3),
            });
            let results = results.expect("they join");
            let is_right = |error: &Error| matches!(error, Error::PeerLost { peer: 1, .. });
            assert!(results[3].as_ref().is_err_and(is_right), "{arrangement:?}: {:?}", results[3]);
            assert!(results.iter().all(|result| result.as_ref().err().is_none_or(is_right)), "{results:?}");
        });
    }
}
