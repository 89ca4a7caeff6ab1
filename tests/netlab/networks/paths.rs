//! Tests of the congestion control of connections, by the path that they take.

use std::time::{Duration, Instant};

use kolo_netlab::Lab;
use kolo_netlab::network::Network;
use kolo_transport::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Sink, TcpOptions, Token};

use crate::Test;
use crate::placed::Placed;

pub(crate) const TESTS: &[Test] = tests![
    Moment far_pairs_take_bbr_and_near_ones_keep_the_systems,
    Moment hosts_of_one_kernel_are_hosts,
    Moment a_connection_that_loses_packets_takes_bbr,
    Long a_cable_may_be_cut_while_ranks_connect,
];

const ON: [Channel; 2] = [Channel { peer: 1, index: 0 }, Channel { peer: 0, index: 0 }];

/// Whether the kernel offers BBR. Prints a line if not.
pub(crate) fn has_bbr() -> bool {
    let offered = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let has = offered.unwrap_or_default().split_whitespace().any(|name| name == "bbr");
    if !has {
        println!("skipped: this kernel does not offer bbr");
    }
    has
}

/// Returns the congestion control at both ends of a connection, after a message of `bytes` bytes from the first end.
fn controls(network: &Network, bytes: usize) -> [String; 2] {
    let lab = Lab::new(network).expect("a network");
    let mut ends = [0, 1].map(|rank| Placed::new(lab.host(rank), rank as u32, 2, TcpOptions::default()));
    let addresses = [0, 1].map(|rank: usize| ends[rank].address().to_vec());
    ends[0].introduce(1, &addresses[1]).expect("a good address");
    ends[1].introduce(0, &addresses[0]).expect("a good address");
    pass(&mut ends, bytes);
    [0, 1].map(|at: usize| ends[at].congestion(ON[at]).expect("connected"))
}

/// Sends a message from the first end to the other.
fn pass(ends: &mut [Placed; 2], bytes: usize) {
    let (mut source, mut target) = (vec![7_u8; bytes], vec![0_u8; bytes]);
    let from = [Piece { ptr: source.as_mut_ptr(), len: bytes }];
    let to = [Piece { ptr: target.as_mut_ptr(), len: bytes }];
    // SAFETY: bytes and pieces outlive the tokens, which complete below.
    let posted = unsafe {
        [
            ends[0].post_send(ON[0], 0, &from, Token(1)),
            ends[1].post_recv(ON[1], 0, Sink::Place(&to), OnMisfit::Fail, Token(2)),
        ]
    };
    assert_eq!(posted.map(|posted| posted.expect("posted")), [Posted::Pending; 2]);
    let (mut open, mut events) = (2, Vec::new());
    let until = Instant::now() + Duration::from_secs(30);
    while open > 0 {
        ends.iter_mut().for_each(|end| {
            end.poll(&mut events);
        });
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
        assert!(Instant::now() < until, "no message came through");
        std::thread::yield_now();
    }
    assert_eq!(source, target);
}

fn far_pairs_take_bbr_and_near_ones_keep_the_systems() {
    if !has_bbr() {
        return;
    }
    for (delay, wanted) in [(Duration::from_millis(10), "bbr"), (Duration::from_micros(100), "reno")] {
        let network = Network::hosts(2).rate(1_000_000_000).delay(delay).congestion("reno");
        assert_eq!(controls(&network, 1), [wanted; 2], "{delay:?}");
    }
}

/// All hosts of a laboratory have the same boot id. Only the loopback device must not use pacing.
fn hosts_of_one_kernel_are_hosts() {
    if has_bbr() {
        let network =
            Network::hosts(2).rate(1_000_000_000).delay(Duration::from_micros(100)).congestion("bbr");
        assert_eq!(controls(&network, 1), ["bbr"; 2]);
    }
}

/// The kernel reports the host as unreachable before the cable is back.
fn a_cable_may_be_cut_while_ranks_connect() {
    const CUT: Duration = Duration::from_secs(5);
    let lab = Lab::new(&Network::hosts(2).rate(1_000_000_000)).expect("a network");
    // So long an outage would cost a connected pair nothing.
    let options = || TcpOptions { dial_timeout: Duration::from_secs(4), ..TcpOptions::default() };
    let mut ends = [0, 1].map(|rank| Placed::new(lab.host(rank), rank as u32, 2, options()));
    let addresses = [0, 1].map(|rank: usize| ends[rank].address().to_vec());
    ends[0].introduce(1, &addresses[1]).expect("a good address");
    ends[1].introduce(0, &addresses[0]).expect("a good address");
    lab.cut(1);
    std::thread::scope(|scope| {
        let lab = &lab;
        scope.spawn(move || {
            // The length of the cut is under test.
            std::thread::sleep(CUT);
            lab.restore(1);
        });
        let began = Instant::now();
        pass(&mut ends, 1);
        assert!(began.elapsed() >= CUT, "it was cut: {:?}", began.elapsed());
    });
}

/// Reno takes every loss for a full queue. The end that sends nothing loses nothing.
fn a_connection_that_loses_packets_takes_bbr() {
    if !has_bbr() {
        return;
    }
    let near = || Network::hosts(2).rate(1_000_000_000).delay(Duration::from_micros(100)).congestion("reno");
    assert_eq!(controls(&near(), 16 << 20), ["reno"; 2], "nothing was lost");
    assert_eq!(controls(&near().loss(0.01), 16 << 20), ["bbr, since packets are lost", "reno"]);
}
