//! Non-blocking forms of messages: started, in a scope, in groups, dropped.

use std::time::Duration;

use kolo::RawMessage;

use crate::{contents, everywhere};

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
        // No rank makes further calls, so the helpers have to do the work.
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
