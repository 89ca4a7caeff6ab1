//! The settings of the environment, as far as they decide how a call runs. Options override them.

use kolo::internal::selection::serving_plans;
use kolo::{Config, Determinism, LoadedPlans};
use kolo_collectives::Task;

use super::ExplainArgs;
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

/// Returns the call with the algorithm and the order that the settings ask for where the options do not.
pub(super) fn applied(call: &CallArgs, config: &Config, task: &Task) -> Result<CallArgs> {
    let mut call = call.clone();
    call.canonical |= config.determinism == Determinism::Canonical;
    if call.algo.is_none() {
        let bytes = call.selection_bytes(task.world_size);
        call.algo = backend::overrides(config)?.force(task, bytes, false, call.order());
    }
    Ok(call)
}

/// Returns the plans of `KOLO_PLAN` that serve the call, which [`applied`] has made, as a communicator would find them.
pub(super) fn plans(
    call: &CallArgs,
    config: &Config,
    hosts: &[u32],
    task: &Task,
) -> Result<Option<LoadedPlans>> {
    // Symmetric buffers go before plans, and so does the algorithm of an option.
    if call.algo.is_some() || call.is_symmetric() {
        return Ok(None);
    }
    let bytes = call.selection_bytes(task.world_size);
    Ok(serving_plans(&config.plans, hosts, task, bytes, call.order(), &backend::overrides(config)?))
}

/// Names the settings that differ from the defaults; `used` is the file of plans that serves the call, if any.
pub(super) fn words(args: &ExplainArgs, config: &Config, used: Option<&LoadedPlans>) -> String {
    let defaults = Config::default().settings();
    let is_decisive = |line: &&str| line.split_once('=').is_some_and(|(name, _)| DECISIVE.contains(&name));
    let settings = config.settings();
    let changed = settings.lines().filter(is_decisive).filter(|line| !defaults.lines().any(|it| it == *line));
    let words: Vec<String> = changed
        .map(|line| {
            let remark = match line.split_once('=') {
                Some(("KOLO_ALGO", _)) if args.call.algo.is_some() => " (overridden by --algo)",
                Some(("KOLO_ALGO" | "KOLO_PLAN", _)) if args.file.plan.is_some() => " (overridden by --plan)",
                Some(("KOLO_PLAN", _)) if args.file.plan_out.is_some() => " (not used: --plan-out)",
                Some(("KOLO_PLAN", _)) if used.is_none() => " (does not serve this call)",
                _ => "",
            };
            format!("{line}{remark}")
        })
        .collect();
    if words.is_empty() { "defaults".to_owned() } else { words.join(", ") }
}
