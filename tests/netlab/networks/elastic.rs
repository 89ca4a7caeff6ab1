//! Tests of groups that go on without a host whose cable is cut, in both directions or in one.
//!
//! The ranks run `kolo_elastic` (tests/src/bin), one on each of four hosts. Each sum shows which ranks took part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kolo_netlab::Lab;
use kolo_netlab::fabric::{Rule, What};
use rustix::process::Signal;

use crate::Test;
use crate::job::{Rank, built, commands};
use crate::joins::network;

pub(crate) const TESTS: &[Test] = tests![
    Long the_others_sum_again_within_1300_ms_of_a_silent_cut,
    Long pauses_below_the_limit_are_no_loss,
    Long the_last_rank_goes_on_alone_once_the_others_have_ended,
    Long of_a_parted_network_one_side_goes_on,
    Long whoever_is_left_behind_is_told,
    Long those_that_cannot_meet_are_relayed_after_a_loss_too,
    Long a_third_rank_connects_one_that_does_not_reach_the_next_rank_0,
    Long a_newcomer_that_does_not_reach_rank_0_holds_nobody_up,
];

const HOSTS: usize = 4;
/// Time limit for a busy machine.
const LONG: Duration = Duration::from_secs(40);

/// Short limits for silence, outside of agreements and in them.
const SOON: &[(&str, &str)] = &[("KOLO_DEAD_AFTER", "1"), ("KOLO_SILENT_AFTER", "0.25")];

/// Longest time from a silent cut to the next sum of the others, with their default limit of 1 s.
const MOST: Duration = Duration::from_millis(1300);

/// Ranks in the middle of their calls, on a network of their own.
struct Group {
    lab: Lab,
    ranks: Vec<Rank>,
    what: String,
}

impl Group {
    /// Starts a group. `None` if the program is missing.
    fn new(what: &str, words: &[&str], settings: &[(&str, &str)]) -> Option<Self> {
        Self::on(what, words, settings, |_| ())
    }

    /// Starts a group on a network that `prepare` has changed.
    fn on(what: &str, words: &[&str], settings: &[(&str, &str)], prepare: impl Fn(&Lab)) -> Option<Self> {
        let lab = Lab::new(&network(HOSTS)).expect("a network");
        prepare(&lab);
        let mut line = vec![built("kolo_elastic", "kolo-tests")?.into_os_string(), "1000".into()];
        line.extend(words.iter().map(Into::into));
        let settings = [&[("KOLO_JOIN_TIMEOUT", "30"), ("KOLO_TIMEOUT", "30")], settings].concat();
        let mut ranks: Vec<Rank> = commands(&lab, 1, &line, &settings).into_iter().map(Rank::start).collect();
        for rank in &mut ranks {
            rank.expect("@running", LONG);
        }
        Some(Self { lab, ranks, what: format!("{what}, {words:?}") })
    }

    /// Drops all packets from one set of hosts to the other.
    fn part(&self, from: &[usize], to: &[usize]) {
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to))) {
            self.lab.block(Rule { from: Some(from), to: Some(to), what: What::Everything, count: None });
        }
    }

    /// Waits until all of these ranks compute sums without the others, with no other set of ranks in between. Returns
    /// how long after `since` that was.
    fn sums_again(&mut self, left: &[usize], since: Instant) -> Duration {
        let bits: u32 = left.iter().map(|rank| 1 << rank).sum();
        let mut worst = Duration::ZERO;
        for (place, rank) in left.iter().enumerate() {
            let (at, line) = self.ranks[*rank].expect("@again ", LONG);
            let group: Vec<u32> =
                line.split(' ').skip(2).map(|word| word.parse().expect("a number")).collect();
            let expected = [bits, left.len() as u32, group[2], place as u32];
            assert_eq!(group, expected, "{}: rank {rank}", self.what);
            worst = worst.max(at.saturating_duration_since(since));
        }
        println!("{}: {left:?} sum again after {:.0} ms", self.what, worst.as_secs_f64() * 1e3);
        worst
    }

    /// Returns the report of a rank that may not go on.
    fn stops(&mut self, rank: usize, how: &str) -> String {
        let (_, text) = self.ranks[rank].expect(how, LONG);
        assert!(!self.ranks[rank].said.contains("@again"), "{}: rank {rank} went on: {text}", self.what);
        println!("{}: {text}", self.what);
        text
    }

    /// Ends the job, and checks that no rank has seen a wrong sum. Returns its processes.
    fn stop(mut self, left: &[usize]) -> Vec<Rank> {
        for rank in left {
            self.ranks[*rank].tell("stop");
        }
        for rank in left {
            self.ranks[*rank].expect("@gone", LONG);
        }
        for (rank, process) in self.ranks.iter().enumerate() {
            assert!(!process.said.contains("@wrong"), "{}: rank {rank}: {}", self.what, process.said);
        }
        self.ranks
    }
}

