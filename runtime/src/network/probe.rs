//! Measuring between leaders: the code that the probe, `kolo tune` and `kolo doctor` share.

use std::time::Duration;

use super::Sample;

/// Messages between two leaders. All calls block.
pub trait Wire {
    /// Error of a transfer.
    type Error;
    /// Sends bytes to the leader of a host.
    ///
    /// # Errors
    /// Errors of the wire, here as below.
    fn send(&mut self, host: u32, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Receives as many bytes from it.
    fn recv(&mut self, host: u32, bytes: &mut [u8]) -> Result<(), Self::Error>;
    /// Sends bytes to it, and receives as many, at the same time.
    fn exchange(&mut self, host: u32, out: &[u8], inward: &mut [u8]) -> Result<(), Self::Error>;
    /// The time since some beginning.
    fn now(&self) -> Duration;
    /// Whether long messages to it go over several of the host's interfaces at the same time.
    fn has_rails(&self, host: u32) -> bool {
        let _ = host;
        false
    }
}

/// Empty messages there and back, at most. The least time counts: others may have waited for a processor.
const ROUND_TRIPS: u32 = 8;

/// No further round trips once these have taken so long: on a long way, each is like the other.
const ROUND_TRIPS_TIME: Duration = Duration::from_millis(5);

/// First message whose rate is measured.
const FIRST_BYTES: usize = 64 << 10;

/// The same where long messages go over several interfaces: shorter ones would take only one, and these are few.
const FIRST_BYTES_ON_RAILS: usize = 512 << 10;

/// So many of a long length: the best counts, since others may have waited for a processor.
const LONG_ONES: u32 = 3;

/// On a long way a connection's window grows by the round trip: so many of them are spent at most.
const PATIENCE_IN_ROUND_TRIPS: u32 = 10;

/// From this round trip on, short messages tell how a connection's window grows, and nothing about the rate of the way. There,
/// messages go in halves, the second of which finds the window that the first has made.
const FAR: Duration = Duration::from_millis(2);

/// Factor by which the next message of a far pair is longer.
const FAR_STEP: usize = 4;

/// A message that is as much faster than the one before found a window that had grown; the window may grow further.
const FAR_GROWS: f64 = 1.25;

/// So many messages are sent there unless they take too long: a window does not grow with each.
const FAR_MESSAGES: u32 = 4;

/// Round trips that a message may take there, as far as the rate is known.
const FAR_LENGTH: u32 = 8;

/// Round trips spent there before the last message.
const FAR_PATIENCE: u32 = 12;

/// Messages in halves of which a partner remembers the second half's time. A pair exchanges fewer: each takes a round trip.
const FAR_REMEMBERED: usize = 32;

/// Limits on the time spent on the rate of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The longest message.
    pub last_bytes: usize,
    /// A message that takes so many round trips fills the way, and a longer one would tell nothing new.
    pub long_in_round_trips: u32,
    /// Neither is a longer one sent if this one took so long, and some round trips.
    pub long: Duration,
    /// A message that takes so long is the last one.
    pub longest: Duration,
    /// No further one is sent once they have taken so long together.
    pub total: Duration,
}

impl Effort {
    /// While a communicator is made: a local network is measured within 50 ms.
    pub const QUICK: Self = Self {
        last_bytes: 4 << 20,
        long_in_round_trips: 8,
        long: Duration::from_millis(3),
        longest: Duration::from_millis(12),
        total: Duration::from_millis(12),
    };

    /// For an explicit request: some 0.2 s a way, which is more than queues and token buckets hold at most rates.
    pub const THOROUGH: Self = Self {
        last_bytes: 32 << 20,
        long_in_round_trips: 1000,
        long: Duration::from_millis(50),
        longest: Duration::from_millis(200),
        total: Duration::from_millis(500),
    };
}

/// Which way long messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the partner.
    Out,
    /// To the partner, and at the same time as many bytes back.
    Both,
}

/// Result of empty messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    /// There and back, processors' time included.
    pub time: Duration,
    /// Lead of the partner's [`Wire::now`] over this one's, in seconds, to half of the time.
    pub ahead_seconds: f64,
}

/// The first word of a message: what its receiver is to do.
const ECHO: u64 = 0;
const EXCHANGE: u64 = 1;
const END: u64 = 2;
const TAKE: u64 = 3;
const HALVES: u64 = 4;
const TELL: u64 = 5;

const HEADER: usize = 16;

