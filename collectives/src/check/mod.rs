//! The checker: runs the plans of all ranks without a socket and proves properties of them.
//!
//! | property | method | module |
//! |---|---|---|
//! | indices, channels, matching counts | read off the plans | `wiring` |
//! | no step touches a block that another may be using | happens-before by lane order, `after` and fences | `hazard` |
//! | no deadlock | runs with few credits, under several orders | `run` |
//! | stages: members agree; payloads are read only after they were awaited and before they are overwritten | the order of steps in a lane | `stage` |
//! | windows: no buffer is touched by two ranks at a time, or after its owner is done | knowledge from rounds | `window` |
//! | each contribution exactly once, all ranks the same expression, nothing else written | symbolic values | `value`, `run` |
//!
//! [`simulate`](crate::simulate) covers time, cost and failures.
//!
//! The checker works on blocks, which [`Layout`] proves to be disjoint, and never on elements, so its cost does not
//! depend on the message size. Segments are independent of each other, since each is a run of the whole plan on data,
//! scratch and sub-channels of its own; they are therefore checked one at a time.

mod hazard;
mod heard;
mod judge;
mod lengths;
mod run;
mod schedule;
pub(crate) mod stage;
mod stage_run;
mod value;
mod violation;
mod window;
pub(crate) mod wiring;

use crate::layout::{Layout, Shape};
use crate::plan::Plan;
use crate::select::Order;

pub use run::Credits;
pub use schedule::Schedule;
pub use value::Expression;
pub use violation::{Place, Violation};

/// Thoroughness of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Elements per segment; `None` for a single segment.
    pub segment_elements: Option<usize>,
    /// The runs to make; each of them checks the values.
    pub runs: Vec<(Credits, Schedule)>,
    /// Whether to follow the values. Without values, a run only proves freedom from deadlock and equal lengths, in
    /// memory independent of the number of blocks; this serves very many ranks.
    pub values: bool,
    /// Check the buffers of every n-th rank, beginning with rank 0, and of the last one; 1 for all.
    pub hazard_stride: u32,
    /// Limit on the segments that are run: the first, the last, and others between them.
    pub segments: usize,
    /// Number of rounds whose payloads a stage holds, at least 2. Plans that work with few rounds also work with more.
    pub stage_depth: u32,
    /// The order in which folds reduce: that of the members, or the canonical one.
    pub order: Order,
}

impl Default for Options {
    /// Checks everything, for a single segment.
    fn default() -> Self {
        Self {
            segment_elements: None,
            runs: vec![
                (Credits::PerChannel(0), Schedule::LowestRank),
                (Credits::PerChannel(1), Schedule::HighestRank),
                (Credits::Unlimited, Schedule::RoundRobin),
                (Credits::SharedStream, Schedule::Random(1)),
                (Credits::SharedStream, Schedule::LowestRank),
            ],
            values: true,
            hazard_stride: 1,
            segments: 4,
            stage_depth: 2,
            order: Order::Any,
        }
    }
}

impl Options {
    /// Makes a single run that implies the absence of deadlock under any credits, because it has none. Matching is
    /// static, so a plan that completes without credits completes with them.
    #[must_use]
    pub fn quick() -> Self {
        Self { runs: vec![(Credits::PerChannel(0), Schedule::LowestRank)], ..Self::default() }
    }

    /// Returns the same options, with segments of this many elements.
    #[must_use]
    pub fn segmented(mut self, elements: usize) -> Self {
        self.segment_elements = Some(elements);
        self
    }
}

/// The findings of a successful check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Messages of one segment on all ranks, including signals and excluding messages of no bytes.
    pub messages: u64,
    /// Elements sent in one segment, on all ranks; the largest over the segments checked.
    pub elements: u64,
    /// The most elements that any one rank sends in one segment.
    pub elements_per_rank: u64,
    /// Elements that all ranks copy into stages in one segment; the largest over the segments checked.
    pub published: u64,
    /// The most peers that any rank communicates with.
    pub connections: u32,
    /// The most elements of scratch that one segment takes on any rank.
    pub scratch_elements: usize,
    /// The expression by which elements are reduced, if it is the same for all of them on all ranks. `None` if nothing
    /// is reduced, or if the order depends on the element.
    pub expression: Option<Expression>,
    /// Whether each result of a scan is the canonical expression over the ranks whose contributions it holds.
    pub scans_are_canonical: bool,
}

/// Checks the plans of all ranks against each other; rank r binds its plan to `shapes[r]`.
///
/// # Errors
/// The first violation found.
///
/// # Panics
/// If the numbers of shapes and plans differ, or a shape does not fit its plan's cut.
pub fn check(plans: &[Plan], shapes: &[Shape], options: &Options) -> Result<Report, Violation> {
    assert_eq!(plans.len(), shapes.len(), "a shape per rank");
    let wiring = wiring::Wiring::new(plans)?;
    let groups = stage::Groups::new(plans)?;
    let last = plans.len().saturating_sub(1);
    for (rank, plan) in plans.iter().enumerate() {
        if rank == last || (rank as u32).is_multiple_of(options.hazard_stride.max(1)) {
            hazard::check(plan)?;
        }
    }
    let segment_elements = options.segment_elements.unwrap_or(usize::MAX);
    let layouts: Vec<Layout> = plans
        .iter()
        .zip(shapes)
        .map(|(plan, shape)| Layout::new(plan, shape.clone(), segment_elements))
        .collect();
    let segments = layouts.iter().map(Layout::segments).max().unwrap_or(1);
    let mut report = Report {
        messages: 0,
        elements: 0,
        elements_per_rank: 0,
        published: 0,
        connections: wiring.connections(plans),
        scratch_elements: layouts.iter().map(Layout::scratch_elements).max().unwrap_or(0),
        expression: None,
        scans_are_canonical: true,
    };
    let mut expressions = value::Expressions::default();
    for segment in chosen(segments, options.segments) {
        let lengths = lengths::Lengths::new(plans, &layouts, segment);
        lengths.agree(plans, &wiring)?;
        report.published = report.published.max(lengths::published(plans, &layouts, segment)?);
        report.messages = report.messages.max(lengths.messages(plans));
        report.elements = report.elements.max(lengths.elements(plans));
        report.elements_per_rank = report.elements_per_rank.max(lengths.elements_per_rank(plans));
        for (credits, schedule) in &options.runs {
            let facts = run::Facts {
                plans,
                layouts: &layouts,
                segment,
                wiring: &wiring,
                lengths: &lengths,
                groups: &groups,
            };
            run::Run::new(facts, (*credits, *schedule), options).finish(&mut expressions)?;
        }
    }
    report.expression = expressions.uniform();
    report.scans_are_canonical = expressions.scans_are_canonical();
    Ok(report)
}

/// Returns the segments to check: all of them if they are few, otherwise the first, the last and some between.
fn chosen(segments: usize, at_most: usize) -> impl Iterator<Item = usize> {
    let count = segments.min(at_most.max(1));
    (0..count).map(move |index| if count == 1 { 0 } else { index * (segments - 1) / (count - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_segments_include_both_ends() {
        assert_eq!(chosen(1, 4).collect::<Vec<_>>(), [0]);
        assert_eq!(chosen(3, 4).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(chosen(100, 4).collect::<Vec<_>>(), [0, 33, 66, 99]);
    }
}
