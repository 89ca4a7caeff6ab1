//! The suite across processes: a test starts its own binary again, once per rank, and distributes the ranks'
//! addresses.
//!
//! The parent and a rank exchange lines over the rank's standard input and output. Lines that do not begin with the
//! marker belong to the test harness.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use super::message::Shape;
use super::pattern::Random;
use super::world::World;
use super::{Subject, skip};
use crate::endpoint::Reach;
use crate::error::ErrorKind;

/// Set in the environment of a rank: `scenario rank world_size job`.
const ROLE: &str = "KOLO_CONFORMANCE_ROLE";
const MARKER: &str = "@kolo ";
const WORLD: u32 = 3;
/// The rank that is killed in its scenario: neither the lowest nor the highest, so that it both dials and accepts.
const VICTIM: u32 = 1;

/// The task of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// They exchange messages.
    Traffic,
    /// One of them is killed in the middle of a message.
    Kill,
}

/// Runs the suite's scenarios with every rank in a process of its own. Only the `#[test]` of the full path `test` may
/// call this: in a rank's process, the same test takes the rank's part.
///
/// # Panics
/// If a promise is broken in any process.
pub fn across_processes(subject: &dyn Subject, test: &str) {
    if let Some(why) = subject.absent() {
        return skip(&why);
    }
    if play_a_part(subject) {
        return;
    }
    for scenario in [Scenario::Traffic, Scenario::Kill] {
        start(subject, test, scenario, |_| None);
    }
}

/// Takes the part of a rank if this is a rank's process; returns whether it is.
pub(super) fn play_a_part(subject: &dyn Subject) -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let parts: Vec<&str> = role.split(' ').collect();
    let [scenario, rank, world_size, job] = parts[..] else { panic!("{ROLE}={role}") };
    let scenario = if scenario == "Kill" { Scenario::Kill } else { Scenario::Traffic };
    let (rank, world_size) = (rank.parse().expect("rank"), world_size.parse().expect("world size"));
    let job = unhex(job).try_into().expect("job");
    let mut end = subject.endpoint(rank, world_size, job);
    say(&format!("address {}", hex(end.address())));
    let mut lines = std::io::stdin().lines();
    for peer in 0..world_size {
        let line = lines.next().expect("an address").expect("standard input");
        if peer != rank {
            let reach = end.introduce(peer, &unhex(&line)).expect("introduce");
            let Reach::Yes { how } = &reach else { panic!("rank {rank} to {peer}: {reach:?}") };
            eprintln!("rank {rank} to {peer}: {how}");
        }
    }
    end.establish(&|| false, Instant::now() + subject.patience()).expect("establish");
    let mut world = World::alone(subject, rank, world_size, end);
    match scenario {
        Scenario::Traffic => talk(&mut world, rank, world_size),
        Scenario::Kill => die_or_mourn(&mut world, rank),
    }
    while !world.end(rank).is_flushed() {
        world.step();
        world.check_deadline("the last flush");
    }
    drop(world);
    say("done");
    true
}

/// Starts all ranks of a scenario, and waits for them. `prefix` may return the beginning of a rank's command line.
pub(super) fn start(
    subject: &dyn Subject,
    test: &str,
    scenario: Scenario,
    prefix: impl Fn(u32) -> Option<Vec<String>>,
) {
    let deadline = Instant::now() + subject.patience();
    let mut job = [0; 16];
    getrandom::fill(&mut job).expect("random numbers");
    let (sender, lines) = mpsc::channel();
    let mut ranks: Vec<Child> = (0..WORLD)
        .map(|rank| {
            // The harness names tests without the crate.
            let test = test.split_once("::").map_or(test, |(_, rest)| rest);
            let exe = std::env::current_exe().expect("own binary").display().to_string();
            let mut words = prefix(rank).unwrap_or_default();
            words.extend([
                exe,
                test.into(),
                "--exact".into(),
                "--nocapture".into(),
                "--test-threads=1".into(),
            ]);
            let mut child = Command::new(&words[0])
                .args(&words[1..])
                .env(ROLE, format!("{scenario:?} {rank} {WORLD} {}", hex(&job)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("start a rank");
            let output = child.stdout.take().expect("piped");
            let sender = sender.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                // The harness may have written the start of a line of its own before this one.
                let ours = lines.filter_map(|line| line.split_once(MARKER).map(|(_, text)| text.to_owned()));
                for line in ours.map(Some).chain([None]) {
                    let _ = sender.send((rank, line));
                }
            });
            child
        })
        .collect();
    let outcome = attend(&mut ranks, &lines, deadline, scenario);
    for rank in &mut ranks {
        // This fails for a rank that has ended, which does no harm.
        let _ = rank.kill();
        let _ = rank.wait();
    }
    if let Err(what) = outcome {
        panic!("{scenario:?} across processes: {what}");
    }
}

