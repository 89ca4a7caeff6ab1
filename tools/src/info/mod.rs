//! `kolo info`: shows what this machine offers and what is missing.

use std::fs;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use kolo::{Cluster, Config, JoinSpec, TransportKind, Transports};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::Style;
use tabled::settings::object::Columns;
use tabled::settings::width::Width;

use crate::backend;
use crate::configuration;
use crate::error::{CliError, Result};
use crate::launch::environment;
use crate::perf::{console, human_bytes};
use machine::read_line;

pub(crate) mod machine;
pub(crate) mod network;

/// Two ranks of one machine find each other in milliseconds; a transport that takes longer than this does not
/// work.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Round trips of a probe: enough to amortize the first connection, and still over in a moment.
const PROBE_BARRIERS: u32 = 200;

const EXAMPLES: &str = "\
Examples:
  kolo info
  kolo info --json | jq .transports
  mpirun -np 1 kolo info              what a job sees, which may be less than what a login shell sees";

/// Options of `kolo info`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Do not try out the transports
    #[arg(long)]
    no_probe: bool,
}

/// All facts that are shown.
#[derive(Debug, Serialize)]
struct Report {
    transports: Vec<Transport>,
    sections: Vec<Section>,
    interfaces: Vec<network::Interface>,
    settings: Vec<String>,
    remarks: Vec<String>,
}

/// The state of a transport on this machine.
#[derive(Debug, Serialize)]
struct Transport {
    name: &'static str,
    works: Option<bool>,
    detail: String,
}

