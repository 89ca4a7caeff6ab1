//! Copies into memory that others read, through the caches or past them.
//!
//! An ordinary store takes the line away from the caches of the ranks that have read it. That is cheap where
//! processors share a cache. Where they do not (other chiplets, other sockets), it takes 35 ns a line, fifteen times
//! as long as a streaming store. Readers find streamed bytes in memory. Two processes ran on two processors; each
//! copied into shared memory and out of the other's. Times in us, with the copy in as a part of them:
//!
//! | bytes | near, ordinary | near, streaming | far, ordinary | far, streaming |
//! | ---: | ---: | ---: | ---: | ---: |
//! | 16 KiB | 3.3 (2.2 in) | 3.3 (0.5 in) | 11 (8.6 in) | 2.9 (0.3 in) |
//! | 64 KiB | 13 (9.5 in) | 10 (2.4 in) | 43 (36 in) | 8.9 (2.0 in) |
//! | 256 KiB | 28 (15 in) | 37 (10 in) | 160 (136 in) | 31 (9.3 in) |
//! | 1 MiB | 75 (24 in) | 140 (42 in) | 610 (500 in) | 120 (38 in) |
//!
//! A rank therefore times some of its own copies each way, adds to the streaming ones the extra cost for the reader
//! ([`READER_NS`] and [`READER_NS_PER_BYTE`]: memory instead of a shared cache), and takes the cheaper way. It
//! measures again now and then, because processes move, and so do the processors of virtual machines.

use std::fmt;
use std::ptr;
use std::str::FromStr;
use std::time::Instant;

use super::copy::copy_streaming;

/// Shortest copy that may use streaming stores, in bytes. A shorter one is complete before streaming stores would
/// have reached memory.
const STREAMING_MIN: usize = 1 << 10;

/// Number of length classes that are judged separately: powers of two from [`STREAMING_MIN`] on.
const CLASSES: usize = 11;

/// Cost for the reader of finding the first line in memory.
const READER_NS: f32 = 300.0;

/// Cost for the reader of each further byte.
const READER_NS_PER_BYTE: f32 = 0.06;

/// Streaming stores are adopted where ordinary ones cost more than this many times as much, and given up where
/// ordinary ones cost less.
const WORTH: f32 = 1.25;

/// One copy in this many is timed.
const TIMED: u32 = 16;

/// After the first few copies, one copy in this many is made the other way.
const TRIED: u32 = 512;

/// Kind of stores with which a rank copies into memory that others read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// The faster kind, as its own copies show.
    #[default]
    Auto,
    /// Through the caches.
    Ordinary,
    /// Streaming stores past the caches, from 1 KiB on.
    Streaming,
}

impl fmt::Display for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ordinary => "ordinary",
            Self::Streaming => "streaming",
        })
    }
}

impl FromStr for Stores {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Self::Auto),
            "ordinary" => Ok(Self::Ordinary),
            "streaming" => Ok(Self::Streaming),
            _ => Err("auto, ordinary or streaming"),
        }
    }
}

/// Makes one rank's copies into memory that others read.
#[derive(Debug)]
pub struct Copier {
    stores: Stores,
    classes: [Class; CLASSES],
}

