//! Judges the outcome of a run against the meaning of the collective.

use crate::memory::Memory;
use crate::plan::{Collective, Space};

use super::heard::Heard;
use super::run::Run;
use super::value::{Expected, Expressions, Verdict};
use super::violation::Violation;

impl Run<'_> {
    /// Checks that no rank is done with a barrier before all have called.
    fn judge_barrier(&self) -> Result<(), Violation> {
        let ranks = self.facts.plans.len();
        for rank in 0..ranks {
            let mut heard = Heard::only(rank as u32, ranks);
            let lanes = self.facts.lengths.first_lane[rank]..self.facts.lengths.first_lane[rank + 1];
            self.lanes[lanes].iter().for_each(|lane| heard.add(&lane.heard));
            if let Some(missing) = heard.missing(ranks) {
                return Err(Violation::Early { rank: rank as u32, missing });
            }
        }
        Ok(())
    }

    pub(super) fn judge(&self, expressions: &mut Expressions) -> Result<(), Violation> {
        if self.facts.plans[0].collective == Collective::Barrier {
            return self.judge_barrier();
        }
        let expected = Expected::new(&Memory::of(&self.facts.plans[0]));
        let mut references = Vec::new();
        for (rank, cells) in self.cells.iter().enumerate() {
            let plan = &self.facts.plans[rank];
            let blocks = Memory::of(plan).output_blocks();
            references.resize(references.len().max(blocks as usize), None);
            for block in 0..blocks {
                if self.facts.layouts[rank].block(Space::Output, block, self.facts.segment).len == 0 {
                    continue;
                }
                let rank = rank as u32;
                match expected.judge(cells, block, &mut references[block as usize], expressions) {
                    Verdict::Right => {}
                    Verdict::Wrong { contributions, expected } => {
                        return Err(Violation::Wrong { rank, block, contributions, expected });
                    }
                    Verdict::Touched => return Err(Violation::Touched { rank, block }),
                    Verdict::OtherOrder => return Err(Violation::Order { rank, block }),
                }
            }
        }
        Ok(())
    }
}
