//! Tags: messages of one tag keep their order, and those of several tags are received in any order.

use crate::{LENGTHS, contents, everywhere};

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
            // All messages of tag 9 first, then of 0, then of 7, each in the order in which they were sent.
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
                // Posted together, in reverse order.
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
