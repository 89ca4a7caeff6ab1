//! Files of plans, named by `KOLO_PLAN`. Calls that a file serves take its plan instead of a generator's.
//!
//! The text is JSON, a [`PlanFile`]; [`PlanSet`] has the rules, and proves the plans. All ranks must run plans of one
//! set, so they compare digests of their files when they join. The files may lie in different places.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kolo_collectives::plan_set::{PlanFile, PlanSet};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::files::text_of;

/// Plans that were read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPlans {
    /// Path of the file.
    pub path: PathBuf,
    /// The plans.
    pub set: Arc<PlanSet>,
    /// Digest of the plans.
    pub digest: String,
}

impl LoadedPlans {
    /// Reads and proves the plans of a file.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the file cannot be read, or its plans are wrong.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let text = text_of(&path).map_err(|error| refused(&path, &format!("it cannot be read: {error}")))?;
        let set = parse(&text).map_err(|problem| refused(&path, &problem))?;
        Ok(Self { digest: digest(&set), set: Arc::new(set), path })
    }

    /// Reads the files of a comma-separated list.
    pub(crate) fn read_all(paths: &str) -> Result<Vec<Self>> {
        paths.split(',').map(str::trim).filter(|path| !path.is_empty()).map(Self::read).collect()
    }
}

/// Parses a text and proves its plans.
///
/// # Errors
/// The problem, in one line.
pub fn parse(text: &str) -> std::result::Result<PlanSet, String> {
    let file: PlanFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    PlanSet::new(file)
}

/// Writes the text that [`parse`] reads, with one line for each rank's program.
#[must_use]
pub fn to_text(set: &PlanSet) -> String {
    let file = set.to_file();
    let line = |value: &dyn erased::Json| value.json();
    let programs = |programs: &[kolo_collectives::plan_set::Program]| {
        let lines: Vec<String> = programs.iter().map(|program| format!("    {}", line(program))).collect();
        format!("[\n{}\n  ]", lines.join(",\n"))
    };
    format!(
        "{{\n  \"version\": {},\n  \"name\": {},\n  \"serves\": {},\n  \"segment_bytes\": {},\n  \"window\": {},\n  \
         \"cut\": {},\n  \"stages\": {},\n  \"out_of_place\": {},\n  \"in_place\": {}\n}}\n",
        file.version,
        line(&file.name),
        line(&file.serves),
        file.segment_bytes,
        file.window,
        line(&file.cut),
        line(&file.stages),
        programs(&file.out_of_place),
        programs(&file.in_place),
    )
}

/// Returns a digest that tells sets of plans apart.
#[must_use]
pub fn digest(set: &PlanSet) -> String {
    let hash = Sha256::digest(to_text(set));
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Values of several types as JSON.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> String {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

fn refused(path: &Path, problem: &str) -> Error {
    Error::configuration(
        "KOLO_PLAN",
        format!("{} holds no usable plans: {problem}", path.display()),
        "Write one with `kolo explain COLLECTIVE --plan-out FILE` or `kolo plan`, or unset the variable",
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use kolo_collectives::model::Model;
    use kolo_collectives::plan::Collective;
    use kolo_collectives::select::Request;
    use kolo_collectives::{Algorithm, Task};

    use super::*;

    /// Returns a ring all-reduce of ranks on these hosts, as a file.
    pub(crate) fn ring(hosts: &[u32]) -> LoadedPlans {
        let task = Task::new(Collective::AllReduce, hosts.len() as u32).with_hosts(hosts);
        let ring = Some(Algorithm::Ring);
        let choice = Request::new(&task, 1 << 20, 4).forced(ring).select(&Model::TCP).unwrap();
        let set = PlanSet::of_choice(&task, &choice, 1 << 10, 1 << 20).unwrap();
        LoadedPlans { path: "ring.json".into(), digest: digest(&set), set: Arc::new(set) }
    }

    #[test]
    fn what_is_written_reads_back() {
        let set = ring(&[0, 0, 1]).set;
        let text = to_text(&set);
        assert_eq!(parse(&text).as_ref(), Ok(&*set), "{text}");
        assert_ne!(digest(&set), digest(&ring(&[0, 1, 1]).set));
        for (from, to, expected) in [
            ("\"version\": 1", "\"version\": 9", "version 9"),
            ("\"window\"", "\"windov\"", "unknown field `windov`"),
            ("\"collective\":\"all_reduce\"", "\"collective\":\"all\"", "unknown variant `all`"),
            ("\"first\":0", "\"first\":-1", "invalid value"),
            ("\"first\":0", "\"first\":77", "blocks that do not exist"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let problem = parse(&text.replacen(from, to, 1)).map(drop).unwrap_err();
            assert!(problem.contains(expected) && !problem.contains('\n'), "{to}: {problem}");
        }
    }

    #[test]
    fn files_that_are_not_there_name_variable_and_remedy() {
        let text = LoadedPlans::read_all("/nowhere/a.json,/nowhere/b.json").unwrap_err().to_string();
        assert!(
            text.contains("KOLO_PLAN") && text.contains("a.json") && text.contains("--plan-out"),
            "{text}"
        );
        assert_eq!(LoadedPlans::read_all(" , ").unwrap(), []);
    }
}
