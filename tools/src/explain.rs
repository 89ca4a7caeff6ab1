//! stub
use crate::error::Result;
/// stub
#[derive(clap::Args, Debug)]
pub(crate) struct ExplainArgs {}
/// stub
pub(crate) fn run(_: &ExplainArgs) -> Result<std::process::ExitCode> {
    Ok(std::process::ExitCode::SUCCESS)
}
