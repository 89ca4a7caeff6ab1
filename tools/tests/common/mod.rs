//! Commands that no job surrounds, whatever has started the tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Path of the program under test.
pub(crate) const KOLO: &str = env!("CARGO_BIN_EXE_kolo");

/// Variables that launchers set besides those with a prefix of their own.
const NAMES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Prefixes of the variables that launchers set, and of those that change what `kolo` does.
const PREFIXES: [&str; 10] =
    ["KOLO_", "NCCL_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "MPI_", "HYDRA_", "PALS_", "SLURM_"];

/// Makes a command that inherits no variable of a launcher, and no setting.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if NAMES.contains(&&*text) || PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Makes a command that runs `kolo` with the words of `line`, and without input.
pub(crate) fn kolo(line: &str) -> Command {
    let mut command = command(KOLO);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}
