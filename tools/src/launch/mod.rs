//! Starts ranks: for `kolo run`, on this machine and on others, and for `kolo perf` if no launcher did.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;

use crate::error::{CliError, Result};
use bind::Bind;
use guardian::Lifeline;
use job::{Job, Prefix, Rank, Stdout};
use newcomers::{Bounds, Newcomers};
use orders::Orders;
use output::Destinations;

mod agent;
mod bind;
pub(crate) mod environment;
mod guardian;
mod hosts;
pub(crate) mod job;
mod newcomers;
mod orders;
pub(crate) mod output;
mod paths;
mod process;
mod processes;

/// Time between asking ranks to end and killing them: enough to flush files, and short enough not to annoy.
const GRACE: Duration = Duration::from_secs(5);

/// The longest such time in seconds, a year. The clock cannot count arbitrarily long times.
const MAX_GRACE: u64 = 365 * 24 * 3600;

/// No machine benefits from more ranks than this, and a typing error should not act as a fork bomb.
pub(crate) const MAX_RANKS: u32 = 4096;

const EXAMPLES: &str = "\
Examples:
  kolo run -n 4 -- ./train --epochs 3
  kolo run -n 4 --prefix -- python train.py         prefixes each line with its rank
  kolo run -n 8 --elastic 4 -- python train.py      continues while 4 ranks live; the program shrinks its communicator
  kolo run -n 8 --elastic 4:8 -- python train.py    and restarts ranks that die; the program admits them
  kolo run --hosts a:4,b:4 -- python train.py       by ssh, in the same folder on each host
  kolo run --hosts a:4,b:4 --elastic 4:8 -- ./train the same; continues if a host is lost, even the launcher's
  kolo run --hostfile hosts -x PATH --bind core -- ./train
  kolo run -n 8 --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500 -- ./train
  kolo run -n 8 --nodes 2 --node-rank 1 --rendezvous 10.0.0.1:29500 -- ./train

Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT and \
KOLO_RENDEZVOUS. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on.

If a rank fails, it is named, the others are ended (unless --elastic is given), and its exit code (128 plus the signal, if one killed \
it) becomes that of the job. Processes that a rank leaves behind have --grace seconds to end. When the job has ended, nothing \
of it is left running, even if the launcher is killed.";

/// Options of `kolo run`.
#[derive(Args, Debug, Clone)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("on_hosts").args(["hosts", "hostfile"])))]
pub(crate) struct RunArgs {
    /// Ranks to start on this machine, or with --hosts on each host that has no number [default: 1]
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<u32>,
    /// Number of machines in the job; run the same command on each
    #[arg(long, value_name = "N", default_value = "1")]
    nodes: u32,
    /// Number of this machine among them, from 0 on
    #[arg(long, value_name = "I", default_value = "0")]
    node_rank: u32,
    /// Where the ranks meet: HOST:PORT on the first machine, or a URL that Kolo knows
    #[arg(long, value_name = "WHERE")]
    rendezvous: Option<String>,
    /// Hosts and their numbers of ranks, such as a:4,b:4; a host without a number gets -n. Ranks are numbered in this order, and
    /// their standard input is empty
    #[arg(long, value_name = "LIST", conflicts_with_all = ["nodes", "node_rank"])]
    hosts: Option<String>,
    /// The same, from a file with one host per line: `a`, `a:4` or `a slots=4`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "nodes", "node_rank"])]
    hostfile: Option<PathBuf>,
    /// Command that starts another command on a host. {host} in it is replaced by the host's name, which is otherwise
    /// appended
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes", requires = "on_hosts")]
    agent: String,
    /// Path of this program on the other hosts [default: the path by which it was called here]
    #[arg(long, value_name = "PATH", requires = "on_hosts")]
    remote_kolo: Option<PathBuf>,
    /// A variable for the ranks, NAME or NAME=VALUE. Ranks on other hosts get KOLO_* and those that are named here, ranks of
    /// this machine get all
    #[arg(short = 'x', long, value_name = "NAME")]
    export: Vec<String>,
    /// Unit to which each rank is bound
    #[arg(long, value_enum, default_value = "none")]
    bind: Bind,
    /// Take ranks and program from standard input; used by agents
    #[arg(long, hide = true)]
    from_stdin: bool,
    /// Put the rank before each line of output
    #[arg(long, visible_alias = "tag-output")]
    prefix: bool,
    /// Keep the job running as long as MIN ranks live, for programs that shrink: the end of any other rank is only
    /// reported. With MAX, for programs that admit newcomers, ranks that die are restarted, and up to MAX ranks join
    #[arg(long, value_name = "MIN[:MAX]", conflicts_with_all = ["nodes", "from_stdin"])]
    elastic: Option<String>,
    /// Additional processes that wait to take the place of a rank that dies
    #[arg(long, value_name = "N", default_value = "0", requires = "elastic")]
    spares: u32,
    /// Most restarts of each rank under --elastic MIN:MAX
    #[arg(long, value_name = "TIMES", default_value = "3", requires = "elastic")]
    restarts: u32,
    /// Seconds between asking ranks to end and killing them
    #[arg(long, value_name = "SECONDS", default_value_t = GRACE.as_secs(), value_parser = clap::value_parser!(u64).range(..=MAX_GRACE))]
    grace: u64,
    /// The program and its arguments
    #[arg(
        required_unless_present = "from_stdin",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The note to a user who has redirected the input of a job on several hosts.
const NO_INPUT: &str = "kolo: with --hosts, ranks do not get this program's standard input, and rank 0 reads none: give \
                        the program a file that all hosts can read";

/// Returns whether this process's standard input is a file that is not empty, or a pipe that has data.
fn has_input() -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::FileType;
    let input = std::io::stdin();
    let Ok(stat) = rustix::fs::fstat(&input) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => stat.st_size > 0,
        FileType::Fifo => {
            let mut input = [PollFd::new(&input, PollFlags::IN)];
            poll(&mut input, Some(&rustix::time::Timespec::default())).is_ok()
                && input[0].revents().contains(PollFlags::IN)
        }
        _ => false,
    }
}

