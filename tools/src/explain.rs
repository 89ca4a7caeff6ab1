//! `kolo explain`: shows which algorithm is chosen, what the others would cost, and the steps of the plan.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kolo::internal::profile::{Loaded, Rates};
use kolo::internal::selection::{apply_settings, model_inside};
use kolo::{Config, DataType};
use kolo_collectives::Task;
use kolo_collectives::model::Model;
use kolo_collectives::select::{self, Choice};
use tabled::builder::Builder;
use tabled::settings::Style;

use crate::answer::Answer;
use crate::backend::{self, Request};
use crate::error::{CliError, Result};
use crate::info::machine;
use crate::perf::{console, human_bytes};
use crate::plan_file::{self, PlanArgs};
use crate::planning::{CallArgs, human_seconds, inside, on_unequal_hosts};

mod file;
mod in_force;

/// With more ranks, proving the plan takes longer than a person waits; `kolo sim` does it on request.
const MAX_CHECKED_RANKS: u32 = 128;

/// Most ranks that are started to see which way they take.
const MAX_TRIED_RANKS: u32 = 16;

/// Longest buffer for that trial; each rank has two.
const MAX_TRIED_BYTES: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  kolo explain all_reduce --ranks 12 --bytes 1M
  kolo explain broadcast --ranks 64 --hosts 8 --network rdma --bytes 64M
  kolo explain all_reduce --ranks 5 --bytes 64 --algo circulant --rank 3
  kolo explain all_reduce --ranks 4 --bytes 1M --symmetric
  kolo explain all_reduce --ranks 8 --hosts 2 --bytes 64M --algo ring --plan-out ring.json
  kolo explain all_reduce --plan ring.json --bytes 64M
  kolo explain all_reduce --ranks 3 --bytes 1M --shards 64
  KOLO_ALGO=ring kolo explain all_reduce              KOLO_* count as in a job, and options override them";

/// Options of `kolo explain`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    call: CallArgs,
    #[command(flatten)]
    file: PlanArgs,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// Hosts that the ranks are spread over, evenly and in order
    #[arg(long, value_name = "N", default_value = "1")]
    hosts: u32,
    /// Processors of each host for its ranks [default: this machine's if there is one host, else one for each rank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    processors: Option<u32>,
    /// Network between hosts
    #[arg(long, value_enum, default_value = "tcp")]
    network: Network,
    /// Rank whose steps to show
    #[arg(long, value_name = "RANK", default_value = "0")]
    rank: u32,
    /// Show no steps
    #[arg(long)]
    no_steps: bool,
}

/// Built-in constants of the cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// 25 Gb/s Ethernet
    Tcp,
    /// 200 Gb/s RDMA
    Rdma,
}

impl ExplainArgs {
    /// Returns the host of each rank, if the ranks can be spread over the hosts and one of them is to be shown.
    fn hosts_of_ranks(&self) -> Result<Vec<u32>> {
        if self.hosts == 0 || !self.ranks.is_multiple_of(self.hosts) {
            return Err(CliError::usage(
                format!("{} ranks cannot be spread evenly over {} hosts", self.ranks, self.hosts),
                "Make --ranks a multiple of --hosts",
            ));
        }
        if self.rank >= self.ranks {
            return Err(CliError::usage(
                format!("--rank {} is out of range: there are {} ranks", self.rank, self.ranks),
                "Choose one of them",
            ));
        }
        let per_host = self.ranks / self.hosts;
        Ok((0..self.ranks).map(|rank| rank / per_host).collect())
    }

    /// Returns the processors per host as a run would have them: those of this machine, if there is one host.
    fn processors_per_host(&self) -> u32 {
        let default =
            || if self.hosts == 1 { machine::usable_cpus() as u32 } else { self.ranks / self.hosts };
        self.processors.unwrap_or_else(default).max(1)
    }

    fn processors(&self) -> String {
        let (ranks, processors) = (self.ranks / self.hosts, self.processors_per_host());
        let origin = match (self.processors, self.hosts) {
            (None, 1) => "this machine's; change it with --processors",
            (None, _) => "one for each rank; change it with --processors",
            (Some(_), _) => "as requested",
        };
        let shared = if ranks > processors { ", shared by more ranks" } else { "" };
        format!("{processors} on each host{shared} ({origin})")
    }
}