fn without(host: usize) -> Vec<usize> {
    (0..HOSTS).filter(|other| *other != host).collect()
}

/// Runs jobs at the same time, in networks of their own. They spend most of their time waiting.
fn at_once(jobs: &[&(dyn Fn() -> Option<()> + Sync)]) {
    std::thread::scope(|scope| {
        for job in jobs {
            scope.spawn(job);
        }
    });
}

/// Cuts one host after another, not both at once, since the time is measured.
fn the_others_sum_again_within_1300_ms_of_a_silent_cut() {
    for host in [3, 0] {
        let Some(mut group) = Group::new(&format!("host {host} cut"), &["run"], &[]) else { return };
        let since = Instant::now();
        group.lab.cut(host);
        let took = group.sums_again(&without(host), since);
        assert!(took <= MOST, "{}: {took:?}", group.what);
        group.stop(&without(host));
    }
}

/// Ranks 1 and 2 cannot dial each other, so rank 0 relays their bytes, before the loss and after it. After the loss,
/// they know at once that they need the relay.
fn those_that_cannot_meet_are_relayed_after_a_loss_too() {
    let settings = [("KOLO_ALGO", "all_reduce:ring"), ("KOLO_TRANSPORT", "tcp")];
    let Some(mut group) = Group::on("1 and 2 apart", &["run"], &settings, |lab| {
        lab.block_dialling(1, 2);
        lab.block_dialling(2, 1);
    }) else {
        return;
    };
    let since = Instant::now();
    group.lab.cut(3);
    let took = group.sums_again(&without(3), since);
    assert!(took <= MOST, "{}: {took:?}", group.what);
    group.stop(&without(3));
}

/// Ranks 1 and 2 do not reach each other, from the start or from the moment on at which rank 0 ends, and rank 1 is the
/// next rank 0.
fn a_third_rank_connects_one_that_does_not_reach_the_next_rank_0() {
    at_once(&[
        &|| parted_from_the_next(&[(2, 1)], false),
        &|| parted_from_the_next(&[(1, 2), (2, 1)], false),
        &|| parted_from_the_next(&[(1, 2), (2, 1)], true),
    ]);
}

fn parted_from_the_next(blocked: &[(usize, usize)], is_cut_later: bool) -> Option<()> {
    let settings = [("KOLO_ALGO", "all_reduce:ring"), ("KOLO_TRANSPORT", "tcp")];
    let what = format!("{blocked:?} parted, {}", if is_cut_later { "later" } else { "before" });
    let dialling = if is_cut_later { &[][..] } else { blocked };
    let mut group = Group::on(&what, &["run"], &settings, |lab| {
        dialling.iter().for_each(|(from, to)| lab.block_dialling(*from, *to));
    })?;
    if is_cut_later {
        blocked.iter().for_each(|(from, to)| group.part(&[*from], &[*to]));
    }
    let since = Instant::now();
    group.ranks[0].signal(Signal::KILL);
    group.sums_again(&without(0), since);
    let ranks = group.stop(&without(0));
    // Rank 3 is the third of those that are left. If one end can dial the other, it relays no data.
    for rank in &ranks[1..=2] {
        let says =
            rank.said.contains("relayed by rank 2 to 1 rank(s), since neither end could dial the other");
        assert_eq!(says, blocked.len() == 2, "{what}: {}", rank.said);
    }
    Some(())
}