fn attend(
    ranks: &mut [Child],
    lines: &mpsc::Receiver<(u32, Option<String>)>,
    deadline: Instant,
    scenario: Scenario,
) -> Result<(), String> {
    let mut addresses = vec![None; ranks.len()];
    let mut done = vec![false; ranks.len()];
    let mut ended = 0;
    while ended < ranks.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (rank, line) = lines.recv_timeout(left).map_err(|_| format!("stuck; done so far: {done:?}"))?;
        match line.as_deref().and_then(|line| line.split_once(' ').or(Some((line, "")))) {
            Some(("address", text)) => addresses[rank as usize] = Some(text.to_owned()),
            Some(("done", _)) => done[rank as usize] = true,
            Some((other, _)) => return Err(format!("rank {rank} says {other}")),
            None => {
                ended += 1;
                let may_die = scenario == Scenario::Kill && rank == VICTIM;
                if !done[rank as usize] && !may_die {
                    return Err(format!("rank {rank} ended early; see its output above"));
                }
            }
        }
        if addresses.iter().all(Option::is_some) {
            let all: String = addresses.iter_mut().filter_map(Option::take).map(|line| line + "\n").collect();
            for rank in &mut *ranks {
                let mut input = rank.stdin.take().expect("piped");
                input.write_all(all.as_bytes()).map_err(|error| error.to_string())?;
            }
            // The addresses are sent only once.
            addresses[0] = None;
        }
    }
    Ok(())
}

fn talk(world: &mut World, rank: u32, world_size: u32) {
    let channels = world.end(rank).caps().channels_max.min(3);
    for peer in (0..world_size).filter(|&peer| peer != rank) {
        // Both ends of a direction draw the same numbers.
        for (from, to) in [(rank, peer), (peer, rank)] {
            let mut random = Random::new(u64::from(from) << 32 | u64::from(to));
            for i in 0..150u64 {
                let index = random.below(channels.into()) as u16;
                let len = random.length(1 << 20);
                let shape = Shape::new(i ^ u64::from(from), len);
                let pieces = random.below(5) + 1;
                let cuts = random.cuts(len, pieces);
                if from == rank {
                    world.send(rank, peer, index, i, shape.cut(cuts));
                } else {
                    world.recv(rank, peer, index, i, if i % 4 == 0 { shape.eaten() } else { shape });
                }
            }
            let long = Shape::new(u64::from(from), 64 << 20).repeated(1 << 20);
            if from == rank {
                world.send(rank, peer, 0, 1000, long);
            } else {
                world.recv(rank, peer, 0, 1000, long.eaten());
            }
        }
    }
    world.finish("traffic");
}

fn die_or_mourn(world: &mut World, rank: u32) {
    let others = (0..WORLD).filter(|&peer| peer != rank);
    let mut lost = Vec::new();
    for peer in others.clone() {
        world.send(rank, peer, 0, 1, Shape::new(1, 1000));
        world.recv(rank, peer, 0, 1, Shape::new(1, 1000));
    }
    world.finish("first messages");
    let long = || Shape::new(2, 256 << 20).repeated(1 << 20);
    for peer in others.filter(|&peer| rank == VICTIM || peer == VICTIM) {
        lost.push(world.send(rank, peer, 0, 2, long()));
        lost.push(world.recv(rank, peer, 0, 2, long().eaten()));
    }
    if rank == VICTIM {
        for _ in 0..10 {
            world.step();
        }
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::KILL).expect("kill");
        unreachable!("killed");
    }
    world.wait("the loss of the killed", |world| lost.iter().all(|&t| !world.is_pending(t)));
    for ticket in lost {
        assert_eq!(world.error(ticket).kind, ErrorKind::PeerLost, "{}", world.error(ticket));
    }
    world.wait("the report", |world| world.downs.contains(&(rank, VICTIM)));
    let peer = WORLD - 1 - rank;
    let there = world.send(rank, peer, 0, 3, Shape::new(3, 500_000));
    let back = world.recv(rank, peer, 0, 3, Shape::new(3, 500_000));
    world.wait("the other survivor", |world| world.is_done(there) && world.is_done(back));
}

fn say(line: &str) {
    // `println` would not do, since the harness may capture it.
    let mut out = std::io::stdout();
    writeln!(out, "{MARKER}{line}").and_then(|()| out.flush()).expect("standard output");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}
