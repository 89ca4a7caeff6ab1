//! stub
use crate::error::Result;
/// stub
#[derive(clap::Args, Debug)]
pub(crate) struct InfoArgs {}
/// stub
pub(crate) fn run(_: &InfoArgs) -> Result<std::process::ExitCode> {
    Ok(std::process::ExitCode::SUCCESS)
}
pub(crate) mod machine;
