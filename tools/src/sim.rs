//! stub
use crate::error::Result;
/// stub
#[derive(clap::Args, Debug)]
pub(crate) struct SimArgs {}
/// stub
pub(crate) fn run(_: &SimArgs) -> Result<std::process::ExitCode> {
    Ok(std::process::ExitCode::SUCCESS)
}