impl Network {
    /// Returns the constants.
    pub(crate) const fn model(self) -> Model {
        match self {
            Self::Tcp => Model::TCP,
            Self::Rdma => Model::RDMA,
        }
    }
}

/// Runs `kolo explain`.
pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let answer = Question { args, config: &Config::from_env()? }.answer()?;
    console::print(answer.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// A call to explain: the options, and the settings, which count where there is no option.
#[derive(Clone, Copy)]
struct Question<'a> {
    args: &'a ExplainArgs,
    config: &'a Config,
}

impl Question<'_> {
    fn answer(self) -> Result<Answer> {
        let Self { args, config } = self;
        if let Some(path) = &args.file.plan {
            return self.answer_of_file(&plan_file::read(path, &args.call)?, self.settings(None));
        }
        let hosts = args.hosts_of_ranks()?;
        let task = args.call.task(hosts.clone(), &config.transports)?;
        let call = self.call_in_force(&task)?;
        if args.file.plan_out.is_none()
            && let Some(loaded) = self.plans_in_force(&call, &hosts, &task)?
        {
            return self.answer_of_file(&loaded, self.settings(Some(&loaded)));
        }
        let task = match known_rates(args.hosts, config.profile.as_ref()) {
            Some(rates) => on_unequal_hosts(task, &rates.hosts),
            None => task,
        };
        let mut model = configured(args.network.model(), config);
        let (per_host, processors) = (args.ranks / args.hosts, args.processors_per_host());
        model.oversubscription = (f64::from(per_host) / f64::from(processors)).max(1.0);
        let mut choice = choose(&call, &task, &model)?;
        apply_settings(&mut choice, config.segment_bytes, config.window);
        let written = plan_file::write_choice(&args.file, &args.call, &task, &choice)?;
        let tuned = task.clone().with_params(choice.params);
        let mut answer = self.summary(&choice);
        answer.row("taken here", self.way_here(&task)?);
        answer.row("written", written);
        answer.paragraph(format!("{}\n{}", losers(&choice), self.proof(&tuned, &choice)?));
        if !args.no_steps {
            answer.paragraph(choice.algorithm.plan(&tuned, args.rank).to_string());
        }
        Ok(answer)
    }

    /// Returns the way that ranks on this host would take for the call, which need not be a plan; `None` if it cannot
    /// be tried out.
    fn way_here(self, task: &Task) -> Result<Option<String>> {
        let Self { args, .. } = self;
        let call = &args.call;
        let data_type = match call.element_bytes {
            1 => DataType::U8,
            2 => DataType::F16,
            4 => DataType::F32,
            8 => DataType::F64,
            _ => return Ok(None),
        };
        let fits = args.ranks <= MAX_TRIED_RANKS && call.bytes <= MAX_TRIED_BYTES;
        let is_other = call.canonical || call.is_symmetric() || call.shards.is_some();
        if args.hosts > 1 || args.processors.is_some() || is_other || !fits {
            return Ok(None);
        }
        let request = Request {
            algorithm: call.algo.map(|algorithm| format!("{}:{algorithm}", call.collective)),
            ..Request::default()
        };
        let count = call.selection_bytes(args.ranks) / call.element_bytes;
        let way = backend::way_here(&request, task, count, data_type)?;
        Ok(Some(way).filter(|way| !way.is_empty()))
    }

    fn summary(self, choice: &Choice) -> Answer {
        let Self { args, config } = self;
        let call = &args.call;
        let block = call.selection_bytes(args.ranks);
        let blocks = if call.collective.has_block_per_rank() {
            format!(" ({} per block)", human_bytes(block as f64))
        } else {
            String::new()
        };
        let shards = call.shards.map_or_else(String::new, |shards| format!(" over {shards} shards"));
        let bytes = human_bytes(call.bytes as f64);
        let constants = config.profile.as_ref().map_or_else(
            || "built-in (KOLO_PROFILE names none)".to_owned(),
            |loaded| format!("{} ({})", loaded.path.display(), loaded.profile.digest()),
        );
        let segments = (block as usize).div_ceil(choice.segment_bytes.max(1)).max(1);
        let (segment, in_flight) = (human_bytes(choice.segment_bytes as f64), choice.window.min(segments));
        let rows = [
            ("algorithm", choice.algorithm.to_string()),
            ("from", choice.algorithm.source().to_owned()),
            ("why", choice.reason.clone()),
            ("constants", constants),
            ("settings", self.settings(None)),
            ("processors", args.processors()),
            ("expected", human_seconds(choice.cost_seconds)),
            ("segments", format!("{segments} of up to {segment}, {in_flight} in flight")),
        ];
        let (collective, ranks, hosts) = (call.collective, args.ranks, args.hosts);
        let title = format!("{collective}{shards} of {bytes}{blocks} on {ranks} rank(s), {hosts} host(s)");
        Answer::new(title, rows)
    }

    /// Returns the checker's verdict on the plans.
    fn proof(self, task: &Task, choice: &Choice) -> Result<String> {
        if task.world_size > MAX_CHECKED_RANKS {
            return Ok(format!(
                "not checked: more than {MAX_CHECKED_RANKS} ranks; `kolo sim` checks larger worlds"
            ));
        }
        let call = &self.args.call;
        let report = call.checked(&choice.algorithm.plans(task), choice.segment_bytes as u64)?;
        let published = match report.published {
            0 => String::new(),
            elements => format!("; {} copied into memory that ranks share", call.human_elements(elements)),
        };
        Ok(format!(
            "checked: {}; at most {} peers per rank; {} of staging{published}",
            call.proof(&report),
            report.connections,
            call.human_elements(report.scratch_elements as u64),
        ))
    }
}

