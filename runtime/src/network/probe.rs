//! Measurements between leaders: the code that the probe, `kolo tune` and `kolo doctor` share.

use std::time::Duration;

use super::Sample;

/// Messages between two leaders. All calls block.
pub trait Wire {
    /// Error of a transfer.
    type Error;
    /// Sends bytes to the leader of a host.
    ///
    /// # Errors
    /// Errors of the wire, for this method and those below.
    fn send(&mut self, host: u32, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Receives exactly as many bytes as `bytes` holds from the leader of a host.
    fn recv(&mut self, host: u32, bytes: &mut [u8]) -> Result<(), Self::Error>;
    /// Sends bytes to the leader of a host and receives as many, at the same time.
    fn exchange(&mut self, host: u32, out: &[u8], inward: &mut [u8]) -> Result<(), Self::Error>;
    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;
    /// Whether long messages to the host use several of the local network interfaces at once.
    fn has_rails(&self, host: u32) -> bool {
        let _ = host;
        false
    }
}

/// Most round trips of empty messages. The shortest counts, since others may have waited for a CPU.
const ROUND_TRIPS: u32 = 8;

/// Least number of round trips. Each may have lost a packet, which is sent again after up to 200 ms.
const LEAST_ROUND_TRIPS: u32 = 3;

/// Time after which no further round trips are made. On a long path, each is like the other. On a near path whose ends
/// share processors with other programs, several round trips in a row may take some milliseconds each.
const ROUND_TRIPS_TIME: Duration = Duration::from_millis(25);

/// Length of the first message whose rate is measured.
const FIRST_BYTES: usize = 64 << 10;

/// Length of the first message where long messages use several interfaces. A shorter one would use only one of them, and
/// tell nothing about the rest.
const FIRST_BYTES_ON_RAILS: usize = 512 << 10;

/// Length that late messages do not fall below. Shorter messages would tell only the round trip.
const LEAST_BYTES: usize = 8 << 10;

/// Most messages that are late: on a slow link, the second one settles the rate.
const LATE_ONES: u32 = 4;

/// Number of long messages. The best rate counts, since other messages may have waited for a CPU.
const LONG_ONES: u32 = 3;

/// Most round trips spent on measuring a rate.
const PATIENCE_IN_ROUND_TRIPS: u32 = 10;

/// Most round trips spent on measuring the rate of a far path, where a connection's window grows only with the round
/// trips.
const FAR_PATIENCE_IN_ROUND_TRIPS: u32 = 25;

/// Round trip from which a pair of hosts counts as far. There, the rate of a short message shows only how the
/// connection's window grows. Messages to a far host are sent in halves, of which the second finds the window that the
/// first has opened.
const FAR: Duration = Duration::from_millis(2);

/// Factor by which each message of a far pair is longer than the one before.
const FAR_STEP: usize = 4;

/// Factor of speed over the previous message that shows that the window has grown. It may then grow further.
const FAR_GROWS: f64 = 1.25;

/// Least number of messages to a far host, unless they take too long. The window does not grow with each message.
const FAR_MESSAGES: u32 = 4;

/// Most round trips that a message to a far host should take, by the rate known so far.
const FAR_LENGTH: u32 = 8;

/// Round trips spent on a far host before the last message.
const FAR_PATIENCE: u32 = 12;

/// Number of messages in halves for which a partner remembers the time of the second half. A pair exchanges fewer,
/// since each takes a round trip.
const FAR_REMEMBERED: usize = 32;

/// Limits on the effort of measuring the rate of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Length of the longest message.
    pub last_bytes: usize,
    /// Round trips that a message must take to fill the path. Longer messages would tell nothing new.
    pub long_in_round_trips: u32,
    /// Time of a message, if it is also some round trips, after which no longer message is sent.
    pub long: Duration,
    /// Time of a message, if it is also some round trips, after which the message is late: the link is slow, or lost
    /// packets were sent again after a while. No longer message is sent.
    pub longest: Duration,
    /// Total time after which no further message is sent.
    pub total: Duration,
}

impl Effort {
    /// Effort while a communicator is made: a local network is measured within 50 ms.
    pub const QUICK: Self = Self {
        last_bytes: 4 << 20,
        long_in_round_trips: 8,
        long: Duration::from_millis(3),
        longest: Duration::from_millis(12),
        total: Duration::from_millis(12),
    };

    /// Effort for an explicit request: some 0.2 s per path, which is more than queues and token buckets hold at most
    /// rates.
    pub const THOROUGH: Self = Self {
        last_bytes: 32 << 20,
        long_in_round_trips: 1000,
        long: Duration::from_millis(50),
        longest: Duration::from_millis(200),
        total: Duration::from_millis(500),
    };
}

/// Direction of long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the partner.
    Out,
    /// To the partner, while as many bytes come back.
    Both,
}