/// Measures between this leader, of host number `host` among `hosts`, and those at distances 1, 2, 4 ... from it: of two leaders
/// whose numbers differ in that bit, the lower measures. Returns what this one has measured. Blocks until all its partners are
/// done; all leaders call it.
///
/// # Errors
/// Errors of the wire.
pub(crate) fn probe<W: Wire>(wire: &mut W, host: u32, hosts: u32) -> Result<Vec<Sample>, W::Error> {
    let mut samples = Vec::new();
    let mut buffers = Buffers::new(&Effort::QUICK);
    for bit in (0..32).map(|bit| 1_u32 << bit).take_while(|bit| *bit < hosts) {
        let partner = host ^ bit;
        if partner >= hosts {
            continue;
        }
        if host < partner {
            let round_trip = round_trip(wire, partner)?.time;
            let rate = match round_trip < FAR {
                true => measure(wire, partner, Way::Both, round_trip, &Effort::QUICK, &mut buffers)?,
                false => measure_far(wire, partner, round_trip, &mut buffers)?,
            };
            end(wire, partner)?;
            samples.push(Sample {
                hosts: (host, partner),
                round_trip_seconds: round_trip.as_secs_f64(),
                bytes_per_second: rate.best,
                is_settled: rate.is_settled(),
            });
        } else {
            serve(wire, partner, &mut buffers)?;
        }
    }
    Ok(samples)
}

/// Memory that long messages are sent from, and received into.
#[derive(Debug)]
pub struct Buffers {
    out: Vec<u8>,
    inward: Vec<u8>,
}

impl Buffers {
    /// For messages of such an effort.
    #[must_use]
    pub fn new(effort: &Effort) -> Self {
        Self { out: vec![0; effort.last_bytes], inward: vec![0; effort.last_bytes] }
    }
}

fn order(what: u64, word: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&what.to_le_bytes());
    header[8..].copy_from_slice(&word.to_le_bytes());
    header
}

fn word(header: &[u8; HEADER], at: usize) -> u64 {
    u64::from_le_bytes(header[8 * at..8 * (at + 1)].try_into().unwrap_or_default())
}

/// Measures the time of an empty message to a partner, which [serves](serve), and back.
///
/// # Errors
/// Errors of the wire.
pub fn round_trip<W: Wire>(wire: &mut W, partner: u32) -> Result<RoundTrip, W::Error> {
    let echo = |wire: &mut W| {
        let mut answer = [0; HEADER];
        let sent = wire.now();
        wire.send(partner, &order(ECHO, 0))?;
        wire.recv(partner, &mut answer)?;
        let back = wire.now();
        let theirs = Duration::from_nanos(word(&answer, 1)).as_secs_f64();
        Ok(RoundTrip { time: back - sent, ahead_seconds: theirs - (sent + back).as_secs_f64() / 2.0 })
    };
    // Makes the connection, and waits for the partner.
    echo(wire)?;
    let begun = wire.now();
    let mut least = echo(wire)?;
    for _ in 1..ROUND_TRIPS {
        if wire.now() - begun > ROUND_TRIPS_TIME {
            break;
        }
        let next = echo(wire)?;
        if next.time < least.time {
            least = next;
        }
    }
    Ok(least)
}

/// Measures the bytes per second, in each direction used, of long messages to a partner, which [serves](serve).
///
/// # Errors
/// Errors of the wire.
pub fn rate<W: Wire>(
    wire: &mut W,
    partner: u32,
    way: Way,
    round_trip: Duration,
    effort: &Effort,
    buffers: &mut Buffers,
) -> Result<f64, W::Error> {
    measure(wire, partner, way, round_trip, effort, buffers).map(|rate| rate.best)
}

/// Bytes per second of long messages.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    best: f64,
    second: f64,
}

impl Rate {
    fn note(&mut self, rate: f64) {
        (self.best, self.second) =
            if rate > self.best { (rate, self.best) } else { (self.best, self.second.max(rate)) };
    }

    /// Whether two messages had about the same: if not, the connection's window may still have been growing, or something was in the way.
    fn is_settled(&self) -> bool {
        const SAME: f64 = 0.75;
        self.second >= SAME * self.best
    }
}

