//! One direction of a cable, as a pure function of packets and times, with its own random numbers.
//!
//! A link sends one bundle of packets after the other at its rate. Bundles that wait for this are its queue, and a
//! bundle that would make the queue too long is dropped whole. After that, each packet may be lost by chance, and takes
//! the delay and a part of the jitter. Jitter keeps the order of packets; only those drawn for reordering are
//! overtaken.
//!
//! Hosts pass on bundles of packets where the devices do the segmentation. The switch turns that off if packets are
//! lost or reordered by chance, since a bundle has only one fate.

use std::time::Duration;

/// Nanoseconds on the clock of the caller.
pub type Nanos = u64;

/// Bytes that each packet takes on the wire besides the frame: preamble, checksum and gap.
const WIRE_EXTRA: u64 = 24;
/// Shortest frame, without its checksum.
const FRAME_LEAST: u64 = 60;

/// Properties of one direction of a cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Bits per second; `None` for no limit.
    pub rate: Option<u64>,
    /// Time that every packet takes.
    pub delay: Duration,
    /// Largest addition to the delay, evenly distributed.
    pub jitter: Duration,
    /// Share of the packets that are lost, independently of each other.
    pub loss: f64,
    /// Losses in bursts.
    pub burst: Option<Burst>,
    /// Share of the packets that come late, and their additional delay.
    pub reorder: Option<(f64, Duration)>,
    /// Share of the packets that arrive twice, from links to hosts.
    pub duplicate: f64,
    /// Bytes that may wait in the queue.
    pub queue_bytes: u64,
}

/// Losses in bursts, by the model of Gilbert and Elliott: in the bad state all packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Share of the packets that are lost.
    pub share: f64,
    /// Mean length of a burst in packets.
    pub packets: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: None,
            reorder: None,
            duplicate: 0.0,
            queue_bytes: u64::MAX,
        }
    }
}

impl Shape {
    /// Whether the packets of a bundle may have different fates.
    #[must_use]
    pub fn needs_single_packets(&self) -> bool {
        self.loss > 0.0 || self.burst.is_some() || self.reorder.is_some() || self.duplicate > 0.0
    }
}

/// Some packets of one connection that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// Bytes on the wire, of all packets.
    pub wire_bytes: u64,
    /// Number of packets, at least 1.
    pub packets: u64,
}

impl Bundle {
    /// Makes a bundle of one frame of this length, without its checksum.
    #[must_use]
    pub fn frame(bytes: u64) -> Self {
        Self { wire_bytes: bytes.max(FRAME_LEAST) + WIRE_EXTRA, packets: 1 }
    }

    /// Makes the bundle of frames that carry `payload` bytes, at most `most` in each, after headers of `headers` bytes.
    #[must_use]
    pub fn segmented(payload: u64, most: u64, headers: u64) -> Self {
        let packets = payload.div_ceil(most.max(1)).max(1);
        Self { wire_bytes: payload + packets * (headers + WIRE_EXTRA), packets }
    }
}

/// Times at which a bundle leaves a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Time of its first packet.
    pub first: Nanos,
    /// Time of its last packet.
    pub last: Nanos,
}

/// Fate of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves the link.
    Passes(Passage),
    /// It is lost on the way, by chance.
    Lost,
    /// The queue is full.
    Overflows,
}

/// One direction of a cable.
#[derive(Clone, Debug)]
pub struct Link {
    shape: Shape,
    /// Time at which the link has sent everything that it was given.
    free_at: Nanos,
    /// Time at which the last bundle left. No later bundle overtakes it.
    out_at: Nanos,
    in_burst: bool,
    dice: Dice,
}

