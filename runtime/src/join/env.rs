//! Rank, world size and rendezvous from a launcher's environment variables.
//!
//! The order is KOLO_* (set by `kolo run` or by hand), RANK and its companions (torchrun and scripts), then the
//! launchers of `launcher`. The first source that names a rank wins. Values that it lacks are not taken from the next
//! source, because a job step within a job inherits the outer variables.

use std::path::PathBuf;
use std::time::Duration;

use super::launcher::{self, Launched};
use super::url;
use super::{JoinSpec, Locator};
use crate::config::check_unicode;
use crate::error::{Error, Result};
use crate::job::{JobSecret, MOST_PATIENCE};

/// A function that looks up an environment variable.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Rank and world size, without a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_rank: Option<u32>,
    /// The variables that say so.
    pub(crate) variables: Vec<&'static str>,
    pub(crate) source: String,
}

impl JoinSpec {
    /// Makes a rank from the variables that a launcher set, read through a look-up function.
    ///
    /// The sources, in this order: KOLO_RENDEZVOUS (a URL) with KOLO_RANK and KOLO_WORLD_SIZE; RANK, WORLD_SIZE,
    /// MASTER_ADDR and MASTER_PORT (if torchrun's agent serves a store, the rank is its client); Open MPI, Cray PALS,
    /// MPICH Hydra, Slurm. A batch script of Slurm is not a rank.
    ///
    /// # Errors
    /// [`Error::Configuration`], which names the variables that were looked for, the values found, and what to set.
    pub fn from_env(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let mut spec = match kolo(environment)? {
            Some(spec) => spec,
            None => match torch(environment)? {
                Some(spec) => spec,
                None => launcher::find(environment)?.ok_or_else(|| nothing_found(environment))?,
            },
        };
        apply_settings(&mut spec, environment)?;
        spec.check()?;
        Ok(spec)
    }

    /// Reads the variables of a newcomer, whose rank and world size are not known yet: job secret and time limits.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the value of a variable is invalid.
    pub(crate) fn newcomer(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let locator = Locator::Local(super::LocalRendezvous::default());
        let mut spec = Self::new(0, 1, locator, "an invitation");
        apply_settings(&mut spec, environment)?;
        Ok(spec)
    }

    /// Makes a rank from this process's own environment.
    ///
    /// # Errors
    /// The errors of [`JoinSpec::from_env`].
    pub fn from_process_env() -> Result<Self> {
        check_unicode()?;
        Self::from_env(&process_environment)
    }
}

/// Looks up a variable of this process's environment. A variable that is not Unicode counts as unset;
/// [`JoinSpec::from_process_env`] refuses such a variable if it is one of Kolo's. One further name yields the launcher's
/// process, which distinguishes jobs whose launcher gives them no name.
#[must_use]
pub fn process_environment(name: &str) -> Option<String> {
    let launcher = || {
        let pmi = std::env::var("PMI_FD").ok().and_then(|descriptor| descriptor.trim().parse().ok());
        launcher::parent_process(pmi)
    };
    std::env::var(name).ok().or_else(|| (name == launcher::PARENT).then(launcher).flatten())
}

fn nothing_found(environment: Environment<'_>) -> Error {
    if let Some(rank) = set(environment, "PMIX_RANK") {
        return Error::configuration(
            "rank and world size",
            format!(
                "PMIX_RANK={rank} is set, but no variable says how many ranks there are, as under prterun"
            ),
            "Start it with mpirun, mpiexec or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process",
        );
    }
    if let Some(rank) = set(environment, "SLURM_PROCID") {
        return Error::configuration(
            "rank and world size",
            format!(
                "SLURM_PROCID={rank} is set, but SLURM_STEP_NUM_TASKS is not, as in a batch script, which is no task"
            ),
            "Start the ranks in it with srun, mpirun, mpiexec or `kolo run`",
        );
    }
    Error::configuration(
        "rank and world size",
        "this process was not started by a launcher that Kolo knows: none of KOLO_RANK, RANK, \
         OMPI_COMM_WORLD_RANK, PALS_RANKID, PMI_RANK, SLURM_PROCID is set",
        "Start it with `kolo run -n 4 -- program`, torchrun, mpirun, mpiexec or srun, or set RANK, WORLD_SIZE, \
         MASTER_ADDR and MASTER_PORT for each process",
    )
}

