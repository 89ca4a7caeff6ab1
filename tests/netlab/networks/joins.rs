//! Tests of joining on networks that make it difficult.

use std::process::Command;
use std::time::{Duration, Instant};

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use kolo_netlab::network::{Family, Network};
use kolo_netlab::ranks::MASTER_PORT;

use crate::Test;
use crate::job::{End, Rank, ends, perf, run, succeed};

pub(crate) const TESTS: &[Test] = tests![
    Long joins_from_the_last_rank_to_the_first,
    Long joins_with_a_late_rank,
    Long joins_over_the_interface_that_works,
    Long interfaces_can_be_listed_and_excluded,
    Long joins_with_ipv6_alone,
    Long joins_between_subnets,
    Long a_lost_syn_costs_a_second,
    Long either_end_may_dial,
    Long ranks_meet_where_full_packets_vanish,
    Long listens_within_a_range_of_ports,
    Long a_relay_is_said_in_the_summary,
    Long what_the_ranks_learn_of_a_network_is_so,
    Long ranks_that_cannot_meet_are_named_with_their_addresses,
];

const LONG: Duration = Duration::from_secs(60);
/// A call in which every rank sends to every other.
const MEET: &str = "alltoall -b 64K -e 64K -n 2 -w 1 -c 1";
const PATIENT: &[(&str, &str)] = &[("KOLO_JOIN_TIMEOUT", "40"), ("KOLO_TIMEOUT", "40")];

pub(crate) fn network(hosts: usize) -> Network {
    Network::hosts(hosts).rate(1_000_000_000).delay(Duration::from_millis(1))
}

/// Runs a job in which all ranks send to each other. `None` if the program is missing.
pub(crate) fn meeting(lab: &Lab, settings: &[(&str, &str)]) -> Option<Vec<End>> {
    let settings = [PATIENT, settings].concat();
    Some(run(perf(lab, 1, MEET, &settings)?, LONG))
}

fn started_one_by_one(commands: impl Iterator<Item = Command>, late: Duration) -> Vec<End> {
    let began = Instant::now();
    let start = |command| {
        // The delay itself is under test; this does not wait for a state.
        std::thread::sleep(late);
        Rank::start(command)
    };
    let ranks = commands.map(start).collect();
    ends(ranks, began, LONG)
}

fn joins_from_the_last_rank_to_the_first() {
    let lab = Lab::new(&network(3)).expect("a network");
    let Some(commands) = perf(&lab, 2, MEET, PATIENT) else { return };
    succeed(&started_one_by_one(commands.into_iter().rev(), Duration::from_millis(200)), "rank 0 last");
}

fn joins_with_a_late_rank() {
    let lab = Lab::new(&network(3)).expect("a network");
    let Some(mut commands) = perf(&lab, 1, MEET, PATIENT) else { return };
    let (began, late) = (Instant::now(), commands.pop());
    let mut ranks: Vec<Rank> = commands.into_iter().map(Rank::start).collect();
    std::thread::sleep(Duration::from_secs(3));
    ranks.extend(late.map(Rank::start));
    let ends = ends(ranks, began, LONG);
    succeed(&ends, "a late rank");
    assert!(ends[0].at > Duration::from_secs(3), "it has waited: {:?}", ends[0].at);
}

/// Makes a network with two cards per host, of which the first one's cables are cut.
fn with_a_dead_card() -> Lab {
    let lab = Lab::new(&network(3).nics(2)).expect("a network");
    (0..3).for_each(|host| lab.cut_card(host, 0, true));
    lab
}

fn joins_over_the_interface_that_works() {
    let lab = with_a_dead_card();
    let works = lab.host(0).addresses()[1][0].to_string();
    let Some(ends) = meeting(&lab, &[("MASTER_ADDR", &works)]) else { return };
    succeed(&ends, "with a dead card");
}

