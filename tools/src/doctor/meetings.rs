//! Lets several hosts send to one at the same time, as collectives do, and counts the segments that overflow the queue
//! before its link.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::line::{Line, Stop};
use super::rates::{Place, line, losses};

/// Most hosts that send to one at the same time.
const SENDERS_MOST: u32 = 3;

/// Bytes that they send together, which is less than the queues of most switches hold.
const BYTES: usize = 96 << 10;

/// Bursts before losses are counted, in which windows open, and most bursts after that.
const WARM: u32 = 4;
const BURSTS: u32 = 24;

/// Time after which no further burst is requested.
const TIME: Duration = Duration::from_millis(500);

/// Requests of the receiver, of a byte each.
const GO: u8 = 1;
const COUNT: u8 = 2;
const END: u8 = 3;

/// Bursts of several hosts at one, as counted by the senders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meeting {
    /// Number of the receiving host.
    pub to: u32,
    /// Number of hosts that sent.
    pub senders: u32,
    /// Bytes that they sent in each burst, together.
    pub bytes: usize,
    /// Median time from the request until all had arrived.
    pub seconds: f64,
    /// Segments sent.
    pub segments: u32,
    /// Number of these that were lost.
    pub lost: u32,
}

/// Returns the hosts that send to one.
fn senders(hosts: u32, to: u32) -> impl Iterator<Item = u32> {
    (1..=SENDERS_MOST.min(hosts.saturating_sub(1))).map(move |distance| (to + distance) % hosts)
}

/// Takes this host's part in the meeting at `to`. Returns the meeting there.
pub(crate) fn meet(place: &Place<'_>, hosts: u32, to: u32) -> Option<Meeting> {
    let share = BYTES / senders(hosts, to).count().max(1);
    if place.host == to {
        let lines = senders(hosts, to).filter_map(|from| line(place, from).ok().flatten());
        return receive(to, lines.collect(), share);
    }
    if senders(hosts, to).any(|from| from == place.host)
        && let Ok(Some(mut line)) = line(place, to)
    {
        // The receiver does without a sender that fails.
        let _ = send(&mut line, share);
    }
    None
}

fn send(line: &mut Line, share: usize) -> Result<(), Stop> {
    let bytes = vec![0x5a; share];
    let mut before = line.info();
    loop {
        let mut request = [0];
        line.transfer(&[], &mut request)?;
        match request[0] {
            GO => line.transfer(&bytes, &mut [])?,
            COUNT => before = line.info(),
            _ => {
                let (segments, lost) = losses(&before, &line.info());
                let counts = [segments.to_le_bytes(), lost.to_le_bytes()];
                return line.transfer(counts.as_flattened(), &mut []);
            }
        }
    }
}

fn receive(to: u32, mut lines: Vec<Line>, share: usize) -> Option<Meeting> {
    if lines.len() < 2 {
        lines.iter_mut().for_each(|line| drop(line.transfer(&[END], &mut [])));
        return None;
    }
    let mut bytes = vec![0; share];
    let mut times = Vec::new();
    let begun = Instant::now();
    for burst in 0..WARM + BURSTS {
        let asked = Instant::now();
        for line in &mut lines {
            let counts: &[u8] = if burst == WARM { &[COUNT] } else { &[] };
            line.transfer(counts, &mut []).and_then(|()| line.transfer(&[GO], &mut [])).ok()?;
        }
        for line in &mut lines {
            line.transfer(&[], &mut bytes).ok()?;
        }
        if burst >= WARM {
            times.push(asked.elapsed().as_secs_f64());
            if begun.elapsed() > TIME {
                break;
            }
        }
    }
    let mut meeting = Meeting {
        to,
        senders: lines.len() as u32,
        bytes: share * lines.len(),
        seconds: median(times)?,
        segments: 0,
        lost: 0,
    };
    for line in &mut lines {
        let mut counts = [[0; 4]; 2];
        line.transfer(&[END], &mut []).and_then(|()| line.transfer(&[], counts.as_flattened_mut())).ok()?;
        let [segments, lost] = counts.map(u32::from_le_bytes);
        meeting.segments = meeting.segments.saturating_add(segments);
        meeting.lost = meeting.lost.saturating_add(lost);
    }
    Some(meeting)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn bursts_of_several_senders_arrive_and_are_counted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let limit = Duration::from_secs(20);
        let (mut ends, mut senders) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let mut near = Line::dial(listener.local_addr().unwrap(), None, limit).unwrap();
            ends.push(Line::new(listener.accept().unwrap().0, limit).unwrap());
            senders.push(std::thread::spawn(move || send(&mut near, 1000)));
        }
        let met = receive(7, ends, 1000).unwrap();
        assert!((met.to, met.senders, met.bytes) == (7, 3, 3000) && met.segments >= 3, "{met:?}");
        assert!(met.lost == 0 && met.seconds > 0.0, "{met:?}");
        senders.into_iter().for_each(|sender| assert_eq!(sender.join().unwrap(), Ok(())));
    }

    #[test]
    fn a_host_receives_from_others() {
        for (hosts, to, wanted) in [(5, 4, vec![0, 1, 2]), (3, 0, vec![1, 2]), (1, 0, vec![])] {
            assert_eq!(senders(hosts, to).collect::<Vec<_>>(), wanted);
        }
    }
}
