//! Ranks on other hosts: one agent per host, such as ssh, runs `kolo run --from-stdin` there.
//!
//! # The wire
//! The agent's standard input holds one line of JSON, an [`Assignment`], and then a line for each signal that the ranks are to get
//! (see [`super::orders`]). Its end of file is an order to end the ranks. Nothing of a job is thus on a command line, where it would
//! need quoting and everybody could read it. If an agent is killed, or its network breaks, that input ends too, so no rank outlives its
//! launcher for longer than the network takes to notice. With `--elastic`, an end of file without an order to end lets the ranks
//! go on: the launcher's host may have failed, which is no reason for the other hosts to end.

use std::ffi::OsString;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::bind::{self, Bind};
use super::guardian::Lifeline;
use super::hosts::Host;
use super::job::{Input, Job, Prefix, Rank};
use super::newcomers::{Bounds, Newcomers};
use super::orders::Orders;
use super::output::Destinations;
use super::paths;
use super::{Position, Rendezvous, RunArgs, bounds, private_directory};
use crate::error::{CliError, Result};

/// Version of the assignment's format, which must be the same at both ends.
const FORMAT: u32 = 4;

/// Longest assignment. It must fit into a pipe that is not yet read, whose usual size on Linux is 64 KiB.
const MAX_ASSIGNMENT_BYTES: usize = 60 << 10;

/// Time beyond the ranks' grace in which their host can report their end.
const AGENT_GRACE: Duration = Duration::from_secs(2);

/// Ports at which rank 0 listens unless the user chooses one: below the usual range of ephemeral ports (from 32768).
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

/// The orders for one host.
#[derive(Debug, Serialize, Deserialize)]
struct Assignment {
    kolo: u32,
    directory: String,
    command: Vec<String>,
    ranks: Vec<u32>,
    of: u32,
    node: u32,
    rendezvous: String,
    prefix: bool,
    destinations: Destinations,
    grace_seconds: u64,
    bind: Bind,
    environment: Vec<(String, String)>,
    elastic: Option<Elastic>,
}

/// The additional orders for a host of an elastic job, whose members come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Elastic {
    bounds: Bounds,
    restarts: u32,
    /// Number of processes of this host that join from the beginning, and the number of the first.
    newcomers: u32,
    first: u32,
    in_its_slot: bool,
}

/// Makes the launcher's job: one agent per host.
pub(super) fn job(args: &RunArgs, hosts: &[Host]) -> Result<Job> {
    let of: usize = hosts.iter().map(|host| host.ranks.len()).sum();
    let of = u32::try_from(of).map_err(|_| CliError::usage("too many ranks", "Start fewer"))?;
    let rendezvous = match &args.rendezvous {
        Some(text) => text.clone(),
        None => rendezvous(hosts)?,
    };
    Rendezvous::parse(&rendezvous)?;
    let text = |what: &str, word: &std::ffi::OsStr| {
        word.to_str().map(str::to_owned).ok_or_else(|| {
            CliError::usage(
                format!("{what} is not Unicode: {}", word.display()),
                "Rename it, or start it from a script",
            )
        })
    };
    let directory = paths::folder()
        .map_err(|error| CliError::system("the path of this folder cannot be found", &error))?;
    let command = args.command.iter().map(|word| text("the command", word)).collect::<Result<Vec<_>>>()?;
    let mut agent = args.agent.split_ascii_whitespace().map(str::to_owned);
    let program =
        agent.next().ok_or_else(|| CliError::usage("--agent is empty", "Give a command such as ssh"))?;
    let words: Vec<String> = agent.collect();
    let there = match &args.remote_kolo {
        Some(path) => text("--remote-kolo", path.as_os_str())?,
        None => {
            let own = paths::program()
                .map_err(|error| CliError::system("the path of this program cannot be found", &error))?;
            plain(text("this program's path", own.as_os_str())?)?
        }
    };
    let environment = environment(args)?;
    let bounds = bounds(args, of)?;
    let elastic = |node: u32| {
        bounds.map(|bounds| {
            let newcomers = bounds.most.map_or(0, |most| most - of + args.spares);
            Elastic {
                bounds,
                restarts: args.restarts,
                // All newcomers go to the first host: this process does not know where there is room.
                newcomers: if node == 0 { newcomers } else { 0 },
                first: of,
                in_its_slot: newcomers == 0,
            }
        })
    };
    let ranks = hosts.iter().zip(0..).map(|(host, node)| {
        let assignment = Assignment {
            kolo: FORMAT,
            directory: text("this folder", directory.as_os_str())?,
            command: command.clone(),
            ranks: host.ranks.clone(),
            of,
            node,
            rendezvous: rendezvous.clone(),
            prefix: args.prefix,
            destinations: Destinations::own(),
            grace_seconds: args.grace,
            bind: args.bind,
            environment: environment.clone(),
            elastic: elastic(node),
        };
        Ok(Rank {
            stands_for: u32::try_from(host.ranks.len()).unwrap_or(u32::MAX),
            arguments: arguments(&words, &host.name, &there),
            name: Some(format!("host {}", host.name)),
            input: Input::Lifeline(line(&assignment)?),
            ..Rank::new(node, Vec::new())
        })
    });
    Ok(Job {
        program: program.into(),
        arg0: None,
        arguments: Vec::new(),
        ranks: ranks.collect::<Result<_>>()?,
        // The lines of a host already carry their rank, if they are to.
        prefix: Prefix::Lines,
        destinations: Destinations::own(),
        grace: Duration::from_secs(args.grace) + AGENT_GRACE,
        quiet_exit_code: None,
        orders: Orders::None,
        least: bounds.map(|bounds| bounds.least),
        again: None,
    })
}