/// Returns the rank that the variables give this process, from the sources of [`JoinSpec::from_env`]. `None` if they give
/// it none. Nothing is opened, and the place of rank 0 need not be known.
///
/// # Errors
/// [`Error::Configuration`] if the variables contradict one another or are incomplete.
pub fn rank_from_env(environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
    if let Some((variable, place)) = paired(environment)? {
        return Ok(Some(Launched::by(variable, place)));
    }
    if let Some(launched) = launcher::launched(environment)? {
        return Ok(Some(launched));
    }
    match rendezvous(environment) {
        // The URL may include the rank.
        Some(_) => {
            let JoinSpec { rank, world_size, local_rank, source, .. } = JoinSpec::from_env(environment)?;
            let place = Place { rank, world_size, local_rank, variables: vec![RENDEZVOUS], source };
            Ok(Some(Launched::by(RENDEZVOUS, place)))
        }
        None => Ok(None),
    }
}

/// The variables for rank, world size and local rank that no MPI launcher sets.
const PAIRS: [(&str, &str, &str); 2] =
    [("KOLO_RANK", "KOLO_WORLD_SIZE", "KOLO_LOCAL_RANK"), ("RANK", "WORLD_SIZE", "LOCAL_RANK")];

const RENDEZVOUS: &str = "KOLO_RENDEZVOUS";

/// Returns the URL at which the ranks meet, if a variable gives one.
fn rendezvous(environment: Environment<'_>) -> Option<String> {
    set(environment, RENDEZVOUS).filter(|text| text.trim_end_matches('/') != "env:")
}

/// Finds rank and world size from any source, for a URL that lacks them.
pub(crate) fn place(environment: Environment<'_>) -> Result<Option<Place>> {
    match paired(environment)? {
        Some((_, place)) => Ok(Some(place)),
        None => launcher::place(environment),
    }
}

/// Finds rank and world size in variables that no MPI launcher sets. Also returns the variable that has the rank.
fn paired(environment: Environment<'_>) -> Result<Option<(&'static str, Place)>> {
    for (rank, size, local) in PAIRS {
        if let Some(place) = numbered(environment, rank, size, local)? {
            return Ok(Some((rank, place)));
        }
    }
    Ok(None)
}

fn kolo(environment: Environment<'_>) -> Result<Option<JoinSpec>> {
    let place = numbered(environment, "KOLO_RANK", "KOLO_WORLD_SIZE", "KOLO_LOCAL_RANK")?;
    let Some(text) = rendezvous(environment) else {
        return match place {
            // `env:` leaves the choice to the other sources.
            _ if set(environment, RENDEZVOUS).is_some() => Ok(None),
            None => Ok(None),
            Some(place) if place.world_size == 1 => Ok(Some(alone(place))),
            Some(place) => with_master(environment, place).map(Some),
        };
    };
    let parsed = url::parse(&text, RENDEZVOUS)?;
    let place = match (parsed.rank, parsed.world_size, place) {
        (Some(rank), Some(world_size), _) => {
            let (variables, source) = (vec![RENDEZVOUS], RENDEZVOUS.to_owned());
            Place { rank, world_size, local_rank: None, variables, source }
        }
        (_, _, Some(place)) => parsed.over(place),
        _ => self::place(environment)?.map(|place| parsed.over(place)).ok_or_else(|| {
            Error::configuration(
                "KOLO_RANK",
                format!("KOLO_RENDEZVOUS is '{text}', but no variable says which rank this process is"),
                "Set KOLO_RANK and KOLO_WORLD_SIZE for each process",
            )
        })?,
    };
    let source = format!("KOLO_RENDEZVOUS={text}, {}", place.source);
    Ok(Some(place.at(parsed.locator, source)))
}