fn interfaces_can_be_listed_and_excluded() {
    let lab = with_a_dead_card();
    let works = lab.host(0).addresses()[1][0].to_string();
    for list in ["eth1", "ib0,eth1", "=eth1", "^eth0,docker"] {
        let Some(ends) = meeting(&lab, &[("MASTER_ADDR", &works), ("KOLO_SOCKET_IFNAME", list)]) else {
            return;
        };
        succeed(&ends, list);
        // With the other card, the ranks would have waited for the time after which the next address is tried.
        assert!(ends[0].at < Duration::from_secs(10), "{list}: {:?}", ends[0].at);
    }
}

fn joins_with_ipv6_alone() {
    let lab = Lab::new(&network(3).family(Family::V6)).expect("a network");
    let Some(ends) = meeting(&lab, &[]) else { return };
    succeed(&ends, "IPv6");
}

fn joins_between_subnets() {
    let lab = Lab::new(&network(4).groups(2)).expect("a network");
    let Some(ends) = meeting(&lab, &[]) else { return };
    succeed(&ends, "two subnets");
}

fn a_lost_syn_costs_a_second() {
    let lab = Lab::new(&network(3)).expect("a network");
    for host in 0..3 {
        lab.block(Rule { from: None, to: Some(host), what: What::Syn, count: Some(1) });
    }
    let Some(ends) = meeting(&lab, &[]) else { return };
    succeed(&ends, "lost SYNs");
    // One lost SYN delays joining and one the first message. The rest is for a busy machine.
    assert!(ends[0].at < Duration::from_secs(8), "{:?}", ends[0].at);
    assert!(ends[0].at > Duration::from_secs(1), "none was lost: {:?}", ends[0].at);
}

/// The address cards of four ranks are longer than a packet. The control plane sends them in short segments.
fn ranks_meet_where_full_packets_vanish() {
    let lab = Lab::new(&network(4)).expect("a network");
    lab.block(Rule { from: None, to: None, what: What::LongerThan(1300), count: None });
    let settings = [PATIENT, &[("KOLO_NETWORK_PROBE", "off")]].concat();
    let Some(commands) = perf(&lab, 1, "barrier -n 2 -w 1", &settings) else { return };
    succeed(&run(commands, LONG), "packets of 1300 bytes at most");
}

fn either_end_may_dial() {
    for blocked in [&[(0, 1)][..], &[(1, 2)], &[(2, 1)], &[(0, 2), (1, 2)], &[(0, 1), (0, 2), (2, 1)]] {
        let lab = Lab::new(&network(3)).expect("a network");
        blocked.iter().for_each(|&(from, to)| lab.block_dialling(from, to));
        let Some(ends) = meeting(&lab, &[]) else { return };
        succeed(&ends, &format!("no dialling {blocked:?}"));
        // The waiting end's patience is spent once. Later channels are dialled from the end that gets through.
        assert!(ends[0].at < Duration::from_secs(10), "{blocked:?}: {:?}", ends[0].at);
    }
}

/// Nobody can dial host 1, and rank 0 can be dialled only at the port where ranks join.
fn a_relay_is_said_in_the_summary() {
    let lab = Lab::new(&network(2)).expect("a network");
    lab.block_dialling(0, 1);
    let what = What::SynOutside(MASTER_PORT, MASTER_PORT);
    lab.block(Rule { from: None, to: Some(0), what, count: None });
    let Some(ends) = meeting(&lab, &[]) else { return };
    succeed(&ends, "rank 0's port for joining, and no other");
    let says = "relayed by rank 0 to 1 rank(s), since neither end could dial the other";
    assert!(ends[0].said.contains(says), "{}", ends[0].said);
    // The patience before a relay is asked is spent once. Later channels go to the relay at once.
    assert!(ends[0].at < Duration::from_secs(8), "{:?}", ends[0].at);
}

fn ranks_that_cannot_meet_are_named_with_their_addresses() {
    let lab = Lab::new(&network(3)).expect("a network");
    for (from, to) in [(1, 2), (2, 1)] {
        lab.block(Rule { from: Some(from), to: Some(to), what: What::Everything, count: None });
    }
    let Some(ends) = meeting(&lab, &[("KOLO_TIMEOUT", "10"), ("KOLO_RELAY", "off")]) else { return };
    let address = lab.host(2).address().to_string();
    for (end, rank) in ends.iter().zip(0..) {
        let names = ["rank 1", "rank 2", address.as_str()];
        let is_told = !end.is_ok && names.iter().all(|name| end.said.contains(name));
        assert!(is_told, "rank {rank}: {}", ends.iter().map(|end| end.said.as_str()).collect::<String>());
        assert!(end.at < Duration::from_secs(30), "rank {rank} took {:?}", end.at);
    }
}