/// Runs `kolo run`.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    if args.from_stdin {
        return guardian::guarded(|lifeline| {
            let (job, _directory) = agent::assigned(std::io::stdin().lock(), Some(lifeline))?;
            lifeline.run(&job)
        });
    }
    refuse_option(args.command.first())?;
    if let Some(hosts) = hosts(args)? {
        if has_input() {
            // Written here, since this process must have one thread until it has started the ranks.
            let _ = writeln!(std::io::stderr(), "{NO_INPUT}");
        }
        return guardian::guarded(|lifeline| lifeline.run(&agent::job(args, &hosts)?));
    }
    guardian::guarded(|lifeline| {
        let (rendezvous, directory) = rendezvous(args, Some(lifeline))?;
        let mut job = job(args, &rendezvous)?;
        make_elastic(&mut job, args, directory.as_ref())?;
        lifeline.run(&job)
    })
}

/// Refuses an unknown option, which the parser takes for the program.
fn refuse_option(program: Option<&OsString>) -> Result<()> {
    match program.map(|program| program.to_string_lossy()) {
        Some(option) if option.starts_with('-') => Err(CliError::usage(
            format!("there is no option '{option}'"),
            "`kolo run --help` lists the options; the program follows them",
        )),
        _ => Ok(()),
    }
}

fn hosts(args: &RunArgs) -> Result<Option<Vec<hosts::Host>>> {
    let each = args.ranks.map(|_| ranks(args)).transpose()?;
    match (&args.hosts, &args.hostfile) {
        (Some(list), _) => hosts::parse(list, each).map(Some),
        (None, Some(file)) => {
            let (hosts, notes) = hosts::read(file, each)?;
            for note in notes {
                // Written here, as the note about the input is.
                let _ = writeln!(std::io::stderr(), "kolo: {note}");
            }
            Ok(Some(hosts))
        }
        (None, None) => Ok(None),
    }
}

/// Returns the number of ranks to start on this machine, or on each host without a number.
fn ranks(args: &RunArgs) -> Result<u32> {
    match args.ranks.unwrap_or(1) {
        ranks if (1..=MAX_RANKS).contains(&ranks) => Ok(ranks),
        ranks => Err(CliError::usage(
            format!("-n is {ranks}, but a machine runs 1 to {MAX_RANKS} ranks"),
            "Give the number of ranks to start on each machine, for example -n 4",
        )),
    }
}

/// Starts this program `count` times, as ranks that meet on this machine. Rank 0 has this process's standard output.
pub(crate) fn run_self(count: u32, extra: &[OsString], quiet_exit_code: i32) -> Result<ExitCode> {
    guardian::guarded(|lifeline| {
        let directory = private_directory(Some(lifeline))?;
        let rendezvous = Rendezvous::file(&directory)?;
        let mut arguments = std::env::args_os();
        let job = Job {
            program: "/proc/self/exe".into(),
            arg0: arguments.next(),
            arguments: arguments.chain(extra.iter().cloned()).collect(),
            ranks: (0..count)
                .map(|rank| {
                    let position = Position { rank, of: count, local: rank, local_of: count, node: 0 };
                    let stdout = if rank == 0 { Stdout::Pass } else { Stdout::Drop };
                    Rank { stdout, ..Rank::new(rank, rendezvous.environment(position)) }
                })
                .collect(),
            prefix: Prefix::None,
            destinations: Destinations::own(),
            grace: GRACE,
            quiet_exit_code: Some(quiet_exit_code),
            orders: Orders::None,
            least: None,
            again: None,
        };
        lifeline.run(&job)
    })
}