impl Copier {
    /// Returns a copier that uses these stores.
    #[must_use]
    pub const fn new(stores: Stores) -> Self {
        // Other architectures have no streaming stores here.
        let stores = if cfg!(target_arch = "x86_64") { stores } else { Stores::Ordinary };
        Self { stores, classes: [Class::NEW; CLASSES] }
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// As [`std::ptr::copy_nonoverlapping`].
    #[inline]
    pub unsafe fn copy(&mut self, from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise. Test: `copies_whatever_it_is_told`.
        unsafe {
            if len < STREAMING_MIN || self.stores == Stores::Ordinary {
                ptr::copy_nonoverlapping(from, to, len);
            } else if self.stores == Stores::Streaming {
                copy_streaming(from, to, len);
            } else {
                self.choose(from, to, len);
            }
        }
    }

    /// # Safety
    /// As [`Self::copy`].
    unsafe fn choose(&mut self, from: *const u8, to: *mut u8, len: usize) {
        let class = (len / STREAMING_MIN).ilog2() as usize;
        let class = &mut self.classes[class.min(CLASSES - 1)];
        let (way, is_timed) = class.next();
        let start = is_timed.then(Instant::now);
        // SAFETY: the caller's promise.
        unsafe {
            match way {
                Way::Ordinary => ptr::copy_nonoverlapping(from, to, len),
                Way::Streaming => copy_streaming(from, to, len),
            }
        }
        if let Some(start) = start {
            class.took(way, start.elapsed().as_nanos() as f32, len as f32);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ordinary,
    Streaming,
}

/// Measurements of copies of about the same length.
#[derive(Debug)]
struct Class {
    way: Way,
    turn: u32,
    /// The last two times of each way, in ns per byte. If the processor was taken away during one copy, the other
    /// time is right.
    took: [[f32; 2]; 2],
}

impl Class {
    const NEW: Self = Self { way: Way::Ordinary, turn: 0, took: [[f32::INFINITY; 2]; 2] };

    /// Returns the method of the next copy, and whether to time it.
    fn next(&mut self) -> (Way, bool) {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let tried = if turn < 4 * TIMED { TIMED } else { TRIED };
        match (turn % tried, turn % TIMED) {
            (1, _) => (self.way.other(), true),
            (_, at) => (self.way, at == 0),
        }
    }

    /// Records the duration of a copy and chooses the way for later copies.
    fn took(&mut self, way: Way, ns: f32, bytes: f32) {
        let times = &mut self.took[way as usize];
        *times = [times[1], ns / bytes];
        let [ordinary, streaming] = self.took.map(|[a, b]| a.min(b));
        let streaming = streaming + READER_NS / bytes + READER_NS_PER_BYTE;
        self.way = match self.way {
            Way::Ordinary if ordinary > WORTH * streaming => Way::Streaming,
            Way::Streaming if ordinary < streaming => Way::Ordinary,
            way => way,
        };
    }
}

impl Way {
    const fn other(self) -> Self {
        match self {
            Self::Ordinary => Self::Streaming,
            Self::Streaming => Self::Ordinary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes copies of 64 KiB that take the given number of us each way; returns how many of them were streamed.
    fn make(class: &mut Class, copies: u32, took: [f32; 2]) -> u32 {
        (0..copies)
            .map(|_| {
                let (way, is_timed) = class.next();
                if is_timed {
                    class.took(way, took[way as usize] * 1e3, 65536.0);
                }
                u32::from(way == Way::Streaming)
            })
            .sum()
    }

    const NEAR: [f32; 2] = [4.0, 2.0];
    const FAR: [f32; 2] = [36.0, 2.0];

    #[test]
    fn near_processors_store_as_ever() {
        let mut class = Class::NEW;
        assert_eq!(make(&mut class, 64, NEAR), 4, "tries");
        assert_eq!(make(&mut class, 10 * TRIED, NEAR), 10, "tries");
    }

    #[test]
    fn far_processors_stream_from_the_second_copy_on() {
        let mut class = Class::NEW;
        let streamed = make(&mut class, 64, FAR);
        assert!(streamed >= 59, "{streamed} of 64");
        assert_eq!(make(&mut class, 10 * TRIED, FAR), 10 * TRIED - 10, "but for tries");
    }

    #[test]
    fn moving_processors_are_noticed() {
        let mut class = Class::NEW;
        make(&mut class, 1000, NEAR);
        let streamed = make(&mut class, 1000, FAR);
        assert!(streamed > 1000 - 3 * TIMED, "{streamed} of 1000");
        let streamed = make(&mut class, 3 * TRIED, NEAR);
        assert!(streamed < 2 * TRIED, "{streamed} of {}", 3 * TRIED);
    }

    #[test]
    fn one_copy_that_took_long_is_forgiven() {
        let mut class = Class::NEW;
        make(&mut class, 100, NEAR);
        class.took(Way::Ordinary, 1e6, 65536.0);
        assert_eq!(class.way, Way::Ordinary);
        let mut class = Class::NEW;
        make(&mut class, 100, FAR);
        class.took(Way::Streaming, 1e6, 65536.0);
        assert_eq!(class.way, Way::Streaming);
    }

    #[test]
    fn copies_whatever_it_is_told() {
        let source: Vec<u8> = (0..3 << 20).map(|i: u32| (i * 7 + (i >> 9)) as u8).collect();
        for stores in [Stores::Auto, Stores::Ordinary, Stores::Streaming] {
            let mut copier = Copier::new(stores);
            for len in (0..40).map(|i| i * 97).chain([5000, 65_536, 65_537, 2_000_000]) {
                for from in [0, 3] {
                    let mut target = vec![0xaau8; len + 2];
                    // SAFETY: both ranges are inside their vectors.
                    unsafe { copier.copy(source[from..].as_ptr(), target[1..].as_mut_ptr(), len) };
                    assert_eq!(target[1..=len], source[from..from + len], "{stores:?}");
                    assert_eq!((target[0], target[len + 1]), (0xaa, 0xaa), "{stores:?}: {len}");
                }
            }
        }
    }
}
