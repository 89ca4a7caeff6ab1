//! The same over a real device, soft or hard, where there is one: `tests/softroce` brings one to any machine.
//! Skipped, saying why, where there is none. `KOLO_REQUIRE_RDMA=1` makes the lack of one a failure.

mod common;

use std::time::Instant;

use common::ends::{self, BUFFER_BYTES, connected};
use kolo_verbs::*;

fn device() -> Option<Context> {
    match probe() {
        Probe::Ready(devices) => {
            let report = devices.iter().find(|device| device.trouble.is_none()).unwrap();
            Some(Library::open().unwrap().devices().unwrap().find(&report.name).unwrap().open().unwrap())
        }
        Probe::Absent(absence) => {
            assert!(std::env::var_os("KOLO_REQUIRE_RDMA").is_none(), "{absence}; {}", absence.remedy());
            println!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn transfers_arrive() {
    if let Some(context) = device() {
        println!("{:?}: {:?}", context, context.attributes().unwrap());
        ends::exercise(&context);
    }
}

#[test]
fn a_descriptor_wakes() {
    if let Some(context) = device() {
        ends::wakes(&context);
    }
}

#[test]
fn a_wrong_key_is_refused_and_giving_up_flushes() {
    if let Some(context) = device() {
        ends::refused_access(&context);
        ends::gives_up(&context);
    }
}

#[test]
fn memory_that_may_not_be_locked_is_told() {
    let Some(context) = device() else { return };
    let MemoryLock::Limited { bytes } = MemoryLock::current() else {
        return println!("skipped: this process may lock as much as it likes");
    };
    let domain = context.protection_domain().unwrap();
    let len = usize::try_from(bytes).unwrap() + (1 << 20);
    let error = domain.allocate(len, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, Error::MemoryLock { .. }), "{error}");
}

/// Not a measurement of the device: two ends in one process. It shows that nothing of ours stands in the way.
#[test]
fn figures() {
    let Some(context) = device() else { return };
    let (one, two) = connected(&context, None);

    const ROUNDS: usize = 500;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        one.post_receive(1, &[]);
        two.post_receive(2, &[]);
        one.post(3, Operation::WriteWithImmediate(two.remote(0), 1), &[one.local(0, 8)]);
        while two.completion().kind() != Kind::ReceiveWrite {}
        two.post(4, Operation::WriteWithImmediate(one.remote(0), 1), &[two.local(0, 8)]);
        // The end's own write may complete before or after the peer's arrives.
        while one.completion().kind() != Kind::ReceiveWrite {}
        rounds.push(start.elapsed());
    }
    rounds.sort();
    println!("write with immediate, 8 bytes, there and back: median {:?}", rounds[ROUNDS / 2]);

    for bytes in [4 << 10, 64 << 10, BUFFER_BYTES] {
        let (one, two) = connected(&context, None);
        let total = 64 << 20;
        let (count, window) = (total / bytes, 16);
        let start = Instant::now();
        for index in 0..count {
            if index >= window {
                one.completion().result().unwrap();
            }
            one.post(index as u64, Operation::Write(two.remote(0)), &[one.local(0, bytes)]);
        }
        for _ in 0..window.min(count) {
            one.completion().result().unwrap();
        }
        let rate = total as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("write, {bytes} bytes, {window} under way: {rate:.0} MB/s");
    }
}
