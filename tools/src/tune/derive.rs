//! Derives the constants of a profile from measured times.

use kolo::Collective;
use kolo::internal::profile::{Curve, Inside, Profile, TransportProfile, VERSION};
use kolo_collectives::Algorithm;
use kolo_collectives::caches::{FIRST_BYTES, POINTS};
use kolo_collectives::model::Model;
use kolo_collectives::simulate::Cluster;

use super::fit::{Sample, fit, median};
use super::probe::{Crowd, FORMS, Pair};
use crate::error::{CliError, Result};
use crate::planning::CallArgs;
use crate::sim;

/// Limit on the share of a message's time, with nothing else going on, that is processor time at both ends.
const WORK_SHARE_MAX: f64 = 0.9;

/// Reducing arrived data costs at least this share of copying it: the data is in the cache, but no processor reduces
/// for free.
const REDUCE_SHARE_MIN: f64 = 0.5;

/// Substitute for implausible times, in seconds per byte; no machine is as fast.
const BYTE_SECONDS_MIN: f64 = 1e-13;

/// Seconds per byte, as a function of the size of the buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Seconds per byte where the nearest caches hold the buffers.
    pub seconds: f64,
    /// Slowdown factors at other sizes.
    pub factors: Curve,
}

impl Rate {
    /// Makes a rate from the seconds per byte at each of the sizes of a curve.
    fn new(seconds: [f64; POINTS]) -> Self {
        let seconds = seconds.map(|each| each.max(BYTE_SECONDS_MIN));
        Self { seconds: seconds[0], factors: Curve(seconds.map(|each| (each / seconds[0]).clamp(0.1, 1e3))) }
    }

    fn at(&self, bytes: f64) -> f64 {
        self.seconds * self.factors.at(bytes)
    }

    fn of_reductions(self, of: &mut TransportProfile) {
        of.reduce_bytes_per_second = 1.0 / self.seconds;
        of.reduce_factors = self.factors;
    }
}

/// Splits samples into the fixed time of short messages, and the time per byte of long ones at each of the sizes of a
/// curve.
fn split(samples: &[Sample]) -> Result<(f64, [f64; POINTS])> {
    let senseless =
        || CliError::failure("the measured times are implausible", "Try again when the machine is quiet");
    let (short, long) = samples.split_at(samples.len().saturating_sub(POINTS));
    let fixed = fit(short).ok_or_else(senseless)?.fixed;
    let each: Vec<f64> = long.iter().map(|sample| (sample.seconds - fixed) / sample.amount).collect();
    Ok((fixed, each.try_into().map_err(|_| senseless())?))
}

/// Returns the rate of copying.
pub(crate) fn copy(pair: &Pair) -> Rate {
    let each: Vec<f64> = pair.copy.iter().map(|sample| sample.seconds / sample.amount).collect();
    Rate::new(each.try_into().unwrap_or([f64::NAN; POINTS]))
}

