//! Tests of hosts with several cards, all of which carry long messages.

use std::time::{Duration, Instant};

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use kolo_netlab::network::Network;
use kolo_transport::tcp::Congestion;
use kolo_transport::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Rail, Sink, TcpOptions, Token};

use crate::Test;
use crate::job::{perf, run, succeed};
use crate::placed::Placed;

pub(crate) const TESTS: &[Test] = tests![
    Moment long_messages_go_over_both_cards,
    Moment a_card_that_leads_nowhere_is_done_without,
    Moment a_card_that_loses_full_segments_is_done_without,
    Moment the_user_chooses_the_cards,
    Moment a_cut_card_is_noticed,
    Moment a_long_way_takes_several_connections_without_bbr,
    Long all_collectives_over_two_cards,
];

const LONG: Duration = Duration::from_secs(60);
const ON: [Channel; 2] = [Channel { peer: 1, index: 0 }, Channel { peer: 0, index: 0 }];

/// Makes a network whose hosts have cards of 400 and 200 Mbit/s.
fn network(hosts: usize) -> Network {
    Network::hosts(hosts).nics(2).rate(400_000_000).nic_rate(1, 200_000_000).delay(Duration::from_micros(50))
}

/// Makes two endpoints, on two hosts, that know each other.
fn pair(lab: &Lab, list: Option<&str>) -> [Placed; 2] {
    pair_with(
        lab,
        &TcpOptions {
            interfaces: list.and_then(TcpOptions::interfaces_from),
            dial_timeout: Duration::from_secs(2),
            ..TcpOptions::default()
        },
    )
}

fn pair_with(lab: &Lab, options: &TcpOptions) -> [Placed; 2] {
    let mut ends = [0, 1].map(|rank| Placed::new(lab.host(rank), rank as u32, 2, options.clone()));
    let addresses = [0, 1].map(|rank: usize| ends[rank].address().to_vec());
    ends[0].introduce(1, &addresses[1]).expect("a good address");
    ends[1].introduce(0, &addresses[0]).expect("a good address");
    ends
}

/// Sends `len` bytes from one end to the other and checks them. Returns the time that it took, or `None` if it took
/// longer than `patience`.
fn send(ends: &mut [Placed; 2], from: usize, len: usize, patience: Duration) -> Option<Duration> {
    let mut source: Vec<u8> = (0..len).map(|at| (at * 31 + at / 251) as u8).collect();
    let mut target = vec![0_u8; len];
    let (out, inward) =
        ([Piece { ptr: source.as_mut_ptr(), len }], [Piece { ptr: target.as_mut_ptr(), len }]);
    let to = 1 - from;
    // SAFETY: bytes and pieces outlive the tokens, which complete below; otherwise the endpoints are given up.
    let posted = unsafe {
        [
            ends[to].post_recv(ON[to], 3, Sink::Place(&inward), OnMisfit::Fail, Token(2)).expect("posted"),
            ends[from].post_send(ON[from], 3, &out, Token(1)).expect("posted"),
        ]
    };
    let mut open = posted.iter().filter(|posted| **posted == Posted::Pending).count();
    let (began, mut events) = (Instant::now(), Vec::new());
    while open > 0 {
        ends.iter_mut().for_each(|end| {
            end.poll(&mut events);
        });
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
        if began.elapsed() > patience {
            let cause =
                kolo_transport::Error::new(kolo_transport::ErrorKind::Timeout, "test", None, "given up");
            ends.iter_mut().for_each(|end| end.abort(&cause, &mut events));
            return None;
        }
        std::thread::yield_now();
    }
    assert!(source == target, "{len} bytes from {from} arrive as they were");
    Some(began.elapsed())
}

/// Returns the bytes that the first end has sent on each rail.
fn sent(end: &Placed, peer: u32) -> Vec<(String, u64)> {
    let rails: Vec<Rail> = end.rails(peer);
    println!("{rails:?}");
    rails.into_iter().map(|rail| (rail.interface, rail.sent_bytes)).collect()
}