fn measure<W: Wire>(
    wire: &mut W,
    partner: u32,
    way: Way,
    round_trip: Duration,
    effort: &Effort,
    buffers: &mut Buffers,
) -> Result<Rate, W::Error> {
    let most = effort.last_bytes.min(buffers.out.len());
    let first = if wire.has_rails(partner) { FIRST_BYTES_ON_RAILS } else { FIRST_BYTES };
    let (begun, mut len, mut rate, mut long) = (wire.now(), first.min(most), Rate::default(), 0);
    let mut is_over = false;
    while long < LONG_ONES {
        let sent = wire.now();
        match way {
            Way::Out => push(wire, partner, len, buffers)?,
            Way::Both => {
                wire.send(partner, &order(EXCHANGE, len as u64))?;
                wire.exchange(partner, &buffers.out[..len], &mut buffers.inward[..len])?;
            }
        }
        let here = wire.now();
        let (took, spent) = (here - sent, here - begun);
        // With a short message the way takes most of the time, and the difference means nothing.
        let way = if took > 2 * round_trip { round_trip } else { Duration::ZERO };
        rate.note(len as f64 / (took - way).as_secs_f64().max(1e-7));
        let is_long = took > (effort.long_in_round_trips * round_trip).min(effort.long.max(3 * round_trip));
        if took > effort.longest.max(4 * round_trip)
            || spent > (PATIENCE_IN_ROUND_TRIPS * round_trip).max(effort.total)
        {
            // One more tells a slow link from a message that was held up.
            if is_over || rate.is_settled() {
                break;
            }
            is_over = true;
            continue;
        }
        long += u32::from(is_long || len == most);
        if !is_long && len < most {
            len = (2 * len).min(most);
        }
    }
    Ok(rate)
}

/// A message in halves.
#[derive(Clone, Copy, Debug)]
struct Halves {
    len: usize,
    /// Less the way there and back.
    whole: Duration,
    /// Time of the second half at this end.
    moving: Duration,
}

impl Halves {
    /// Bytes per second. The partner begins later by the way, so its second half follows its first without a pause. An end that
    /// comes late to the first half finds the second in its kernel, and sees a rate that no link has: so the slower of both ends counts, and
    /// a time that is short beside the way does not.
    fn rate(&self, round_trip: Duration, theirs: Duration) -> f64 {
        let whole = self.len as f64 / self.whole.as_secs_f64();
        let moving = self.moving.max(theirs);
        match moving >= round_trip / 4 {
            true => whole.max((self.len - self.len / 2) as f64 / moving.as_secs_f64()),
            false => whole,
        }
    }
}

/// As [`measure`], both ways at once, between hosts that are far from each other.
fn measure_far<W: Wire>(
    wire: &mut W,
    partner: u32,
    round_trip: Duration,
    buffers: &mut Buffers,
) -> Result<Rate, W::Error> {
    let most = buffers.out.len();
    let (begun, mut len, mut last, mut is_last) = (wire.now(), FIRST_BYTES.min(most), 0.0, false);
    let mut messages: Vec<Halves> = Vec::new();
    loop {
        let sent = wire.now();
        wire.send(partner, &order(HALVES, len as u64))?;
        let middle = halves(wire, partner, len, buffers)?;
        let here = wire.now();
        let whole = (here - sent).saturating_sub(round_trip).max(round_trip / 4);
        let message = Halves { len, whole, moving: here - middle };
        // Only for the choice of the next length: the partner's times come at the end, since they take a round trip.
        let this = message.rate(round_trip, Duration::ZERO);
        messages.push(message);
        if is_last || messages.len() as u32 >= FAR_MESSAGES && this < FAR_GROWS * last {
            break;
        }
        last = this;
        // One more tells a slow link from a message that was held up.
        let is_late = here - begun > FAR_PATIENCE * round_trip || here - sent > FAR_LENGTH * round_trip;
        is_last = is_late || len == most;
        if !is_late {
            let enough = (this * f64::from(FAR_LENGTH) * round_trip.as_secs_f64()) as usize;
            len = (FAR_STEP * len).min(enough.max(len)).min(most);
        }
    }
    let mut theirs = [0; 8 * FAR_REMEMBERED];
    wire.send(partner, &order(TELL, 0))?;
    wire.recv(partner, &mut theirs)?;
    let mut rate = Rate::default();
    for (message, theirs) in messages.iter().zip(theirs.chunks_exact(8)) {
        let nanos = theirs.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        rate.note(message.rate(round_trip, Duration::from_nanos(nanos)));
    }
    Ok(rate)
}

/// Exchanges a message in halves; returns when the first was there.
fn halves<W: Wire>(
    wire: &mut W,
    partner: u32,
    len: usize,
    buffers: &mut Buffers,
) -> Result<Duration, W::Error> {
    let (first, rest) = (len / 2, len / 2..len);
    wire.exchange(partner, &buffers.out[..first], &mut buffers.inward[..first])?;
    let middle = wire.now();
    wire.exchange(partner, &buffers.out[rest.clone()], &mut buffers.inward[rest])?;
    Ok(middle)
}

