//! Which launcher started this process, and as which of its ranks.

use std::ffi::OsStr;

/// Variables of a launcher: its name, then rank, world size, rank on the host; and a variable that must be there
/// too, for launchers that leave the others in places where they start nothing.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    besides: Option<&'static str>,
}

/// In the order in which they are looked for: what a launcher closer to the process sets comes first.
const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "KOLO_RANK",
        rank: "KOLO_RANK",
        world_size: "KOLO_WORLD_SIZE",
        local_rank: "KOLO_LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "RANK",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        besides: None,
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        besides: None,
    },
    Launcher {
        name: "PALS",
        rank: "PALS_RANKID",
        world_size: "PALS_NRANKS",
        local_rank: "PALS_LOCAL_RANKID",
        besides: None,
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        // A batch script has the others too, without being a task of srun.
        besides: Some("SLURM_STEP_NUM_TASKS"),
    },
];

/// This process as a launcher's rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    /// The launcher.
    pub by: &'static str,
    /// Rank of the process.
    pub rank: u32,
    /// Number of processes, where the launcher says.
    pub world_size: Option<u32>,
    /// Rank among those of the host, where the launcher says.
    pub local_rank: Option<u32>,
}

/// Looks for a launcher's variables through `variable`.
pub(crate) fn detect(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    LAUNCHERS.iter().find_map(|launcher| {
        if launcher.besides.is_some_and(|besides| variable(besides).is_none()) {
            return None;
        }
        Some(Launched {
            by: launcher.name,
            rank: number(launcher.rank)?,
            world_size: number(launcher.world_size),
            local_rank: number(launcher.local_rank),
        })
    })
}

/// Whether a variable tells a process its place in a job, so that a job inside a job must not inherit it.
pub(crate) fn is_launcher_variable(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    const NAMES: [&str; 13] = [
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

    fn detect_in(pairs: &[(&str, &str)]) -> Option<Launched> {
        detect(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn launchers() {
        assert_eq!(detect_in(&[("HOME", "/")]), None);
        let found = detect_in(&[("RANK", "2"), ("WORLD_SIZE", "4"), ("PMI_RANK", "0")]).unwrap();
        assert_eq!((found.by, found.rank, found.world_size, found.local_rank), ("RANK", 2, Some(4), None));
        let found = detect_in(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")]).unwrap();
        assert_eq!((found.by, found.world_size, found.local_rank), ("Open MPI", None, Some(0)));
        assert_eq!(detect_in(&[("RANK", "two")]), None);
    }

    #[test]
    fn a_batch_script_is_not_a_task() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(detect_in(&batch), None);
        let task = [batch[0], batch[1], ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(detect_in(&task).unwrap().by, "Slurm");
    }
}
