//! Ranks from the variables of MPI launchers and Slurm.
//!
//! These launchers tell a process its rank, but rarely where rank 0 listens. The place of rank 0 is found as follows:
//! - If MASTER_ADDR and MASTER_PORT are set, they decide.
//! - If all ranks are on one host, they meet through a file in this user's private folder, named after the job.
//! - Slurm names the hosts: rank 0 listens on the first one, at a port derived from the job's number.
//! - Hydra (MPICH, Intel MPI) serves a key-value space (`pmi`).
//! - Open MPI 5 names mpirun's host in the job's name, and rank 0 knows whether it runs there.
//!
//! Otherwise the error says which variables to export.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use super::addresses::process_start;
use super::env::{Environment, Place, alone, numbered, runtime_folder, set, with_master};
use super::pmi::Pmi;
use super::{JoinSpec, Locator, nodelist, pmi};
use crate::error::{Error, Result};

/// Pseudo-variable that names the launcher's process on this host, which all ranks of a job have in common there: the one
/// behind the socket in PMI_FD, or else this process's parent.
pub(crate) const PARENT: &str = "kolo.parent-process";

/// Ports derived from a job's number: below the usual range of ephemeral ports (from 32768), and above the ports of
/// common services.
const PORT_FIRST: u64 = 12_000;
const PORT_COUNT: u64 = 20_000;

struct Launcher {
    name: &'static str,
    rank: &'static str,
    sizes: &'static [&'static str],
    local_ranks: &'static [&'static str],
    local_sizes: &'static [&'static str],
    /// Variables whose values together name the job.
    job: &'static [&'static str],
    /// Variable that is set for ranks only, for launchers whose other variables also appear in processes that are no
    /// ranks.
    besides: Option<&'static str>,
    /// Option that passes a variable to all ranks.
    export: &'static str,
}

const HYDRA: &str = "MPICH Hydra";
const OPEN_MPI: &str = "Open MPI";

/// Hydra, recognized by variables that Slurm sets too.
const HYDRA_OR_SLURM: Launcher = Launcher {
    name: HYDRA,
    rank: "PMI_RANK",
    sizes: &["PMI_SIZE"],
    local_ranks: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
    local_sizes: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
    job: &["PMI_JOBID", "PMI_PORT"],
    besides: None,
    export: "mpiexec -genv MASTER_ADDR host -genv MASTER_PORT 29500",
};

/// The launchers in the order in which they are tried: PALS and Slurm set PMI variables too, and the ranks of mpirun and
/// mpiexec within a Slurm allocation inherit the variables of the batch script, or of the srun that started a daemon.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: OPEN_MPI,
        rank: "OMPI_COMM_WORLD_RANK",
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_sizes: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        besides: None,
        export: "mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500",
    },
    Launcher {
        name: "Cray PALS",
        rank: "PALS_RANKID",
        sizes: &["PALS_SIZE", "PALS_NRANKS", "PMI_SIZE"],
        local_ranks: &["PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_sizes: &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
        job: &["PALS_APID"],
        besides: None,
        export: "mpiexec --env MASTER_ADDR=host --env MASTER_PORT=29500",
    },
    Launcher { besides: Some("MPI_LOCALRANKID"), ..HYDRA_OR_SLURM },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_ranks: &["SLURM_LOCALID"],
        local_sizes: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        besides: Some("SLURM_STEP_NUM_TASKS"),
        export: "srun --export=ALL,MASTER_ADDR=host,MASTER_PORT=29500",
    },
    HYDRA_OR_SLURM,
];

/// A process's place in its job, as a launcher's variables give it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launched {
    /// Name of the launcher, or of the variable that has the rank if none of them set it.
    pub launcher: &'static str,
    /// Rank of the process, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Rank among the ranks of this host, if the launcher tells.
    pub local_rank: Option<u32>,
    /// Number of ranks on this host, if the launcher tells.
    pub local_world_size: Option<u32>,
    /// Names of the variables that have rank and world size.
    pub variables: Vec<&'static str>,
}

