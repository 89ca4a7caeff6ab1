//! Settings for commands that must run although the profile or the plans of the environment cannot be used: the error
//! advises to run one of them.

use kolo::Config;

use crate::error::{CliError, Result};

/// Reads the settings of the environment, except for the files that `kolo tune` and `kolo plan` have written.
pub(crate) fn without_files() -> Result<Config> {
    let is_file = |name: &str| matches!(name, "KOLO_PROFILE" | "KOLO_PLAN");
    let lookup = |name: &str| if is_file(name) { None } else { std::env::var(name).ok() };
    Ok(Config::from_lookup(&lookup)?)
}

/// Reads all settings. If only these files are at fault, also returns what is wrong with them.
pub(crate) fn with_usable_files() -> Result<(Config, Option<CliError>)> {
    match Config::from_env() {
        Ok(config) => Ok((config, None)),
        Err(error) => Ok((without_files()?, Some(error.into()))),
    }
}