/// Result of measuring with empty messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    /// Time there and back, including the CPUs' time.
    pub time: Duration,
    /// How far the partner's [`Wire::now`] is ahead of this one's, in seconds, with an error of at most half of `time`.
    pub ahead_seconds: f64,
}

/// Values of the first word of a message, which tell its receiver what to do.
const ECHO: u64 = 0;
const EXCHANGE: u64 = 1;
const END: u64 = 2;
const TAKE: u64 = 3;
const HALVES: u64 = 4;
const TELL: u64 = 5;

const HEADER: usize = 16;

/// Measures between this leader, on host `host` of `hosts`, and its [partners]. The lower one of each pair measures. Returns
/// this leader's measurements. All leaders must call it; it blocks until all partners are done.
///
/// # Errors
/// Errors of the wire.
pub(crate) fn probe<W: Wire>(wire: &mut W, host: u32, hosts: u32) -> Result<Vec<Sample>, W::Error> {
    let mut samples = Vec::new();
    let mut buffers = Buffers::new(&Effort::QUICK);
    for partner in partners(host, hosts) {
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
                bytes_per_second: rate.best.rate,
                is_settled: rate.is_settled(),
            });
        } else {
            serve(wire, partner, &mut buffers)?;
        }
    }
    Ok(samples)
}

/// Returns the hosts that a host meets, in the order in which it does: those at distances 1, 2, 4 ..., whose numbers differ
/// from its own in exactly one bit. Of 3, 5, 9 ... hosts, the last one would meet only host 0, whose rate may be the lower
/// of the two. Therefore it meets its neighbor too, in one more round.
pub(super) fn partners(host: u32, hosts: u32) -> impl Iterator<Item = u32> {
    let bits = (0..32).map(|bit| 1_u32 << bit).take_while(move |bit| *bit < hosts);
    let last = hosts.saturating_sub(1);
    let is_lonely = hosts > 2 && last.is_power_of_two();
    let neighbor = match last.saturating_sub(host) {
        0 => Some(last.saturating_sub(1)),
        1 => Some(last),
        _ => None,
    };
    let of_bits = bits.map(move |bit| host ^ bit).filter(move |partner| *partner < hosts);
    of_bits.chain(neighbor.filter(|_| is_lonely))
}

/// Memory that long messages are sent from and received into.
#[derive(Debug)]
pub struct Buffers {
    out: Vec<u8>,
    inward: Vec<u8>,
}

impl Buffers {
    /// Makes buffers for messages of this effort.
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

/// Measures the round trip of an empty message to a partner, which must [serve](serve).
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
    // The first echo makes the connection and waits for the partner.
    echo(wire)?;
    let begun = wire.now();
    let mut least = echo(wire)?;
    for made in 1..ROUND_TRIPS {
        if made >= LEAST_ROUND_TRIPS && wire.now() - begun > ROUND_TRIPS_TIME {
            break;
        }
        let next = echo(wire)?;
        if next.time < least.time {
            least = next;
        }
    }
    Ok(least)
}

/// Measures the rate of long messages to a partner, which must [serve](serve). Returns bytes per second, in each
/// direction used.
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
    measure(wire, partner, way, round_trip, effort, buffers).map(|rate| rate.best.rate)
}

/// A long message whose rate was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    len: usize,
    /// Bytes per second.
    rate: f64,
    /// Whether it took so long that lost packets may have been sent again meanwhile.
    is_late: bool,
}

/// The two long messages with the best rates.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    best: Timed,
    second: Timed,
}

impl Rate {
    fn note(&mut self, message: Timed) {
        if message.rate > self.best.rate {
            (self.best, self.second) = (message, self.best);
        } else if message.rate > self.second.rate {
            self.second = message;
        }
    }