/// A newcomer waits at rank 1's port and does not reach rank 0, at whose port the new group meets.
fn a_newcomer_that_does_not_reach_rank_0_holds_nobody_up() {
    const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
    let lab = Lab::new(&network(HOSTS)).expect("a network");
    lab.block_dialling(3, 0);
    let folder = std::env::temp_dir().join(format!("kolo-netlab-newcomer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let Some(program) = built("kolo_survivors", "kolo-tests") else { return };
    let settings = [("KOLO_JOIN_TIMEOUT", "120"), ("KOLO_TIMEOUT", "120")];
    let mut all = commands(&lab, 1, &[program.into_os_string(), "400".into()], &settings);
    for (command, number) in all.iter_mut().zip(0..) {
        command.arg(format!("{number}")).arg("4").arg(&folder).env("WORLD_SIZE", "3");
    }
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        all[3].env_remove(name);
    }
    all[3].env("KOLO_JOIN", format!("file://{}", folder.join("1").display()));
    let began = Instant::now();
    let mut ranks: Vec<Rank> = all.into_iter().map(Rank::start).collect();
    let (_, told) = ranks[3].expect("@error", JOIN_TIMEOUT);
    let address = lab.host(0).address().to_string();
    for part in ["does not reach the new rank 0", &address, "firewall"] {
        assert!(told.contains(part), "{told}");
    }
    for rank in &mut ranks[..3] {
        rank.expect("@state ", JOIN_TIMEOUT);
    }
    println!("a newcomer out of reach: all over after {:.1} s", began.elapsed().as_secs_f64());
    assert!(began.elapsed() < JOIN_TIMEOUT, "{:?}", began.elapsed());
    let _ = std::fs::remove_dir_all(folder);
}

/// Cuts a cable, stops a process and overloads the machine, each for less than the limit. None of these may count as a
/// loss.
fn pauses_below_the_limit_are_no_loss() {
    const STOPPED: Duration = Duration::from_millis(800);
    /// A machine with so much load needs the rest of the limit to notice that the cable is mended.
    const CUT: Duration = Duration::from_secs(2);
    const LIMIT: &[(&str, &str)] = &[("KOLO_SILENT_AFTER", "3")];
    const BUSY: usize = 10;
    let Some(mut group) = Group::new("pauses", &["run"], LIMIT) else { return };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..BUSY {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for host in [3, 0] {
            group.lab.cut(host);
            std::thread::sleep(CUT);
            group.lab.restore(host);
            std::thread::sleep(STOPPED);
            group.ranks[host].signal(Signal::STOP);
            std::thread::sleep(STOPPED);
            group.ranks[host].signal(Signal::CONT);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // The ranks learn of the end in their next sum.
    group.ranks[0].tell("stop");
    let ends = group
        .ranks
        .iter_mut()
        .map(|process| process.expect_any(&["@gone", "@again", "@minority", "@fenced"], LONG).0);
    let ends: Vec<usize> = ends.collect();
    let said: Vec<&str> = group.ranks.iter().map(|process| process.said.as_str()).collect();
    assert!(ends.iter().all(|end| *end == 0), "{ends:?}: {said:#?}");
}

/// The last rank must know that every other rank has ended, since a rank that is merely silent might go on elsewhere.
fn the_last_rank_goes_on_alone_once_the_others_have_ended() {
    let Some(mut group) = Group::new("all others killed", &["run"], &[]) else { return };
    let since = Instant::now();
    without(3).into_iter().for_each(|rank| group.ranks[rank].signal(Signal::KILL));
    group.sums_again(&[3], since);
    group.stop(&[3]);
}

/// Of two equal halves, the one with rank 0 goes on; otherwise the larger part does. A host whose cable carries data in
/// one direction only is also cut off.
fn of_a_parted_network_one_side_goes_on() {
    at_once(&[
        &|| parted(&[0, 3], &[1, 2]),
        &|| parted(&[1, 2, 3], &[0]),
        &|| one_way("hears nothing", 0, false),
        &|| one_way("is not heard", 3, true),
    ]);
}

fn parted(goes_on: &[usize], stop: &[usize]) -> Option<()> {
    let mut group = Group::new(&format!("{goes_on:?} and {stop:?}"), &["run"], SOON)?;
    let since = Instant::now();
    group.part(goes_on, stop);
    group.part(stop, goes_on);
    group.sums_again(goes_on, since);
    for rank in stop {
        let text = group.stops(*rank, "@minority");
        let is_alone = text.contains("no other rank answers, so this one is alone");
        assert_eq!(is_alone, stop.len() == 1, "{text}");
    }
    group.stop(goes_on);
    Some(())
}

/// Cuts a host's cable in one direction: no other host hears it, or it hears no other. No connection to it works.
fn one_way(what: &str, host: usize, hears: bool) -> Option<()> {
    let mut group = Group::new(&format!("host {host} {what}"), &["run"], SOON)?;
    let since = Instant::now();
    let others = without(host);
    if hears {
        group.part(&[host], &others)
    } else {
        group.part(&others, &[host])
    }
    group.sums_again(&others, since);
    let (which, _, text) = group.ranks[host].expect_any(&["@minority", "@fenced", "@again"], LONG);
    println!("{}: {text}", group.what);
    assert!(which < 2, "{}: it goes on: {text}", group.what);
    group.stop(&others);
    Some(())
}

/// A rank that was left behind learns it at its first attempt, or after it has given up several times and asks for
/// agreements that the others have never entered.
fn whoever_is_left_behind_is_told() {
    at_once(&[
        &|| back("run", 0, 0),
        &|| back("shrink", 2, 2),
        &|| one_pair(1, 2),
        &|| one_pair(0, 3),
        &|| cut_within_a_limit(),
    ]);
}

/// Restores a host's cable after the others have gone on.
fn back(way: &str, host: usize, attempts: usize) -> Option<()> {
    let mut group = Group::new(&format!("host {host} cut, {attempts} attempts"), &[way, "anew"], SOON)?;
    let since = Instant::now();
    group.lab.cut(host);
    group.sums_again(&without(host), since);
    for _ in 0..attempts {
        group.stops(host, "@minority");
    }
    group.lab.restore(host);
    group.stops(host, "@fenced");
    group.stop(&without(host));
    Some(())
}

/// Cuts one direction between two hosts that all others still hear. The ranks that go on form one group, and the rest
/// is told that it is out. If rank 0 hears all heartbeats, only the time-out of a call ends the step. This is not a
/// loss, so the step fails on all ranks.
fn one_pair(from: usize, to: usize) -> Option<()> {
    let settings = [SOON, &[("KOLO_TIMEOUT", "2")]].concat();
    let mut group = Group::new(&format!("{from} to {to} cut"), &["run"], &settings)?;
    group.part(&[from], &[to]);
    let ends = ["@again ", "@minority", "@fenced", "@error"];
    let told: Vec<(usize, String)> = group
        .ranks
        .iter_mut()
        .map(|rank| rank.expect_any(&ends, LONG))
        .map(|(which, _, line)| (which, line))
        .collect();
    let go_on: Vec<usize> = (0..HOSTS).filter(|rank| told[*rank].0 == 0).collect();
    let bits: u32 = go_on.iter().map(|rank| 1 << rank).sum();
    for rank in &go_on {
        let of: Vec<&str> = told[*rank].1.split(' ').skip(2).take(2).collect();
        assert_eq!(of, [bits.to_string(), go_on.len().to_string()], "{}: {told:#?}", group.what);
    }
    let failed = told.iter().filter(|(which, _)| *which == 3).count();
    let is_one_group = if [from, to].contains(&0) { go_on.len() == HOSTS - 1 } else { failed == HOSTS };
    assert!(is_one_group, "{}: {told:#?}", group.what);
    group.stop(&go_on);
    Some(())
}

/// Cuts off a host, which the others can notice only by the time limit of an agreement.
fn cut_within_a_limit() -> Option<()> {
    let settings = [("KOLO_SILENT_AFTER", "0.25"), ("KOLO_DEAD_AFTER", "60")];
    let mut group = Group::new("host 2 cut", &["within=300"], &settings)?;
    let since = Instant::now();
    group.lab.cut(2);
    let took = group.sums_again(&without(2), since);
    assert!(took < Duration::from_secs(10), "{took:?}");
    group.stop(&without(2));
    Some(())
}
