//! Tests of jobs whose cables are cut while they run.

use std::process::Command;
use std::time::{Duration, Instant};

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::Test;
use crate::job::{End, Rank, ends, kolo, perf, run, succeed};
use crate::joins::network;

pub(crate) const TESTS: &[Test] = tests![
    Long a_cut_host_is_named_by_all_others,
    Long the_host_of_rank_0_is_named_too,
    Long a_job_goes_on_when_the_cable_is_back,
    Long a_job_goes_on_soon_after_a_long_outage,
    Long a_path_that_loses_long_packets_ends_a_job_with_the_remedy,
    Moment a_full_disk_is_told_when_ranks_meet_and_no_matter_later,
];

/// `KOLO_DEAD_AFTER` of these jobs.
const LIMIT: Duration = Duration::from_secs(3);
/// Time limit for a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Starts a job of one rank on each of three hosts, and waits until it is in the middle of its calls.
fn running(lab: &Lab, iterations: u32) -> Option<Vec<Rank>> {
    running_with(lab, iterations, LIMIT)
}

/// As [`running`], with a value of `KOLO_DEAD_AFTER`.
fn running_with(lab: &Lab, iterations: u32, dead_after: Duration) -> Option<Vec<Rank>> {
    let words = format!("all_reduce -b 64K -e 64K -w 5 -n {iterations} -c 1");
    let limit = dead_after.as_secs().to_string();
    let settings = [("KOLO_DEAD_AFTER", limit.as_str()), ("KOLO_JOIN_TIMEOUT", "40"), ("KOLO_TIMEOUT", "40")];
    let mut ranks: Vec<Rank> = perf(lab, 1, &words, &settings)?.into_iter().map(Rank::start).collect();
    // The head of the table appears once all ranks have joined. Packets then show that calls are running.
    ranks[0].expect("out-of-place", LONG);
    let before = lab.counts().passed;
    let until = Instant::now() + LONG;
    while lab.counts().passed < before + 1000 {
        assert!(Instant::now() < until, "nothing moves");
        std::thread::yield_now();
    }
    Some(ranks)
}

/// Cuts off one host of a job and returns how the ranks end.
fn without(host: usize) -> Option<Vec<End>> {
    let lab = Lab::new(&network(3)).expect("a network");
    let ranks = running(&lab, 10_000_000)?;
    lab.cut(host);
    let ends = ends(ranks, Instant::now(), LONG);
    for (end, rank) in ends.iter().zip(0..) {
        println!("rank {rank}, {:?}: {}", end.at, end.said.lines().last().unwrap_or_default());
        assert!(!end.is_ok, "rank {rank} did not notice:\n{}", end.said);
        // A second limit distinguishes the silence of one rank from that of all, and reporting takes time too.
        assert!(end.at < 2 * LIMIT + Duration::from_secs(4), "rank {rank} took {:?}:\n{}", end.at, end.said);
    }
    Some(ends)
}

fn a_cut_host_is_named_by_all_others() {
    let Some(ends) = without(2) else { return };
    for end in &ends[..2] {
        assert!(end.said.contains("rank 2 is lost") && end.said.contains("host2"), "{}", end.said);
    }
}

fn the_host_of_rank_0_is_named_too() {
    let Some(ends) = without(0) else { return };
    for end in &ends[1..] {
        assert!(end.said.contains("rank 0 is lost"), "{}", end.said);
    }
}

fn a_job_goes_on_when_the_cable_is_back() {
    let lab = Lab::new(&network(3)).expect("a network");
    for host in [1, 0] {
        let Some(ranks) = running(&lab, 300) else { return };
        lab.cut(host);
        // The length of the cut is under test.
        std::thread::sleep(LIMIT / 3);
        lab.restore(host);
        let ends = ends(ranks, Instant::now(), LONG);
        succeed(&ends, "a cable that came back");
        assert!(ends[0].said.contains("Out of bounds values : 0 OK"), "{}", ends[0].said);
    }
}

