//! Processes join a working group and are killed meanwhile: a newcomer, the member at whose port it waits, or the
//! first rank.

use std::process::Command;
use std::time::{Duration, Instant};

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, Process, environment};
use kolo_tests::random::Random;
use kolo_tests::watchdog::within;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_grow");

const LIMIT: Duration = Duration::from_secs(100);

/// Processes by number: members first, then newcomers.
struct Group {
    all: Vec<Process>,
    folder: tempfile::TempDir,
    arrangement: Arrangement,
    most: u32,
    more: Vec<String>,
    what: String,
    program: &'static str,
    arguments: Arguments,
}

/// Makes the arguments of a process from its number, the folder and the most ranks.
type Arguments = fn(String, String, String) -> Vec<String>;

impl Group {
    fn start(arrangement: Arrangement, ranks: u32, most: u32, more: &[String], what: &str) -> Self {
        let mut group =
            Self::start_with(PROGRAM, arrangement, ranks, (most, more), what, |number, folder, most| {
                [number, folder, most].into()
            });
        group.expect_all("@sum ", ranks as usize);
        group
    }

    fn start_as(
        program: &'static str,
        arrangement: Arrangement,
        ranks: u32,
        most: u32,
        what: &str,
        arguments: Arguments,
    ) -> Self {
        Self::start_with(program, arrangement, ranks, (most, &[]), what, arguments)
    }

    fn expect_all(&mut self, start: &str, ranks: usize) {
        for rank in 0..ranks {
            self.all[rank].expect(start);
        }
    }

    fn start_with(
        program: &'static str,
        arrangement: Arrangement,
        ranks: u32,
        (most, more): (u32, &[String]),
        what: &str,
        arguments: Arguments,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rendezvous = format!("file://{}/job", folder.path().display());
        let (all, more, what) = (Vec::new(), more.to_vec(), what.to_owned());
        let mut group = Self { all, folder, arrangement, most, more, what, program, arguments };
        for rank in 0..ranks {
            group.process(&[
                ("KOLO_RENDEZVOUS", rendezvous.clone()),
                ("KOLO_RANK", rank.to_string()),
                ("KOLO_WORLD_SIZE", ranks.to_string()),
            ]);
        }
        group
    }

    fn process(&mut self, settings: &[(&str, String)]) {
        let number = self.all.len() as u32;
        let mut command = Command::new(self.program);
        let folder = self.folder.path().display().to_string();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
            command.env_remove(name);
        }
        command
            .args((self.arguments)(number.to_string(), folder, self.most.to_string()))
            .args(&self.more)
            .env("KOLO_JOIN_TIMEOUT", "30")
            .env("KOLO_TIMEOUT", "30")
            // A busy machine may keep a rank from its processors for longer than the usual second.
            .env("KOLO_SILENT_AFTER", "10")
            .envs(environment(self.arrangement, number))
            .envs(settings.iter().map(|(name, value)| (*name, value.as_str())));
        self.all.push(Process::start(command));
    }

    /// Starts a process that joins by the invitation of this member.
    fn join(&mut self, host: usize) {
        self.join_with(host, &[]);
    }

    fn join_with(&mut self, host: usize, settings: &[(&str, String)]) {
        let invitation = ("KOLO_JOIN", format!("file://{}/{host}", self.folder.path().display()));
        self.process(&[&[invitation], settings].concat());
    }

    /// Waits until these processes sum among themselves, whatever happened in between.
    fn expect_sums(&mut self, left: &[usize]) {
        let bits: u32 = left.iter().map(|number| 1 << number).sum();
        for number in left {
            loop {
                let line = self.all[*number].expect("@sum ");
                let of: u32 = line.split(' ').next().and_then(|word| word.parse().ok()).expect("bits");
                if of == bits {
                    assert_eq!(
                        line.split(' ').nth(1),
                        Some(left.len().to_string().as_str()),
                        "{}",
                        self.what
                    );
                    break;
                }
            }
        }
    }

    /// Ends these processes; none of them may have seen a wrong sum.
    fn stop(mut self, left: &[usize]) {
        for number in left {
            self.all[*number].tell("stop");
        }
        for number in left {
            self.all[*number].expect("@gone");
            assert!(self.all[*number].ended(), "{}: {number}", self.what);
            assert!(!self.all[*number].has_said("@wrong"), "{}: {number}", self.what);
        }
    }
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn processes_join_one_after_another() {
    for arrangement in Arrangement::ALL {
        let what = format!("{arrangement:?}");
        within(LIMIT, &what.clone(), move || {
            let mut group = Group::start(arrangement, 2, 5, &[], &what);
            for (number, host) in [(2, 0), (3, 1), (4, 3)] {
                group.join(host);
                group.expect_sums(&(0..=number).collect::<Vec<_>>());
                let took = group.all[0].said_last("@grown ");
                println!("{what}: {number} has joined, rank 0 has lost (us, ranks): {took:?}");
            }
            group.stop(&[0, 1, 2, 3, 4]);
        });
    }
}

