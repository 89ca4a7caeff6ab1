//! Tests of `kolo doctor`, on healthy networks and on others.

use std::time::Duration;

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use kolo_netlab::network::Network;

use crate::Test;
use crate::job::{End, command, perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Moment a_network_that_is_well_has_no_finding,
    Long a_slow_host_is_named,
    Long a_very_slow_network_is_not_called_broken,
    Long a_lossy_host_is_named,
    Long a_black_hole_is_told_from_a_broken_network,
    Long a_host_that_nobody_can_dial_is_named,
    Long hosts_that_never_meet_are_named_with_their_addresses,
    Long a_queue_that_bursts_overflow_is_found,
    Long a_dead_card_is_named,
    Long a_card_that_loses_full_segments_is_named,
    Long eight_hosts_take_less_than_half_a_minute,
    Long ranks_that_do_not_join_are_missed,
    Long a_profile_of_the_hosts_is_used_and_one_of_others_is_not,
];

const LONG: Duration = Duration::from_secs(90);

/// Makes a network that is slow enough for a busy machine to keep up.
fn network(hosts: usize) -> Network {
    Network::hosts(hosts).rate(100_000_000).delay(Duration::from_micros(200))
}

/// Runs the doctor on a network. Returns the report of rank 0, or `None` if the program is missing.
fn examined(lab: &Lab, words: &str) -> Option<End> {
    let ends = run(command(lab, 1, "doctor", words, &[])?, LONG);
    ends.into_iter().next()
}

/// Checks that the doctor ends with this code, says these texts, and reports at most one finding.
fn expect(lab: &Lab, code: i32, texts: &[&str]) {
    let Some(end) = examined(lab, "") else { return };
    assert_eq!(end.code, Some(code), "{}", end.said);
    for text in texts {
        assert!(end.said.contains(text), "no {text:?}:\n{}", end.said);
    }
    assert_eq!(end.said.matches("  remedy: ").count(), usize::from(code > 0), "{}", end.said);
}

fn a_network_that_is_well_has_no_finding() {
    let lab = Lab::new(&network(2)).expect("a network");
    expect(&lab, 0, &["No findings", "2 hosts, 2 ranks", "via eth0", "mtu 1500"]);
}

fn a_slow_host_is_named() {
    let lab = Lab::new(&network(4).host_rate(2, 10_000_000)).expect("a network");
    expect(&lab, 1, &["host 2 (host2) sends and receives at most 1.", "ethtool"]);
    let lab = Lab::new(&network(4).host_down(1, 10_000_000)).expect("a network");
    expect(&lab, 1, &["host 1 (host1) receives at most 1."]);
}

fn a_very_slow_network_is_not_called_broken() {
    let lab =
        Lab::new(&Network::hosts(2).rate(120_000).delay(Duration::from_micros(200))).expect("a network");
    let Some(end) = examined(&lab, "") else { return };
    let false_causes = ["got through", "cannot reach", "black hole"];
    assert!(false_causes.iter().all(|cause| !end.said.contains(cause)), "{}", end.said);
    assert!(end.said.contains("2 hosts, 2 ranks") && end.code == Some(0), "{}", end.said);
}

fn a_lossy_host_is_named() {
    let lab = Lab::new(&network(3).host_loss(1, 0.02)).expect("a network");
    expect(&lab, 1, &["segments are lost between host 1 (host1) and all others"]);
}

/// Ranks can join there and learn the findings, since the control plane sends short segments.
fn a_black_hole_is_told_from_a_broken_network() {
    let lab = Lab::new(&network(3)).expect("a network");
    lab.block(Rule { from: None, to: Some(2), what: What::LongerThan(1300), count: None });
    lab.block(Rule { from: Some(2), to: None, what: What::LongerThan(1300), count: None });
    expect(&lab, 2, &["are lost between host 2 (host2) and all others", "an MTU black hole"]);
}

fn a_host_that_nobody_can_dial_is_named() {
    let lab = Lab::new(&network(3)).expect("a network");
    lab.block(Rule { from: None, to: Some(1), what: What::Syn, count: None });
    expect(
        &lab,
        1,
        &["no other host can connect to host 1 (host1), although it can connect to others", "firewall"],
    );
}