/// Returns the constants of a transport.
///
/// In the model, an exchange between two ranks takes call + s + n E, with s = latency + 2 overhead, and E for the
/// processor time of a byte that is sent and one that is received: n bytes each way are written and read, 4 n in all. A
/// ring all-reduce of 2 n bytes takes call + 2 s, twice the time of the bytes, and the reduction of n bytes.
pub(crate) fn transport(
    pair: &Pair,
    crowd: Option<(Crowd, f64)>,
    default_switch: f64,
) -> Result<TransportProfile> {
    let (exchange_fixed, exchange) = split(&pair.exchange)?;
    let (reduce_fixed, _) = split(&pair.reduce)?;
    let (_, one_way) = split(&pair.one_way)?;
    // The two lines cross zero one step apart, so their difference is a step; it is at most the whole, and not nothing.
    let step = (reduce_fixed - exchange_fixed).clamp(0.2 * exchange_fixed, exchange_fixed);
    let call_seconds = exchange_fixed - step;
    // Successive messages to one rank share system calls, so the overhead of other messages is higher.
    let overhead_seconds = fit(&pair.burst).map_or(0.0, |line| line.each).min(WORK_SHARE_MAX * step / 2.0);
    let messages = Rate::new(exchange);
    // In one direction, two ranks that broadcast in place have half the buffers. No link is faster than the processor
    // at its end.
    let mut shares: Vec<f64> = (1..POINTS).map(|i| one_way[i] / messages.at(buffers(i) / 2.0)).collect();
    let link = messages.seconds * median(&mut shares).max(0.5);
    let mut found = TransportProfile {
        call_seconds,
        latency_seconds: step - 2.0 * overhead_seconds,
        overhead_seconds,
        bytes_per_second: 1.0 / link,
        host_bytes_per_second: 4.0 / messages.seconds,
        reduce_bytes_per_second: 1.0 / BYTE_SECONDS_MIN,
        switch_seconds: default_switch,
        channel_seconds: (pair.channels[1] - pair.channels[0]).max(0.0),
        message_factors: messages.factors,
        reduce_factors: Curve::FLAT,
    };
    let copies = copy(pair);
    reductions(&mut found, &copies, pair);
    if let Some((crowd, share)) = crowd {
        turns(&mut found, &copies, crowd, share);
    }
    Ok(found)
}

/// Finds which part of a step is processor work, and what a turn on a processor costs: the values with which the
/// simulated all-gathers among `share` ranks on each processor come closest to the measured ones. Sharing separates the
/// two, since only work adds up.
fn turns(of: &mut TransportProfile, copies: &Rate, crowd: Crowd, share: f64) {
    let step = of.latency_seconds + 2.0 * of.overhead_seconds;
    let (least, most) = (of.overhead_seconds, WORK_SHARE_MAX * step / 2.0);
    let longest = crowd.seconds.iter().flatten().copied().fold(step, f64::max);
    let error = |of: &TransportProfile| -> f64 {
        let model = model(of, copies, share);
        let cluster = Cluster { ranks_per_host: crowd.ranks, model, ..Cluster::default() };
        let bytes = 8 * u64::from(crowd.ranks);
        let of_form = |(form, seconds): (Algorithm, f64)| {
            (simulated(Collective::AllGather, form, bytes, &cluster) / seconds).ln().abs()
        };
        // The errors are not squared, so that a single form that no cost of turns explains does not decide.
        forms(&crowd).map(of_form).sum()
    };
    let tried = (0..=OVERHEADS).flat_map(|part| {
        let overhead_seconds = least + (most - least) * f64::from(part) / f64::from(OVERHEADS);
        let latency_seconds = step - 2.0 * overhead_seconds;
        let found = TransportProfile { overhead_seconds, latency_seconds, ..*of };
        // From a hundredth of the whole, in steps of a twelfth.
        (0..=SWITCHES).map(move |times| TransportProfile {
            switch_seconds: longest / 100.0 * SWITCH_STEP.powi(times),
            ..found
        })
    });
    if let Some((_, best)) = tried.map(|one| (error(&one), one)).min_by(|a, b| a.0.total_cmp(&b.0)) {
        *of = best;
    }
}

fn forms(crowd: &Crowd) -> impl Iterator<Item = (Algorithm, f64)> {
    FORMS.into_iter().zip(crowd.seconds).filter_map(|(form, seconds)| Some((form, seconds?)))
}

/// Number of parts of the range of possible overheads that are tried.
const OVERHEADS: u32 = 12;

/// Number of costs of a turn that are tried, up to the whole.
const SWITCHES: i32 = 40;
const SWITCH_STEP: f64 = 1.12;