#[test]
fn a_group_of_one_takes_others_in() {
    within(LIMIT, "alone", || {
        let mut group = Group::start(Arrangement::Exchange, 1, 3, &[], "alone");
        group.join(0);
        group.expect_sums(&[0, 1]);
        group.join(1);
        group.expect_sums(&[0, 1, 2]);
        group.all[0].signal(Signal::KILL);
        group.expect_sums(&[1, 2]);
        group.stop(&[1, 2]);
    });
}

/// Ranks die while two newcomers join, one of which waits at the port of process 2 and the other at that of process
/// 0.
#[test]
fn anybody_may_die_at_any_moment_of_a_growth() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(usual)
    };
    let (first, rounds) = (number("KOLO_ELASTIC_SEED", 1), number("KOLO_ELASTIC_ROUNDS", 12));
    for seed in first..first + rounds {
        let mut random = Random::new(seed);
        let arrangement = Arrangement::ALL[random.below(4) as usize];
        // The victim is a newcomer, the member at whose port it waits, the first rank, or an uninvolved member.
        let victim = [3, 4, 2, 0, 1][(seed % 5) as usize];
        let delay = random.below(6000);
        let what = format!("seed {seed}: {arrangement:?}, {victim} dies {delay} us into the growth");
        within(LIMIT, &what.clone(), move || {
            let more = if victim < 3 { vec![format!("{victim}:{delay}")] } else { Vec::new() };
            let mut group = Group::start(arrangement, 3, 5, &more, &what);
            group.join(2);
            group.join(0);
            if victim >= 3 {
                group.all[1].expect("@growing");
                spin(Duration::from_micros(delay));
                group.all[victim].signal(Signal::KILL);
            }
            let left: Vec<usize> = (0..5).filter(|number| *number != victim).collect();
            group.expect_sums(&left);
            group.stop(&left);
        });
    }
}

/// Members and newcomers are killed at random moments and replaced, and the state at the end is that of a job of one
/// rank.
#[test]
fn whoever_comes_and_goes_the_bits_are_the_same() {
    const STATEFUL: &str = env!("CARGO_BIN_EXE_kolo_survivors");
    const STEPS: &str = "500";
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(usual)
    };
    let state = |process: &mut Process| process.expect("@state ");
    let alone = within(LIMIT, "undisturbed", move || {
        let mut job = Job::start(STATEFUL, 1, 1, &[STEPS], |_| environment(Arrangement::Exchange, 0));
        state(&mut job.ranks[0])
    });
    let (first, rounds) = (number("KOLO_ELASTIC_SEED", 1), number("KOLO_ELASTIC_ROUNDS", 6));
    for seed in first..first + rounds {
        let mut random = Random::new(seed);
        let arrangement = Arrangement::ALL[(seed % 4) as usize];
        let ranks = 2 + random.below(3) as usize;
        let what = format!("seed {seed}: {arrangement:?}, {ranks} ranks");
        let alone = alone.clone();
        within(LIMIT, &what.clone(), move || {
            let mut group =
                Group::start_as(STATEFUL, arrangement, ranks as u32, 6, &what, |number, folder, most| {
                    [STEPS.to_owned(), number, most, folder].into()
                });
            group.expect_all("@running", ranks);
            let mut left: Vec<usize> = (0..ranks).collect();
            for turn in 0..4 {
                std::thread::sleep(Duration::from_micros(random.below(30_000)));
                // Newcomers may have no invitation yet.
                let hosts: Vec<usize> = left.iter().copied().filter(|number| *number < ranks).collect();
                let host = hosts[random.below(hosts.len() as u64) as usize];
                // Some newcomers fetch a copy of the state before they join.
                let fetches = [("KOLO_TEST_FETCH", "1".to_owned())];
                group.join_with(host, if turn % 2 == 0 { &fetches } else { &[] });
                left.push(ranks + turn);
                std::thread::sleep(Duration::from_micros(random.below(30_000)));
                let place = random.below(left.len() as u64) as usize;
                // Newcomers may not have the state yet.
                let others = left.iter().enumerate().filter(|(at, number)| *at != place && **number < ranks);
                if others.count() > 0 {
                    group.all[left.remove(place)].signal(Signal::KILL);
                }
            }
            let mut ended = 0;
            for number in left {
                // A newcomer may be too late, or its member and all others that it knows may be gone.
                match group.all[number].expect_any(&["@state ", "@error "]) {
                    (0, state) => {
                        assert_eq!(state, alone, "{what}: process {number}");
                        ended += 1;
                    }
                    (_, error) => {
                        assert!(
                            number >= ranks && error.contains("[K0310]"),
                            "{what}: process {number}: {error}"
                        );
                    }
                }
                assert!(!group.all[number].has_said("@wrong"), "{what}: process {number}");
            }
            assert!(ended > 0, "{what}");
            let have = |said| group.all[ranks..].iter().filter(|process| process.has_said(said)).count();
            let (fetched, received) = (have("@fetched "), have("@received "));
            println!(
                "{what}: {fetched} newcomers have fetched a copy, {received} have received what they lacked, {ended} processes \
                 have come to the end"
            );
        });
    }
}

