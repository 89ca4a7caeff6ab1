//! From measured times to the constants of a profile.

use kolo::profile::TransportProfile;

use super::fit::{Line, fit, fit_bent};
use super::probe::{Crowd, Pair};
use crate::error::{CliError, Result};

/// The lines behind a profile, for people to judge it by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lines {
    /// One way, by bytes.
    pub one_way: Line,
    /// Both ways at once, by bytes.
    pub exchange: Line,
    /// Both ways with a reduction, and back; by bytes.
    pub reduce: Line,
    /// By messages.
    pub burst: Line,
}

/// Of what a message takes when nothing else goes on, the processors' part at both ends is at most this.
const WORK_SHARE_MAX: f64 = 0.9;

/// Reducing what arrives costs at least this share of copying it: it is in the cache, but no processor does it for nothing.
const REDUCE_SHARE_MIN: f64 = 0.5;

/// Where the caches were not seen to end: what a large processor has. It does not matter then.
const CACHE_BYTES: f64 = 32e6;

impl Lines {
    /// Through what was measured.
    pub(crate) fn through(pair: &Pair) -> Result<Self> {
        let senseless =
            || CliError::failure("the times measured make no sense", "Try again when the machine is quiet");
        Ok(Self {
            one_way: fit_bent(&pair.one_way).ok_or_else(senseless)?,
            exchange: fit_bent(&pair.exchange).ok_or_else(senseless)?,
            reduce: fit_bent(&pair.reduce).ok_or_else(senseless)?,
            burst: fit(&pair.burst).ok_or_else(senseless)?,
        })
    }
}

/// The constants of a transport.
///
/// By the model an exchange between two ranks takes call + s + n / link, with s = latency + 2 overhead, or the host's
/// bandwidth if that is less: n bytes each way are written and read, 4 n in all. A ring all-reduce of 2 n takes call + 2 s,
/// the bytes twice, and the reduction of n once.
///
/// Where each of p ranks has only a part 1 / q of a processor, an all-gather takes p - 1 waits of w = latency + (q - 1) switch
/// round the ring, one if all messages go at once, and p - 1 times 2 q overhead in either form.
pub(crate) fn transport(
    lines: &Lines,
    copy_seconds: f64,
    crowd: Option<(Crowd, f64)>,
    default_switch: f64,
) -> TransportProfile {
    let Lines { one_way, exchange, reduce, burst } = lines;
    // The lines cross zero at a step more, so their difference is a step; never more than all, nor nothing.
    let step = (reduce.fixed - exchange.fixed).clamp(0.2 * exchange.fixed, exchange.fixed);
    let call_seconds = exchange.fixed - step;
    let wait_and_overhead = crowd.map(|(crowd, share)| {
        let messages = f64::from(crowd.ranks - 1);
        let wait = ((crowd.ring_seconds - crowd.direct_seconds) / (messages - 1.0)).max(0.0);
        (wait, (crowd.direct_seconds - call_seconds - wait) / messages / (2.0 * share))
    });
    // Messages to one rank in a row share system calls, those to several do not.
    let overhead = wait_and_overhead.map_or(burst.each, |(_, overhead)| overhead.max(burst.each));
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
    let per_byte = exchange.each.max(one_way.each);
    let reduced = (reduce.each - 2.0 * exchange.each).max(REDUCE_SHARE_MIN * copy_seconds);
    TransportProfile {
        call_seconds,
        latency_seconds,
        overhead_seconds,
        bytes_per_second: 1.0 / one_way.each,
        host_bytes_per_second: 4.0 / per_byte,
        reduce_bytes_per_second: 1.0 / reduced,
        switch_seconds,
        // An exchange of n bytes on two ranks has buffers of 4 n.
        cache_bytes: if exchange.knee.is_finite() { 4.0 * exchange.knee } else { CACHE_BYTES },
        beyond_cache_factor: 1.0 + exchange.beyond / exchange.each,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::fit::Sample;

    /// What a machine with these constants would have measured.
    fn measured(of: &TransportProfile) -> Pair {
        let step = of.latency_seconds + 2.0 * of.overhead_seconds;
        let (link, host) = (1.0 / of.bytes_per_second, 4.0 / of.host_bytes_per_second);
        let beyond =
            |n: f64| 1.0 + (of.beyond_cache_factor - 1.0) * (1.0 - of.cache_bytes / (4.0 * n)).max(0.0);
        let by_size = |time: &dyn Fn(f64) -> f64| {
            (3..24)
                .step_by(3)
                .map(|bits| f64::from(1 << bits))
                .map(|n| Sample { amount: n, seconds: time(n) })
                .collect()
        };
        Pair {
            one_way: by_size(&|n| of.call_seconds + step + n * link),
            exchange: by_size(&|n| of.call_seconds + step + n * host.max(link) * beyond(n)),
            reduce: by_size(&|n| {
                of.call_seconds
                    + 2.0 * step
                    + n * (2.0 * host.max(link) * beyond(n) + 1.0 / of.reduce_bytes_per_second)
            }),
            burst: by_size(&|n| of.latency_seconds + of.overhead_seconds * (n + 1.0)),
            copy_seconds: 1e-10,
        }
    }

    #[test]
    fn constants_are_found_again() {
        let truth = TransportProfile {
            call_seconds: 0.2e-6,
            latency_seconds: 0.4e-6,
            overhead_seconds: 0.1e-6,
            bytes_per_second: 1e10,
            host_bytes_per_second: 2.5e10,
            reduce_bytes_per_second: 3e10,
            switch_seconds: 2e-6,
            cache_bytes: f64::from(1 << 20),
            beyond_cache_factor: 1.5,
        };
        let crowd = Crowd {
            ranks: 4,
            ring_seconds: 0.2e-6 + 3.0 * (0.4e-6 + 0.4e-6 + 2e-6),
            direct_seconds: 0.2e-6 + 0.4e-6 + 2e-6 + 3.0 * 0.4e-6,
        };
        let found = transport(&Lines::through(&measured(&truth)).unwrap(), 4e-11, Some((crowd, 2.0)), 5e-6);
        for (found, truth) in [
            (found.call_seconds, truth.call_seconds),
            (found.latency_seconds, truth.latency_seconds),
            (found.overhead_seconds, truth.overhead_seconds),
            (found.bytes_per_second, truth.bytes_per_second),
            (found.host_bytes_per_second, truth.host_bytes_per_second),
            (found.reduce_bytes_per_second, truth.reduce_bytes_per_second),
            (found.switch_seconds, truth.switch_seconds),
            (found.cache_bytes, truth.cache_bytes),
            (found.beyond_cache_factor, truth.beyond_cache_factor),
        ] {
            assert!((found / truth - 1.0).abs() < 1e-3, "{found} {truth}");
        }
    }

    #[test]
    fn no_constant_is_negative_whatever_was_measured() {
        let wild = |seed: u32| {
            (1..8_u32)
                .map(|i| Sample {
                    amount: f64::from(1 << (3 * i)),
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
                copy_seconds: 1e-10,
            };
            let found = transport(&Lines::through(&pair).unwrap(), 1e-10, None, 5e-6);
            assert!(
                found.latency_seconds >= 0.0 && found.overhead_seconds >= 0.0 && found.call_seconds >= 0.0
            );
        }
    }
}