/// Returns the agent's arguments, with the name of the host where it is wanted, and the command to run there.
fn arguments(words: &[String], host: &str, there: &str) -> Vec<OsString> {
    let mut all: Vec<String> = words.iter().map(|word| word.replace("{host}", host)).collect();
    if !words.iter().any(|word| word.contains("{host}")) {
        all.push(host.to_owned());
    }
    all.extend([there.to_owned(), "run".into(), "--from-stdin".into()]);
    all.into_iter().map(OsString::from).collect()
}

/// Checks that a path means the same to agents that give it to a shell, such as ssh, and to those that do not.
fn plain(path: String) -> Result<String> {
    if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&byte)) {
        return Ok(path);
    }
    Err(CliError::usage(
        format!("the path of this program has characters that a shell changes: {path}"),
        "Name the program as the agent must have it, with --remote-kolo, or move it",
    ))
}

/// Returns the first host with a port that is likely to be free; this host cannot check that.
///
/// # Errors
/// If other hosts cannot reach the first one by its name.
fn rendezvous(hosts: &[Host]) -> Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let number = now.subsec_nanos().wrapping_mul(31).wrapping_add(std::process::id());
    let port = FIRST_PORT + (number % u32::from(PORTS)) as u16;
    let host = address(&hosts[0]);
    if let (true, Some(other)) = (is_loopback(host), hosts.iter().map(address).find(|at| !is_loopback(at))) {
        return Err(CliError::usage(
            format!("the ranks meet at the first host, but on {other}, the name {host} means {other} itself"),
            format!("Name {host} as {other} sees it, or give --rendezvous HOST:PORT"),
        ));
    }
    let host = if hosts.len() == 1 { "127.0.0.1" } else { host };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Ok(format!("tcp://{host}:{port}"))
}

/// Returns the name of a host without the user.
fn address(host: &Host) -> &str {
    host.name.rsplit_once('@').map_or(&*host.name, |(_, host)| host)
}

fn is_loopback(host: &str) -> bool {
    let is_address = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || matches!(host, "localhost" | "localhost.localdomain" | "localhost6" | "ip6-localhost")
}

/// Returns the variables for the ranks: `KOLO_*` of this process, those that --export names, and a secret of this job,
/// since the ranks meet at a port that others can reach.
fn environment(args: &RunArgs) -> Result<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| {
            name.starts_with("KOLO_") && !super::environment::is_launcher_variable(name.as_ref())
        })
        .collect();
    found.extend(super::environment::exported(&args.export)?);
    let given = found.iter().rfind(|(name, _)| name == "KOLO_JOB_SECRET");
    if given.is_none() {
        let mut secret = [0_u8; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut secret))
            .map_err(|error| CliError::system("could not generate a secret for the job", &error))?;
        found.push(("KOLO_JOB_SECRET".into(), secret.iter().map(|byte| format!("{byte:02x}")).collect()));
    } else if given.is_some_and(|(_, value)| value.trim().is_empty()) {
        return Err(CliError::usage(
            "KOLO_JOB_SECRET is set, but blank",
            "Set it to the job's secret, or unset it: the launcher then generates a secret",
        ));
    }
    Ok(found)
}