    /// Whether two messages had about the same rate. If not, the connection's window may still have been growing, or a
    /// message was delayed. Two late messages of one length prove nothing, because the kernel sends all lost packets
    /// again after the same time.
    fn is_settled(&self) -> bool {
        const SAME: f64 = 0.75;
        let (best, second) = (&self.best, &self.second);
        let is_shown = !best.is_late || !second.is_late || best.len != second.len;
        is_shown && second.rate >= SAME * best.rate
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
    let (first, least) = match wire.has_rails(partner) {
        true => (FIRST_BYTES_ON_RAILS, FIRST_BYTES_ON_RAILS),
        false => (FIRST_BYTES, LEAST_BYTES),
    };
    let (mut len, mut rate, mut long) = (first.min(most), Rate::default(), 0);
    let (mut spent, mut late) = (Duration::ZERO, 0);
    let (step, patience) = if round_trip >= FAR {
        (FAR_STEP, FAR_PATIENCE_IN_ROUND_TRIPS)
    } else {
        (2, PATIENCE_IN_ROUND_TRIPS)
    };
    let mut is_over = false;
    while long < LONG_ONES {
        let sent = wire.now();
        match way {
            Way::Out => push(wire, partner, len, buffers)?,
            Way::Both => {
                wire.send(partner, &order(EXCHANGE, len as u64))?;
                wire.exchange(partner, &buffers.out[..len], &mut buffers.inward[..len])?;
                // The kernel may have taken bytes that have not left. The partner answers when it has them all. The answer
                // arrives right behind the partner's own bytes if both directions have one rate, and costs no time then.
                wire.recv(partner, &mut [0; HEADER])?;
            }
        }
        let took = wire.now() - sent;
        // A short message spends most of its time on the path, so the difference would mean nothing.
        let way = if took > 2 * round_trip { round_trip } else { Duration::ZERO };
        let is_late = took > effort.longest.max(4 * round_trip);
        rate.note(Timed { len, rate: len as f64 / (took - way).as_secs_f64().max(1e-7), is_late });
        if is_late {
            late += 1;
            if late == LATE_ONES || rate.is_settled() {
                break;
            }
            // Another length distinguishes a slow link, which takes the same time for each byte.
            len = other_length(len, least, most);
            continue;
        }
        spent += took;
        let is_long = took > (effort.long_in_round_trips * round_trip).min(effort.long.max(3 * round_trip));
        if spent > (patience * round_trip).max(effort.total) {
            // One more message shows whether this one was delayed.
            if is_over || rate.is_settled() {
                break;
            }
            is_over = true;
            continue;
        }
        long += u32::from(is_long || len == most);
        if !is_long && len < most {
            len = (step * len).min(most);
        }
    }
    Ok(rate)
}

/// Returns the length of the message after a late one: half if that is not too short, or else twice as much.
fn other_length(len: usize, least: usize, most: usize) -> usize {
    if len / 2 >= least { len / 2 } else { (2 * len).min(most) }
}

/// Times of a message that was sent in halves.
#[derive(Clone, Copy, Debug)]
struct Halves {
    len: usize,
    /// Time of the whole message, without the round trip.
    whole: Duration,
    /// Time of the second half at this end.
    moving: Duration,
}

impl Halves {
    fn is_late(&self, round_trip: Duration) -> bool {
        self.whole > (FAR_LENGTH - 1) * round_trip
    }

    /// Returns the rate in bytes per second. The partner starts later by the time of one way, so the second half
    /// follows the first without a pause. An end that reads the first half late finds the second half already in its
    /// kernel, and sees a rate that no link has. Therefore the slower of the two ends counts, and a time that is short
    /// compared with the round trip is ignored.
    fn rate(&self, round_trip: Duration, theirs: Duration) -> f64 {
        let whole = self.len as f64 / self.whole.as_secs_f64();
        let moving = self.moving.max(theirs);
        match moving >= round_trip / 4 {
            true => whole.max((self.len - self.len / 2) as f64 / moving.as_secs_f64()),
            false => whole,
        }
    }
}

/// Measures as [`measure`] does, in both directions at once, between hosts that are far from each other.
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
        // This only decides the next length. The partner's times come at the end, since they take a round trip.
        let this = message.rate(round_trip, Duration::ZERO);
        messages.push(message);
        if is_last || messages.len() as u32 >= FAR_MESSAGES && this < FAR_GROWS * last {
            break;
        }
        last = this;
        // One more message distinguishes a slow link from a message that was delayed.
        let is_late = here - begun > FAR_PATIENCE * round_trip || message.is_late(round_trip);
        is_last = is_late || len == most;
        if message.is_late(round_trip) {
            len = other_length(len, LEAST_BYTES, most);
        } else if !is_late {
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
        rate.note(Timed {
            len: message.len,
            rate: message.rate(round_trip, Duration::from_nanos(nanos)),
            is_late: message.is_late(round_trip),
        });
    }
    Ok(rate)
}

/// Exchanges a message in halves. Returns the time at which the first half had arrived.
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

/// Sends `len` bytes (at most the length of the buffers) to a partner, which must [serve](serve), and waits until the
/// partner has them.
///
/// # Errors
/// Errors of the wire.
pub fn push<W: Wire>(wire: &mut W, partner: u32, len: usize, buffers: &mut Buffers) -> Result<(), W::Error> {
    let len = len.min(buffers.out.len());
    wire.send(partner, &order(TAKE, len as u64))?;
    wire.send(partner, &buffers.out[..len])?;
    wire.recv(partner, &mut [0; HEADER])
}

/// Tells the partner that there are no more requests.
///
/// # Errors
/// Errors of the wire.
pub fn end<W: Wire>(wire: &mut W, partner: u32) -> Result<(), W::Error> {
    wire.send(partner, &order(END, 0))
}

/// Serves a partner's requests until it is done.
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
            EXCHANGE => {
                wire.exchange(partner, &buffers.out[..len], &mut buffers.inward[..len])?;
                wire.send(partner, &header)?;
            }
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
mod tests;