/// Selects the algorithm for a call.
pub(crate) fn choose(call: &CallArgs, task: &Task, model: &Model) -> Result<Choice> {
    let bytes = call.selection_bytes(task.world_size);
    select::Request::new(task, bytes, call.element_bytes as usize)
        .ordered(call.order())
        .forced(call.algo)
        .select(model)
        .map_err(|error| {
            CliError::usage(error, "Choose another --algo, or leave it out to get the cheapest one that can")
        })
}

/// Applies the profile, if there is one, and the transports that may be used, to the constants.
pub(crate) fn configured(model: Model, config: &Config) -> Model {
    let profile = config.profile.as_ref().map(|loaded| &loaded.profile);
    model_inside(inside(&config.transports), model, profile)
}

/// Returns the rates of a profile's hosts, in its order, if it has this number of hosts.
pub(crate) fn known_rates(hosts: u32, profile: Option<&Loaded>) -> Option<Rates> {
    let network = profile?.profile.network.as_ref()?;
    let names: Vec<&str> = network.hosts.iter().map(|host| host.name.as_str()).collect();
    (names.len() == hosts as usize).then(|| network.rates(&names).ok())?
}

fn losers(choice: &Choice) -> String {
    let mut table = Builder::default();
    table.push_record(["not chosen", "expected", "why"]);
    for (algorithm, verdict) in &choice.losers {
        match verdict {
            Ok(seconds) => {
                let times = seconds / choice.cost_seconds;
                table.push_record([
                    algorithm.to_string(),
                    human_seconds(*seconds),
                    format!("{times:.2} times"),
                ]);
            }
            Err(reason) => table.push_record([algorithm.to_string(), "-".into(), reason.clone()]),
        }
    }
    table.build().with(Style::psql()).to_string()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, parse};

    fn explained(line: &str) -> Result<String> {
        explained_with(line, &Config::default())
    }

    fn explained_with(line: &str, config: &Config) -> Result<String> {
        match parse(format!("kolo explain {line}").split_whitespace().map(OsString::from)).unwrap().command {
            Command::Explain(args) => {
                Question { args: &args, config }.answer().map(|answer| answer.to_string())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn says_what_why_and_how() {
        let text = explained("all_reduce --ranks 12 --bytes 1M").unwrap();
        for expected in
            ["all_reduce of 1.00 MiB on 12 rank(s)", "algorithm", "why", "not chosen", "checked: right"]
        {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }

    #[test]
    fn settings_count_unless_an_option_overrides_them() {
        let with = |names: &[(&str, &str)]| {
            let value =
                |name: &str| names.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Config::from_lookup(&value).unwrap()
        };
        let call = "all_reduce -n 4 -b 16M --no-steps";
        let text = explained(call).unwrap();
        assert!(text.contains("settings   defaults"), "{text}");
        let config =
            with(&[("KOLO_ALGO", "all_reduce:ring"), ("KOLO_SEGMENT_BYTES", "64K"), ("KOLO_WINDOW", "3")]);
        let text = explained_with(call, &config).unwrap();
        assert!(
            text.contains("algorithm  ring\n") && text.contains("of up to 64.0 KiB, 3 in flight"),
            "{text}"
        );
        assert!(
            text.contains("KOLO_ALGO=all_reduce:ring, KOLO_SEGMENT_BYTES=65536, KOLO_WINDOW=3"),
            "{text}"
        );
        let text = explained_with(&format!("{call} --algo tree"), &config).unwrap();
        assert!(text.contains("algorithm  tree") && text.contains("ring (overridden by --algo)"), "{text}");
        let text = explained_with(call, &with(&[("KOLO_DETERMINISM", "canonical")])).unwrap();
        assert!(
            explained(&format!("{call} --canonical")).unwrap().contains(text.lines().nth(1).unwrap()),
            "{text}"
        );
    }

    #[test]
    fn ranks_share_memory_only_if_a_transport_does() {
        let call = "all_reduce -n 4 -b 1M";
        assert!(explained(call).unwrap().contains("algorithm  staged"));
        for (transports, has_stages) in
            [("tcp", false), ("tcp,shm", false), ("rdma,tcp", false), ("shm,tcp", true)]
        {
            let value = |name: &str| (name == "KOLO_TRANSPORT").then(|| transports.to_owned());
            let text = explained_with(call, &Config::from_lookup(&value).unwrap()).unwrap();
            assert!(text.contains(&format!("settings   KOLO_TRANSPORT={transports}\n")), "{text}");
            assert_eq!(text.contains("algorithm  staged"), has_stages, "{text}");
        }
    }

    #[test]
    fn plans_of_the_environment_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ring.json").display().to_string();
        let call = "all_reduce -n 4 --hosts 2 -b 1M --no-steps";
        explained(&format!("{call} --algo ring --plan-out {path}")).unwrap();
        let config = Config::from_lookup(&|name| (name == "KOLO_PLAN").then(|| path.clone())).unwrap();
        let text = explained_with(call, &config).unwrap();
        assert!(
            text.contains("plan       ring of ") && text.contains(&format!("KOLO_PLAN={path}\n")),
            "{text}"
        );
        for other in [format!("{call} --algo ring"), call.replace("1M", "2M")] {
            let text = explained_with(&other, &config).unwrap();
            assert!(text.contains("algorithm") && text.contains("(does not serve this call)"), "{text}");
        }
        for other in [format!("{call} --canonical"), format!("{call} --shards 8")] {
            let text = explained_with(&other, &config).unwrap();
            assert!(text.contains("(does not serve this call)"), "{text}");
        }
        let written = explained_with(&format!("{call} --plan-out {path}.other"), &config).unwrap();
        assert!(written.contains("(not used: --plan-out)"), "{written}");
    }

    #[test]
    fn segments_in_flight_are_as_many_as_a_run_has_channels_for() {
        let config = Config::default().with(|config| config.window = Some(64));
        let call = "all_reduce -n 40 --hosts 40 -b 256M --no-steps";
        for (algorithm, window) in [("circulant", 8), ("tree", 4)] {
            let text = explained_with(&format!("{call} --algo {algorithm}"), &config).unwrap();
            assert!(text.contains(&format!(", {window} in flight")), "{text}");
        }
    }

    #[test]
    fn says_which_way_is_taken_here() {
        let way = |line: &str| {
            let text = explained(&format!("{line} --no-steps")).unwrap();
            let found = text.lines().find(|line| line.contains("taken here")).map(str::to_owned);
            found.unwrap_or_default()
        };
        assert!(way("all_reduce -n 2 -b 64").contains("exchange"), "{}", way("all_reduce -n 2 -b 64"));
        assert!(way("all_reduce -n 2 -b 64 --algo ring").contains("ring"));
        assert_eq!(way("all_reduce -n 4 --hosts 2 -b 64"), "");
    }

    #[test]
    fn symmetric_buffers_have_a_plan() {
        let text = explained("all_reduce -n 3 -b 1M --shards 64").unwrap();
        for part in [
            "all_reduce over 64 shards of 1.00 MiB",
            "shards_two_shot",
            "checked: right",
            "64 shards in vectors",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(explained("all_reduce -n 3 --in-place --shards 64").is_err());
        let text = explained("all_reduce -n 4 -b 1M --symmetric").unwrap();
        assert!(text.contains("algorithm  window"), "{text}");
        for expected in ["spread  out[0] of all = in[0] of all", "windows: outputs of all", "checked: right"]
        {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        assert!(explained("all_gather -n 3 -b 64K --algo window").unwrap().contains("window2[0]"));
        let text = explained("all_reduce -n 4 -b 1M --no-steps").unwrap();
        assert!(text.contains("blocking calls on symmetric buffers"), "{text}");
        let error = explained("scan -n 4 --algo window").unwrap_err();
        assert!(error.message.contains("symmetric buffers do not support scan"), "{error}");
    }

    #[test]
    fn every_collective_is_explained() {
        for collective in kolo_collectives::plan::Collective::ALL {
            for ranks in [1, 2, 7] {
                let text = explained(&format!("{collective} -n {ranks} -b 64K")).unwrap();
                assert!(text.contains("checked: right"), "{text}");
            }
        }
        assert!(explained("alltoall -n 4 --hosts 2 --network rdma -b 1K --in-place --no-steps").is_ok());
    }

    #[test]
    fn ranks_share_the_processors_that_there_are() {
        let expected = |line: &str| {
            let text = explained(&format!("all_gather -n 8 -b 64 --algo ring --no-steps {line}")).unwrap();
            text.lines().find(|line| line.contains("expected")).unwrap().to_owned()
        };
        assert_ne!(expected("--processors 2"), expected("--processors 8"));
        assert_eq!(expected("--hosts 2"), expected("--hosts 2 --processors 4"));
        let here = machine::usable_cpus();
        assert_eq!(expected(""), expected(&format!("--processors {here}")));
    }

    #[test]
    fn plans_go_through_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ring.json");
        let path = path.display();
        let call = "all_reduce -b 1M --no-steps";
        let text =
            explained(&format!("{call} -n 4 --hosts 2 --algo ring --plan-out {path} --plan-to 64M")).unwrap();
        assert!(text.contains(&format!("is in {path}: KOLO_PLAN={path}")), "{text}");
        let text = explained(&format!("all_reduce -b 32M --hosts 2 --plan {path} --rank 3")).unwrap();
        for expected in [
            "on 4 rank(s)",
            "plan       ring of ",
            "simulated  ",
            "hosts [0, 0, 1, 1]",
            "right and free",
            "send",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let text = explained(&format!("{call} --hosts 4 --plan {path}")).unwrap();
        assert!(text.contains("does not fit this cluster: it is for ranks on hosts [0, 0, 1, 1]"), "{text}");
        for (line, because) in [
            (format!("all_gather --plan {path}"), "it is for all_reduce"),
            (format!("all_reduce -b 1K --plan {path}"), "but this is 1024"),
            (format!("{call} --plan {path} --rank 4"), "out of range"),
            ("all_reduce --plan /nowhere/x.json".to_owned(), "cannot be read"),
            (format!("all_reduce -n 4 --symmetric --plan-out {path}"), "symmetric buffers"),
        ] {
            let line = line.replace("--no-steps", "");
            let error = explained(&line).unwrap_err();
            assert!(error.message.contains(because) && error.exit_code == 2, "{line}: {error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "all_reduce -n 4 --hosts 3",
            "all_reduce -n 4 --hosts 0",
            "reduce -n 4 -r 4",
            "all_reduce -n 4 --rank 4",
            "barrier --algo ring",
        ] {
            let error = explained(line).unwrap_err();
            assert!(!error.message.contains('\n') && error.exit_code == 2, "{line}: {error}");
        }
    }
}