/// Without a limit, the kernel sends lost bytes again after some 12 s and 25 s.
fn a_job_goes_on_soon_after_a_long_outage() {
    const OUTAGE: Duration = Duration::from_secs(15);
    if !std::path::Path::new("/proc/sys/net/ipv4/tcp_rto_max_ms").exists() {
        println!("skipped: this kernel has no TCP_RTO_MAX_MS");
        return;
    }
    let lab = Lab::new(&network(2)).expect("a network");
    let Some(ranks) = running_with(&lab, 300, Duration::from_secs(20)) else { return };
    lab.cut(1);
    // The length of the cut is under test.
    std::thread::sleep(OUTAGE);
    lab.restore(1);
    let ends = ends(ranks, Instant::now(), LONG);
    succeed(&ends, "a long outage");
    for end in &ends {
        assert!(end.at < Duration::from_secs(7), "{:?} after the outage:\n{}", end.at, end.said);
    }
}

/// Interfaces with an MTU of 9000, and a switch that drops all frames longer than usual.
fn a_path_that_loses_long_packets_ends_a_job_with_the_remedy() {
    let lab = Lab::new(&network(3).mtu(9000)).expect("a network");
    lab.block(Rule { from: None, to: None, what: What::LongerThan(1514), count: None });
    let words = "all_reduce -b 64K -e 64K -w 1 -n 2";
    let Some(commands) = perf(&lab, 1, words, &[("KOLO_TIMEOUT", "300")]) else { return };
    let ends = run(commands, LONG);
    let told =
        |end: &End| !end.is_ok && end.said.contains("packets of 9000 bytes") && end.said.contains("mtu 1500");
    assert!(ends.iter().any(told), "{}", ends[0].said);
    assert!(ends.iter().all(|end| !end.said.contains("merely slow")), "{}", ends[0].said);
}

/// Ranks write two files: one where they meet, and an invitation for newcomers. Sharing memory needs no file.
fn a_full_disk_is_told_when_ranks_meet_and_no_matter_later() {
    let Some(kolo) = kolo() else { return };
    let folder = std::env::temp_dir().join(format!("kolo-netlab-full-{}", std::process::id()));
    let full = folder.join("full");
    std::fs::create_dir_all(&full).expect("a folder");
    mount("tmpfs", &full, "tmpfs", MountFlags::empty(), Some(c"size=4k")).expect("a small disk");
    std::fs::write(full.join("filler"), [0; 8192]).expect_err("it is full");
    let ranks = |count: u32, settings: &[(&str, String)]| {
        let commands = (0..count).map(|rank| {
            let mut command = Command::new(&kolo);
            command.args("perf all_reduce -b 64K -e 64K -w 1 -n 2".split(' '));
            let place = [("KOLO_RANK", rank.to_string()), ("KOLO_WORLD_SIZE", "2".to_owned())];
            command.env("KOLO_JOIN_TIMEOUT", "20").envs(place).envs(settings.iter().cloned());
            command
        });
        run(commands.collect(), LONG)
    };
    let at = |folder: &std::path::Path| ("KOLO_RENDEZVOUS", format!("file://{}/job", folder.display()));
    let alone = ranks(1, &[at(&full)]).remove(0);
    let is_told = alone.said.contains("writing the rendezvous file") && alone.said.contains("os error 28");
    assert!(!alone.is_ok && is_told, "{}", alone.said);
    let invitation = full.join("invitation").display().to_string();
    let both = ranks(2, &[at(&folder), ("KOLO_INVITE", invitation), ("KOLO_ELASTIC", "1:2".to_owned())]);
    succeed(&both, "no room for an invitation");
    assert_eq!(std::fs::read_dir(&full).expect("a folder").count(), 1, "a part of a file is left");
    unmount(&full, UnmountFlags::DETACH).expect("it was mounted");
    let _ = std::fs::remove_dir_all(&folder);
}
