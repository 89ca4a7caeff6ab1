//! Messages that do not fit, never arrive, or are given up.

use std::time::Duration;

use kolo::{Cluster, Error};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{Gate, bounded};

#[test]
fn a_tagged_message_that_does_not_fit() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            // The receive meets the message at its place, behind another one, or already buffered.
            for (first, receive) in [(6, [6, 6]), (5, [6, 6]), (5, [7, 6])] {
                let errors = arrangement.run(2, |comm| {
                    if comm.rank() == 0 {
                        let sent = comm.send_tagged(&[1_u8; 24], 1, first).and_then(|()| {
                            comm.send_tagged(&[1_u8; 24], 1, 6)?;
                            comm.send_tagged(&[1_u8; 24], 1, 7)
                        });
                        sent.and_then(|()| comm.barrier()).expect_err("told")
                    } else {
                        let result =
                            if receive[0] == 7 { comm.recv_tagged(&mut [0_u8; 24], 0, 7) } else { Ok(()) };
                        result
                            .and_then(|()| comm.recv_tagged(&mut [0_i32; 6], 0, 6))
                            .expect_err("bytes, not i32")
                    }
                });
                let text = errors[1].to_string();
                assert!(matches!(errors[1], Error::Mismatch { peer: 0, .. }), "{text}");
                assert!(text.contains("u8") && text.contains("i32") && text.contains("tag 6"), "{text}");
            }
        });
    }
}

#[test]
fn a_message_to_oneself_that_nobody_sends_or_receives() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let limits =
                |rank| arrangement.config(rank).with(|config| config.timeout = Duration::from_millis(400));
            let received = Cluster::with_configs(2, limits, |comm| {
                let own = comm.rank();
                if own == 0 { comm.recv(&mut [0_u8; 24], own) } else { comm.send(&vec![0_u8; 40 << 20], own) }
            });
            for (rank, result) in received.expect("joined").into_iter().enumerate() {
                let text = result.expect_err("nobody sends or receives it").to_string();
                assert!(text.contains("itself") && text.contains("by another thread"), "rank {rank}: {text}");
            }
        });
    }
}

#[test]
fn abort_gives_posted_receives_up() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(3);
            arrangement.run(3, |comm| {
                let other = (comm.rank() + 1) % 3;
                let named = comm.recv_tagged_start(vec![0_u8; 1000], other, 1).expect("started");
                let any = comm.recv_any_tagged_start(vec![0_u8; 1000], 2).expect("started");
                let group = comm.recv_start(vec![0_u8; 1000], other).expect("started");
                gate.wait();
                if comm.rank() == 1 {
                    any.abort("enough of it");
                }
                let error = any.wait().expect_err("aborted");
                assert!(error.to_string().contains("enough of it"), "{error}");
                for error in [named.wait().expect_err("aborted"), group.wait().expect_err("aborted")] {
                    assert!(matches!(error, Error::Aborted { by: 1, .. }), "{error}");
                }
            })
        });
    }
}

#[test]
fn a_time_out_says_where_the_other_rank_is() {
    // Rank 0 waits for a message and rank 1 for a collective; the one that gives up first names both.
    for arrangement in Arrangement::ALL {
        for impatient in 0..2 {
            bounded(&format!("{arrangement:?}, rank {impatient}"), move || {
                let config = |rank| {
                    arrangement.config(rank).with(|config| {
                        config.timeout = Duration::from_secs(if rank == impatient { 2 } else { 30 })
                    })
                };
                let attempt = || {
                    let errors = Cluster::with_configs(2, config, |comm| {
                        if comm.rank() == 0 {
                            comm.recv_tagged(&mut [0_u8; 8], 1, 6).expect_err("never sent").to_string()
                        } else {
                            comm.all_reduce(&mut [1_u8; 8], kolo::ReduceOp::Sum)
                                .expect_err("alone")
                                .to_string()
                        }
                    });
                    errors.expect("the ranks join").swap_remove(impatient as usize)
                };
                // On a busy machine a rank may be too slow to answer.
                let mut texts = std::iter::repeat_with(attempt).take(4);
                let text = texts.find(|text| !text.contains("no answer")).expect("an answer");
                for part in ["recv #1 of 8 bytes of u8 from rank 1 with tag 6", "all_reduce(8 x u8, sum)"] {
                    assert!(text.contains(part), "{arrangement:?}: {text}");
                }
            });
        }
    }
}
