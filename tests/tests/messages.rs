//! Sends and receives: tags, any source, asynchronous forms, and what happens when messages come in another order than
//! they are asked for.

use std::time::Duration;

use kolo::{Cluster, Communicator, Config, Error, RawMessage};
use kolo_tests::arrangement::{Arrangement, in_guest};
use kolo_tests::watchdog::{Gate, bounded, within};

/// Every arrangement, each in bounded time.
fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    everywhere_with(ranks, |config| config, body);
}

fn everywhere_with(
    ranks: u32,
    change: impl Fn(Config) -> Config + Send + Sync + Copy + 'static,
    body: impl Fn(&Communicator) + Send + Sync + Copy + 'static,
) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run_with(ranks, change, |comm| {
                body(&comm);
                comm.barrier().expect("all are done");
            })
        });
    }
}

/// Contents of the `number`th message of `len` elements from a rank with a tag.
fn contents(from: u32, tag: u32, number: usize, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i ^ from << 28 ^ tag << 20 ^ (number as u32) << 12).collect()
}

/// Lengths on both sides of what travels in a cell, in one piece, in many, and (for shared memory) as an offer.
const LENGTHS: [usize; 6] = [0, 1, 30, 5_000, 100_000, 600_000];

#[test]
fn messages_of_a_tag_keep_their_order() {
    everywhere(2, |comm| {
        for len in LENGTHS {
            for number in 0..12 {
                let tag = [7, 0, 9, 7, 7, 0][number % 6];
                if comm.rank() == 0 {
                    comm.send_tagged(&contents(0, tag, number, len), 1, tag).expect("sent");
                }
            }
            // All of tag 9 first, then 0, then 7: each in its own order.
            for tag in [9, 0, 7] {
                for number in (0..12).filter(|number| [7, 0, 9, 7, 7, 0][number % 6] == tag) {
                    if comm.rank() == 1 && 12 * 4 * len < 48 << 20 {
                        let mut got = vec![0; len];
                        comm.recv_tagged(&mut got, 0, tag).expect("received");
                        assert_eq!(got, contents(0, tag, number, len), "message {number} with tag {tag}");
                    }
                }
            }
        }
    });
}

#[test]
fn crossing_tags() {
    everywhere(2, |comm| {
        for len in LENGTHS {
            if comm.rank() == 0 {
                let (a, b, c) = (contents(0, 3, 0, len), contents(0, 4, 1, len), contents(0, 5, 2, len));
                comm.send_tagged(&a, 1, 3).expect("3");
                comm.send_tagged(&b, 1, 4).expect("4");
                comm.send_tagged(&c, 1, 5).expect("5");
            } else {
                let (mut a, mut b, mut c) = (vec![0; len], vec![0; len], vec![0; len]);
                // Posted together, in the opposite order.
                comm.batch()
                    .recv_tagged(&mut c, 0, 5)
                    .recv_tagged(&mut b, 0, 4)
                    .recv_tagged(&mut a, 0, 3)
                    .run()
                    .expect("received");
                assert_eq!(a, contents(0, 3, 0, len));
                assert_eq!(b, contents(0, 4, 1, len));
                assert_eq!(c, contents(0, 5, 2, len));
            }
        }
    });
}

#[test]
fn many_receives_in_the_opposite_order() {
    const MESSAGES: u32 = 500;
    everywhere(2, |comm| {
        let other = 1 - comm.rank();
        let mut got = vec![0_u32; MESSAGES as usize];
        let own: Vec<u32> = (0..MESSAGES).map(|i| i * 3 + comm.rank()).collect();
        let mut batch = comm.batch();
        for (tag, slot) in got.iter_mut().enumerate().rev() {
            batch = batch.recv_tagged(std::slice::from_mut(slot), other, tag as u32);
        }
        for (tag, value) in own.iter().enumerate() {
            batch = batch.send_tagged(std::slice::from_ref(value), other, tag as u32);
        }
        batch.run().expect("done");
        assert!(got.iter().enumerate().all(|(i, value)| *value == i as u32 * 3 + other), "{got:?}");
    });
}