/// Finds the time per reduced byte: at each size, the time with which the simulated all-reduce takes as long as the
/// measured one.
fn reductions(of: &mut TransportProfile, copies: &Rate, pair: &Pair) {
    let long = &pair.reduce[pair.reduce.len().saturating_sub(POINTS)..];
    let least = (REDUCE_SHARE_MIN * copies.seconds).max(BYTE_SECONDS_MIN);
    let mut seconds = [least; POINTS];
    for (i, sample) in long.iter().enumerate() {
        let mut simulated = |each: f64| {
            seconds[i..].fill(each);
            Rate::new(seconds).of_reductions(of);
            all_reduce_seconds(of, copies, sample.amount)
        };
        // Bisects the logarithm, from no time at all to ten times that of the whole.
        let (mut low, mut high) = (least, (10.0 * sample.seconds / sample.amount).max(2.0 * least));
        for _ in 0..BISECTIONS {
            let middle = (low * high).sqrt();
            if simulated(middle) < sample.seconds { low = middle } else { high = middle }
        }
        let _ = simulated(low);
    }
    Rate::new(without_outliers(seconds)).of_reductions(of);
}

/// Replaces each value but the first and last by the median of itself and its neighbours. A reduction's time is a small
/// difference of two times, to which a processor that was away for a moment adds a hundredfold; caches do not fill and
/// empty from one size to the next.
fn without_outliers(seconds: [f64; POINTS]) -> [f64; POINTS] {
    std::array::from_fn(|i| match seconds.get(i.wrapping_sub(1)..i + 2) {
        Some(near) => median(&mut near.to_vec()),
        None => seconds[i],
    })
}

/// Number of bisections, after which less than a thousandth of the range is left.
const BISECTIONS: usize = 24;

/// Returns the simulated time of an all-reduce of twice this many bytes round the ring of two ranks.
fn all_reduce_seconds(of: &TransportProfile, copies: &Rate, bytes: f64) -> f64 {
    let cluster = Cluster { model: model(of, copies, 1.0), ..Cluster::default() };
    simulated(Collective::AllReduce, Algorithm::Ring, 2 * bytes as u64, &cluster)
}

fn model(of: &TransportProfile, copies: &Rate, oversubscription: f64) -> Model {
    let profile = Profile {
        version: VERSION,
        machine: String::new(),
        copy_bytes_per_second: 1.0 / copies.seconds,
        copy_factors: copies.factors,
        shm: *of,
        tcp: *of,
        network: None,
    };
    profile.apply(Inside::Shm, Model { oversubscription, ..Model::TCP })
}

fn simulated(collective: Collective, algorithm: Algorithm, bytes: u64, cluster: &Cluster) -> f64 {
    let call = CallArgs {
        collective,
        bytes,
        root: 0,
        in_place: true,
        element_bytes: 4,
        algo: Some(algorithm),
        canonical: false,
        shards: None,
        symmetric: false,
    };
    sim::seconds_each(&call, cluster).unwrap_or(f64::INFINITY)
}