fn line(assignment: &Assignment) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(assignment).expect("an assignment is plain data");
    line.push(b'\n');
    if line.len() > MAX_ASSIGNMENT_BYTES {
        return Err(CliError::usage(
            format!(
                "the command and the variables take {} bytes; at most {MAX_ASSIGNMENT_BYTES} can be sent to \
                 other hosts",
                line.len()
            ),
            "Put long values into a file that all hosts can read",
        ));
    }
    Ok(line)
}

/// Reads the job of a host from its agent's standard input; also returns the folder of its invitation, if there is one.
pub(super) fn assigned(
    mut input: impl BufRead,
    lifeline: Option<&Lifeline>,
) -> Result<(Job, Option<TempDir>)> {
    let bad = |problem: String| {
        CliError::usage(
            problem,
            "--from-stdin is for `kolo run --hosts`, which starts this program; both must have the same \
             version",
        )
    };
    let mut text = Vec::new();
    std::io::Read::take(&mut input, MAX_ASSIGNMENT_BYTES as u64)
        .read_until(b'\n', &mut text)
        .map_err(|error| CliError::system("the assignment could not be read", &error))?;
    let told: Assignment = serde_json::from_slice(&text)
        .map_err(|error| bad(format!("standard input has no assignment: {error}")))?;
    if told.kolo != FORMAT {
        return Err(bad(format!("the assignment has format {}, but this program reads {FORMAT}", told.kolo)));
    }
    let (Some((program, arguments)), false) = (told.command.split_first(), told.ranks.is_empty()) else {
        return Err(bad("the assignment has no program or no ranks".into()));
    };
    let directory = PathBuf::from(&told.directory);
    std::env::set_current_dir(&directory).map_err(|error| {
        CliError::failure(
            format!("{} has no folder {}: {error}", host_name(), directory.display()),
            "Start the job in a folder that all hosts have",
        )
    })?;
    let place = Rendezvous::parse(&told.rendezvous)?;
    let local_of = u32::try_from(told.ranks.len()).unwrap_or(u32::MAX);
    let cpus = bind::places(told.bind, told.ranks.len(), 0);
    let path = path_to_kolo().map(|path| ("PATH".to_owned(), path));
    let given = told.environment.iter().map(|(name, value)| (name.clone(), value.into()));
    let common: Vec<(String, OsString)> = path.into_iter().chain(given).collect();
    let ranks = told.ranks.iter().zip(0..).zip(cpus).map(|((rank, local), cpus)| {
        let position = Position { rank: *rank, of: told.of, local, local_of, node: told.node };
        let mut environment = place.environment(position);
        environment.extend(common.iter().cloned());
        Rank { cpus, input: Input::None, ..Rank::new(*rank, environment) }
    });
    let mut job = Job {
        program: program.into(),
        arg0: None,
        arguments: arguments.iter().map(OsString::from).collect(),
        ranks: ranks.collect(),
        prefix: if told.prefix { Prefix::Rank } else { Prefix::None },
        destinations: told.destinations,
        grace: Duration::from_secs(told.grace_seconds),
        quiet_exit_code: None,
        orders: Orders::EndsWithInput,
        least: None,
        again: None,
    };
    let Some(elastic) = told.elastic else { return Ok((job, None)) };
    let directory = private_directory(lifeline)?;
    make_elastic(&mut job, &elastic, (common, told.bind), directory.path());
    // The folder is removed when the job has ended.
    Ok((job, Some(directory)))
}

/// Lets the ranks of a host go on without each other and without the launcher, and restarts those that die.
fn make_elastic(
    job: &mut Job,
    elastic: &Elastic,
    (environment, bind): (Vec<(String, OsString)>, Bind),
    directory: &Path,
) {
    // The ranks themselves know the least number that goes on in all (KOLO_ELASTIC).
    (job.least, job.orders) = (Some(0), Orders::EndsWhenTold);
    if job.prefix == Prefix::None {
        // Outputs go through this process, since their readers may disappear some day.
        job.prefix = Prefix::Lines;
    }
    let newcomers = Newcomers {
        bounds: elastic.bounds,
        numbers: elastic.first..elastic.first + elastic.newcomers,
        bind: (bind, job.ranks.len()),
        environment,
        restarts: elastic.restarts,
        in_its_slot: elastic.in_its_slot,
    };
    newcomers.join(job, directory);
}