#[test]
fn any_source_while_all_flood() {
    const EACH: usize = 200;
    everywhere(4, |comm| {
        if comm.rank() > 0 {
            for number in 0..EACH {
                let len = [1, 20, 3_000][number % 3];
                comm.send(&[len as u32], 0).expect("sent");
                comm.send_tagged(&contents(comm.rank(), 1, number, len), 0, 1).expect("sent");
            }
            return;
        }
        let mut next = [0_usize; 4];
        for _ in 0..3 * EACH {
            let mut len = [0_u32];
            let from = comm.recv_any(&mut len).expect("a length");
            let mut got = vec![0; len[0] as usize];
            comm.recv_tagged(&mut got, from, 1).expect("what it announced");
            assert_eq!(got, contents(from, 1, next[from as usize], got.len()), "from {from}");
            next[from as usize] += 1;
        }
        assert_eq!(next, [0, EACH, EACH, EACH]);
    });
}

#[test]
fn any_source_starves_nobody() {
    const EACH: usize = 12;
    everywhere(3, |comm| {
        // A first message each makes the connections, so that later ones need not wait for their receives: so many each
        // transport holds.
        for _ in 0..=EACH {
            if comm.rank() > 0 {
                comm.send(&[1_u8], 0).expect("sent");
            }
        }
        for from in 1..3 {
            if comm.rank() == 0 {
                comm.recv(&mut [0_u8], from).expect("received");
            }
        }
        // All of them are there now: who comes first is up to the receiver.
        comm.barrier().expect("all have sent");
        if comm.rank() == 0 {
            let sources: Vec<u32> =
                (0..2 * EACH).map(|_| comm.recv_any(&mut [0_u8]).expect("received")).collect();
            assert!(sources[..6].contains(&1) && sources[..6].contains(&2), "{sources:?}");
        }
    });
}

#[test]
fn named_and_any_receives_share_a_stream_in_order() {
    everywhere(2, |comm| {
        if comm.rank() == 1 {
            for number in 0..6_u32 {
                comm.send(&[number], 0).expect("sent");
            }
            return;
        }
        let works: Vec<_> = (0..3)
            .map(|_| {
                (comm.recv_any_start(vec![0]).expect("any"), comm.recv_start(vec![0], 1).expect("named"))
            })
            .collect();
        for (number, (any, named)) in works.into_iter().enumerate() {
            assert_eq!(any.wait().expect("received"), (vec![2 * number as u32], 1));
            assert_eq!(named.wait().expect("received"), [2 * number as u32 + 1]);
        }
    });
}

#[test]
fn messages_to_oneself() {
    everywhere(2, |comm| {
        let me = comm.rank();
        let first = comm.send_tagged_start(vec![1_u8; 10], me, 1).expect("started");
        let second = comm.send_tagged_start(vec![2_u8; 10], me, 2).expect("started");
        let third = comm.send_tagged_start(vec![3_u8; 10], me, 1).expect("started");
        assert!(!first.is_done(), "nobody has received it");
        let mut got = [0_u8; 10];
        comm.recv_tagged(&mut got, me, 2).expect("received");
        assert_eq!(got, [2; 10]);
        assert!(second.is_done() && !first.is_done() && !third.is_done());
        assert_eq!(comm.recv_any_tagged(&mut got, 1).expect("received"), me);
        assert_eq!(got, [1; 10]);
        let last = comm.recv_tagged_start(vec![0_u8; 10], me, 1).expect("started");
        assert_eq!(last.wait().expect("received"), [3; 10]);
        for work in [first, second, third] {
            assert_eq!(work.wait().expect("sent").len(), 10);
        }
    });
}

#[test]
fn started_messages_progress_while_the_caller_computes() {
    everywhere(2, |comm| {
        let other = 1 - comm.rank();
        let works: Vec<_> = (0..8)
            .map(|number| {
                let recv = comm.recv_tagged_start(vec![0; 200_000], other, number).expect("started");
                let data = contents(comm.rank(), number, 0, 200_000);
                (comm.send_tagged_start(data, other, number).expect("started"), recv)
            })
            .collect();
        // Nobody calls Kolo: the helpers have to do it.
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !works.iter().all(|(send, recv)| send.is_done() && recv.is_done()) {
            assert!(std::time::Instant::now() < until, "no progress");
            std::thread::yield_now();
        }
        for (number, (send, recv)) in works.into_iter().enumerate() {
            assert_eq!(send.wait().expect("sent"), contents(comm.rank(), number as u32, 0, 200_000));
            assert_eq!(recv.wait().expect("received"), contents(other, number as u32, 0, 200_000));
        }
    });
}