fn hosts_that_never_meet_are_named_with_their_addresses() {
    let lab = Lab::new(&network(3)).expect("a network");
    for (from, to) in [(1, 2), (2, 1)] {
        lab.block(Rule { from: Some(from), to: Some(to), what: What::Everything, count: None });
    }
    let address = format!("{}: no answer", lab.host(2).address());
    expect(
        &lab,
        1,
        &["host 1 (host1) and host 2 (host2) cannot reach each other", &address, "rank 0 relays"],
    );
}

fn a_queue_that_bursts_overflow_is_found() {
    let lab = Lab::new(&network(4).queue(16 << 10)).expect("a network");
    expect(&lab, 1, &["segments are lost when 3 hosts send to ", "a longer queue"]);
}

fn a_dead_card_is_named() {
    let lab = Lab::new(&network(3).nics(2)).expect("a network");
    lab.cut_card(2, 1, true);
    let Some(end) = examined(&lab, "") else { return };
    let address = lab.host(2).addresses()[1][0].to_string();
    assert_eq!(end.code, Some(1), "{}", end.said);
    assert!(end.said.contains(&format!("{address} of host 2 (host2) (eth1)")), "{}", end.said);
    assert!(end.said.contains("KOLO_SOCKET_IFNAME=^eth1"), "{}", end.said);
}

fn a_card_that_loses_full_segments_is_named() {
    let lab = Lab::new(&network(2).nics(2)).expect("a network");
    lab.block(Rule { from: Some(1), to: None, what: What::LongerThanOn(1, 1300), count: None });
    let Some(end) = examined(&lab, "") else { return };
    assert_eq!(end.code, Some(1), "{}", end.said);
    for text in ["an MTU black hole", "(eth1)", "KOLO_SOCKET_IFNAME=^eth1"] {
        assert!(end.said.contains(text), "no {text:?}:\n{}", end.said);
    }
}

fn eight_hosts_take_less_than_half_a_minute() {
    let lab = Lab::new(&network(8)).expect("a network");
    let Some(end) = examined(&lab, "--json") else { return };
    assert_eq!(end.code, Some(0), "{}", end.said);
    assert!(end.at < Duration::from_secs(30), "{:?}", end.at);
    assert_eq!(end.said.matches("\"bytes_per_second\"").count(), 56, "every direction: {}", end.said);
}

fn ranks_that_do_not_join_are_missed() {
    let lab = Lab::new(&network(3)).expect("a network");
    lab.cut(2);
    let Some(end) = examined(&lab, "") else { return };
    assert_eq!(end.code, Some(2), "{}", end.said);
    assert!(end.said.contains("missing: rank") && end.at < Duration::from_secs(30), "{}", end.said);
}

/// Runs `kolo tune` on a network, and then jobs with the profile that it has written.
fn a_profile_of_the_hosts_is_used_and_one_of_others_is_not() {
    let folder = std::env::temp_dir().join(format!("kolo-netlab-profile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("cluster.toml");
    let path = file.to_str().expect("plain names");
    let lab = Lab::new(&network(3).host_rate(2, 10_000_000)).expect("a network");
    let Some(commands) = command(&lab, 1, "tune", &format!("--out {path}"), &[]) else { return };
    let ends = run(commands, LONG);
    succeed(&ends, "kolo tune");
    assert!(ends[0].said.contains("host2: sends 1."), "{}", ends[0].said);
    let first = |lab: &Lab, ranks: usize| {
        let words = "all_reduce -b 4K -e 4K -n 2 -w 1 -c 1";
        let ends = run(perf(lab, ranks, words, &[("KOLO_PROFILE", path)])?, LONG);
        succeed(&ends, "with a profile");
        ends.into_iter().next()
    };
    let Some(end) = first(&lab, 1) else { return };
    let says = ["network: 3 hosts, ", "(profile ", "host 2 is the slowest"];
    assert!(says.iter().all(|text| end.said.contains(text)), "{}", end.said);
    // With another host, the ranks measure the network.
    drop(lab);
    let Some(end) = first(&Lab::new(&network(4)).expect("a network"), 1) else { return };
    let says = ["(measured in ", "is not used: it was measured on host0, host1, host2, not on host3"];
    assert!(says.iter().all(|text| end.said.contains(text)), "{}", end.said);
    let _ = std::fs::remove_dir_all(folder);
}
