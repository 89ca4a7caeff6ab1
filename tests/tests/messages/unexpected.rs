//! Messages that are not yet asked for, and how many of them are buffered.

use std::time::Duration;

use kolo::{Config, Error};
use kolo_tests::arrangement::{Arrangement, in_guest};
use kolo_tests::watchdog::{Gate, bounded, within};

use crate::everywhere_with;

#[test]
fn unexpected_messages_are_bounded() {
    let small = |config: Config| {
        config.with(|config| {
            config.unexpected_bytes = 100_000;
            config.timeout = Duration::from_secs(2);
        })
    };
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            arrangement.run_with(2, small, |comm| {
                if comm.rank() == 0 {
                    // Two messages fit, the third does not.
                    let works: Vec<_> = [3, 4, 5, 6]
                        .map(|tag| comm.send_tagged_start(vec![tag as u8; 45_000], 1, tag).expect("started"))
                        .into();
                    let long = Duration::from_secs(30);
                    // The transport's buffers decide whether the last message has left.
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
        |config: Config| config.with(|config| config.unexpected_bytes = 100_000),
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
                    // Never more than two messages are in the way.
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
        |config: Config| {
            config.with(|config| {
                config.unexpected_bytes = 100_000;
                config.timeout = Duration::from_secs(10);
            })
        },
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
                // Each check makes progress: after this many, the third message has reached the limit.
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
fn long_messages_take_their_place() {
    // In each direction, the message is many times as long as the limit on buffered bytes; it lands in its place.
    let bytes = if in_guest() { 16 << 20 } else { 320 << 20 };
    for arrangement in [Arrangement::Shm, Arrangement::Tcp] {
        within(Duration::from_secs(60), &format!("{arrangement:?}"), move || {
            let small = |config: Config| config.with(|config| config.unexpected_bytes = 1 << 20);
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