/// Returns this process's PATH with the folder of this program at its end: agents such as ssh give processes a short one,
/// in which `kolo` is not found.
fn path_to_kolo() -> Option<OsString> {
    let own = std::env::current_exe().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty());
    std::env::join_paths(folders.chain([own.parent()?.to_owned()])).ok()
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_goes_where_it_is_wanted() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let shown = |agent: &str| {
            arguments(&words(agent), "b", "/bin/kolo").join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(shown("-o BatchMode=yes"), "-o BatchMode=yes b /bin/kolo run --from-stdin");
        assert_eq!(shown("netns exec {host}"), "netns exec b /bin/kolo run --from-stdin");
    }

    #[test]
    fn ranks_meet_at_the_first_host() {
        let hosts = |names: &[&str]| {
            names.iter().map(|name| Host { name: (*name).into(), ranks: vec![0] }).collect::<Vec<_>>()
        };
        for (names, start) in [
            (&["me@a", "b"][..], "tcp://a:2"),
            (&["fd00::7", "b"], "tcp://[fd00::7]:2"),
            (&["a"], "tcp://127.0.0.1:2"),
            (&["localhost", "127.0.0.2"], "tcp://localhost:2"),
        ] {
            let url = rendezvous(&hosts(names)).unwrap();
            assert!(url.starts_with(start), "{url}");
            assert!(Rendezvous::parse(&url).is_ok());
        }
        for first in ["localhost", "me@localhost", "127.0.0.1", "::1"] {
            let error = rendezvous(&hosts(&[first, "b"])).unwrap_err();
            assert!(error.message.contains("on b"), "{error}");
        }
    }

    #[test]
    fn a_path_that_a_shell_changes_is_refused() {
        assert_eq!(plain("/opt/kolo-0.2/bin/kolo".to_owned()).unwrap(), "/opt/kolo-0.2/bin/kolo");
        for path in ["/home/me/my tools/kolo", "/opt/$x/kolo", "/a;b/kolo"] {
            assert!(plain(path.to_owned()).unwrap_err().message.contains(path), "{path}");
        }
    }

    #[test]
    fn newcomers_get_what_ranks_get() {
        let bounds = Bounds { least: 1, most: Some(4) };
        let assignment = Assignment {
            kolo: FORMAT,
            directory: std::env::current_dir().unwrap().display().to_string(),
            command: vec!["true".to_owned()],
            ranks: vec![0, 1],
            of: 2,
            node: 0,
            rendezvous: "tcp://127.0.0.1:2".to_owned(),
            prefix: false,
            destinations: Destinations::default(),
            grace_seconds: 1,
            bind: Bind::Core,
            environment: vec![("GIVEN".to_owned(), "x".to_owned())],
            elastic: Some(Elastic { bounds, restarts: 0, newcomers: 2, first: 2, in_its_slot: false }),
        };
        let (job, _folder) = assigned(&*line(&assignment).unwrap(), None).unwrap();
        assert_eq!(job.ranks.len(), 4);
        for rank in &job.ranks {
            let has = |name: &str| rank.environment.iter().any(|(known, _)| known == name);
            assert!(has("PATH") && has("GIVEN") && rank.cpus.is_some(), "{rank:?}");
        }
    }

    #[test]
    fn nonsense_is_no_assignment() {
        for (text, problem) in [
            ("", "no assignment"),
            ("ls -l\n", "no assignment"),
            (
                r#"{"kolo":9,"directory":"/","command":["x"],"ranks":[0],"of":1,"node":0,"rendezvous":"a:1","prefix":false,
                "grace_seconds":1,"bind":"None","environment":[]}"#,
                "no assignment",
            ),
        ] {
            let error = assigned(text.as_bytes(), None).unwrap_err();
            assert!(error.message.contains(problem), "{text}: {error}");
        }
    }
}