impl Launched {
    pub(super) fn by(launcher: &'static str, place: Place) -> Self {
        let Place { rank, world_size, local_rank, variables, .. } = place;
        Self { launcher, rank, world_size, local_rank, local_world_size: None, variables }
    }
}

/// Returns the place at which an MPI launcher or Slurm started the process that has these variables. `None` if no
/// launcher did; a batch script of Slurm is not a rank.
///
/// # Errors
/// [`Error::Configuration`] if the variables contradict one another.
pub fn launched(environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
    let Some((launcher, place)) = identify(environment)? else { return Ok(None) };
    let local_world_size = first_number(environment, launcher.local_sizes)?;
    Ok(Some(Launched { local_world_size, ..Launched::by(launcher.name, place) }))
}

/// Returns this process's place, whichever launcher started it.
pub(crate) fn place(environment: Environment<'_>) -> Result<Option<Place>> {
    Ok(identify(environment)?.map(|(_, place)| place))
}

/// Returns this process's place, and the way to rank 0.
pub(crate) fn find(environment: Environment<'_>) -> Result<Option<JoinSpec>> {
    let Some((launcher, place)) = identify(environment)? else { return Ok(None) };
    if place.world_size == 1 {
        return Ok(Some(alone(place)));
    }
    if set(environment, "MASTER_ADDR").is_some() || set(environment, "MASTER_PORT").is_some() {
        return with_master(environment, place).map(Some);
    }
    if launcher.name == "Slurm" {
        return slurm(environment, place).map(Some);
    }
    let local_size = first_number(environment, launcher.local_sizes)?;
    if local_size != Some(place.world_size) {
        let mut lacks = "neither MASTER_ADDR nor MASTER_PORT is set".to_owned();
        if launcher.name == HYDRA
            && let Some(number) = first_number(environment, &["PMI_FD"])?
        {
            let descriptor = i32::try_from(number).unwrap_or(i32::MAX);
            let Some(objection) = pmi::objection(descriptor) else {
                let source = format!("{}, PMI_FD={number}", place.source);
                return Ok(Some(place.at(Locator::Board(Arc::new(Pmi::new(descriptor))), source)));
            };
            let _ = write!(lacks, ", and PMI_FD={number} cannot be used ({objection})");
        }
        if launcher.name == OPEN_MPI
            && let Some(name) = set(environment, "PMIX_NAMESPACE")
            && let Some(job) = PmixJob::parse(&name)
        {
            return at_mpirun(environment, place, launcher, &name, &job).map(Some);
        }
        let there = local_size.map_or("an unknown number".into(), |n| n.to_string());
        return Err(Error::configuration(
            "MASTER_ADDR",
            format!(
                "{} started {} ranks ({}), {there} of them on this host, but does not say where rank 0 is: \
                 {lacks}",
                launcher.name, place.world_size, place.source
            ),
            format!("Export both, the same for all ranks: {}", launcher.export),
        ));
    }
    let (job, named_by) = job_name(environment, launcher).ok_or_else(|| {
        Error::configuration(
            "MASTER_ADDR",
            format!("{} does not name the job ({})", launcher.name, launcher.job.join(", ")),
            format!("Export where rank 0 is: {}", launcher.export),
        )
    })?;
    on_one_host(environment, launcher.name, place, &job, &named_by).map(Some)
}