fn torch(environment: Environment<'_>) -> Result<Option<JoinSpec>> {
    let Some(place) = numbered(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK")? else { return Ok(None) };
    let agent = set(environment, "TORCHELASTIC_USE_AGENT_STORE");
    let run = set(environment, "TORCHELASTIC_RUN_ID");
    let agent_owns_port = match &agent {
        Some(value) => value == "True",
        None => run.is_some(),
    };
    if !agent_owns_port {
        if let Some(spec) = as_launched(environment, &place)? {
            return Ok(Some(spec));
        }
        if place.world_size == 1 && set(environment, "MASTER_ADDR").is_none() {
            return Ok(Some(alone(place)));
        }
        return with_master(environment, place).map(Some);
    }
    let (host, port) = master(environment, &place)?;
    let restart = set(environment, "TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".into());
    let run = run.unwrap_or_else(|| "torchelastic".into());
    // A restarted worker group must not read the notice that its predecessor left in the agent's store.
    let prefix = format!("kolo/{run}/{restart}");
    let source = format!("{}, MASTER_ADDR={host}, MASTER_PORT={port}, torchrun's store", place.source);
    let mut spec = place.at(Locator::Store { host, port, prefix }, source);
    spec.job = format!("torchrun {run} restart {restart}");
    Ok(Some(spec))
}

/// Some programs copy a launcher's rank and size to RANK and WORLD_SIZE. If they copied nothing else, their ranks meet
/// as they would without the copies.
fn as_launched(environment: Environment<'_>, place: &Place) -> Result<Option<JoinSpec>> {
    if set(environment, "MASTER_ADDR").is_some() || set(environment, "MASTER_PORT").is_some() {
        return Ok(None);
    }
    match launcher::place(environment) {
        Ok(Some(launched)) if (launched.rank, launched.world_size) == (place.rank, place.world_size) => {
            launcher::find(environment)
        }
        // The launcher's variables are not used here, so contradictions among them do not matter.
        _ => Ok(None),
    }
}

/// Makes the spec of a single rank. It has no peers; an in-process rendezvous keeps one code path.
pub(crate) fn alone(place: Place) -> JoinSpec {
    let rendezvous = super::LocalRendezvous::default();
    let source = place.source.clone();
    place.at(Locator::Local(rendezvous), source)
}

pub(crate) fn with_master(environment: Environment<'_>, place: Place) -> Result<JoinSpec> {
    let (host, port) = master(environment, &place)?;
    let source = format!("{}, MASTER_ADDR={host}, MASTER_PORT={port}", place.source);
    Ok(place.at(Locator::Tcp { host, port }, source))
}

fn master(environment: Environment<'_>, place: &Place) -> Result<(String, u16)> {
    let host = set(environment, "MASTER_ADDR");
    let port = set(environment, "MASTER_PORT");
    let remedy = "Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, the same for all \
                  processes; or KOLO_RENDEZVOUS=file:///path on one host";
    let found = &place.source;
    match (host, port) {
        (Some(host), Some(port)) => match port.parse::<u16>() {
            Ok(number) if number > 0 => Ok((host, number)),
            _ => Err(Error::configuration("MASTER_PORT", format!("'{port}' is not a port number"), remedy)),
        },
        (None, None) => Err(Error::configuration(
            "MASTER_ADDR",
            format!("{found} are set, but neither MASTER_ADDR nor MASTER_PORT says where rank 0 is"),
            remedy,
        )),
        (None, Some(port)) => Err(Error::configuration(
            "MASTER_ADDR",
            format!("{found} and MASTER_PORT={port} are set, but MASTER_ADDR is not"),
            remedy,
        )),
        (Some(host), None) => Err(Error::configuration(
            "MASTER_PORT",
            format!("{found} and MASTER_ADDR={host} are set, but MASTER_PORT is not"),
            remedy,
        )),
    }
}

impl Place {
    pub(crate) fn at(self, locator: Locator, source: String) -> JoinSpec {
        let mut spec = JoinSpec::new(self.rank, self.world_size, locator, source);
        spec.local_rank = self.local_rank;
        spec
    }
}

/// Returns a variable's value, unless it is unset or blank.
pub(crate) fn set(environment: Environment<'_>, name: &str) -> Option<String> {
    environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses a number from a variable, if it is set.
pub(crate) fn number(environment: Environment<'_>, name: &str) -> Result<Option<u32>> {
    let Some(value) = set(environment, name) else { return Ok(None) };
    value.parse().map(Some).map_err(|_| {
        Error::configuration(
            name,
            format!("'{value}' is not a number"),
            format!("Set {name} to a whole number"),
        )
    })
}

/// Reads a rank and a world size that belong together. Both must be set, or neither.
pub(crate) fn numbered(
    environment: Environment<'_>,
    rank_name: &'static str,
    size_name: &'static str,
    local_name: &'static str,
) -> Result<Option<Place>> {
    let rank = number(environment, rank_name)?;
    let world_size = number(environment, size_name)?;
    let local_rank = number(environment, local_name)?;
    let half = |have: &str, value: u32, lack: &str| {
        Err(Error::configuration(
            lack,
            format!("{have}={value} is set, but {lack} is not"),
            format!("Set {rank_name} and {size_name} for each process, or neither"),
        ))
    };
    match (rank, world_size) {
        (None, None) => Ok(None),
        (Some(rank), None) => half(rank_name, rank, size_name),
        (None, Some(size)) => half(size_name, size, rank_name),
        (Some(rank), Some(world_size)) => {
            let source = format!("{rank_name}={rank}, {size_name}={world_size}");
            if world_size == 0 || rank >= world_size {
                return Err(Error::configuration(
                    rank_name,
                    if world_size == 0 {
                        format!("{size_name} is 0")
                    } else {
                        format!("rank {rank} does not exist in a job of {world_size} ranks ({source})")
                    },
                    format!("Number the ranks from 0 to {size_name} - 1"),
                ));
            }
            Ok(Some(Place { rank, world_size, local_rank, variables: vec![rank_name, size_name], source }))
        }
    }
}

/// Applies the settings that do not depend on where the rank comes from: KOLO_JOIN_TIMEOUT, KOLO_DEAD_AFTER (seconds),
/// KOLO_JOB_SECRET, and whether all ranks are on one host.
pub(crate) fn apply_settings(spec: &mut JoinSpec, environment: Environment<'_>) -> Result<()> {
    if let Some(timeout) = seconds(environment, "KOLO_JOIN_TIMEOUT")? {
        spec.timeout = timeout;
    }
    if let Some(dead_after) = seconds(environment, "KOLO_DEAD_AFTER")? {
        spec.liveness.dead_after = dead_after;
        spec.liveness.watches_hosts = false; // The user asked for this limit, for processes and hosts.
        spec.liveness.suspect_after = spec.liveness.suspect_after.min(dead_after);
        // Only four missed heartbeats in a row count as silence, so that one lost to a busy moment does not.
        spec.liveness.heartbeat = spec.liveness.heartbeat.min(dead_after / 4);
    }
    if let Some(text) = environment("KOLO_JOB_SECRET") {
        // A blank secret is most often that of a missing file. It must not run the job unprotected.
        let secret = JobSecret::new(text.trim()).ok_or_else(|| {
            Error::configuration(
                "KOLO_JOB_SECRET",
                "it is set, but blank",
                "Set it to the job's secret, the same for every process, or unset it",
            )
        })?;
        spec.secret = Some(secret);
    }
    spec.one_host |= is_on_one_host(spec.world_size, environment);
    Ok(())
}

/// Whether the launcher says that all ranks of this job are on this host. If WORLD_SIZE differs from the job's size, it
/// belongs to another job.
fn is_on_one_host(world_size: u32, environment: Environment<'_>) -> bool {
    let is_all = |name| set(environment, name).and_then(|value| value.parse().ok()) == Some(world_size);
    is_all("WORLD_SIZE") && is_all("LOCAL_WORLD_SIZE")
}

pub(super) fn seconds(environment: Environment<'_>, name: &str) -> Result<Option<Duration>> {
    let Some(value) = set(environment, name) else { return Ok(None) };
    match value.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MOST_PATIENCE.as_secs_f64() => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        _ => Err(Error::configuration(
            name,
            format!("'{value}' is not a number of seconds above 0"),
            format!("Set {name} to seconds, such as 30 or 0.5"),
        )),
    }
}

/// Returns the folder for this user's rendezvous files. XDG_RUNTIME_DIR is often passed on from a login host, where the
/// folder exists, to a compute host, where it does not.
pub(crate) fn runtime_folder(environment: Environment<'_>) -> PathBuf {
    let session = set(environment, "XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    match session {
        Some(folder) => folder.join("kolo"),
        None => std::env::temp_dir().join(format!("kolo-{}", rustix::process::geteuid().as_raw())),
    }
}
