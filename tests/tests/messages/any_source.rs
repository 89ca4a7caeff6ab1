//! Receives from any source.

use std::time::Duration;

use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

use crate::{contents, everywhere};

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
        // A first message from each rank makes the connections. Later messages need not wait for their receives, since
        // every transport holds this many.
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
        // All messages are there now: the receiver decides which comes first.
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
fn a_source_that_has_left_does_not_end_a_receive_from_any() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(3, |comm| match comm.rank() {
                0 => {
                    let mut got = [0_u8];
                    assert_eq!(comm.recv_any(&mut got).expect("the first"), 1);
                    // Rank 1 leaves now; rank 2 sends once the ranks have been asked what they are doing.
                    assert_eq!(comm.recv_any(&mut got).expect("the second"), 2);
                    assert_eq!(got, [2]);
                }
                1 => comm.send(&[1_u8], 0).expect("sent"),
                _ => {
                    // This is the interval between two such questions: the test needs time to pass, and does not wait
                    // for a state.
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