/// A group of related facts.
#[derive(Debug, Serialize)]
struct Section {
    title: &'static str,
    facts: Vec<(&'static str, String)>,
}

/// Runs `kolo info`.
pub(crate) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let (config, problem) = configuration::with_usable_files()?;
    let report = collect(&config, problem.as_ref(), !args.no_probe);
    let text = if args.json {
        serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
    } else {
        print(&report)
    };
    console::print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn collect(config: &Config, problem: Option<&CliError>, probe: bool) -> Report {
    let interfaces = network::interfaces().unwrap_or_default();
    Report {
        transports: transports(config, probe),
        sections: vec![host(), processors(), memory(), gpus(config), limits(), tcp(), costs(config, problem)],
        remarks: remarks(&interfaces),
        interfaces,
        settings: settings(config, &|name| std::env::var(name).ok()),
    }
}

/// Returns the settings in force, with the one that belongs to joining.
fn settings(config: &Config, variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    // A rank alone, so that nothing but this setting is read.
    let alone = |name: &str| match name {
        "KOLO_DEAD_AFTER" => variable(name),
        "KOLO_RANK" => Some("0".to_owned()),
        "KOLO_WORLD_SIZE" => Some("1".to_owned()),
        _ => None,
    };
    let dead_after = match JoinSpec::from_env(&alone) {
        Ok(spec) => spec.liveness.dead_after.as_secs_f64().to_string(),
        Err(error) => format!("({error})"),
    };
    let mut lines: Vec<String> = config.settings().lines().map(str::to_owned).collect();
    let place = lines.iter().position(|line| line.starts_with("KOLO_SILENT_AFTER=")).unwrap_or(lines.len());
    lines.insert(place, format!("KOLO_DEAD_AFTER={dead_after}"));
    lines
}

/// Returns each transport, tried out between two ranks, and those that this build or machine lacks.
fn transports(config: &Config, probe: bool) -> Vec<Transport> {
    TransportKind::ALL
        .into_iter()
        .map(|kind| {
            let (works, detail) = if probe {
                match try_out(config, kind) {
                    Ok(detail) => (Some(true), detail),
                    Err(error) => (Some(false), error.to_string()),
                }
            } else {
                (None, "not tried".into())
            };
            Transport { name: kind.name(), works, detail }
        })
        .collect()
}

fn try_out(config: &Config, kind: TransportKind) -> Result<String> {
    let config = config.clone().with(|config| {
        config.transports = Transports::Only(vec![kind]);
        config.timeout = PROBE_LIMIT;
        config.join_timeout = PROBE_LIMIT;
    });
    let results = Cluster::with_config(2, &config, |comm| {
        comm.barrier()?;
        let began = Instant::now();
        for _ in 0..PROBE_BARRIERS {
            comm.barrier()?;
        }
        let each = began.elapsed() / PROBE_BARRIERS;
        let how = comm.routes().first().map_or_else(String::new, |route| route.how.clone());
        let gpus = comm.gpu_direct().map_or_else(String::new, |line| format!("; memory of GPUs: {line}"));
        let registrations = comm
            .registration_policy()
            .map_or_else(String::new, |policy| format!("; buffer registrations are {policy}"));
        let fork = comm.fork_safety().map_or_else(String::new, |words| format!("; fork is {words}"));
        let each = each.as_secs_f64() * 1e6;
        Ok(format!("works: {how}; a barrier of two ranks takes {each:.1} us{registrations}{fork}{gpus}"))
    })?;
    results.into_iter().next().unwrap_or_else(|| Ok("works".into()))
}

fn host() -> Section {
    let system = rustix::system::uname();
    let text = |value: &std::ffi::CStr| value.to_string_lossy().into_owned();
    let launcher = match environment::launched() {
        Ok(None) => "none".to_owned(),
        Ok(Some(launched)) => {
            format!("{}: rank {} of {}", launched.launcher, launched.rank, launched.world_size)
        }
        Err(error) => format!("not understood: {error}"),
    };
    Section {
        title: "host",
        facts: vec![
            ("name", machine::hostname()),
            (
                "kernel",
                format!("{} {} ({})", text(system.sysname()), text(system.release()), text(system.machine())),
            ),
            ("kolo", backend::version().to_owned()),
            ("launcher", launcher),
        ],
    }
}

fn processors() -> Section {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = machine::cpu_field(&cpuinfo, &["flags", "Features"]).unwrap_or_default();
    let quota = machine::cpu_quota();
    let affinity = status_field("Cpus_allowed_list").unwrap_or_else(|| "unknown".into());
    Section {
        title: "processors",
        facts: vec![
            ("model", machine::cpu_model()),
            ("online", read_line("/sys/devices/system/cpu/online").unwrap_or_else(|| "unknown".into())),
            ("affinity", affinity),
            ("quota", quota.map_or_else(|| "none".into(), |cpus| format!("{cpus:.2} processors' time"))),
            ("usable", machine::usable_cpus().to_string()),
            ("numa nodes", read_line("/sys/devices/system/node/online").unwrap_or_else(|| "unknown".into())),
            ("features", vector_features(&flags)),
        ],
    }
}

/// Returns the features that reductions and copies use.
fn vector_features(flags: &str) -> String {
    const USEFUL: [&str; 13] = [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512_bf16",
        "avx512_fp16",
        "asimd",
        "asimdhp",
        "bf16",
        "sve",
    ];
    let found: Vec<_> =
        USEFUL.into_iter().filter(|name| flags.split(' ').any(|flag| flag == *name)).collect();
    if found.is_empty() { "none that matter".into() } else { found.join(" ") }
}

fn memory() -> Section {
    let memory = machine::memory();
    let bytes =
        |value: Option<u64>| value.map_or_else(|| "unknown".into(), |bytes| human_bytes(bytes as f64));
    let shared = rustix::fs::statvfs("/dev/shm").ok().map(|stat| stat.f_blocks * stat.f_frsize);
    Section {
        title: "memory",
        facts: vec![
            ("total", bytes(memory.map(|memory| memory.total))),
            ("available", bytes(memory.map(|memory| memory.available))),
            ("/dev/shm", format!("{} (not used: segments are anonymous)", bytes(shared))),
            (
                "huge pages",
                read_line("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_else(|| "unknown".into()),
            ),
        ],
    }
}

fn limits() -> Section {
    let limit = |resource| {
        getrlimit(resource).current.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
    };
    let memlock = getrlimit(Resource::Memlock).current;
    Section {
        title: "limits",
        facts: vec![
            ("memlock", memlock.map_or_else(|| "unlimited".into(), |bytes| human_bytes(bytes as f64))),
            ("open files", limit(Resource::Nofile)),
            ("processes", limit(Resource::Nproc)),
        ],
    }
}

/// Names the GPUs, and says how calls on their memory run; the row of the transport `rdma` says it for adapters.
fn gpus(config: &Config) -> Section {
    let facts = match kolo::internal::gpu::installed(config) {
        None => vec![("driver", "none".to_owned())],
        Some(Err(problem)) => vec![("driver", problem)],
        Some(Ok(gpus)) if gpus.names.is_empty() => vec![("driver", "sees no GPU".to_owned())],
        Some(Ok(gpus)) => vec![("names", gpus.names.join(", ")), ("memory", gpus.path)],
    };
    Section { title: "gpus", facts }
}

fn tcp() -> Section {
    let setting =
        |name: &str| read_line(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_else(|| "unknown".into());
    Section {
        title: "tcp",
        facts: vec![
            ("congestion", setting("tcp_congestion_control")),
            ("available", setting("tcp_available_congestion_control")),
            ("send buffer", setting("tcp_wmem").replace('\t', " ")),
            ("receive buffer", setting("tcp_rmem").replace('\t', " ")),
        ],
    }
}

/// Returns the constants of the cost model, or the problem with the files in which they and the plans are.
fn costs(config: &Config, problem: Option<&CliError>) -> Section {
    let facts = match &config.profile {
        None if let Some(problem) = problem => vec![("problem", problem.to_string())],
        None => vec![("profile", "none: built-in constants. `kolo tune` writes one".to_owned())],
        Some(loaded) => vec![
            ("profile", loaded.path.display().to_string()),
            ("measured on", loaded.profile.machine.clone()),
            ("digest", format!("{} (the same on all ranks)", loaded.profile.digest())),
        ],
    };
    Section { title: "cost model", facts }
}

/// Returns warnings of likely surprises.
fn remarks(interfaces: &[network::Interface]) -> Vec<String> {
    let mut remarks: Vec<String> =
        quota_remark(machine::cpu_quota(), machine::admitted_cpus()).into_iter().collect();
    if getrlimit(Resource::Memlock).current.is_some_and(|bytes| bytes < 64 << 20)
        && !entries("/sys/class/infiniband").is_empty()
    {
        remarks.push(
            "There are RDMA devices, but only little memory may be locked (memlock): raise the limit with \
             ulimit -l, also inside containers and launchers."
                .into(),
        );
    }
    if getrlimit(Resource::Nofile).current.is_some_and(|files| files < 1024) {
        remarks.push(
            "Fewer than 1024 files may be open, but large worlds over tcp need one per peer. Raise the limit \
             with ulimit -n."
                .into(),
        );
    }
    if !interfaces
        .iter()
        .any(|interface| interface.running && !interface.loopback && !interface.addresses.is_empty())
    {
        remarks.push("No network interface is usable: only ranks on this host can be reached.".into());
    }
    if read_line("/proc/sys/net/ipv4/tcp_congestion_control").as_deref() == Some("bbr") {
        remarks.push(
            "The congestion control is bbr, which paces. Between ranks on one host, Kolo replaces it if the \
             system allows; KOLO_SOCKET_CONGESTION overrides this."
                .into(),
        );
    }
    remarks
}

/// Returns the warning of a quota below the number of processors.
fn quota_remark(quota: Option<f64>, processors: usize) -> Option<String> {
    let quota = quota.filter(|quota| *quota < processors as f64)?;
    Some(format!(
        "The control group allows the time of {quota:.2} processors, but there are {processors}: ranks that spin take it \
         from each other. Start fewer ranks, or raise the quota."
    ))
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

fn entries(directory: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn print(report: &Report) -> String {
    let mut out = String::new();
    let mut section = |title: &str, rows: Vec<[String; 2]>| {
        let mut table = Builder::default();
        for row in rows {
            table.push_record(row);
        }
        let mut table = table.build();
        table.with(Style::blank());
        if std::io::stdout().is_terminal() {
            table.modify(Columns::last(), Width::wrap(90).keep_words(true));
        }
        let body: String = table.to_string().lines().map(|line| format!(" {}\n", line.trim_end())).collect();
        out.push_str(&format!("{title}\n{body}\n"));
    };
    section(
        "transports",
        report
            .transports
            .iter()
            .map(|transport| [transport.name.to_owned(), transport.detail.clone()])
            .collect(),
    );
    for part in &report.sections {
        section(
            part.title,
            part.facts.iter().map(|(name, value)| [(*name).to_owned(), value.clone()]).collect(),
        );
    }
    section("interfaces", report.interfaces.iter().map(interface).collect());
    section(
        "settings",
        report
            .settings
            .iter()
            .map(|line| {
                line.split_once('=').map_or([line.clone(), String::new()], |(a, b)| [a.into(), b.into()])
            })
            .collect(),
    );
    for remark in &report.remarks {
        out.push_str(&format!("Note: {remark}\n"));
    }
    out
}

fn interface(interface: &network::Interface) -> [String; 2] {
    let mut words = vec![if interface.running { "up" } else { "down" }.to_owned()];
    words.extend(interface.speed_megabits.map(|speed| format!("{speed} Mb/s")));
    words.extend(interface.mtu.map(|mtu| format!("mtu {mtu}")));
    words.extend(interface.addresses.iter().map(ToString::to_string));
    [interface.name.clone(), words.join(", ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_reported() {
        let report = collect(&Config::default(), None, true);
        let text = print(&report);
        for title in ["transports", "host", "processors", "memory", "limits", "tcp", "interfaces", "settings"]
        {
            assert!(text.lines().any(|line| line == title), "{title}:\n{text}");
        }
        assert!(text.contains("KOLO_TRANSPORT") && text.contains("memlock"));
        let shm = &report.transports[0];
        assert!(shm.name == "shm" && (shm.works == Some(true) || !shm.detail.is_empty()));
    }

    #[test]
    fn the_limit_of_silence_is_a_setting() {
        let shown = |value: Option<&str>| {
            let variable = |name: &str| value.filter(|_| name == "KOLO_DEAD_AFTER").map(str::to_owned);
            let lines = settings(&Config::default(), &variable);
            lines.into_iter().find(|line| line.starts_with("KOLO_DEAD_AFTER=")).unwrap()
        };
        assert_eq!(shown(None), "KOLO_DEAD_AFTER=60");
        assert_eq!(shown(Some("2.5")), "KOLO_DEAD_AFTER=2.5");
        assert!(shown(Some("soon")).contains("'soon'"), "{}", shown(Some("soon")));
    }

    #[test]
    fn a_quota_is_compared_with_the_processors() {
        assert!(quota_remark(Some(1.5), 8).unwrap().contains("1.50 processors, but there are 8"));
        assert_eq!((quota_remark(Some(8.0), 8), quota_remark(None, 8)), (None, None));
        assert!(machine::admitted_cpus() >= machine::usable_cpus());
    }

    #[test]
    fn features_that_matter() {
        assert_eq!(vector_features("fpu avx2 avx512f f16c"), "avx2 f16c avx512f");
        assert_eq!(vector_features("fpu"), "none that matter");
    }
}