/// The place where the ranks of a job find each other.
struct Rendezvous {
    /// Address for Kolo.
    url: String,
    /// Address for programs that read MASTER_ADDR and MASTER_PORT.
    master: Option<(String, u16)>,
}

/// Position of a process in a job.
#[derive(Clone, Copy)]
struct Position {
    rank: u32,
    of: u32,
    local: u32,
    local_of: u32,
    node: u32,
}

impl Rendezvous {
    /// Makes a rendezvous in a directory that only this user can read, with a port for programs that need one.
    fn file(directory: &TempDir) -> Result<Self> {
        // The port is not reserved until the program takes it; Kolo itself does not use it.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let path = directory.path().join("rendezvous");
        let path = path.to_str().filter(|path| !path.contains('?')).ok_or_else(|| {
            CliError::usage(
                format!("ranks cannot meet in {}: its name is not Unicode, or contains '?'", path.display()),
                "Set TMPDIR to another folder, for example /tmp",
            )
        })?;
        Ok(Self {
            url: format!("file://{path}"),
            master: port.ok().map(|address| ("127.0.0.1".into(), address.port())),
        })
    }

    /// Parses the address that the user wrote.
    fn parse(text: &str) -> Result<Self> {
        let bad = || {
            CliError::usage(
                format!("--rendezvous '{text}' is not valid"),
                "Give HOST:PORT on the first machine, for example 10.0.0.1:29500, or a URL such as \
                 file:///shared/job-17",
            )
        };
        let address = match text.split_once("://") {
            None | Some(("tcp", _)) => text.strip_prefix("tcp://").unwrap_or(text),
            Some(("" | "http" | "https", _)) => return Err(bad()),
            Some(_) => return Ok(Self { url: text.to_owned(), master: None }),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        if host.is_empty() {
            return Err(bad());
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { url: format!("tcp://{address}"), master: Some((bare, port)) })
    }

    fn environment(&self, position: Position) -> Vec<(String, OsString)> {
        let mut variables = vec![
            ("RANK", position.rank.to_string()),
            ("WORLD_SIZE", position.of.to_string()),
            ("LOCAL_RANK", position.local.to_string()),
            ("LOCAL_WORLD_SIZE", position.local_of.to_string()),
            ("NODE_RANK", position.node.to_string()),
            ("GROUP_RANK", position.node.to_string()),
            ("KOLO_RENDEZVOUS", self.url.clone()),
        ];
        if let Some((host, port)) = &self.master {
            variables.push(("MASTER_ADDR", host.clone()));
            variables.push(("MASTER_PORT", port.to_string()));
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    }
}

fn rendezvous(args: &RunArgs, lifeline: Option<&Lifeline>) -> Result<(Rendezvous, Option<TempDir>)> {
    match &args.rendezvous {
        Some(text) => Ok((Rendezvous::parse(text)?, None)),
        None if args.nodes > 1 => Err(CliError::usage(
            format!("a job on {} machines needs a place to meet", args.nodes),
            "Give all of them the same --rendezvous HOST:PORT, with the first machine's address",
        )),
        None => {
            let directory = private_directory(lifeline)?;
            Ok((Rendezvous::file(&directory)?, Some(directory)))
        }
    }
}

fn private_directory(lifeline: Option<&Lifeline>) -> Result<TempDir> {
    let failed = |error| CliError::system("could not make the folder in which the ranks meet", &error);
    let mut builder = tempfile::Builder::new();
    builder.prefix("kolo-").permissions(Permissions::from_mode(0o700));
    let directory = builder.tempdir().map_err(failed)?;
    if let Some(lifeline) = lifeline {
        lifeline.leave_behind(directory.path()).map_err(failed)?;
    }
    Ok(directory)
}

/// Parses --elastic for a job of `ranks` ranks.
fn bounds(args: &RunArgs, ranks: u32) -> Result<Option<Bounds>> {
    let Some(text) = &args.elastic else { return Ok(None) };
    let wrong = |problem: String| {
        let remedy = "Give the minimum number of ranks, at most that of the job, and optionally the maximum, \
                      at least that of the job: --elastic 2:4";
        Err(CliError::usage(problem, remedy))
    };
    let (least, most) =
        text.split_once(':').map_or((text.as_str(), None), |(least, most)| (least, Some(most)));
    let (Ok(least), Ok(most)) = (least.parse::<u32>(), most.map(str::parse::<u32>).transpose()) else {
        return wrong(format!("--elastic '{text}' is not valid"));
    };
    if !(1..=ranks).contains(&least) {
        return wrong(format!("--elastic cannot have a minimum of {least} ranks in a job of {ranks}"));
    }
    if most.is_some_and(|most| !(ranks..=MAX_RANKS).contains(&most)) {
        return wrong(format!("--elastic is '{text}', but the job has {ranks} ranks"));
    }
    if most.is_none() && args.spares > 0 {
        return wrong("--spares needs a maximum number of ranks".to_owned());
    }
    if args.spares > MAX_RANKS {
        return wrong(format!("--spares is {}, but a machine runs at most {MAX_RANKS}", args.spares));
    }
    Ok(Some(Bounds { least, most }))
}

/// Makes a job on this machine elastic: its members come and go.
fn make_elastic(job: &mut Job, args: &RunArgs, directory: Option<&TempDir>) -> Result<()> {
    let ranks = ranks(args)?;
    let Some(bounds) = bounds(args, ranks)? else { return Ok(()) };
    job.least = Some(bounds.least);
    let Some(most) = bounds.most else { return Ok(()) };
    let Some(directory) = directory else {
        return Err(CliError::usage(
            "--elastic MIN:MAX cannot be used with --rendezvous, where it has no place for the invitation \
             for newcomers",
            "Leave out --rendezvous",
        ));
    };
    let newcomers = Newcomers {
        bounds,
        numbers: ranks..most + args.spares,
        bind: (args.bind, ranks as usize),
        environment: exported(args)?,
        restarts: args.restarts,
        in_its_slot: most == ranks && args.spares == 0,
    };
    newcomers.join(job, directory.path());
    Ok(())
}

/// Returns the variables that --export gives the ranks of this machine.
fn exported(args: &RunArgs) -> Result<Vec<(String, OsString)>> {
    let exported = environment::exported(&args.export)?;
    Ok(exported.into_iter().map(|(name, value)| (name, value.into())).collect())
}

fn job(args: &RunArgs, rendezvous: &Rendezvous) -> Result<Job> {
    let local_of = ranks(args)?;
    if args.nodes == 0 || args.node_rank >= args.nodes {
        return Err(CliError::usage(
            format!(
                "--node-rank {} is not one of the {} machines given by --nodes",
                args.node_rank, args.nodes
            ),
            "Number the machines from 0 to one less than --nodes",
        ));
    }
    let of = local_of.checked_mul(args.nodes).ok_or_else(|| {
        CliError::usage(format!("{} machines with {local_of} ranks are too many", args.nodes), "Start fewer")
    })?;
    let (program, arguments) = args.command.split_first().ok_or_else(|| {
        CliError::usage("no program was given", "Put it after --, for example: kolo run -n 4 -- ./train")
    })?;
    let exported = exported(args)?;
    let ranks = (0..local_of)
        .zip(bind::places(args.bind, local_of as usize, 0))
        .map(|(local, cpus)| {
            let rank = args.node_rank * local_of + local;
            let position = Position { rank, of, local, local_of, node: args.node_rank };
            let environment = [rendezvous.environment(position), exported.clone()].concat();
            Rank { cpus, ..Rank::new(rank, environment) }
        })
        .collect();
    Ok(Job {
        program: program.clone(),
        arg0: None,
        arguments: arguments.to_vec(),
        ranks,
        prefix: if args.prefix { Prefix::Rank } else { Prefix::None },
        destinations: Destinations::own(),
        grace: Duration::from_secs(args.grace),
        quiet_exit_code: None,
        orders: Orders::None,
        least: None,
        again: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(ranks: u32, nodes: u32, node_rank: u32, rendezvous: Option<&str>) -> RunArgs {
        RunArgs {
            ranks: Some(ranks),
            nodes,
            node_rank,
            rendezvous: rendezvous.map(str::to_owned),
            hosts: None,
            hostfile: None,
            agent: "ssh".into(),
            remote_kolo: None,
            export: Vec::new(),
            bind: Bind::None,
            from_stdin: false,
            prefix: false,
            elastic: None,
            spares: 0,
            restarts: 3,
            grace: 5,
            command: vec!["true".into()],
        }
    }

    fn variable(job: &Job, index: usize, name: &str) -> String {
        let found = job.ranks[index].environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default()
    }

    #[test]
    fn ranks_are_told_their_place() {
        let args = args(3, 2, 1, Some("10.0.0.1:29500"));
        let job = job(&args, &rendezvous(&args, None).unwrap().0).unwrap();
        assert_eq!(job.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [3, 4, 5]);
        for (name, value) in [
            ("RANK", "5"),
            ("WORLD_SIZE", "6"),
            ("LOCAL_RANK", "2"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("NODE_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("KOLO_RENDEZVOUS", "tcp://10.0.0.1:29500"),
        ] {
            assert_eq!(variable(&job, 2, name), value, "{name}");
        }
    }

    #[test]
    fn an_elastic_job_keeps_from_one_to_all_ranks() {
        let elastic = |text: &str, spares| {
            let args = RunArgs { elastic: Some(text.to_owned()), spares, ..args(3, 1, 0, None) };
            bounds(&args, 3).map_err(|error| error.message)
        };
        assert_eq!(elastic("1", 0), Ok(Some(Bounds { least: 1, most: None })));
        assert_eq!(elastic("2:5", 4), Ok(Some(Bounds { least: 2, most: Some(5) })));
        assert_eq!(bounds(&args(3, 1, 0, None), 3).unwrap(), None);
        for (text, spares, told) in [
            ("0", 0, "a minimum of 0 ranks"),
            ("4", 0, "a minimum of 4 ranks in a job of 3"),
            ("1:2", 0, "the job has 3 ranks"),
            ("x", 0, "'x' is not valid"),
            ("1:", 0, "'1:' is not valid"),
            ("1", 1, "--spares needs"),
        ] {
            assert!(elastic(text, spares).unwrap_err().contains(told), "{text}");
        }
    }

    #[test]
    fn newcomers_and_those_started_again_find_the_invitation() {
        let elastic = |text: &str, spares| {
            let args = RunArgs {
                elastic: Some(text.to_owned()),
                spares,
                bind: Bind::Core,
                export: vec!["MADE=a=b".to_owned()],
                ..args(2, 1, 0, None)
            };
            let (rendezvous, directory) = rendezvous(&args, None).unwrap();
            let mut job = job(&args, &rendezvous).unwrap();
            make_elastic(&mut job, &args, directory.as_ref()).unwrap();
            job
        };
        let job = elastic("1:3", 2);
        assert_eq!((job.ranks.len(), job.least), (5, Some(1)));
        assert!(job.ranks.iter().all(|rank| rank.cpus.is_some()), "newcomers are bound, too");
        assert!((0..5).all(|rank| variable(&job, rank, "MADE") == "a=b"));
        assert_eq!(variable(&job, 0, "KOLO_ELASTIC"), "1:3");
        assert!(variable(&job, 0, "KOLO_JOIN").is_empty() && !variable(&job, 1, "RANK").is_empty());
        let path = variable(&job, 0, "KOLO_INVITE");
        assert_eq!(variable(&job, 4, "KOLO_JOIN"), format!("file://{path}"));
        assert!(variable(&job, 4, "RANK").is_empty() && !job.again.unwrap().in_its_slot);
        let job = elastic("1:2", 0);
        assert!(job.ranks.len() == 2 && job.again.unwrap().in_its_slot);
        let job = elastic("1", 0);
        assert!(job.again.is_none() && variable(&job, 0, "KOLO_ELASTIC").is_empty(), "as the program says");
    }

    #[test]
    fn one_machine_meets_in_a_private_directory() {
        let args = args(1, 1, 0, None);
        let (place, directory) = rendezvous(&args, None).unwrap();
        let mode = std::fs::metadata(directory.unwrap().path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(place.url.starts_with("file:///") && place.master.is_some());
    }

    #[test]
    fn rendezvous_urls() {
        assert_eq!(Rendezvous::parse("[::1]:80").unwrap().master, Some(("::1".into(), 80)));
        assert_eq!(Rendezvous::parse("file:///a/b").unwrap().url, "file:///a/b");
        for text in ["", "host", "host:", "host:0", ":80", "host:99999", "http://a:80"] {
            assert!(Rendezvous::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn impossible_jobs_are_refused() {
        for (ranks, nodes, node_rank) in [(0, 1, 0), (5000, 1, 0), (1, 0, 0), (1, 2, 2), (4096, u32::MAX, 0)]
        {
            let args = args(ranks, nodes, node_rank, Some("a:1"));
            assert!(job(&args, &rendezvous(&args, None).unwrap().0).is_err(), "{ranks} {nodes} {node_rank}");
        }
        assert!(rendezvous(&args(1, 2, 0, None), None).is_err());
    }
}