/// Returns the bytes of buffers at the i-th size of a curve.
fn buffers(i: usize) -> f64 {
    FIRST_BYTES * f64::from(1_u32 << i)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIES: Rate = Rate { seconds: 4e-11, factors: Curve::FLAT };

    /// Returns the measurements that a machine with these constants would give.
    fn measured(of: &TransportProfile) -> Pair {
        let step = of.latency_seconds + 2.0 * of.overhead_seconds;
        let (link, both) = (1.0 / of.bytes_per_second, 4.0 / of.host_bytes_per_second);
        let by_size = |time: &dyn Fn(f64) -> f64| -> Vec<Sample> {
            let short = [8.0, 64.0, 512.0];
            let long = (0..POINTS).map(|i| buffers(i) / 4.0);
            short.into_iter().chain(long).map(|n| Sample { amount: n, seconds: time(n) }).collect()
        };
        let moved = |n: f64| n * both * of.message_factors.at(4.0 * n);
        Pair {
            one_way: by_size(&|n| of.call_seconds + step + n * link * of.message_factors.at(2.0 * n)),
            exchange: by_size(&|n| of.call_seconds + step + moved(n)),
            reduce: by_size(&|n| all_reduce_seconds(of, &COPIES, n)),
            burst: by_size(&|n| of.latency_seconds + of.overhead_seconds * (n + 1.0)),
            channels: [1e-6, 1e-6 + of.channel_seconds],
            copy: by_size(&|n| COPIES.seconds * n).split_off(3),
        }
    }

    #[test]
    fn constants_are_found_again() {
        let mut rising = Curve::FLAT;
        rising.0[5] = 1.5;
        rising.0[11] = 3.0;
        let truth = TransportProfile {
            call_seconds: 0.2e-6,
            latency_seconds: 0.4e-6,
            overhead_seconds: 0.1e-6,
            bytes_per_second: 1e10,
            host_bytes_per_second: 2.5e10,
            reduce_bytes_per_second: 3e10,
            switch_seconds: 2e-6,
            channel_seconds: 0.1e-6,
            message_factors: rising,
            reduce_factors: rising,
        };
        let cluster = Cluster { ranks_per_host: 4, model: model(&truth, &COPIES, 2.0), ..Cluster::default() };
        let seconds = FORMS.map(|form| Some(simulated(Collective::AllGather, form, 32, &cluster)));
        let crowd = Crowd { ranks: 4, seconds };
        let found = transport(&measured(&truth), Some((crowd, 2.0)), 5e-6).unwrap();
        for (found, truth) in [
            (found.call_seconds, truth.call_seconds),
            (found.bytes_per_second, truth.bytes_per_second),
            (found.host_bytes_per_second, truth.host_bytes_per_second),
            (found.reduce_bytes_per_second, truth.reduce_bytes_per_second),
            (found.channel_seconds, truth.channel_seconds),
            (found.message_factors.0[5], 1.5),
            (found.reduce_factors.0[11], 3.0),
        ] {
            assert!((found / truth - 1.0).abs() < 1e-2, "{found} {truth}");
        }
        for (found, truth) in [
            (found.latency_seconds, truth.latency_seconds),
            (found.overhead_seconds, truth.overhead_seconds),
            (found.switch_seconds, truth.switch_seconds),
        ] {
            assert!((found / truth - 1.0).abs() < 0.15, "{found} {truth}");
        }
    }

    #[test]
    fn a_processor_that_was_away_for_a_moment_does_not_show() {
        let quiet: [f64; POINTS] = std::array::from_fn(|i| 1.0 + i as f64);
        let mut disturbed = quiet;
        disturbed[3] = 138.0;
        assert_eq!(without_outliers(quiet), quiet);
        let found = without_outliers(disturbed);
        assert!(found.iter().zip(&quiet).all(|(found, quiet)| (found - quiet).abs() <= 1.0), "{found:?}");
    }

    #[test]
    fn no_constant_is_negative_whatever_was_measured() {
        let wild = |seed: u32| {
            (1..20_u32)
                .map(|i| Sample {
                    amount: f64::from(1 << i),
                    seconds: 1e-6 * f64::from((i * 2_654_435 + seed * 40_503) % 97 + 1),
                })
                .collect::<Vec<_>>()
        };
        for seed in 0..50 {
            let pair = Pair {
                one_way: wild(seed),
                exchange: wild(seed + 1),
                reduce: wild(seed + 2),
                burst: wild(seed + 3),
                channels: [1e-6, 1e-7 * f64::from(seed)],
                copy: wild(seed + 4).split_off(19 - POINTS),
            };
            let found = transport(&pair, None, 5e-6).unwrap();
            assert!(
                found.latency_seconds >= 0.0 && found.overhead_seconds >= 0.0 && found.call_seconds >= 0.0
            );
            assert!(found.bytes_per_second > 0.0 && found.reduce_bytes_per_second > 0.0);
        }
    }
}
