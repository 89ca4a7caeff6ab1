//! Calls with blocks of unequal length whose counts do not match: no signature shows that.

use std::time::Duration;

use super::Communicator;
use super::cluster::Cluster;
use crate::config::{Config, TransportKind, Transports};
use crate::control::ControlRuntime;
use crate::error::{Error, Result};
use crate::join::JoinSpec;

fn config(transport: TransportKind) -> Config {
    let transports = Transports::Only(vec![transport]);
    Config { transports, timeout: Duration::from_secs(20), ..Config::default() }
}

/// Exchanges `to` elements for `from` elements with the other of two ranks.
fn trade(comm: &Communicator, to: usize, from: usize) -> Result<()> {
    let counts = |with_peer| if comm.rank() == 0 { [0, with_peer] } else { [with_peer, 0] };
    comm.all_to_all_v(&vec![1_i32; to], &counts(to), &mut vec![0; from], &counts(from))
}

/// Rank 1 expects elements that rank 0 does not give.
fn expects_more(comm: Communicator) {
    if comm.rank() == 0 {
        trade(&comm, 0, 0).expect("it needs nobody");
        comm.recv(&mut [0_u8], 1).expect_err("rank 1 gives up");
        return;
    }
    let error = trade(&comm, 0, 4).expect_err("nothing comes");
    assert!(matches!(error, Error::Mismatch { peer: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("all_to_all_v(i32), operation #1") && text.contains("counts"), "{text}");
}

#[test]
fn a_rank_that_expects_more_than_its_peer_gives_hears_so() {
    Cluster::with_config(2, &config(TransportKind::Shm), expects_more).expect("the cluster");
}

/// Elements may be on their way for as long as a silent rank counts as alive.
#[test]
fn over_a_network_it_hears_so_later() -> Result<()> {
    let runtime = ControlRuntime::new()?;
    let rank = |mut spec: JoinSpec| -> Result<()> {
        spec.liveness.dead_after = Duration::from_secs(5);
        let config = config(TransportKind::Tcp);
        let comm =
            Communicator::builder().config(config).join(spec).control_runtime(runtime.clone()).connect()?;
        expects_more(comm);
        Ok(())
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            JoinSpec::local(2).into_iter().map(|spec| scope.spawn(move || rank(spec))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
    })
}

/// Both ranks may wait for each other in a later call, while the surplus elements lie unread.
#[test]
fn elements_that_nobody_expected_are_named_where_they_are_found() {
    Cluster::with_config(2, &config(TransportKind::Tcp), |comm| {
        let (to, from) = if comm.rank() == 0 { (4, 0) } else { (0, 0) };
        trade(&comm, to, from).expect("it needs nobody");
        let later = trade(&comm, 4, 4);
        if comm.rank() == 1 {
            let text = later.expect_err("an earlier message is there").to_string();
            assert!(text.contains("operation #1") && text.contains("more elements"), "{text}");
        }
        comm.barrier().expect_err("the ranks have parted");
    })
    .expect("the cluster");
}
