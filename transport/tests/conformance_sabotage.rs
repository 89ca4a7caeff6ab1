//! Checks the suite itself: transports that break their promises on purpose must fail its cases.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kolo_transport::conformance::{Fault, Sabotaged, Subject, run};
use kolo_transport::{Endpoint, TcpEndpoint, TcpOptions};

struct Broken(Fault);

impl Subject for Broken {
    fn endpoint(&self, rank: u32, world_size: u32, job: [u8; 16]) -> Box<dyn Endpoint> {
        let options = TcpOptions { cookie: job, ..Default::default() };
        let good = TcpEndpoint::new(rank, world_size, options).expect("endpoint");
        Box::new(Sabotaged::new(Box::new(good), world_size, self.0))
    }

    fn patience(&self) -> Duration {
        if matches!(self.0, Fault::Slow(_)) { Duration::from_secs(30) } else { Duration::from_millis(1500) }
    }
}

/// Returns the message with which a case fails; `None` if it passes.
fn failure(fault: Fault, case: &str) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(&Broken(fault), case))).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

#[test]
fn a_second_completion_is_noticed() {
    let text = failure(Fault::TwiceDone(20), "order").expect("must fail");
    assert!(text.contains("completes twice"), "{text}");
}

#[test]
fn a_lost_event_is_noticed() {
    let text = failure(Fault::LostEvent(20), "order").expect("must fail");
    assert!(text.contains("stuck"), "{text}");
}

#[test]
fn a_wrong_tag_is_noticed() {
    let text = failure(Fault::WrongTag(20), "order").expect("must fail");
    assert!(text.contains("Mismatch"), "{text}");
}

#[test]
fn a_wrong_byte_is_noticed() {
    let text = failure(Fault::WrongByte(20), "order").expect("must fail");
    assert!(text.contains("wrong byte"), "{text}");
}

#[test]
fn a_sleeper_that_nobody_wakes_is_noticed() {
    assert!(failure(Fault::DeafSleep, "sleepers_wake_by_descriptor").is_some());
}

#[test]
fn a_cut_link_is_noticed() {
    let text = failure(Fault::LostPeers(100), "order").expect("must fail");
    assert!(text.contains("PeerLost"), "{text}");
}

#[test]
fn slowness_is_no_fault() {
    for case in ["order", "scatter_gather", "mismatched_length", "random_traffic"] {
        assert_eq!(failure(Fault::Slow(3), case), None);
    }
}