fn identify(environment: Environment<'_>) -> Result<Option<(&'static Launcher, Place)>> {
    for launcher in &LAUNCHERS {
        let marks = [Some(launcher.rank), launcher.besides];
        if marks.into_iter().flatten().any(|name| set(environment, name).is_none()) {
            continue;
        }
        let first_set =
            |names: &[&'static str]| names.iter().find(|n| set(environment, n).is_some()).copied();
        let size = first_set(launcher.sizes).unwrap_or(launcher.sizes[0]);
        let local = first_set(launcher.local_ranks).unwrap_or(launcher.local_ranks[0]);
        let place = numbered(environment, launcher.rank, size, local)?;
        return Ok(place.map(|place| (launcher, place)));
    }
    Ok(None)
}

fn first_number(environment: Environment<'_>, names: &[&str]) -> Result<Option<u32>> {
    for name in names {
        if let Some(number) = super::env::number(environment, name)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

fn job_name(environment: Environment<'_>, launcher: &Launcher) -> Option<(String, String)> {
    let named = launcher.job.iter().find_map(|name| set(environment, name).map(|value| (value, *name)));
    if let Some((value, name)) = named {
        return Some((value.clone(), format!("{name}={value}")));
    }
    let parent = environment(PARENT)?;
    Some((parent.clone(), format!("launcher's process {parent}, since no variable names the job")))
}

/// The parts of a job's name under Open MPI 5: "prterun-HOST-PID@JOB".
struct PmixJob<'a> {
    /// Host of mpirun.
    host: &'a str,
    pid: &'a str,
    number: &'a str,
}

impl<'a> PmixJob<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (server, number) = name.rsplit_once('@')?;
        let (_tool, rest) = server.split_once('-')?;
        let (host, pid) = rest.rsplit_once('-')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (!host.is_empty() && is_number(pid) && is_number(number)).then_some(Self { host, pid, number })
    }
}

/// Lets the ranks meet at mpirun's host. Rank 0 usually runs there. If it runs elsewhere, rank 0 fails with an error,
/// and mpirun ends the others.
fn at_mpirun(
    environment: Environment<'_>,
    place: Place,
    launcher: &Launcher,
    name: &str,
    job: &PmixJob<'_>,
) -> Result<JoinSpec> {
    // Each rank knows the URI of the daemon that started it. Daemon 0 is mpirun itself.
    let daemon = ["PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"]
        .iter()
        .find_map(|variable| set(environment, variable));
    let is_elsewhere = daemon
        .as_deref()
        .and_then(|uri| uri.split_once(';'))
        .is_some_and(|(daemon, _)| daemon.rsplit_once('.').is_some_and(|(_, number)| number != "0"));
    if place.rank == 0 && is_elsewhere {
        let here = set(environment, "PMIX_HOSTNAME").unwrap_or_else(|| "another host".into());
        return Err(Error::configuration(
            "MASTER_ADDR",
            format!(
                "rank 0 is on {here} and mpirun on {} (PMIX_NAMESPACE={name}), so the other ranks cannot know where \
                 rank 0 is: neither MASTER_ADDR nor MASTER_PORT is set",
                job.host
            ),
            format!("Start mpirun on the first host of the job, or export both: {}", launcher.export),
        ));
    }
    let port = derived_port(job.pid, job.number);
    let source = format!("{}, PMIX_NAMESPACE={name}, port from its numbers", place.source);
    let mut spec = place.at(Locator::Tcp { host: job.host.to_owned(), port }, source);
    spec.job = format!("{} {name}", launcher.name);
    Ok(spec)
}