/// Checks the round trip and the rate that ranks report after joining.
fn what_the_ranks_learn_of_a_network_is_so() {
    // Headers, preambles and gaps take 6 % of a cable.
    const PAYLOAD: f64 = 0.94;
    // The last network's first host sends much more slowly than it receives.
    let networks = [
        (1e9, 0.025, None),
        (100e6, 0.2, None),
        (200e6, 20.0, None),
        (50e6, 10.0, None),
        (1e9, 0.025, Some(20e6)),
    ];
    for (cable, delay_ms, up) in networks {
        let bits: f64 = up.unwrap_or(cable);
        let delay = Duration::from_secs_f64(delay_ms / 1e3);
        let mut found = Vec::new();
        // Other programs may have had the CPUs. A result that is really wrong stays wrong.
        let is_near = (0..3).any(|_| {
            let network = Network::hosts(2).rate(cable as u64).delay(delay);
            let network = if up.is_some() { network.host_up(0, bits as u64) } else { network };
            let lab = Lab::new(&network).expect("a network");
            let Some(ends) = meeting(&lab, &[]) else { return true };
            succeed(&ends, "measured");
            let learned =
                ends[0].said.split("2 hosts, round trip ").nth(1).unwrap_or(&ends[0].said).to_owned();
            let numbers: Vec<f64> = learned.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
            let [round_trip, rate] = numbers[..] else { panic!("{learned}") };
            let share = rate * 8e6 / (bits * PAYLOAD);
            println!("{bits} bit/s, {delay_ms} ms: learned {round_trip} ms, {share:.2} of the rate");
            found.push((round_trip, share));
            (0.75..1.25).contains(&share) && round_trip < 2.0 * delay_ms * 1.25 + 1.0
        });
        assert!(is_near, "{bits} bit/s, {delay_ms} ms: {found:?}");
    }
}

/// Checks the ports behind a firewall that lets only connections to some ports through.
fn listens_within_a_range_of_ports() {
    let lab = Lab::new(&network(2)).expect("a network");
    let folder = std::env::temp_dir().join(format!("kolo-netlab-{}", std::process::id()));
    let meet = format!("file://{}", folder.display());
    let with = |range: &str, late: Duration| {
        let Some(mut commands) = perf(&lab, 2, MEET, PATIENT) else { return Vec::new() };
        for (command, rank) in commands.iter_mut().zip(0..) {
            for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
                command.env_remove(name);
            }
            command
                .env("KOLO_RANK", format!("{rank}"))
                .env("KOLO_WORLD_SIZE", "4")
                .env("KOLO_RENDEZVOUS", &meet);
            command.env("KOLO_PORT_RANGE", range).env("KOLO_TRANSPORT", "tcp");
        }
        // Ports outside the range are closed to both hosts, whichever end dials.
        started_one_by_one(commands.into_iter(), late)
    };
    lab.block(Rule { from: None, to: None, what: What::SynOutside(40_000, 40_001), count: None });
    // Each of two ranks on a host needs one port for everything.
    succeed(&with("40000-40001", Duration::ZERO), "two ports");
    // The second rank of each host finds no port.
    for end in with("40000-40000", Duration::from_millis(200)) {
        let says = "no port from 40000 to 40000 is free";
        let needed = "2 ranks on a host need 2 ports, but the range has 1";
        assert!(
            !end.is_ok && [says, needed, "KOLO_PORT_RANGE"].iter().all(|text| end.said.contains(text)),
            "{}",
            end.said
        );
        assert!(end.at < Duration::from_secs(20), "{:?}: {}", end.at, end.said);
    }
    let _ = std::fs::remove_file(folder);
}
