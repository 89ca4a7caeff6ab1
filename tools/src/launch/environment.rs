//! Detects the launcher that started this process, and the process's rank.

use std::ffi::OsStr;

use kolo::JoinSpec;

use crate::error::{CliError, Result};

/// Environment variables of a launcher.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    /// Alternative names of the world size; only the first belongs to this launcher alone.
    world_size: &'static [&'static str],
    local_rank: &'static str,
    /// A variable that must also be set, for launchers that leave the others in processes that they did not start
    /// as ranks.
    besides: Option<&'static str>,
}

/// MPICH's mpiexec, recognized by variables that Slurm sets too.
const PMI: Launcher = Launcher {
    name: "PMI",
    rank: "PMI_RANK",
    world_size: &["PMI_SIZE"],
    local_rank: "MPI_LOCALRANKID",
    besides: None,
};

/// Launchers in the order in which a communicator looks for them: variables set closer to the process come first.
const LAUNCHERS: [Launcher; 7] = [
    Launcher {
        name: "KOLO_RANK",
        rank: "KOLO_RANK",
        world_size: &["KOLO_WORLD_SIZE"],
        local_rank: "KOLO_LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "RANK",
        rank: "RANK",
        world_size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "PALS",
        rank: "PALS_RANKID",
        world_size: &["PALS_SIZE", "PALS_NRANKS", "PMI_SIZE"],
        local_rank: "PALS_LOCAL_RANKID",
        besides: None,
    },
    // The daemons of mpiexec are often tasks of srun.
    Launcher { besides: Some("MPI_LOCALRANKID"), ..PMI },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        // A batch script has the other variables too, although it is no task of srun.
        besides: Some("SLURM_STEP_NUM_TASKS"),
    },
    PMI,
];

/// This process as a rank of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    /// The launcher.
    pub by: &'static str,
    /// Rank of the process.
    pub rank: u32,
    /// Number of processes.
    pub world_size: u32,
    /// The variables that say so.
    pub variables: Vec<&'static str>,
}

/// Looks up a launcher's variables through `variable`. If they are set but do not give this process a rank, that
/// is an error, since the user did not mean a job of its own.
pub(crate) fn detect(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
    for launcher in &LAUNCHERS {
        if launcher.besides.is_none_or(|besides| set(&variable, besides).is_some())
            && let Some(launched) = launcher.read(&variable)?
        {
            return Ok(Some(launched));
        }
    }
    match set(&variable, "KOLO_RENDEZVOUS") {
        // The address may include the rank.
        Some(url) if !url.starts_with("env:") => {
            let spec = JoinSpec::from_env(&variable)?;
            let (rank, world_size) = (spec.rank, spec.world_size);
            let by = "KOLO_RENDEZVOUS";
            Ok(Some(Launched { by, rank, world_size, variables: vec![by] }))
        }
        _ => Ok(None),
    }
}

impl Launcher {
    fn read(&self, variable: &impl Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
        let size_name = self.world_size.iter().find(|name| set(variable, name).is_some());
        let size_name = *size_name.unwrap_or(&self.world_size[0]);
        let remedy = || {
            format!(
                "Set {} and {size_name} for each process, or unset both to measure on this machine alone",
                self.rank
            )
        };
        match (number(variable, self.rank)?, number(variable, size_name)?) {
            (Some(rank), Some(world_size)) if rank < world_size => {
                number(variable, self.local_rank)?;
                let variables = vec![self.rank, size_name];
                Ok(Some(Launched { by: self.name, rank, world_size, variables }))
            }
            (Some(rank), Some(world_size)) => Err(CliError::usage(
                format!("{}={rank} is not a rank of {world_size} ({size_name})", self.rank),
                format!("Number the ranks from 0 to {size_name} - 1"),
            )),
            (Some(rank), None) => {
                Err(CliError::usage(format!("{}={rank} is set, but {size_name} is not", self.rank), remedy()))
            }
            // A world size that this launcher shares with others counts as theirs.
            (None, Some(size)) if size_name == self.world_size[0] => {
                Err(CliError::usage(format!("{size_name}={size} is set, but {} is not", self.rank), remedy()))
            }
            (None, _) => Ok(None),
        }
    }
}

/// Returns a variable's value unless it is empty.
fn set(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<u32>> {
    let Some(text) = set(variable, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        CliError::usage(
            format!("{name} is '{text}', which is not a number"),
            format!("A launcher sets {name} to a whole number; unset it to measure on this machine alone"),
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_in(pairs: &[(&str, &str)]) -> Result<Option<Launched>> {
        detect(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn found(pairs: &[(&str, &str)]) -> (&'static str, u32, u32) {
        let launched = detect_in(pairs).unwrap().unwrap();
        (launched.by, launched.rank, launched.world_size)
    }

    #[test]
    fn launchers() {
        assert_eq!(detect_in(&[("HOME", "/"), ("RANK", "")]), Ok(None));
        assert_eq!(found(&[("RANK", "2"), ("WORLD_SIZE", "4"), ("PMI_RANK", "0")]), ("RANK", 2, 4));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(found(&open_mpi), ("Open MPI", 1, 2));
        assert_eq!(found(&[("PALS_RANKID", "1"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")]), ("PALS", 1, 2));
        assert_eq!(found(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), ("PMI", 1, 2));
        assert_eq!(
            found(&[("KOLO_RENDEZVOUS", "tcp://127.0.0.1:29500?rank=1&world_size=3")]),
            ("KOLO_RENDEZVOUS", 1, 3)
        );
    }

    #[test]
    fn half_a_launcher_is_an_error() {
        for (pairs, named) in [
            (&[("RANK", "two"), ("WORLD_SIZE", "4")][..], "RANK is 'two'"),
            (&[("RANK", "0"), ("WORLD_SIZE", "4x")], "WORLD_SIZE is '4x'"),
            (&[("RANK", "-1"), ("WORLD_SIZE", "4")], "RANK is '-1'"),
            (&[("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "x")], "LOCAL_RANK is 'x'"),
            (&[("WORLD_SIZE", "4")], "WORLD_SIZE=4 is set, but RANK is not"),
            (&[("RANK", "0")], "RANK=0 is set, but WORLD_SIZE is not"),
            (&[("RANK", "4"), ("WORLD_SIZE", "4")], "RANK=4 is not a rank of 4"),
            (&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_RANK"),
            (&[("OMPI_COMM_WORLD_SIZE", "2")], "OMPI_COMM_WORLD_RANK is not"),
            (&[("PMI_RANK", "0"), ("PMI_SIZE", "")], "PMI_SIZE is not"),
            (&[("KOLO_RENDEZVOUS", "tcp://127.0.0.1:29500")], "no variable says which rank"),
        ] {
            let error = detect_in(pairs).unwrap_err();
            assert!(error.message.contains(named), "{pairs:?}: {error}");
            assert_eq!(error.exit_code, crate::error::EXIT_USAGE, "{pairs:?}");
        }
    }

    #[test]
    fn a_batch_script_is_not_a_task() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(detect_in(&batch), Ok(None));
        let task = [batch[0], batch[1], ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(found(&task), ("Slurm", 0, 4));
        let mpiexec = [("PMI_RANK", "3"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "1")];
        assert_eq!(found(&[&task[..], &mpiexec].concat()), ("PMI", 3, 8));
        assert_eq!(found(&[&task[..], &mpiexec[..2]].concat()), ("Slurm", 0, 4));
    }
}
