//! `kolo explain-error`: explains the code at the end of an error.

use std::process::ExitCode;

use clap::Args;
use kolo::error::codes::{self, Explanation};

use crate::error::{CliError, Result};
use crate::perf::console;

/// The page with details, by its path in the repository.
const PAGE: &str = "docs/troubleshooting.md";

/// Options of `kolo explain-error`.
#[derive(Args, Debug)]
pub(crate) struct ExplainErrorArgs {
    /// The code, such as K0401; without it, all codes are listed
    code: Option<String>,
}

pub(crate) fn run(args: &ExplainErrorArgs) -> Result<ExitCode> {
    let text: String = match &args.code {
        None => codes::ALL.iter().map(|row| format!("{}  {}\n", row.code, row.title)).collect(),
        Some(code) => explain(find(code)?),
    };
    console::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds a code's explanation. Brackets may be copied with the code.
fn find(code: &str) -> Result<&'static Explanation> {
    codes::explanation(code.trim_matches(['[', ']'])).ok_or_else(|| {
        let problem = format!("'{code}' is not an error code");
        CliError::usage(
            problem,
            "A code is a K and four digits, at the end of the error's text; `kolo explain-error` lists them \
             all",
        )
    })
}

fn explain(row: &Explanation) -> String {
    let remedies: String = row.remedies.iter().map(|remedy| format!("  - {remedy}\n")).collect();
    format!(
        "{}: {}\n\nCause: {}\n\nWhat to do:\n{remedies}\nMore: {}, \"{}\"\n",
        row.code, row.title, row.cause, PAGE, row.section
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_as_they_are_copied() {
        for code in ["K0401", "k0401", "[K0401]"] {
            let text = explain(find(code).unwrap());
            assert!(text.starts_with("K0401: ranks made different calls") && text.contains("What to do:"));
        }
        assert!(find("K9999").unwrap_err().message.contains("K9999"));
    }
}
