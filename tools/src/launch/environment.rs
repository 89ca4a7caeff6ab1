//! Variables that give a process its place in a job.

use std::ffi::OsStr;

use kolo::internal::join::{Launched, process_environment, rank_from_env};

use crate::error::{CliError, Result};

/// Returns this process's place in the job of a launcher, if it has one.
pub(crate) fn launched() -> Result<Option<Launched>> {
    Ok(rank_from_env(&process_environment)?)
}

/// Returns whether a variable gives a process its place in a job, so that a job inside a job must not inherit it.
pub(crate) fn is_launcher_variable(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    const NAMES: [&str; 17] = [
        "KOLO_JOIN",
        "KOLO_SLOT",
        "KOLO_INVITE",
        "KOLO_ELASTIC",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "MPI_LOCALRANKID",
        "KOLO_RENDEZVOUS",
        "KOLO_RANK",
        "KOLO_WORLD_SIZE",
        "KOLO_LOCAL_RANK",
    ];
    NAMES.contains(&name)
        || ["TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "PALS_", "SLURM_STEP_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Returns the variables that `exports` name for the ranks, as NAME or NAME=VALUE.
pub(super) fn exported(exports: &[String]) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for export in exports {
        let (name, value) = match export.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match std::env::var(export) {
                Ok(value) => (&**export, value),
                // As with mpirun -x: a variable that is not set here is not set there.
                Err(_) => continue,
            },
        };
        if name.is_empty() {
            return Err(CliError::usage(
                format!("--export {export} does not name a variable"),
                "Write NAME or NAME=VALUE",
            ));
        }
        found.push((name.to_owned(), value));
    }
    Ok(found)
}