/// Sends so many bytes to a partner, which [serves](serve), and waits until it has them. No more than the buffers have are sent.
///
/// # Errors
/// Errors of the wire.
pub fn push<W: Wire>(wire: &mut W, partner: u32, len: usize, buffers: &mut Buffers) -> Result<(), W::Error> {
    let len = len.min(buffers.out.len());
    wire.send(partner, &order(TAKE, len as u64))?;
    wire.send(partner, &buffers.out[..len])?;
    wire.recv(partner, &mut [0; HEADER])
}

/// Tells the partner that this was all.
///
/// # Errors
/// Errors of the wire.
pub fn end<W: Wire>(wire: &mut W, partner: u32) -> Result<(), W::Error> {
    wire.send(partner, &order(END, 0))
}

/// Does what the partner asks for, until it is done.
///
/// # Errors
/// Errors of the wire.
pub fn serve<W: Wire>(wire: &mut W, partner: u32, buffers: &mut Buffers) -> Result<(), W::Error> {
    let (mut moving, mut words) = ([0; 8 * FAR_REMEMBERED], 0);
    loop {
        let mut header = [0; HEADER];
        wire.recv(partner, &mut header)?;
        let len = (word(&header, 1) as usize).min(buffers.inward.len());
        match word(&header, 0) {
            ECHO => wire.send(partner, &order(ECHO, wire.now().as_nanos() as u64))?,
            EXCHANGE => wire.exchange(partner, &buffers.out[..len], &mut buffers.inward[..len])?,
            HALVES => {
                let middle = halves(wire, partner, len, buffers)?;
                let took = (wire.now() - middle).as_nanos() as u64;
                if let Some(word) = moving.chunks_exact_mut(8).nth(words) {
                    word.copy_from_slice(&took.to_le_bytes());
                }
                words += 1;
            }
            TELL => wire.send(partner, &moving)?,
            TAKE => {
                wire.recv(partner, &mut buffers.inward[..len])?;
                wire.send(partner, &header)?;
            }
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A link in virtual time: each message brings the time at which it arrives.
    struct Line {
        here: Duration,
        to: HashMap<u32, Sender<(Duration, Vec<u8>)>>,
        from: HashMap<u32, Receiver<(Duration, Vec<u8>)>>,
        latency: Duration,
        rate: f64,
        /// Bytes that may be on their way, to each host, where that begins small and grows as a TCP connection's window does.
        windows: Option<HashMap<u32, f64>>,
        /// The part of every second exchange by which the process is late when it is over, as it has no processor. Its kernel has room for
        /// what it sends.
        late: f64,
        is_second: bool,
    }

    impl Wire for Line {
        type Error = String;
        fn send(&mut self, host: u32, bytes: &[u8]) -> Result<(), String> {
            let round_trip = 2.0 * self.latency.as_secs_f64();
            let mut left = bytes.len() as f64;
            let mut takes = 0.0;
            while left > 0.0 {
                let window = self.windows.as_mut().map(|all| all.entry(host).or_insert(14_480.0));
                let burst = window.as_ref().map_or(left, |window| left.min(**window));
                left -= burst;
                let sends = burst / self.rate;
                takes += if left > 0.0 { sends.max(round_trip) } else { sends };
                if let Some(window) = window {
                    *window += burst;
                }
            }
            self.here += Duration::from_secs_f64(takes);
            self.to[&host].send((self.here + self.latency, bytes.to_vec())).map_err(|e| e.to_string())
        }
        fn recv(&mut self, host: u32, bytes: &mut [u8]) -> Result<(), String> {
            let (at, sent) = self.from[&host].recv().map_err(|e| e.to_string())?;
            self.here = self.here.max(at);
            assert_eq!(sent.len(), bytes.len());
            bytes.copy_from_slice(&sent);
            Ok(())
        }
        fn exchange(&mut self, host: u32, out: &[u8], inward: &mut [u8]) -> Result<(), String> {
            let begun = self.here;
            self.send(host, out)?;
            let sent = std::mem::replace(&mut self.here, begun);
            self.recv(host, inward)?;
            if self.late == 0.0 {
                self.here = self.here.max(sent);
            } else if !self.is_second {
                self.here += (self.here - begun).mul_f64(self.late);
            }
            self.is_second = !self.is_second;
            Ok(())
        }
        fn now(&self) -> Duration {
            self.here
        }
    }

    fn lines(hosts: u32, latency: Duration, rate: impl Fn(u32) -> f64) -> Vec<Line> {
        let mut lines: Vec<Line> = (0..hosts)
            .map(|host| Line {
                here: Duration::ZERO,
                to: HashMap::new(),
                from: HashMap::new(),
                latency,
                rate: rate(host),
                windows: None,
                late: 0.0,
                is_second: false,
            })
            .collect();
        for (from, to) in (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))) {
            let (sender, receiver) = channel();
            lines[from as usize].to.insert(to, sender);
            lines[to as usize].from.insert(from, receiver);
        }
        lines
    }

    fn measured(hosts: u32, latency: Duration, rate: impl Fn(u32) -> f64) -> (Vec<Sample>, Duration) {
        measured_on(lines(hosts, latency, rate))
    }

    fn measured_on(lines: Vec<Line>) -> (Vec<Sample>, Duration) {
        let hosts = lines.len() as u32;
        let running: Vec<_> = lines
            .into_iter()
            .enumerate()
            .map(|(host, mut line)| {
                std::thread::spawn(move || {
                    let samples = probe(&mut line, host as u32, hosts).unwrap();
                    (samples, line.here)
                })
            })
            .collect();
        let all: Vec<_> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
        let latest = all.iter().map(|(_, here)| *here).max().unwrap();
        (all.into_iter().flat_map(|(samples, _)| samples).collect(), latest)
    }

    #[test]
    fn links_are_found_as_they_are() {
        for hosts in [2, 3, 5, 8] {
            for (latency_us, rate) in [(25, 125e6), (10, 1e9), (1_000, 12.5e6), (20_000, 25e6)] {
                let latency = Duration::from_micros(latency_us);
                let (samples, _) = measured(hosts, latency, |_| rate);
                for host in 0..hosts {
                    assert!(samples.iter().any(|sample| sample.touches(host)), "host {host} of {hosts}");
                }
                for sample in samples {
                    let round_trip = 2.0 * latency.as_secs_f64();
                    assert!((sample.round_trip_seconds / round_trip - 1.0).abs() < 0.1, "{sample:?}");
                    assert!((sample.bytes_per_second / rate - 1.0).abs() < 0.1, "{sample:?} {rate}");
                    assert!(sample.is_settled, "{sample:?}");
                }
            }
        }
    }

    #[test]
    fn a_far_link_is_found_while_the_windows_of_its_connections_grow() {
        for (latency_ms, rate) in [(1, 125e6), (5, 25e6), (20, 25e6), (20, 2.5e6), (10, 125e6), (100, 12.5e6)]
        {
            let latency = Duration::from_millis(latency_ms);
            let mut lines = lines(2, latency, |_| rate);
            lines.iter_mut().for_each(|line| line.windows = Some(HashMap::new()));
            let (samples, took) = measured_on(lines);
            let found = samples[0].bytes_per_second / rate;
            assert!((0.75..1.25).contains(&found), "{latency_ms} ms, {rate}: {found}, {samples:?}");
            // Slow links take the time of the first message.
            let bound = 30 * (2 * latency) + Duration::from_secs_f64(3.0 * FIRST_BYTES as f64 / rate);
            assert!(took < bound, "{latency_ms} ms, {rate}: {took:?}");
        }
    }

    #[test]
    fn an_end_that_is_late_does_not_make_a_link_faster() {
        for late in [[0.4, 0.0], [0.0, 0.4]] {
            let mut lines = lines(2, Duration::from_millis(1), |_| 125e6);
            for (line, late) in lines.iter_mut().zip(late) {
                line.late = late;
            }
            let (samples, _) = measured_on(lines);
            let found = samples[0].bytes_per_second / 125e6;
            assert!((0.6..1.25).contains(&found), "{late:?}: {found}, {samples:?}");
        }
    }

    #[test]
    fn the_slower_end_of_a_link_counts() {
        let (samples, _) = measured(2, Duration::from_micros(25), |host| if host == 0 { 1e9 } else { 1e8 });
        assert!((samples[0].bytes_per_second / 1e8 - 1.0).abs() < 0.1, "{samples:?}");
    }

    #[test]
    fn a_local_network_is_measured_within_50_ms() {
        for (hosts, rate) in [(2, 12.5e6), (8, 125e6), (64, 1.25e9)] {
            let (_, took) = measured(hosts, Duration::from_micros(25), |_| rate);
            assert!(took < Duration::from_millis(50), "{hosts} hosts, {rate}: {took:?}");
        }
    }

    #[test]
    fn one_host_measures_nothing() {
        assert_eq!(measured(1, Duration::ZERO, |_| 1.0).0, []);
    }
}
