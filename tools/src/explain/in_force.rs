//! The settings of the environment, as far as they decide how a call runs. Options override them.

use kolo::internal::selection::serving_plans;
use kolo::{Config, Determinism, LoadedPlans};
use kolo_collectives::Task;

use super::Question;
use crate::backend;
use crate::error::Result;
use crate::planning::CallArgs;

/// The settings that decide about the way of a call on ranks that are there.
const DECISIVE: [&str; 9] = [
    "KOLO_TRANSPORT",
    "KOLO_ALGO",
    "KOLO_DETERMINISM",
    "KOLO_PLAN",
    "KOLO_SEGMENT_BYTES",
    "KOLO_WINDOW",
    "KOLO_EXCHANGE_BYTES",
    "KOLO_ONE_SHOT_BYTES",
    "KOLO_SYMMETRIC_BYTES",
];

impl Question<'_> {
    /// Returns the call with the algorithm and the order that the settings ask for where the options do not.
    pub(super) fn call_in_force(self, task: &Task) -> Result<CallArgs> {
        let mut call = self.args.call.clone();
        call.canonical |= self.config.determinism == Determinism::Canonical;
        if call.algo.is_none() {
            let bytes = call.selection_bytes(task.world_size);
            call.algo = backend::overrides(self.config)?.force(task, bytes, false, call.order());
        }
        Ok(call)
    }

    /// Returns the plans of `KOLO_PLAN` that serve the [call in force](Self::call_in_force), as a communicator would
    /// find them.
    pub(super) fn plans_in_force(
        self,
        call: &CallArgs,
        hosts: &[u32],
        task: &Task,
    ) -> Result<Option<LoadedPlans>> {
        // Symmetric buffers go before plans, and so does the algorithm of an option.
        if call.algo.is_some() || call.is_symmetric() {
            return Ok(None);
        }
        let (bytes, overrides) = (call.selection_bytes(task.world_size), backend::overrides(self.config)?);
        Ok(serving_plans(&self.config.plans, hosts, task, bytes, call.order(), &overrides))
    }

    /// Names the settings that differ from the defaults; `used` is the file of plans that serves the call, if any.
    pub(super) fn settings(self, used: Option<&LoadedPlans>) -> String {
        let (defaults, settings) = (Config::default().settings(), self.config.settings());
        let is_decisive =
            |line: &&str| line.split_once('=').is_some_and(|(name, _)| DECISIVE.contains(&name));
        let is_default = |line: &str| defaults.lines().any(|it| it == line);
        let changed = settings.lines().filter(is_decisive).filter(|line| !is_default(line));
        let words: Vec<String> = changed
            .map(|line| {
                let options = &self.args.file;
                let remark = match line.split_once('=') {
                    Some(("KOLO_ALGO", _)) if self.args.call.algo.is_some() => " (overridden by --algo)",
                    Some(("KOLO_ALGO" | "KOLO_PLAN", _)) if options.plan.is_some() => {
                        " (overridden by --plan)"
                    }
                    Some(("KOLO_PLAN", _)) if options.plan_out.is_some() => " (not used: --plan-out)",
                    Some(("KOLO_PLAN", _)) if used.is_none() => " (does not serve this call)",
                    _ => "",
                };
                format!("{line}{remark}")
            })
            .collect();
        if words.is_empty() { "defaults".to_owned() } else { words.join(", ") }
    }
}