#[test]
fn scopes_take_messages_too() {
    everywhere(3, |comm| {
        let (me, n) = (comm.rank(), comm.world_size());
        let own = contents(me, 0, 0, 1000);
        let (mut left, mut any, mut source) = (vec![0; 1000], [0_u32], u32::MAX);
        comm.scope(|scope| {
            scope.recv(&mut left, (me + n - 1) % n)?;
            scope.recv_any_tagged(&mut any, 4, &mut source)?;
            scope.send_tagged(&own[3..4], (me + 1) % n, 4)?;
            scope.send(&own, (me + 1) % n)
        })
        .expect("exchanged");
        assert_eq!(left, contents((me + n - 1) % n, 0, 0, 1000));
        assert_eq!((source, any[0]), ((me + n - 1) % n, contents(source, 0, 0, 1000)[3]));
    });
}

#[test]
fn started_groups_on_raw_memory() {
    everywhere(2, |comm| {
        let other = 1 - comm.rank();
        let (mut out, mut inn) = ([comm.rank() as u8 + 1; 64], [0_u8; 64]);
        let message = |data: *mut u8, tag| RawMessage { data, bytes: 32, data_type: kolo::DataType::U8, tag };
        let (from, to) = (out.as_mut_ptr(), inn.as_mut_ptr());
        let mut batch = comm.batch();
        // SAFETY: both arrays outlive the work, which is waited for.
        unsafe {
            batch = batch.recv_message(message(to.add(32), 2), other).recv_message(message(to, 1), other);
            batch = batch.send_message(message(from, 1), other).send_message(message(from.add(32), 2), other);
            batch.start().expect("started").wait().expect("done");
            let send = comm.send_raw_start(&message(from, 8), other).expect("started");
            let recv = comm.recv_any_raw_start(&message(to, 8)).expect("started");
            assert_eq!(recv.wait().expect("received"), other);
            send.wait().expect("sent");
        }
        assert_eq!(inn, [other as u8 + 1; 64]);
    });
}

/// SplitMix64: the same numbers on all ranks.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) % limit as u64) as usize
    }
}

/// Messages from everybody to everybody, with few tags, received in another order and in all ways there are.
#[test]
fn random_traffic() {
    const TAGS: usize = 4;
    // Receives from any source take messages of this tag alone, so that what they get is known as a set.
    const ANY: u32 = 99;
    everywhere(4, |comm| {
        for seed in 0..4 {
            let mut random = Random(seed);
            let me = comm.rank();
            let messages: Vec<(u32, u32, u32, usize)> = (0..300)
                .map(|_| {
                    let longest = [2, 40, 2_000, 60_000][random.below(4)];
                    let tag = if random.below(5) == 0 { ANY } else { random.below(TAGS) as u32 };
                    (random.below(4) as u32, random.below(4) as u32, tag, random.below(longest))
                })
                .collect();
            let body = |number: usize| contents(messages[number].0, 0, number, messages[number].3 + 1);
            let mut own = Random(seed << 8 | u64::from(me));
            // Per source and tag in order; which of them is next is drawn.
            let mut streams: Vec<Vec<usize>> = Vec::new();
            for from in 0..4 {
                for tag in 0..TAGS as u32 {
                    let of = |number: &usize| {
                        let (source, to, with, _) = messages[*number];
                        (source, to, with) == (from, me, tag)
                    };
                    streams.push((0..messages.len()).rev().filter(of).collect());
                }
            }
            let mut to_send: Vec<usize> =
                (0..messages.len()).rev().filter(|number| messages[*number].0 == me).collect();
            let (mut sends, mut receives, mut anys) = (Vec::new(), Vec::new(), Vec::new());
            while !to_send.is_empty() || streams.iter().any(|stream| !stream.is_empty()) {
                if let Some(number) = to_send.pop() {
                    let (_, to, tag, _) = messages[number];
                    sends.push(comm.send_tagged_start(body(number), to, tag).expect("started"));
                }
                let at = own.below(streams.len());
                if let Some(number) = streams[at].pop() {
                    let (from, _, tag, len) = messages[number];
                    let buffer = vec![0; len + 1];
                    let work = comm.recv_tagged_start(buffer, from, tag).expect("started");
                    receives.push((number, work));
                    if receives.len() > 5 {
                        let (number, work) = receives.remove(own.below(5));
                        if to_send.is_empty() {
                            assert_eq!(work.wait().expect("received"), body(number), "message {number}");
                        } else {
                            // Waiting now might be for a message that its sender has not come to yet.
                            receives.push((number, work));
                        }
                    }
                }
            }
            // All of one length, since which comes first is not known.
            for (source, to, tag, _) in &messages {
                if *source == me && *tag == ANY {
                    sends.push(comm.send_tagged_start(vec![me; 77], *to, ANY + 1).expect("started"));
                }
                if *to == me && *tag == ANY {
                    anys.push(comm.recv_any_tagged_start(vec![0; 77], ANY + 1).expect("started"));
                }
            }
            let mut expected: Vec<u32> =
                messages.iter().filter(|m| m.1 == me && m.2 == ANY).map(|m| m.0).collect();
            let mut sources: Vec<u32> = anys
                .into_iter()
                .map(|work| {
                    let (got, source) = work.wait().expect("received");
                    assert_eq!(got, vec![source; 77]);
                    source
                })
                .collect();
            expected.sort_unstable();
            sources.sort_unstable();
            assert_eq!(sources, expected);
            for (number, work) in receives {
                assert_eq!(work.wait().expect("received"), body(number), "message {number}");
            }
            for (number, (from, to, tag, len)) in messages.iter().enumerate() {
                if *to == me && *tag == ANY {
                    let mut got = vec![0; len + 1];
                    comm.recv_tagged(&mut got, *from, ANY).expect("received");
                    assert_eq!(got, body(number), "message {number}");
                }
            }
            for work in sends {
                work.wait().expect("sent");
            }
        }
    });
}

