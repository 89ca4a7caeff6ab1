//! The explanation of a file of plans.

use kolo::LoadedPlans;
use kolo_collectives::simulate::Cluster;

use super::{Question, configured};
use crate::answer::Answer;
use crate::error::{CliError, Result};
use crate::perf::human_bytes;
use crate::plan_file::{plans, simulated};
use crate::planning::human_seconds;

impl Question<'_> {
    /// Explains the plan of a file, with its time on hosts that the constants or the profile describe.
    pub(super) fn answer_of_file(self, loaded: &LoadedPlans, settings: String) -> Result<Answer> {
        let (args, call) = (self.args, &self.args.call);
        let (set, serves) = (&loaded.set, loaded.set.serves());
        let rank = (!args.no_steps).then_some(args.rank);
        if rank.is_some_and(|rank| rank >= serves.ranks) {
            return Err(CliError::usage(
                format!("--rank is out of range: the plan is for {} ranks", serves.ranks),
                "Choose one of them",
            ));
        }
        let report = call.checked(plans(set, call), set.segment_bytes())?;
        let hosts = args.hosts.max(1);
        let cluster = Cluster {
            hosts,
            ranks_per_host: serves.ranks / hosts,
            model: configured(args.network.model(), self.config),
            element_bytes: call.element_bytes as usize,
            segment_bytes: set.segment_bytes() as usize,
            window: set.window() as usize,
            ..Cluster::default()
        };
        let time = match simulated(set, call, &cluster) {
            Ok(timing) => human_seconds(timing.seconds),
            Err(error) => error.message,
        };
        let on = serves.hosts.as_ref().map_or_else(|| "any".to_owned(), |hosts| format!("{hosts:?}"));
        let from = human_bytes(serves.from_bytes as f64);
        let to =
            if serves.to_bytes == u64::MAX { "more".to_owned() } else { human_bytes(serves.to_bytes as f64) };
        let segment = human_bytes(set.segment_bytes() as f64);
        let staging = call.human_elements(report.scratch_elements as u64);
        let rows = [
            ("plan", format!("{} of {} ({})", set.name(), loaded.path.display(), loaded.digest)),
            ("serves", format!("{from} to {to}; hosts {on}")),
            ("settings", settings),
            ("simulated", time),
            ("segments", format!("of up to {segment}, {} in flight", set.window())),
            ("checked", format!("{}; {staging} of staging", call.proof(&report))),
        ];
        let (collective, bytes) = (call.collective, human_bytes(call.bytes as f64));
        let mut answer = Answer::new(format!("{collective} of {bytes} on {} rank(s)", serves.ranks), rows);
        if let Some(rank) = rank {
            answer.paragraph(plans(set, call)[rank as usize].to_string());
        }
        Ok(answer)
    }
}
