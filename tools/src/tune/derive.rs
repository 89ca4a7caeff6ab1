//! From measured times to the constants of a profile.

use kolo::profile::{Curve, TransportProfile};
use kolo_collectives::caches::{FIRST_BYTES, POINTS};

use super::fit::{Sample, fit, median};
use super::probe::{Crowd, Pair};
use crate::error::{CliError, Result};

/// Of what a message takes when nothing else goes on, the processors' part at both ends is at most this.
const WORK_SHARE_MAX: f64 = 0.9;

/// Reducing what arrives costs at least this share of copying it: it is in the cache, but no processor does it for nothing.
const REDUCE_SHARE_MIN: f64 = 0.5;

/// What times that make no sense are taken for, in seconds a byte: no machine is as fast.
const BYTE_SECONDS_MIN: f64 = 1e-13;

/// Seconds a byte takes, by the buffers that are gone through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Where the nearest caches hold them.
    pub seconds: f64,
    /// How many times as long elsewhere.
    pub factors: Curve,
}

impl Rate {
    /// From what bytes take at each of the sizes of a curve.
    fn new(seconds: [f64; POINTS]) -> Self {
        let seconds = seconds.map(|each| each.max(BYTE_SECONDS_MIN));
        Self { seconds: seconds[0], factors: Curve(seconds.map(|each| (each / seconds[0]).clamp(0.1, 1e3))) }
    }

    fn at(&self, bytes: f64) -> f64 {
        self.seconds * self.factors.at(bytes)
    }
}

/// What short messages take, whatever their length; and what a byte of long ones takes at each of the sizes of a curve.
fn split(samples: &[Sample]) -> Result<(f64, [f64; POINTS])> {
    let senseless =
        || CliError::failure("the times measured make no sense", "Try again when the machine is quiet");
    let (short, long) = samples.split_at(samples.len().saturating_sub(POINTS));
    let fixed = fit(short).ok_or_else(senseless)?.fixed;
    let each: Vec<f64> = long.iter().map(|sample| (sample.seconds - fixed) / sample.amount).collect();
    Ok((fixed, each.try_into().map_err(|_| senseless())?))
}

/// A copied byte.
pub(crate) fn copy(pair: &Pair) -> Rate {
    let each: Vec<f64> = pair.copy.iter().map(|sample| sample.seconds / sample.amount).collect();
    Rate::new(each.try_into().unwrap_or([f64::NAN; POINTS]))
}

/// The constants of a transport.
///
/// By the model an exchange between two ranks takes call + s + n E, with s = latency + 2 overhead and E for what a processor
/// does with a byte that it sends and one that it receives: n bytes each way are written and read, 4 n in all. A ring
/// all-reduce of 2 n takes call + 2 s, the bytes twice, and the reduction of n once.
///
/// Where each of p ranks has only a part 1 / q of a processor, an all-gather takes p - 1 waits of w = latency + (q - 1) switch
/// round the ring, one if all messages go at once, and p - 1 times 2 q overhead in either form.
pub(crate) fn transport(
    pair: &Pair,
    crowd: Option<(Crowd, f64)>,
    default_switch: f64,
) -> Result<TransportProfile> {
    let (exchange_fixed, exchange) = split(&pair.exchange)?;
    let (reduce_fixed, reduce) = split(&pair.reduce)?;
    let (_, one_way) = split(&pair.one_way)?;
    let burst = fit(&pair.burst).map_or(0.0, |line| line.each);
    // They cross zero at a step more, so their difference is a step; never more than all, nor nothing.
    let step = (reduce_fixed - exchange_fixed).clamp(0.2 * exchange_fixed, exchange_fixed);
    let call_seconds = exchange_fixed - step;
    let wait_and_overhead = crowd.map(|(crowd, share)| {
        let messages = f64::from(crowd.ranks - 1);
        let wait = ((crowd.ring_seconds - crowd.direct_seconds) / (messages - 1.0)).max(0.0);
        (wait, (crowd.direct_seconds - call_seconds - wait) / messages / (2.0 * share))
    });
    // Messages to one rank in a row share system calls, those to several do not.
    let overhead = wait_and_overhead.map_or(burst, |(_, overhead)| overhead.max(burst));
    let overhead_seconds = overhead.min(WORK_SHARE_MAX * step / 2.0);
    let latency_seconds = step - 2.0 * overhead_seconds;
    let switch_seconds = match (crowd, wait_and_overhead) {
        // What the overhead was not allowed to take is waiting too.
        (Some((_, share)), Some((wait, overhead))) => {
            let rest = 2.0 * share * (overhead - overhead_seconds).max(0.0);
            ((wait + rest - latency_seconds) / (share - 1.0)).max(0.0)
        }
        _ => default_switch,
    };
    let messages = Rate::new(exchange);
    // One way, two ranks that broadcast in place have half the buffers. No link is faster than the processor at its end.
    let mut shares: Vec<f64> = (1..POINTS).map(|i| one_way[i] / messages.at(buffers(i) / 2.0)).collect();
    let link = messages.seconds * median(&mut shares).max(0.5);
    let copies = copy(pair);
    let reductions = std::array::from_fn(|i| {
        (reduce[i] - 2.0 * exchange[i]).max(REDUCE_SHARE_MIN * copies.at(buffers(i).min(CLOSE_BYTES)))
    });
    let reductions = Rate::new(reductions);
    Ok(TransportProfile {
        call_seconds,
        latency_seconds,
        overhead_seconds,
        bytes_per_second: 1.0 / link,
        host_bytes_per_second: 4.0 / messages.seconds,
        reduce_bytes_per_second: 1.0 / reductions.seconds,
        switch_seconds,
        message_factors: messages.factors,
        reduce_factors: reductions.factors,
    })
}

/// Bytes of buffers at the i-th size of a curve.
fn buffers(i: usize) -> f64 {
    FIRST_BYTES * f64::from(1_u32 << i)
}

/// What arrives is reduced from the caches, whatever the size of the buffers.
const CLOSE_BYTES: f64 = FIRST_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine with these constants would have measured.
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
            reduce: by_size(&|n| {
                of.call_seconds
                    + 2.0 * (step + moved(n))
                    + n * of.reduce_factors.at(4.0 * n) / of.reduce_bytes_per_second
            }),
            burst: by_size(&|n| of.latency_seconds + of.overhead_seconds * (n + 1.0)),
            copy: by_size(&|n| 4e-11 * n).split_off(3),
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
            message_factors: rising,
            reduce_factors: rising,
        };
        let crowd = Crowd {
            ranks: 4,
            ring_seconds: 0.2e-6 + 3.0 * (0.4e-6 + 0.4e-6 + 2e-6),
            direct_seconds: 0.2e-6 + 0.4e-6 + 2e-6 + 3.0 * 0.4e-6,
        };
        let found = transport(&measured(&truth), Some((crowd, 2.0)), 5e-6).unwrap();
        for (found, truth) in [
            (found.call_seconds, truth.call_seconds),
            (found.latency_seconds, truth.latency_seconds),
            (found.overhead_seconds, truth.overhead_seconds),
            (found.bytes_per_second, truth.bytes_per_second),
            (found.host_bytes_per_second, truth.host_bytes_per_second),
            (found.reduce_bytes_per_second, truth.reduce_bytes_per_second),
            (found.switch_seconds, truth.switch_seconds),
            (found.message_factors.0[5], 1.5),
            (found.reduce_factors.0[11], 3.0),
        ] {
            assert!((found / truth - 1.0).abs() < 1e-2, "{found} {truth}");
        }
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
