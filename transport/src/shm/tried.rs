//! Judges which messages go by rendezvous where neither length nor pages tell: each lane goes by the time that its own
//! messages take.
//!
//! The kernel copies once where the ring takes two copies. The time that it needs to look up pages depends on the
//! processor. The time of its copy depends on the program: a buffer that stays the same from message to message is soon
//! in the receiver's caches, and one that was just written is in the sender's. A request also waits until the receiver
//! looks for the message, which the ring does not. A lane therefore sends some messages each way, and takes the way that
//! has cost less.

use std::time::Instant;

/// Lengths that are judged together: from one power of two to the next, with this one as the first.
const FIRST_CLASS: usize = 16 << 10;
const CLASSES: usize = 11;

/// Number of messages between trials, at first and later.
const ROUNDS: [u32; 2] = [32, 256];

/// Number of messages with the first interval.
const EARLY: u32 = 128;

/// Number of messages between trials where requests took [`HOPELESS`] times as long as the ring.
const SELDOM: u32 = 2048;
const HOPELESS: f32 = 4.0;

/// One message in this many is timed, besides the trials.
const TIMED: u32 = 8;

/// The ways that a message can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ring,
    Rendezvous,
}

/// A message on its way whose time counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    way: Way,
    len: usize,
    /// `None` for a message whose request was declined, which gains nothing however soon its answer comes.
    begun: Option<Instant>,
}

impl Trial {
    /// Returns the trial of a message whose receiver has declined the request.
    pub(crate) fn declined(self) -> Self {
        Self { begun: None, ..self }
    }

    /// Returns the cost in seconds per byte of a message of which the receiver has not taken `unread` bytes out of the
    /// ring yet. These count half: the receiver takes as long for them as the sender did, but the sender has its memory
    /// back.
    fn took(&self, unread: usize) -> f32 {
        let bytes = (self.len + unread.min(self.len) / 2) as f32;
        let len = self.len as f32;
        self.begun.map_or(f32::INFINITY, |begun| begun.elapsed().as_secs_f32() * bytes / (len * len))
    }
}

/// The way of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) by_rendezvous: bool,
    /// Set if the message's time counts.
    pub(crate) trial: Option<Trial>,
}

impl Route {
    pub(crate) const RING: Self = Self { by_rendezvous: false, trial: None };
    pub(crate) const RENDEZVOUS: Self = Self { by_rendezvous: true, trial: None };
}

/// One lane's verdicts by length.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    classes: [Class; CLASSES],
}

impl Tried {
    /// Returns the route of the next message.
    pub(crate) fn route(&mut self, len: usize) -> Route {
        let (way, is_timed) = self.class(len).next();
        let trial = is_timed.then(|| Trial { way, len, begun: Some(Instant::now()) });
        Route { by_rendezvous: way == Way::Rendezvous, trial }
    }

    /// Notes that a message has left; the receiver has not taken `unread` bytes out of the ring yet.
    pub(crate) fn over(&mut self, trial: Trial, unread: usize) {
        self.class(trial.len).took(trial.way, trial.took(unread));
    }

    fn class(&mut self, len: usize) -> &mut Class {
        let class = (len / FIRST_CLASS).max(1).ilog2() as usize;
        &mut self.classes[class.min(CLASSES - 1)]
    }
}

/// Messages of about the same length.
#[derive(Debug)]
struct Class {
    /// Number of messages until the next round of trials, and of messages so far.
    left: u32,
    sent: u32,
    way: Way,
    /// The last three times of each way, per byte. The shortest one counts, in case other messages were disturbed.
    took: [[f32; 3]; 2],
}

impl Default for Class {
    fn default() -> Self {
        Self { left: ROUNDS[0], sent: 0, way: Way::Ring, took: [[f32::INFINITY; 3]; 2] }
    }
}

impl Class {
    fn next(&mut self) -> (Way, bool) {
        (self.left, self.sent) = (self.left - 1, self.sent.saturating_add(1));
        match self.left {
            0 => {
                let often = ROUNDS[usize::from(self.sent >= EARLY)];
                self.left = if self.is_hopeless() { SELDOM } else { often };
                (self.way, false)
            }
            // Three each way, of which the quickest one counts.
            1..=3 => (Way::Rendezvous, true),
            4..=6 => (Way::Ring, true),
            left => (self.way, left.is_multiple_of(TIMED)),
        }
    }

    fn took(&mut self, way: Way, seconds: f32) {
        let times = &mut self.took[way as usize];
        *times = [times[1], times[2], seconds];
        let [ring, rendezvous] = self.best();
        self.way = if rendezvous < ring { Way::Rendezvous } else { Way::Ring };
    }

    fn best(&self) -> [f32; 2] {
        self.took.map(|[a, b, c]| a.min(b).min(c))
    }

    fn is_hopeless(&self) -> bool {
        let [ring, rendezvous] = self.best();
        rendezvous > HOPELESS * ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages that take these times each way. Returns how many of the last half went by rendezvous.
    fn send(class: &mut Class, messages: usize, ring: f32, rendezvous: f32) -> usize {
        let mut count = 0;
        for at in 0..messages {
            let (way, is_timed) = class.next();
            count += usize::from(way == Way::Rendezvous && at >= messages / 2);
            if is_timed {
                class.took(way, if way == Way::Ring { ring } else { rendezvous });
            }
        }
        count
    }

    #[test]
    fn messages_take_the_quicker_way() {
        let mut class = Class::default();
        assert!(send(&mut class, 1000, 1.0, 0.5) > 480);
        assert!(send(&mut class, 2000, 1.0, 50.0) < 30, "the receiver comes late from now on");
        assert!(send(&mut class, 20_000, 1.0, 50.0) < 20, "hopeless, and seldom tried");
        assert!(send(&mut class, 40_000, 1.0, 0.5) > 19_000);
        assert!(send(&mut class, 2000, 1.0, f32::INFINITY) < 30, "declined");
    }

    #[test]
    fn one_message_that_took_long_is_forgiven() {
        let mut class = Class::default();
        send(&mut class, 1000, 1.0, 0.5);
        class.took(Way::Rendezvous, 100.0);
        assert_eq!(class.way, Way::Rendezvous);
    }

    #[test]
    fn bytes_that_wait_in_the_ring_count_more() {
        let begun = Instant::now().checked_sub(std::time::Duration::from_millis(10));
        let trial = Trial { way: Way::Ring, len: 100_000, begun };
        let (none, all) = (trial.took(0), trial.took(200_000));
        assert!(all > 1.4 * none && none >= 1e-7, "{none} {all}");
        assert_eq!(trial.declined().took(0), f32::INFINITY);
    }
}
