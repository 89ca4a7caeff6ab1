//! A child made by `fork` cannot use its parent's communicator, and its end takes nothing away from it: the parent and
//! the other ranks get right results, as if there were no child. Nor does it hide the end of its parent.

use std::net::{Ipv4Addr, TcpListener};

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_fork");

/// A drop that waited for other ranks, or for threads that do not exist in the child, would take seconds.
const CHILD_MOST_MS: u64 = 1500;

/// Runs a job whose rank `forks` forks. Returns the time that the child took, if it tells.
fn took_ms(arrangement: Arrangement, task: &str, forks: u32) -> u64 {
    let settings = |rank| environment(arrangement, rank);
    let mut job = Job::start(PROGRAM, 3, 3, &[task, &forks.to_string()], settings);
    let tells = task != "exit";
    let child = tells.then(|| job.ranks[forks as usize].expect("@child").parse().expect("milliseconds"));
    job.expect_all("@gone");
    assert_eq!(job.ended(), [true; 3], "{arrangement:?}, {task}, rank {forks}");
    child.unwrap_or_default()
}

fn fork(task: &str, forks: u32) {
    for arrangement in [Arrangement::Exchange, Arrangement::Shm, Arrangement::Tcp] {
        // A pause of the machine may hold a child up, but hardly three in a row.
        let mut took = (0..3).map(|_| took_ms(arrangement, task, forks));
        assert!(took.any(|took| took < CHILD_MOST_MS), "{arrangement:?}, {task}: the child waits");
    }
}

#[test]
fn calls_in_the_child_are_refused() {
    fork("call", 1);
}

#[test]
fn a_child_drops_what_it_inherited() {
    fork("drop", 1);
}

#[test]
fn so_does_a_child_of_the_rank_that_carries_the_control_plane() {
    fork("drop", 0);
    fork("call", 0);
}

#[test]
fn a_child_exits_without_dropping() {
    fork("exit", 1);
}

#[test]
fn a_child_makes_communicators_of_its_own() {
    fork("new", 1);
}

#[test]
fn a_killed_rank_is_missed_although_its_child_lives() {
    for arrangement in [Arrangement::Exchange, Arrangement::Shm, Arrangement::Tcp] {
        for killed in [1, 0] {
            let task = ["killed", &killed.to_string()];
            let mut job = Job::start(PROGRAM, 3, 3, &task, |rank| environment(arrangement, rank));
            for rank in (0..3).filter(|rank| *rank != killed) {
                job.ranks[rank].expect("@lost");
            }
        }
    }
}

#[test]
fn a_child_keeps_no_port_from_the_next_job() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    drop(listener);
    for forks in ["0", "1"] {
        let at = |_| vec![("KOLO_RENDEZVOUS", address.clone())];
        let mut job = Job::start(PROGRAM, 3, 3, &["again", forks], at);
        job.expect_all("@gone");
        assert_eq!(job.ended(), [true; 3], "rank {forks} forks");
    }
}

#[test]
fn a_fork_inside_a_scope() {
    fork("scope", 2);
}
