//! Findings about queues that overflow when several hosts send to one.

use super::super::meetings::Meeting;
use super::super::report::Report;
use super::{Finding, Severity};

/// Share of lost segments that is reported. Messages of these lengths take a multiple of their time then.
const SHARE: f64 = 0.05;

/// Factor by which it must exceed the losses while queues are empty, which are a finding of their own.
const FACTOR: f64 = 4.0;

fn share(lost: u32, segments: u32) -> f64 {
    f64::from(lost) / f64::from(segments.max(1))
}

/// Finds hosts before which bursts of several senders are lost.
pub(super) fn short(report: &Report) -> Vec<Finding> {
    let otherwise = |to: u32| {
        let ways = report.measured.iter().filter(|way| way.to == to);
        let (lost, sent) = ways.fold((0, 0), |(lost, sent), way| (lost + way.lost, sent + way.segments));
        share(lost, sent)
    };
    let overflows = |met: &&Meeting| {
        let lost = share(met.lost, met.segments);
        lost >= SHARE && lost >= FACTOR * otherwise(met.to)
    };
    let bad: Vec<&Meeting> = report.meetings.iter().filter(overflows).collect();
    let is_everywhere = bad.len() > 1 && bad.len() == report.meetings.len();
    let worst =
        bad.iter().copied().max_by(|a, b| share(a.lost, a.segments).total_cmp(&share(b.lost, b.segments)));
    let named = if is_everywhere { worst.into_iter().collect() } else { bad };
    named.into_iter().map(|met| finding(report, met, is_everywhere)).collect()
}

fn finding(report: &Report, met: &Meeting, is_everywhere: bool) -> Finding {
    let name = if is_everywhere { "any host".to_owned() } else { report.name(met.to) };
    let rate = report.rate(met.to, |way| way.to);
    let instead = rate.map_or_else(String::new, |rate| {
        let trips = report.measured.iter().filter(|way| way.to == met.to).map(|way| way.round_trip_seconds);
        let least = met.bytes as f64 / rate + trips.reduce(f64::max).unwrap_or_default();
        format!(" instead of {:.1}", 1e3 * least)
    });
    let what = format!(
        "{:.0} % of segments are lost when {} hosts send to {name} at the same time, {} KiB together; such a burst \
         takes {:.1} ms{instead}",
        100.0 * share(met.lost, met.segments),
        met.senders,
        met.bytes >> 10,
        1e3 * met.seconds
    );
    let cause = "a switch port, or a limit on the link, whose queue holds less than that: bursts of several senders \
                 overflow it";
    let remedy = "Give the port a longer queue (the switch's shared buffers; burst and limit of `tc -s qdisc`), or let \
                  it send pause frames. Until then, try KOLO_ALGO=ring: each host receives from one other at a time";
    Finding::new("short_queue", Severity::Warning, what, cause, remedy)
}
