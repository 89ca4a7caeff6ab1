//! The rounds of a plan, as a table.

use std::fmt;

use crate::display::Published;
use crate::plan::{Action, Plan, Step};

/// Prints what a rank sends and receives, round by round, as one table for each lane.
///
/// A round ends where a send follows a receive, as people count rounds. Local steps are left out.
#[derive(Clone, Copy, Debug)]
pub struct Rounds<'a> {
    plan: &'a Plan,
    /// Tables with more rounds than this are cut in the middle.
    longest: usize,
}

impl<'a> Rounds<'a> {
    /// Shows the rounds of `plan`.
    #[must_use]
    pub const fn of(plan: &'a Plan) -> Self {
        Self { plan, longest: 24 }
    }

    /// Shows at most `lines` rounds of a lane, at least two.
    #[must_use]
    pub fn at_most(self, lines: usize) -> Self {
        Self { longest: lines.max(2), ..self }
    }
}

#[derive(Default)]
struct Round {
    sends: Vec<String>,
    receives: Vec<String>,
}

fn rounds(lane: &[Step]) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for step in lane {
        let (sends, text) = match step.action {
            Action::Send { to, src } => (true, format!("{src} > {to}")),
            Action::Signal { to } => (true, format!("signal > {to}")),
            Action::Recv { from, dst } => (false, format!("{dst} < {from}")),
            Action::RecvReduce { from, dst, .. } => (false, format!("{dst} += {from}")),
            Action::WaitSignal { from } => (false, format!("signal < {from}")),
            Action::Publish { src, except } => (true, format!("{} > stage", Published::of(src, except))),
            Action::Await { of } => (false, format!("stage < {of}")),
            Action::Copy { .. } | Action::Reduce { .. } | Action::Fold { .. } | Action::Spread { .. } => {
                continue;
            }
        };
        if rounds.last().is_none_or(|round| sends && !round.receives.is_empty()) {
            rounds.push(Round::default());
        }
        if let Some(round) = rounds.last_mut() {
            if sends { &mut round.sends } else { &mut round.receives }.push(text);
        }
    }
    rounds
}

/// Lists a few entries, and counts the rest.
fn few(entries: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = entries[..entries.len().min(SHOWN)].join(", ");
    if entries.len() > SHOWN {
        text += &format!(", {} more", entries.len() - SHOWN);
    }
    text
}

impl fmt::Display for Rounds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { rank, world_size, collective, algorithm, .. } = self.plan;
        writeln!(f, "{collective} by {algorithm}, rank {rank} of {world_size}")?;
        for (index, lane) in self.plan.lanes.iter().enumerate() {
            let rounds = rounds(lane);
            let lines: Vec<(usize, String, String)> = rounds
                .iter()
                .enumerate()
                .map(|(number, round)| (number + 1, few(&round.sends), few(&round.receives)))
                .collect();
            if lines.is_empty() {
                continue;
            }
            let width = lines.iter().map(|(_, sends, _)| sends.len()).max().unwrap_or(0).max("sends".len());
            writeln!(f, "lane {index}: {} rounds", lines.len())?;
            writeln!(f, "  {:>5} | {:width$} | receives", "round", "sends")?;
            let head = if lines.len() > self.longest { self.longest - 1 } else { lines.len() };
            for (number, sends, receives) in &lines[..head] {
                writeln!(f, "  {number:>5} | {sends:width$} | {receives}")?;
            }
            if let (true, Some((number, sends, receives))) = (head < lines.len(), lines.last()) {
                writeln!(f, "  {:>5} | {:width$} |", "...", "")?;
                writeln!(f, "  {number:>5} | {sends:width$} | {receives}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Collective;
    use crate::{Algorithm, Task};

    use super::Rounds;

    #[test]
    fn a_table_reads_well() {
        let plan = Algorithm::Circulant.plan(&Task::new(Collective::ReduceScatter, 5), 3);
        let table = Rounds::of(&plan).to_string();
        let expected = "\
reduce_scatter by circulant, rank 3 of 5
lane 0: 3 rounds
  round | sends             | receives
      1 | in[1..3] > rank 1 | tmp[0..2] += rank 0
      2 | in[0] > rank 0    | tmp[0] += rank 1
      3 | tmp[1] > rank 4   | out[0] += rank 2
";
        assert_eq!(table, expected);
    }

    #[test]
    fn long_tables_are_cut() {
        let plan = Algorithm::Ring.plan(&Task::new(Collective::AllReduce, 100), 0);
        let table = Rounds::of(&plan).at_most(5).to_string();
        assert_eq!(table.lines().count(), 1 + 2 + 4 + 2, "{table}");
        assert!(table.contains("198 rounds") && table.contains("  198 |"), "{table}");
    }

    #[test]
    fn a_program_reads_well() {
        let plan = Algorithm::RecursiveDoubling.plan(&Task::new(Collective::AllReduce, 4).in_place(), 1);
        let program = plan.to_string();
        assert_eq!(
            program,
            "\
all_reduce by recursive_doubling, rank 1 of 4, root 0, in place
  vector in 1 part
  scratch: 1 block like out[0]
  lane 0
       0  send    out[0] to rank 0
       1  reduce  tmp[0] = out[0] + from rank 0
       2  send    tmp[0] to rank 3, fenced
       3  reduce  out[0] = tmp[0] + from rank 3
"
        );
    }
}