#[test]
fn unexpected_messages_are_bounded() {
    let small = |config| Config { unexpected_bytes: 100_000, timeout: Duration::from_secs(2), ..config };
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            arrangement.run_with(2, small, |comm| {
                if comm.rank() == 0 {
                    // Two fit, the third does not.
                    let works: Vec<_> = [3, 4, 5, 6]
                        .map(|tag| comm.send_tagged_start(vec![tag as u8; 45_000], 1, tag).expect("started"))
                        .into();
                    let long = Duration::from_secs(30);
                    // Whether the last one has left is up to the transport's buffers.
                    let _ = works.into_iter().map(|work| work.wait_within(long)).collect::<Vec<_>>();
                } else {
                    let mut got = vec![0_u8; 45_000];
                    comm.recv_tagged(&mut got, 0, 4).expect("behind one other");
                    assert_eq!(got, [4; 45_000]);
                    let error = comm.recv_tagged(&mut got, 0, 7).expect_err("never sent");
                    assert!(matches!(error, Error::Timeout { .. }), "{error}");
                    let text = error.to_string();
                    let wanted = ["with tag 7", "45000 bytes with tag 6", "KOLO_UNEXPECTED_BYTES=100000"];
                    assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
                }
                gate.wait();
            })
        });
    }
}

#[test]
fn room_for_unexpected_messages_comes_back() {
    everywhere_with(
        2,
        |config| Config { unexpected_bytes: 100_000, ..config },
        |comm| {
            for round in 0..20_u8 {
                if comm.rank() == 0 {
                    for tag in 0..6 {
                        comm.send_tagged_start(vec![round ^ tag as u8; 40_000], 1, tag)
                            .map(drop)
                            .expect("started");
                    }
                    comm.recv(&mut [0_u8], 1).expect("the round is over");
                } else {
                    let mut got = vec![0_u8; 40_000];
                    // Never more than two in the way.
                    for tag in [2, 0, 1, 4, 3, 5] {
                        comm.recv_tagged(&mut got, 0, tag).expect("received");
                        assert!(
                            got.iter().all(|byte| *byte == round ^ tag as u8),
                            "round {round}, tag {tag}"
                        );
                    }
                    comm.send(&[0_u8], 0).expect("sent");
                }
            }
        },
    );
}

