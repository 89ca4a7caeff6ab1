//! Measures round trips, rates and losses between hosts, a disjoint set of pairs at a time.

use std::net::SocketAddr;
use std::time::Duration;

use kolo::internal::network::{Buffers, Effort, Way, end, push, rate, round_trip, serve};
use kolo_transport::tcp::{TcpInfo, pace};
use serde::{Deserialize, Serialize};

use super::line::{Line, Stop};
use super::reach::{Answering, Carries, Reach, SMALL_SEGMENT, Token, dial_for_rates};

/// Longest silence during one message; most messages take a tenth of a second.
const LIMIT: Duration = Duration::from_secs(4);

/// Share of the measured rate at which losses are counted: no queue fills, so a lost segment was not lost for lack of
/// room.
const LOSS_SHARE: f64 = 0.25;

/// Losses are counted over this many bytes, but for no shorter and no longer time than these two limits.
const LOSS_SECONDS: f64 = 0.4;
const LOSS_BYTES: f64 = 4e6;
const LOSS_SECONDS_MAX: f64 = 1.0;

/// One direction between two hosts, as measured by the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving host.
    pub to: u32,
    /// Time of an empty message there and back.
    pub round_trip_seconds: f64,
    /// Time by which the receiver's clock is ahead, to within half a round trip.
    pub ahead_seconds: f64,
    /// Rate of one connection.
    pub bytes_per_second: f64,
    /// Segments sent well below that rate.
    pub segments: u32,
    /// Number of these segments that were lost.
    pub lost: u32,
    /// Number of segments that were sent again although they arrived, late.
    pub late: u32,
}

/// Returns the pairs of one of the [`rounds`]; each host is in at most one pair.
pub(crate) fn pairs(hosts: u32, round: u32) -> Vec<(u32, u32)> {
    // The circle method: the last place stays, the others rotate. With an odd number of hosts, the last place is
    // empty.
    let last = rounds(hosts);
    let at = |place: u32| if place == last { last } else { (place + round) % last.max(1) };
    (0..last.div_ceil(2))
        .map(|place| (at(if place == 0 { last } else { last - place }), at(place)))
        .map(|(one, other)| (one.min(other), one.max(other)))
        .filter(|(_, other)| *other < hosts)
        .collect()
}

/// Returns the number of rounds after which all pairs have been measured.
pub(crate) const fn rounds(hosts: u32) -> u32 {
    (hosts + hosts % 2).saturating_sub(1)
}

/// Context of a measurement.
pub(crate) struct Place<'a> {
    pub host: u32,
    pub token: &'a Token,
    pub answering: &'a Answering,
    pub reaches: &'a [Reach],
    pub ports: &'a [Option<u16>],
}

/// Measures what this host sends to a partner, which does the same meanwhile. Returns `None` if they have no
/// connection.
pub(crate) fn measure(place: &Place<'_>, partner: u32) -> Result<Option<Measured>, String> {
    let host = place.host;
    let Some(mut line) = line(place, partner)? else { return Ok(None) };
    let mut buffers = Buffers::new(&Effort::THOROUGH);
    let found = if host < partner {
        let found = out(&mut line, host, partner, &mut buffers).map_err(|stop| stop.to_string())?;
        serve(&mut line, partner, &mut buffers).map_err(|stop| stop.to_string())?;
        found
    } else {
        serve(&mut line, partner, &mut buffers).map_err(|stop| stop.to_string())?;
        out(&mut line, host, partner, &mut buffers).map_err(|stop| stop.to_string())?
    };
    Ok(Some(found))
}

/// Opens the line between two hosts: the lower one dials if it can, otherwise the higher one.
pub(super) fn line(place: &Place<'_>, partner: u32) -> Result<Option<Line>, String> {
    let (low, high) = (place.host.min(partner), place.host.max(partner));
    let reach =
        |from, to| place.reaches.iter().find(|reach| reach.from == from && reach.to == to && reach.works());
    let Some(chosen) = reach(low, high).or_else(|| reach(high, low)) else { return Ok(None) };
    if chosen.from != place.host {
        let line = place.answering.wait_for(partner, LIMIT);
        return line.map(|line| Some(line.with_limit(LIMIT))).ok_or("it did not reconnect".to_owned());
    }
    let port = place.ports[partner as usize].unwrap_or_default();
    let to = chosen.way().map(|way| SocketAddr::new(way.address, port)).ok_or("no address")?;
    let segment = (chosen.carries != Carries::All).then_some(SMALL_SEGMENT);
    dial_for_rates(place.token, place.host, to, segment).map(|line| Some(line.with_limit(LIMIT)))
}

fn out(line: &mut Line, host: u32, partner: u32, buffers: &mut Buffers) -> Result<Measured, Stop> {
    let way = round_trip(line, partner)?;
    let bytes_per_second = rate(line, partner, Way::Out, way.time, &Effort::THOROUGH, buffers)?;
    let calm = LOSS_SHARE * bytes_per_second;
    let bytes = LOSS_BYTES.clamp(LOSS_SECONDS * calm, (LOSS_SECONDS_MAX * calm).max(LOSS_SECONDS * calm));
    let before = line.info();
    // If the connection cannot be slowed down, queues may overflow, and losses prove nothing.
    let is_calm = pace(line.socket(), (calm as u32).max(1)).is_ok();
    push(line, partner, bytes as usize, buffers)?;
    let _ = pace(line.socket(), u32::MAX);
    let after = line.info();
    let (segments, lost) = if is_calm { losses(&before, &after) } else { (0, 0) };
    end(line, partner)?;
    Ok(Measured {
        from: host,
        to: partner,
        round_trip_seconds: way.time.as_secs_f64(),
        ahead_seconds: way.ahead_seconds,
        bytes_per_second,
        segments,
        lost,
        late: after.duplicates.wrapping_sub(before.duplicates),
    })
}

/// Returns the segments sent between two samples, and the number of them that were lost: those resent, less those that
/// the peer already had.
pub(super) fn losses(before: &TcpInfo, after: &TcpInfo) -> (u32, u32) {
    let since = |what: fn(&TcpInfo) -> u32| what(after).wrapping_sub(what(before));
    let resent = since(|info| info.resent);
    (since(|info| info.sent), resent.saturating_sub(since(|info| info.duplicates)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_its_turn_once_and_no_host_two_at_a_time() {
        for hosts in 1..12 {
            let mut all = Vec::new();
            for round in 0..rounds(hosts) {
                let pairs = pairs(hosts, round);
                let mut busy: Vec<u32> = pairs.iter().flat_map(|pair| [pair.0, pair.1]).collect();
                busy.sort_unstable();
                busy.dedup();
                assert_eq!(busy.len(), 2 * pairs.len(), "{hosts} hosts, round {round}: {pairs:?}");
                all.extend(pairs);
            }
            all.sort_unstable();
            let wanted: Vec<_> = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
            assert_eq!(all, wanted, "{hosts} hosts");
        }
    }

    #[test]
    fn what_the_peer_had_was_not_lost() {
        let before = TcpInfo { sent: 10, resent: 2, duplicates: 1, ..TcpInfo::default() };
        let after = TcpInfo { sent: 1010, resent: 9, duplicates: 3, ..TcpInfo::default() };
        assert_eq!(losses(&before, &after), (1000, 5));
    }
}
