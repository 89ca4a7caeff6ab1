//! Probes, which report waiting messages.

use std::time::{Duration, Instant};

use kolo::{DataType, Error};

use super::{LENGTHS, contents, everywhere};

const PATIENCE: Duration = Duration::from_secs(30);

/// Rank 0 learns the length of the next message from a probe, whichever rank sends first; long messages included.
#[test]
fn a_probe_tells_what_to_receive() {
    everywhere(3, |comm| {
        if comm.rank() > 0 {
            for (number, len) in LENGTHS.into_iter().enumerate() {
                let tag = 10 + number as u32;
                comm.send_tagged(&contents(comm.rank(), tag, number, len), 0, tag).expect("sent");
            }
            return;
        }
        let mut next = [0; 3];
        for _ in 0..2 * LENGTHS.len() {
            let found = comm.probe(None, 0..=u32::MAX).expect("a message");
            let again = comm.probe(Some(found.source), found.tag..=found.tag).expect("probed");
            assert_eq!(again, found, "it is still there");
            let number = std::mem::replace(&mut next[found.source as usize], found.tag as usize - 9);
            assert_eq!(found.tag as usize, 10 + number, "in the order of rank {}", found.source);
            assert_eq!((found.bytes, found.data_type), (4 * LENGTHS[number], Some(DataType::U32)));
            let mut got = vec![0_u32; found.bytes / 4];
            comm.recv_tagged(&mut got, found.source, found.tag).expect("received");
            assert_eq!(got, contents(found.source, found.tag, number, LENGTHS[number]));
        }
        assert_eq!(comm.probe_now(None, 0..=u32::MAX).expect("probed"), None, "all have been received");
    });
}

/// A probe for one tag finds messages behind those of other tags, which stay. A non-blocking probe finds no message
/// that was not sent.
#[test]
fn a_probe_looks_behind_other_messages() {
    everywhere(2, |comm| {
        let other = 1 - comm.rank();
        assert_eq!(comm.probe_now(Some(other), 0..=u32::MAX).expect("probed"), None, "nothing was sent");
        comm.barrier().expect("nobody sends before that");
        for tag in [7_u32, 8, 9] {
            comm.send_tagged(&[tag as u16; 100][..10 * tag as usize], other, tag).expect("sent");
        }
        let found = comm.probe(Some(other), 9..=9).expect("the last");
        assert_eq!((found.tag, found.bytes, found.data_type), (9, 180, Some(DataType::U16)));
        let deadline = Instant::now() + PATIENCE;
        let found = loop {
            match comm.probe_now(None, 8..=20).expect("probed") {
                Some(found) => break found,
                None => assert!(Instant::now() < deadline),
            }
        };
        assert_eq!((found.source, found.tag, found.bytes), (other, 8, 160), "the older of the two");
        // A receive that is called meanwhile takes its message, even one that was probed.
        for tag in [9_u32, 7, 8] {
            let mut got = vec![0_u16; 10 * tag as usize];
            comm.recv_tagged(&mut got, other, tag).expect("received");
            assert!(got.iter().all(|value| u32::from(*value) == tag));
        }
        assert_eq!(comm.probe_now(Some(other), 0..=u32::MAX).expect("probed"), None);
    });
}

/// A started receive has priority: a probe does not see its message, but the one behind it.
#[test]
fn a_probe_does_not_see_what_a_receive_has_asked_for() {
    everywhere(2, |comm| {
        let other = 1 - comm.rank();
        let asked = comm.recv_tagged_start(vec![0_u64; 4], other, 5).expect("started");
        comm.barrier().expect("both have asked");
        for value in [1_u64, 2] {
            comm.send_tagged(&vec![value; 4 * value as usize], other, 5).expect("sent");
        }
        let found = comm.probe(Some(other), 5..=5).expect("the second");
        assert_eq!(found.bytes, 64);
        assert_eq!(asked.wait().expect("the first"), [1; 4]);
        let mut got = [0_u64; 8];
        comm.recv_tagged(&mut got, other, 5).expect("received");
        assert_eq!(got, [2; 8]);
    });
}

#[test]
fn messages_to_oneself_are_seen_and_wrong_probes_are_errors() {
    everywhere(2, |comm| {
        let me = comm.rank();
        let work = comm.send_tagged_start(vec![1_i8, 2, 3], me, 4).expect("started");
        let found = comm.probe(None, 4..=4).expect("one's own");
        assert_eq!((found.source, found.bytes, found.data_type), (me, 3, Some(DataType::I8)));
        let mut got = [0_i8; 3];
        comm.recv_tagged(&mut got, me, 4).expect("received");
        work.wait().expect("sent");
        assert!(matches!(comm.probe(Some(2), 0..=0), Err(Error::Usage { .. })));
        #[allow(clippy::reversed_empty_ranges, reason = "that is the mistake")]
        let none = 3..=2;
        assert!(matches!(comm.probe_now(None, none), Err(Error::Usage { .. })));
    });
}