#[test]
fn room_that_comes_back_serves_those_who_wait() {
    everywhere_with(
        2,
        |config| Config { unexpected_bytes: 100_000, timeout: Duration::from_secs(10), ..config },
        |comm| {
            if comm.rank() == 0 {
                let sends: Vec<_> = (0..4)
                    .map(|tag| comm.send_tagged_start(vec![tag as u8; 40_000], 1, tag).expect("started"))
                    .collect();
                comm.barrier().expect("the first two have been taken in, the third waits");
                for send in sends {
                    send.wait().expect("sent");
                }
            } else {
                let last = comm.recv_tagged_start(vec![0_u8; 40_000], 0, 3).expect("started");
                comm.barrier().expect("they are under way");
                // Each look makes progress: after so many the third has come to the limit.
                for _ in 0..2000 {
                    assert!(!last.is_done(), "it is behind more than may be taken in");
                }
                let mut got = vec![0_u8; 40_000];
                comm.recv_tagged(&mut got, 0, 0).expect("makes room for the third");
                assert_eq!(last.wait().expect("behind the third"), [3; 40_000]);
                for tag in 1..3 {
                    comm.recv_tagged(&mut got, 0, tag).expect("received");
                    assert_eq!(got, [tag as u8; 40_000]);
                }
            }
        },
    );
}

#[test]
fn a_tagged_message_that_does_not_fit() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            // The message is met in its place, behind another, or already taken in.
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
fn dropped_handles_leave_receives_that_still_match() {
    everywhere(2, |comm| {
        if comm.rank() == 0 {
            drop(comm.recv_tagged_start(vec![0_u8; 10], 1, 1).expect("started"));
            comm.barrier().expect("posted");
            let mut got = [0_u8; 10];
            comm.recv_tagged(&mut got, 1, 1).expect("the second");
            assert_eq!(got, [2; 10]);
        } else {
            comm.barrier().expect("posted");
            comm.send_tagged(&[1_u8; 10], 0, 1).expect("sent");
            comm.send_tagged(&[2_u8; 10], 0, 1).expect("sent");
        }
    });
}

#[test]
fn long_messages_take_their_place() {
    // Each way many times the limit for what is taken in: it lands where it belongs.
    let bytes = if in_guest() { 16 << 20 } else { 320 << 20 };
    for arrangement in [Arrangement::Shm, Arrangement::Tcp] {
        within(Duration::from_secs(60), &format!("{arrangement:?}"), move || {
            let small = |config| Config { unexpected_bytes: 1 << 20, ..config };
            arrangement.run_with(2, small, |comm| {
                let other = 1 - comm.rank();
                let recv = comm.recv_tagged_start(vec![0_u8; bytes], other, 5).expect("started");
                let send =
                    comm.send_tagged_start(vec![comm.rank() as u8 + 1; bytes], other, 5).expect("started");
                assert!(recv.wait().expect("received").iter().all(|byte| *byte == other as u8 + 1));
                assert_eq!(send.wait().expect("sent").len(), bytes);
            })
        });
    }
}

#[test]
fn a_source_that_has_left_does_not_end_a_receive_from_any() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(3, |comm| match comm.rank() {
                0 => {
                    let mut got = [0_u8];
                    assert_eq!(comm.recv_any(&mut got).expect("the first"), 1);
                    // Rank 1 leaves now; rank 2 sends once the question what the ranks do has been put.
                    assert_eq!(comm.recv_any(&mut got).expect("the second"), 2);
                    assert_eq!(got, [2]);
                }
                1 => comm.send(&[1_u8], 0).expect("sent"),
                _ => {
                    // As long as two questions are apart: it is not a state that is waited for, but time that passes.
                    let until = std::time::Instant::now() + Duration::from_millis(700);
                    while std::time::Instant::now() < until {
                        std::thread::yield_now();
                    }
                    comm.send(&[2_u8], 0).expect("sent");
                }
            })
        });
    }
}

#[test]
fn a_time_out_says_where_the_other_rank_is() {
    // Rank 0 waits for a message, rank 1 for a collective; whoever gives up first names both.
    for arrangement in Arrangement::ALL {
        for impatient in 0..2 {
            bounded(&format!("{arrangement:?}, rank {impatient}"), move || {
                let config = |rank| Config {
                    timeout: Duration::from_secs(if rank == impatient { 2 } else { 30 }),
                    ..arrangement.config(rank)
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
                // On a machine that is busy with something else a rank may be too slow to answer.
                let mut texts = std::iter::repeat_with(attempt).take(4);
                let text = texts.find(|text| !text.contains("no answer")).expect("an answer");
                for part in ["recv #1 of 8 bytes of u8 from rank 1 with tag 6", "all_reduce(8 x u8, sum)"] {
                    assert!(text.contains(part), "{arrangement:?}: {text}");
                }
            });
        }
    }
}