fn slurm(environment: Environment<'_>, place: Place) -> Result<JoinSpec> {
    let job = set(environment, "SLURM_JOB_ID").or_else(|| set(environment, "SLURM_JOBID"));
    let Some(job) = job else {
        return Err(Error::configuration(
            "SLURM_JOB_ID",
            format!("{} are set, but SLURM_JOB_ID is not", place.source),
            "Start the ranks with srun inside a job, or set MASTER_ADDR and MASTER_PORT",
        ));
    };
    let step = set(environment, "SLURM_STEP_ID").unwrap_or_else(|| "0".into());
    let nodes = first_number(environment, &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])?;
    if nodes == Some(1) {
        let named_by = format!("SLURM_JOB_ID={job}, SLURM_STEP_ID={step}");
        return on_one_host(environment, "Slurm", place, &format!("{job}.{step}"), &named_by);
    }
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let found = lists.iter().find_map(|name| set(environment, name).map(|list| (*name, list)));
    let Some((name, list)) = found else {
        return Err(Error::configuration(
            lists[0],
            format!("{} are set, but neither {} nor MASTER_ADDR", place.source, lists.join(" nor ")),
            "Start the ranks with srun, or export MASTER_ADDR and MASTER_PORT: \
             srun --export=ALL,MASTER_ADDR=host,MASTER_PORT=29500",
        ));
    };
    let host = nodelist::first(&list).map_err(|problem| {
        Error::configuration(
            name,
            format!("'{list}' cannot be read: {problem}"),
            "Export where rank 0 is: srun --export=ALL,MASTER_ADDR=host,MASTER_PORT=29500",
        )
    })?;
    let port = derived_port(&job, &step);
    let source = format!("{}, {name}={list}, port from job {job} step {step}", place.source);
    let mut spec = place.at(Locator::Tcp { host, port }, source);
    spec.job = format!("slurm {job}.{step}");
    Ok(spec)
}

/// Returns 12000 + (7 * job + step) mod 20000, so that neighbouring jobs and steps get different ports.
fn derived_port(job: &str, step: &str) -> u16 {
    let number = |text: &str| {
        // The names of job arrays, such as 12_3, are not plain numbers.
        text.bytes().fold(0u64, |n, b| match b {
            b'0'..=b'9' => n.wrapping_mul(10).wrapping_add(u64::from(b - b'0')),
            _ => n.wrapping_mul(31).wrapping_add(u64::from(b)),
        })
    };
    let mixed = number(job).wrapping_mul(7).wrapping_add(number(step));
    u16::try_from(PORT_FIRST + mixed % PORT_COUNT).unwrap_or(u16::MAX)
}

/// Lets ranks on one host meet through a file in a folder that only this user can write.
fn on_one_host(
    environment: Environment<'_>,
    launcher: &str,
    place: Place,
    job: &str,
    named_by: &str,
) -> Result<JoinSpec> {
    let folder = runtime_folder(environment);
    prepare_folder(&folder)?;
    let path = folder.join(format!("{}-{}", launcher.replace(' ', "-"), slug(job)));
    let source = format!("{}, {named_by}", place.source);
    let mut spec = place.at(Locator::File { path }, source);
    spec.job = format!("{launcher} {job}");
    spec.one_host = true;
    Ok(spec)
}

/// Makes a short text that is safe as a file name. A hash replaces the part that is cut off.
fn slug(name: &str) -> String {
    let safe: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    if safe.len() <= 64 && safe == name {
        return safe;
    }
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{}-{hash:016x}", &safe[..safe.len().min(48)])
}

fn prepare_folder(folder: &Path) -> Result<()> {
    let doing = || format!("creating the folder {} for rendezvous files", folder.display());
    let mut builder = fs::DirBuilder::new();
    match builder.mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::system(doing(), error)),
    }
    let facts = fs::symlink_metadata(folder).map_err(|e| Error::system(doing(), e))?;
    let me = rustix::process::geteuid().as_raw();
    if !facts.is_dir() || facts.uid() != me || facts.mode() & 0o022 != 0 {
        return Err(Error::configuration(
            folder.display().to_string(),
            format!("it must be a folder of user {me} that no other user can write to"),
            "Remove it, or set XDG_RUNTIME_DIR to a private folder",
        ));
    }
    Ok(())
}

/// Returns "PID-start" of the launcher's process on this host, whose socket the descriptor is, or of this process's parent.
pub(crate) fn parent_process(descriptor: Option<i32>) -> Option<String> {
    // A script that starts the rank is its parent, and another one for each rank.
    let launcher = descriptor.and_then(pmi::server).filter(|launcher| *launcher != std::process::id());
    let parent = launcher.unwrap_or_else(std::os::unix::process::parent_id);
    process_start(parent).map(|start| format!("{parent}-{start}"))
}