fn long_messages_go_over_both_cards() {
    const LEN: usize = 8 << 20;
    let lab = Lab::new(&network(2)).expect("a network");
    let mut ends = pair(&lab, None);
    for from in [0, 1, 0, 1] {
        send(&mut ends, from, LEN, LONG).expect("it arrives");
    }
    let best = (0..4).map(|_| send(&mut ends, 0, LEN, LONG).expect("it arrives")).min().expect("some");
    let rate = LEN as f64 * 8.0 / best.as_secs_f64();
    println!("{:.0} Mbit/s", rate / 1e6);
    for (at, peer) in [(0, 1), (1, 0)] {
        let sent = sent(&ends[at], peer);
        let [(one, most), (other, least)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((one.as_str(), other.as_str()), ("eth0", "eth1"));
        let share = *most as f64 / (most + least) as f64;
        assert!((0.55..0.8).contains(&share), "two thirds of the rate: {sent:?}");
    }
    // One card carries 377 Mbit/s at best, and both carry 565.
    assert!(rate > 400e6, "{rate} bit/s");
}

fn a_card_that_leads_nowhere_is_done_without() {
    let lab = Lab::new(&network(2)).expect("a network");
    lab.cut_card(1, 1, true);
    let mut ends = pair(&lab, None);
    let until = Instant::now() + LONG;
    while !ends[0].rails(1).iter().any(|rail| rail.problem.is_some()) {
        send(&mut ends, 0, 1 << 20, LONG).expect("it arrives");
        assert!(Instant::now() < until, "{:?}", ends[0].rails(1));
    }
    let rails = ends[0].rails(1);
    let problem = rails[1].problem.as_deref().expect("the second does not work");
    assert!(rails[1].interface == "eth1" && problem.contains(&rails[1].remote.to_string()), "{rails:?}");
    assert!(rails[1].sent_bytes == 0 && rails[0].problem.is_none() && rails[0].sent_bytes > 0, "{rails:?}");
    send(&mut ends, 1, 1 << 20, LONG).expect("it arrives");
}

/// The second card's switch has a smaller MTU than the cards: the short hellos get through there, and parts do not.
fn a_card_that_loses_full_segments_is_done_without() {
    for from in [None, Some(0), Some(1)] {
        let lab = Lab::new(&network(2)).expect("a network");
        lab.block(Rule { from, to: None, what: What::LongerThanOn(1, 1300), count: None });
        let mut ends = pair(&lab, None);
        let until = Instant::now() + LONG;
        while !ends[0].rails(1).iter().any(|rail| rail.problem.is_some()) {
            for sender in [0, 1] {
                send(&mut ends, sender, 8 << 20, LONG).unwrap_or_else(|| panic!("{from:?}: it hangs"));
            }
            assert!(Instant::now() < until, "{from:?}: {:?}", ends[0].rails(1));
        }
        let rails = ends[0].rails(1);
        let problem = rails[1].problem.as_deref().expect("the second does not work");
        assert!(rails[1].interface == "eth1" && problem.contains("full segments vanish"), "{rails:?}");
        assert!(rails[1].sent_bytes == 0 && rails[0].sent_bytes > 0, "{rails:?}");
    }
}

fn the_user_chooses_the_cards() {
    let lab = Lab::new(&network(2)).expect("a network");
    for (list, cards) in [("=eth1", &[][..]), ("^eth1", &[]), ("eth1,eth0", &["eth1", "eth0"])] {
        let mut ends = pair(&lab, Some(list));
        for _ in 0..4 {
            send(&mut ends, 0, 1 << 20, LONG).expect("it arrives");
        }
        let used: Vec<String> = sent(&ends[0], 1).into_iter().map(|(card, _)| card).collect();
        assert_eq!(used, cards, "{list}: the first is named first, and one is no choice");
    }
}

/// The effect is that of a single card: the call waits, unacknowledged data is known, and the call continues when the
/// cable is restored.
fn a_cut_card_is_noticed() {
    let lab = Lab::new(&network(2)).expect("a network");
    let mut ends = pair(&lab, None);
    for _ in 0..4 {
        send(&mut ends, 0, 1 << 20, LONG).expect("it arrives");
    }
    std::thread::scope(|scope| {
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let lab = &lab;
        lab.cut_card(1, 1, true);
        scope.spawn(move || {
            // The length of the cut is under test.
            let _ = wait.recv_timeout(Duration::from_secs(1));
            lab.cut_card(1, 1, false);
        });
        let took = send(&mut ends, 0, 4 << 20, LONG).expect("it arrives");
        drop(over);
        println!("{took:?}");
    });
}

fn a_long_way_takes_several_connections_without_bbr() {
    let far = Duration::from_millis(10);
    let near = Duration::from_micros(100);
    let system = || TcpOptions { congestion: Congestion::System, ..TcpOptions::default() };
    for (delay, options, wanted) in [
        (far, system(), 4),
        (near, system(), 1),
        (near, TcpOptions { streams: Some(3), ..system() }, 3),
        (far, TcpOptions { streams: Some(1), ..system() }, 1),
        (far, TcpOptions { congestion: Congestion::Named("bbr".into()), ..system() }, 1),
    ] {
        let network = Network::hosts(2).rate(400_000_000).delay(delay).congestion("reno");
        let lab = Lab::new(&network).expect("a network");
        if options.congestion != Congestion::System && !crate::paths::has_bbr() {
            continue;
        }
        let mut ends = pair_with(&lab, &options);
        let until = Instant::now() + LONG;
        let mut sent = 0;
        while sent < 8 || ON.iter().zip(&ends).any(|(on, end)| end.connections(*on) < wanted) {
            send(&mut ends, sent % 2, 1 << 20, LONG).expect("it arrives");
            sent += 1;
            assert!(Instant::now() < until, "{delay:?}: {wanted} connections are not made");
        }
        assert_eq!([0, 1].map(|at| ends[at].connections(ON[at])), [wanted; 2], "{delay:?}");
    }
}

/// Uses two hosts with one and two ranks each, and three hosts with one.
fn all_collectives_over_two_cards() {
    for (hosts, per_host) in [(2, 2), (3, 1)] {
        let lab = Lab::new(&network(hosts)).expect("a network");
        for name in
            ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv", "gather"]
        {
            let words = format!("{name} -b 1K -e 4M -f 64 -n 2 -w 1 -c 1 -d int32");
            let Some(commands) = perf(&lab, per_host, &words, &[]) else { return };
            let ends = run(commands, LONG);
            succeed(&ends, name);
            assert!(ends[0].said.contains("Out of bounds values : 0 OK"), "{name}: {}", ends[0].said);
            // The summary shows the probe's results, with the rates.
            let said = &ends[0].said;
            assert!(said.contains("rails eth0") && said.contains(" % ("), "{name}: {said}");
        }
    }
}
