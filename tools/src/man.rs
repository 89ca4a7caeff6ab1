//! Manual pages and completions, made from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::error::{CliError, Result};
use crate::perf::console;

/// Writes kolo.1, kolo-perf.1 and so on into a directory, or kolo.1 to standard output.
pub(crate) fn run(directory: Option<&Path>) -> Result<ExitCode> {
    let failed = |error: io::Error| CliError::system("the manual pages cannot be written", &error);
    match directory {
        None => {
            let mut page = Vec::new();
            Man::new(Cli::command()).render(&mut page).map_err(failed)?;
            console::print(&page)?;
        }
        Some(directory) => write_all(directory).map_err(failed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the script with which a shell completes command lines.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kolo", &mut script);
    console::print(&script)?;
    Ok(ExitCode::SUCCESS)
}

fn write_all(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_command() {
        let directory = tempfile::tempdir().unwrap();
        run(Some(directory.path())).unwrap();
        let mut pages: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        pages.sort();
        assert_eq!(
            pages,
            [
                "kolo-doctor.1",
                "kolo-explain-error.1",
                "kolo-explain.1",
                "kolo-info.1",
                "kolo-perf.1",
                "kolo-plan.1",
                "kolo-run.1",
                "kolo-sim.1",
                "kolo-tune.1",
                "kolo.1"
            ]
        );
        let perf = fs::read_to_string(directory.path().join("kolo-perf.1")).unwrap();
        assert!(perf.contains("minbytes") && perf.contains("Examples"));
    }
}
