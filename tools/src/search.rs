//! `kolo plan`: searches plans for a network whose hosts or links differ, and writes those that are worth a
//! file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kolo_collectives::plan::Collective;
use kolo_collectives::search::{self, Found, WORTH};

use crate::error::{CliError, Result};
use crate::perf::console::Console;
use crate::perf::{human_bytes, parse_size};
use crate::plan_file;
use crate::planning::human_seconds;
use crate::sim::{ClusterArgs, describe};

const EXAMPLES: &str = "\
Examples:
  KOLO_PROFILE=cluster.toml kolo plan --out plans           for the hosts that `kolo tune` has measured
  kolo plan all_reduce --cluster cluster.toml --from 1M --to 64M
  KOLO_PLAN=plans/all_reduce-16M.json mpirun ... ./train

Give all ranks of the job the same files. A plan for a profile's hosts serves jobs on these hosts, in the profile's order.";

/// Options of `kolo plan`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SearchArgs {
    /// all_reduce, all_gather, reduce_scatter or broadcast [default: all four]
    #[arg(value_name = "COLLECTIVE", value_parser = collective)]
    collectives: Vec<Collective>,
    #[command(flatten)]
    described: ClusterArgs,
    /// Size of the shortest calls, as `kolo perf` counts it
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    from: u64,
    /// Size of the longest calls for which plans are searched; these plans also serve longer calls
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    to: u64,
    /// Root of broadcasts
    #[arg(short, long, value_name = "RANK", default_value = "0")]
    root: u32,
    /// Directory for the files
    #[arg(short, long, value_name = "DIRECTORY", default_value = ".")]
    out: PathBuf,
}

fn collective(text: &str) -> Result<Collective, String> {
    let found = text.parse::<Collective>().map_err(|error| error.to_string())?;
    if search::COLLECTIVES.contains(&found) {
        Ok(found)
    } else {
        Err(format!("there is no plan search for {found}"))
    }
}

fn size(text: &str) -> Result<u64, String> {
    let found = parse_size(text).filter(|bytes| (4..=1 << 40).contains(bytes));
    found.ok_or_else(|| "not a size such as 64K, 1M or 2G".to_owned())
}

/// Runs `kolo plan`.
pub(crate) fn run(args: &SearchArgs) -> Result<ExitCode> {
    let mut console = Console::stdout();
    search_all(args, |line| console.line(&line))?;
    Ok(ExitCode::SUCCESS)
}

/// Searches all plans, and passes each line to `print` when its file has been written.
fn search_all(args: &SearchArgs, mut print: impl FnMut(String) -> Result<()>) -> Result<()> {
    if args.from > args.to {
        return Err(CliError::usage(
            format!("--from {} is more than --to {}", short(args.from), short(args.to)),
            "Give the size of the shortest calls with --from, and that of the longest with --to",
        ));
    }
    let known = kolo::Config::from_env()?.profile.and_then(|loaded| loaded.profile.network);
    let known: Vec<String> =
        known.map(|network| network.hosts.into_iter().map(|host| host.name).collect()).unwrap_or_default();
    let described = args.described.or_hosts(known.len());
    let cluster = describe(&described, 4)?.cluster;
    // The plans are for these hosts only, if their rates come from the profile.
    let names = (!described.has_file() && known.len() == cluster.hosts as usize).then_some(known);
    let unsuited = |problem| CliError::usage(problem, "See `kolo plan --help`");
    let wanted = wanted(args);
    for (collective, root) in &wanted {
        search::check(*collective, *root, &cluster).map_err(unsuited)?;
    }
    std::fs::create_dir_all(&args.out)
        .map_err(|error| CliError::system(format!("{} cannot be created", args.out.display()), &error))?;
    let mut files = Vec::new();
    for (collective, root) in wanted {
        let mut bytes = args.from.max(4);
        while bytes <= args.to {
            let next = bytes.saturating_mul(4);
            let blocks = if collective.has_block_per_rank() { u64::from(cluster.world_size()) } else { 1 };
            let found =
                search::search(collective, root, (bytes / blocks).max(4), &cluster).map_err(unsuited)?;
            let path = args.out.join(format!("{collective}-{}.json", short(bytes)));
            let line = line(collective, bytes, &found, &path);
            if is_worth_it(&found) {
                let to = if next > args.to { u64::MAX } else { next / blocks - 1 };
                let mut set = found.set.for_bytes(bytes / blocks, to);
                if let Some(names) = &names {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    set = set
                        .on_hosts(&names)
                        .map_err(|problem| CliError::failure(problem, "Please report this as a bug"))?;
                }
                plan_file::write(&path, &set)?;
                files.push(path.display().to_string());
            }
            print(line)?;
            bytes = next;
        }
    }
    print(match files.is_empty() {
        true => "No plans were written: the built-in algorithms are just as fast here.".to_owned(),
        false => format!("To use them: export KOLO_PLAN={}", files.join(",")),
    })
}