#[test]
fn a_newcomer_whose_member_dies_waits_at_another_port() {
    within(LIMIT, "another port", || {
        // The group is full, so the newcomer waits.
        let mut group = Group::start(Arrangement::Tcp, 3, 3, &[], "another port");
        group.join(1);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!group.all[3].has_said("@in"));
        group.all[1].signal(Signal::KILL);
        group.expect_sums(&[0, 2, 3]);
        group.stop(&[0, 2, 3]);
    });
}

#[test]
fn a_newcomer_is_told_when_the_job_ends() {
    within(LIMIT, "the end", || {
        let mut group = Group::start(Arrangement::Shm, 2, 2, &[], "the end");
        group.join(0);
        std::thread::sleep(Duration::from_millis(100));
        for number in [0, 1] {
            group.all[number].tell("stop");
        }
        let error = group.all[2].expect("@error ");
        assert!(
            error.contains("[K0310]") && error.contains("none of the members that the invitation names"),
            "{error}"
        );
        group.join(0);
        assert!(group.all[3].expect("@error ").contains("[K0310]"), "an invitation of a job that has ended");
    });
}

#[test]
fn what_does_not_fit_is_told_so_and_the_group_goes_on() {
    within(LIMIT, "misfits", || {
        let mut group = Group::start(Arrangement::Tcp, 2, 3, &[], "misfits");
        let invitation = std::fs::read_to_string(group.folder.path().join("0")).expect("rank 0's invitation");
        let mut told = |settings: &[(&str, &str)]| {
            let settings: Vec<_> =
                settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            group.process(&settings);
            group.all.pop().expect("started").expect("@error ")
        };
        let error = told(&[("KOLO_JOIN", &invitation), ("KOLO_ALGO", "ring")]);
        assert!(
            error.contains("KOLO_ALGO is not set here, ring there") && error.contains("[K0304]"),
            "{error}"
        );
        let error = told(&[("KOLO_JOIN", &invitation), ("KOLO_JOB_SECRET", "other")]);
        assert!(error.contains("job secret") && error.contains("[K0304]"), "{error}");
        let error = told(&[("KOLO_JOIN", &invitation[..300])]);
        assert!(error.contains("truncated or altered") && error.contains("[K0201]"), "{error}");
        let error = told(&[("KOLO_JOIN", "tcp://here:1")]);
        assert!(error.contains("not an invitation"), "{error}");
        let error = told(&[("KOLO_JOIN", &invitation), ("KOLO_SLOT", "first")]);
        assert!(error.contains("KOLO_SLOT") && error.contains("'first' is not a slot number"), "{error}");
        // None of these newcomers has done any harm.
        group.join(1);
        group.expect_sums(&[0, 1, 2]);
        group.stop(&[0, 1, 2]);
    });
}