impl Link {
    /// Makes a link that has carried nothing yet.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self { shape, free_at: 0, out_at: 0, in_burst: false, dice: Dice(seed) }
    }

    /// Returns the link's properties.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Changes the link's properties. Bundles that it has already accepted keep their times.
    pub fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// Takes a bundle whose first packet comes in at `into.first` and whose last packet at `into.last`. Calls must be
    /// in the order of `into.first`.
    pub fn take(&mut self, into: Passage, bundle: Bundle) -> Fate {
        if self.waiting_bytes(into.first) > self.shape.queue_bytes {
            return Fate::Overflows;
        }
        let whole = self.time_of(bundle.wire_bytes);
        let one = whole / bundle.packets;
        let begin = self.free_at.max(into.first);
        // The last packet can only be sent on after it has come in.
        let end = (begin + whole).max(into.last + one);
        self.free_at = end;
        if self.is_lost(bundle.packets) {
            return Fate::Lost;
        }
        let jitter = nanos(self.shape.jitter);
        let mut late = nanos(self.shape.delay);
        if jitter > 0 {
            late += self.dice.below(jitter + 1);
        }
        let reordered = match self.shape.reorder {
            Some((share, by)) if self.dice.hits(share) => Some(nanos(by)),
            _ => None,
        };
        let first = begin + one + late;
        Fate::Passes(match reordered {
            Some(by) => Passage { first: first + by, last: end + late + by },
            None => {
                let first = first.max(self.out_at);
                self.out_at = first;
                Passage { first, last: (end + late).max(first) }
            }
        })
    }

    /// Returns whether a packet that passes arrives twice.
    pub fn doubles(&mut self) -> bool {
        self.shape.duplicate > 0.0 && self.dice.hits(self.shape.duplicate)
    }

    /// Returns the bytes that wait at this moment.
    #[must_use]
    pub fn waiting_bytes(&self, now: Nanos) -> u64 {
        let Some(rate) = self.shape.rate else { return 0 };
        let waits = self.free_at.saturating_sub(now);
        (u128::from(waits) * u128::from(rate) / 8_000_000_000) as u64
    }

    /// Returns the moment from which at most `bytes` bytes wait.
    #[must_use]
    pub fn below(&self, bytes: u64) -> Nanos {
        self.free_at.saturating_sub(self.time_of(bytes))
    }

    fn time_of(&self, bytes: u64) -> Nanos {
        let Some(rate) = self.shape.rate else { return 0 };
        (u128::from(bytes) * 8_000_000_000 / u128::from(rate)) as Nanos
    }

    fn is_lost(&mut self, packets: u64) -> bool {
        let mut lost = false;
        for _ in 0..packets {
            lost |= self.shape.loss > 0.0 && self.dice.hits(self.shape.loss);
            if let Some(Burst { share, packets }) = self.shape.burst {
                let end = 1.0 / packets.max(1.0);
                let chance = if self.in_burst { end } else { end * share / (1.0 - share).max(1e-9) };
                self.in_burst ^= self.dice.hits(chance);
                lost |= self.in_burst;
            }
        }
        lost
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// Random numbers that repeat from their seed (SplitMix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn hits(&mut self, share: f64) -> bool {
        // The upper 53 bits give an evenly distributed number in [0, 1).
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FULL: Bundle = Bundle { wire_bytes: 1538, packets: 1 };

    fn gigabit() -> Shape {
        Shape { rate: Some(1_000_000_000), ..Shape::default() }
    }

    fn at(now: Nanos) -> Passage {
        Passage { first: now, last: now }
    }

    fn passes(fate: Fate) -> Passage {
        let Fate::Passes(passage) = fate else { panic!("{fate:?}") };
        passage
    }

    #[test]
    fn the_rate_is_kept_and_the_delay_added() {
        let mut link = Link::new(Shape { delay: Duration::from_micros(25), ..gigabit() }, 1);
        let mut last = 0;
        for _ in 0..1000 {
            last = passes(link.take(at(0), FULL)).last;
        }
        // Each packet takes 12.304 us, and the delay is added once.
        assert_eq!(last, 1000 * 12_304 + 25_000);
        assert_eq!(link.waiting_bytes(0), 1_538_000);
        assert_eq!(link.below(538_000), 8 * 1_000_000);
    }

    #[test]
    fn a_bundle_is_sent_on_packet_by_packet() {
        let bundle = Bundle::segmented(14_480, 1448, 66);
        assert_eq!(bundle, Bundle { wire_bytes: 15_380, packets: 10 });
        let (mut up, mut down) = (Link::new(gigabit(), 1), Link::new(gigabit(), 2));
        let half = passes(up.take(at(0), bundle));
        assert_eq!(half, Passage { first: 12_304, last: 123_040 });
        // The second link ends one packet later, not ten.
        assert_eq!(passes(down.take(half, bundle)).last, 123_040 + 12_304);
        let mut slow = Link::new(Shape { rate: Some(100_000_000), ..Shape::default() }, 3);
        assert_eq!(passes(slow.take(half, bundle)).last, 12_304 + 1_230_400);
    }

    #[test]
    fn a_full_queue_drops_and_drains() {
        let mut link = Link::new(Shape { queue_bytes: 10 * 1538, ..gigabit() }, 1);
        let fates: Vec<_> = (0..20).map(|_| link.take(at(0), FULL)).collect();
        assert_eq!(fates.iter().filter(|fate| **fate == Fate::Overflows).count(), 9);
        assert!(matches!(link.take(at(12_304 * 5), FULL), Fate::Passes(_)));
    }

    #[test]
    fn losses_have_their_share_and_bursts_their_length() {
        let shape = Shape { loss: 0.01, ..Shape::default() };
        let mut link = Link::new(shape, 7);
        let lost = (0..100_000).filter(|_| link.take(at(0), FULL) == Fate::Lost).count();
        assert!((900..1100).contains(&lost), "{lost} of 100000 at 1 %");
        let burst = Some(Burst { share: 0.02, packets: 8.0 });
        let mut link = Link::new(Shape { burst, ..Shape::default() }, 7);
        let fates: Vec<bool> = (0..400_000).map(|_| link.take(at(0), FULL) == Fate::Lost).collect();
        let lost = fates.iter().filter(|lost| **lost).count();
        let bursts = fates.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert!((7000..9000).contains(&lost), "{lost} of 400000 at 2 %");
        let length = lost as f64 / bursts as f64;
        assert!((7.0..9.0).contains(&length), "bursts of {length} packets");
    }

    #[test]
    fn reordered_packets_are_overtaken() {
        let reorder = Some((0.1, Duration::from_millis(1)));
        let mut link = Link::new(Shape { reorder, ..gigabit() }, 3);
        let out: Vec<_> = (0..1000).map(|_| passes(link.take(at(0), FULL)).first).collect();
        let late = out.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((50..150).contains(&late), "{late} of 1000 at 10 %");
    }

    proptest! {
        #[test]
        fn jitter_keeps_the_order(seed: u64, gaps in proptest::collection::vec(0_u64..100_000, 1..100)) {
            let jitter = Duration::from_millis(1);
            let mut link = Link::new(Shape { jitter, delay: Duration::from_micros(50), ..gigabit() }, seed);
            let (mut now, mut before) = (0, 0);
            for gap in gaps {
                now += gap;
                let out = passes(link.take(at(now), FULL));
                prop_assert!(out.first >= before && out.last >= out.first);
                prop_assert!(out.first >= now + 12_304 + 50_000);
                before = out.first;
            }
        }
    }
}