/// Returns the collectives, each once and with its root.
fn wanted(args: &SearchArgs) -> Vec<(Collective, u32)> {
    let named = if args.collectives.is_empty() { &search::COLLECTIVES[..] } else { &args.collectives };
    let mut wanted = Vec::new();
    for collective in named {
        let call = (*collective, if collective.is_rooted() { args.root } else { 0 });
        if !wanted.contains(&call) {
            wanted.push(call);
        }
    }
    wanted
}

fn is_worth_it(found: &Found) -> bool {
    found.seconds < WORTH * found.built_in.1
}

fn line(collective: Collective, bytes: u64, found: &Found, path: &std::path::Path) -> String {
    let (algorithm, before) = found.built_in;
    let end = if is_worth_it(found) {
        let times = before / found.seconds;
        format!(
            "{} with {}: {times:.2} times as fast, {}",
            human_seconds(found.seconds),
            found.set.name(),
            path.display()
        )
    } else {
        "nothing better".to_owned()
    };
    format!(
        "{collective} of {}: {} with {algorithm}; {end}",
        human_bytes(bytes as f64),
        human_seconds(before)
    )
}

/// Formats a size for the name of a file.
fn short(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, parse};

    fn run(line: &str) -> Result<Vec<String>> {
        match parse(format!("kolo plan {line}").split_whitespace().map(OsString::from)).unwrap().command {
            Command::Plan(args) => {
                let mut lines = Vec::new();
                search_all(&args, |line| {
                    lines.push(line);
                    Ok(())
                })?;
                Ok(lines)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plans_for_a_slow_pair_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let description = directory.path().join("cluster.toml");
        let pair =
            |from: u32, to: u32| format!("[[pairs]]\nfrom = {from}\nto = {to}\nbytes_per_second = 1e7\n");
        std::fs::write(
            &description,
            format!(
                "hosts = 4\nranks_per_host = 1\n[model]\nnic_bytes_per_second = 1.25e8\n{}{}",
                pair(0, 1),
                pair(1, 0)
            ),
        )
        .unwrap();
        let out = directory.path().join("plans");
        let lines = run(&format!(
            "all_reduce broadcast all_reduce --cluster {} --from 1M --to 16M --out {}",
            description.display(),
            out.display()
        ))
        .unwrap();
        assert_eq!(
            lines.iter().filter(|line| line.starts_with("all_reduce of 1.00 MiB")).count(),
            1,
            "{lines:?}"
        );
        let file = out.join("all_reduce-16M.json");
        assert!(lines.iter().any(|line| line.contains("times as fast")), "{lines:?}");
        assert!(lines.last().unwrap().contains(&file.display().to_string()), "{lines:?}");
        let loaded = kolo::LoadedPlans::read(&file).unwrap();
        let serves = loaded.set.serves();
        assert_eq!((serves.from_bytes, serves.to_bytes, serves.ranks), (16 << 20, u64::MAX, 4));
    }

    #[test]
    fn nonsense_is_refused() {
        let error = run("--hosts 1 --ranks-per-host 4 --out /tmp").unwrap_err();
        assert!(error.message.contains("several hosts") && error.exit_code == 2, "{error}");
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("plans");
        let four = format!("--hosts 4 --ranks-per-host 1 --out {}", out.display());
        for (line, because) in [
            (format!("{four} --root 9"), "root 9 is out of range: there are 4 ranks, 0 to 3"),
            (format!("{four} --from 64M --to 1M"), "--from 64M is more than --to 1M"),
        ] {
            let error = run(&line).unwrap_err();
            assert!(error.message.contains(because) && error.exit_code == 2, "{error}");
            assert!(!out.exists(), "nothing is searched before the request is checked");
        }
    }
}
