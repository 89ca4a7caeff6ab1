//! `kolo-netlab` runs commands on a network of hosts on one machine. docs/netlab.md shows how.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use kolo_netlab::args::{self, Cli, RunArgs};
use kolo_netlab::inside::{Entry, enter};
use kolo_netlab::ranks::{self, Job, News};
use kolo_netlab::{Lab, quantity};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Exit code if the machine does not permit a network.
const UNAVAILABLE: u8 = 77;
/// Exit code of a job that was ended at its time limit, as in timeout(1).
const TIMED_OUT: u8 = 124;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        args::Command::Run(args) => run(&args),
        args::Command::On { host, command } => on(&host, &command),
        args::Command::Rsh { words } => rsh(&words),
        args::Command::Tell { socket, words } => tell(&socket, &words),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("kolo-netlab: {error}");
        ExitCode::from(2)
    })
}

fn run(args: &RunArgs) -> Result<ExitCode, String> {
    let network = args.network.network();
    network.check()?;
    for host in args.only.iter().chain(args.cut.iter().chain(&args.restore).map(|(host, _)| host)) {
        if *host >= args.network.hosts {
            return Err(format!("there is no host {host}; hosts count from 0 to {}", args.network.hosts - 1));
        }
    }
    match enter() {
        Entry::Inside => {}
        Entry::Ended(code) => return Ok(code),
        Entry::Unavailable(why) if args.or_skip => {
            println!("skipped: {why}");
            return Ok(ExitCode::SUCCESS);
        }
        Entry::Unavailable(why) => {
            eprintln!("kolo-netlab: {why}");
            return Ok(ExitCode::from(UNAVAILABLE));
        }
    }
    let lab = Arc::new(Lab::new(&network)?);
    if let Some(path) = &args.control {
        listen(path, Arc::clone(&lab))?;
    }
    let commands = match args.only {
        Some(host) => {
            let mut command = lab.host(host).command(&args.command[0]);
            command.args(&args.command[1..]);
            vec![command]
        }
        None => ranks::commands(&lab, args.ranks_per_host.max(1), &args.command),
    };
    let job = Job::start(commands).map_err(|error| format!("{}: {error}", args.command[0].display()))?;
    let code = attend(args, &lab, job).map_err(|error| error.to_string());
    if let Some(path) = &args.control {
        let _ = std::fs::remove_file(path);
    }
    code
}

/// Waits for the ranks, and cuts and restores cables at their times. Returns the exit code of the first rank that
/// fails.
fn attend(args: &RunArgs, lab: &Lab, mut job: Job) -> std::io::Result<ExitCode> {
    let cut = args.cut.iter().map(|&(host, at)| (at, host, true));
    let mut events: Vec<_> = cut.chain(args.restore.iter().map(|&(host, at)| (at, host, false))).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.0));
    let limit = args.limit.unwrap_or(Duration::MAX);
    let mut code = None;
    loop {
        // This wait is long enough, and some systems cannot wait for ever.
        let next = events.last().map_or(Duration::from_secs(1 << 20), |event| event.0);
        match job.wait(next.min(limit))? {
            News::Over => return Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from)),
            News::Ended(rank, status) if !status.success() && code.is_none() => {
                let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
                eprintln!("kolo-netlab: rank {rank} ended with {status}");
                code = Some(u8::try_from(number).unwrap_or(1));
            }
            News::Ended(..) => {}
            News::Due if job.age() >= limit => {
                eprintln!("kolo-netlab: the limit of {limit:?} has passed; ranks that still run are killed");
                job.kill();
                return Ok(ExitCode::from(TIMED_OUT));
            }
            News::Due => match events.pop_if(|event| event.0 <= job.age()) {
                Some((_, host, true)) => lab.cut(host),
                Some((_, host, false)) => lab.restore(host),
                None => {}
            },
        }
    }
}

/// Serves `tell` from a thread.
fn listen(path: &Path, lab: Arc<Lab>) -> Result<(), String> {
    let listener = UnixListener::bind(path).map_err(|error| format!("{}: {error}", path.display()))?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut line = String::new();
            // A client that sends nothing must not hold up others for long.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            if BufReader::new((&stream).take(1 << 10)).read_line(&mut line).is_ok() {
                let answer = obey(&lab, &line).unwrap_or_else(|error| format!("wrong: {error}"));
                let _ = writeln!(stream, "{answer}");
            }
        }
    });
    Ok(())
}

fn obey(lab: &Lab, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text: &str, most: usize| match text.parse::<usize>() {
        Ok(number) if number < most => Ok(number),
        _ => Err(format!("{text}: use 0 to {}", most - 1)),
    };
    let host = |text: &str| number(text, lab.hosts().len());
    let cards = lab.host(0).addresses().len();
    match words[..] {
        ["cut", at] => lab.cut(host(at)?),
        ["restore", at] => lab.restore(host(at)?),
        ["cut", at, nic] => lab.cut_card(host(at)?, number(nic, cards)?, true),
        ["restore", at, nic] => lab.cut_card(host(at)?, number(nic, cards)?, false),
        ["rate", at, rate] => lab.set_rate(host(at)?, quantity::rate(rate)?),
        ["counts"] => return Ok(format!("{:?}", lab.counts())),
        _ => return Err("use cut HOST [NIC], restore HOST [NIC], rate HOST RATE, or counts".to_owned()),
    }
    Ok("done".to_owned())
}

fn tell(socket: &Path, words: &[String]) -> Result<ExitCode, String> {
    let said = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        writeln!(stream, "{}", words.join(" "))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = said().map_err(|error| format!("{}: {error}", socket.display()))?;
    print!("{answer}");
    Ok(ExitCode::from(u8::from(answer.starts_with("wrong"))))
}

/// Moves to a host and becomes the command.
fn on(host: &str, command: &[OsString]) -> Result<ExitCode, String> {
    let places = std::env::var("KOLO_NETLAB_PLACES")
        .map_err(|_| "this is for commands that kolo-netlab run has started".to_owned())?;
    let mut places =
        places.split(';').enumerate().filter_map(|(at, place)| Some((at, place.split_once('=')?)));
    let (_, (_, files)) = places
        .find(|(at, (address, _))| *address == host || at.to_string() == host)
        .ok_or_else(|| format!("there is no host {host}"))?;
    let kinds = [LinkNameSpaceType::Network, LinkNameSpaceType::HostNameAndNISDomainName];
    for (path, kind) in files.split(',').zip(kinds) {
        let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
        move_into_link_name_space(file.as_fd(), Some(kind)).map_err(|error| format!("{path}: {error}"))?;
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    Err(format!("{}: {error}", command[0].display()))
}

/// Does the work of the command that launchers call in place of ssh.
fn rsh(words: &[String]) -> Result<ExitCode, String> {
    let mut words = words.iter().peekable();
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        // These options have an argument. Launchers use no others that do.
        if ["-l", "-p", "-o", "-i"].contains(&option.as_str()) {
            words.next();
        }
    }
    let host = words.next().ok_or("no host")?;
    let text = words.map(String::as_str).collect::<Vec<_>>().join(" ");
    on(host, &["sh".into(), "-c".into(), text.into()])
}
