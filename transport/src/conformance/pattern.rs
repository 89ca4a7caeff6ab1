//! Byte patterns that show where each byte belongs, and reproducible random numbers.

/// Contents of a message: the byte at each offset follows from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    seed: u64,
    /// Period of the pattern in bytes, so that a short piece of memory can be sent repeatedly.
    period: usize,
}

impl Pattern {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), period: usize::MAX }
    }

    pub(super) fn with_period(self, period: usize) -> Self {
        Self { period, ..self }
    }

    /// Writes the bytes from `offset` on.
    pub(super) fn fill(&self, mut offset: usize, mut out: &mut [u8]) {
        while !out.is_empty() {
            let start = offset % self.period;
            let run = out.len().min(self.period - start).min(8 - start % 8);
            let word = self.word(start / 8);
            out[..run].copy_from_slice(&word[start % 8..][..run]);
            out = &mut out[run..];
            offset += run;
        }
    }

    /// Returns the first offset at which `bytes`, which should be those from `offset` on, differ.
    pub(super) fn difference(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let start = (offset + done) % self.period;
            let run = (bytes.len() - done).min(self.period - start).min(8 - start % 8);
            let word = self.word(start / 8);
            if bytes[done..done + run] != word[start % 8..][..run] {
                return (done..done + run)
                    .find(|&i| bytes[i] != word[start % 8 + i - done])
                    .map(|i| offset + i);
            }
            done += run;
        }
        None
    }

    fn word(&self, index: usize) -> [u8; 8] {
        let x = self.seed.wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 29)).to_le_bytes()
    }
}

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number less than `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns a length up to `max`; all magnitudes are equally likely.
    pub(super) fn length(&mut self, max: usize) -> usize {
        let bits = usize::BITS - max.leading_zeros();
        let cap = 1usize << self.below(bits as usize + 1);
        self.below(cap.min(max) + 1)
    }

    /// Returns random cuts of `len` bytes into at most `count` pieces, some of which may be empty.
    pub(super) fn cuts(&mut self, len: usize, count: usize) -> Vec<usize> {
        let mut ends: Vec<usize> = (1..count).map(|_| self.below(len + 1)).chain([len]).collect();
        ends.sort_unstable();
        let mut start = 0;
        ends.into_iter().map(|end| end - std::mem::replace(&mut start, end)).collect()
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_knows_itself_at_every_offset_and_notices_a_changed_byte() {
        for pattern in [Pattern::new(4), Pattern::new(4).with_period(100)] {
            let mut whole = vec![0; 1000];
            pattern.fill(0, &mut whole);
            for start in 0..300 {
                let mut part = whole[start..start + 200].to_vec();
                assert_eq!(pattern.difference(start, &part), None);
                part[100] ^= 1;
                assert_eq!(pattern.difference(start, &part), Some(start + 100));
            }
            assert_eq!(Pattern::new(5).difference(0, &whole), Some(0));
        }
    }

    #[test]
    fn cuts_add_up() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            let len = random.length(10_000);
            assert_eq!(random.cuts(len, 9).iter().sum::<usize>(), len);
        }
    }
}
