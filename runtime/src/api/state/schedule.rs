//! The sender and the receivers of each chunk, as pure functions that all ranks compute alike.

use crate::engine::MOST_SLOTS;

/// Most chunks of a batch.
const CHUNKS_AT_ONCE: usize = 64;

/// Most messages of a rank in a batch: half of those that may be outstanding, so that the program may have its own.
const MESSAGES_AT_ONCE: usize = MOST_SLOTS / 2;

/// Transfer of a chunk from a rank that has it to one that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) chunk: usize,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Chooses the sender of each chunk that each of `needers` needs (by `needs`, needer by needer). Holders on the
/// needer's host come first, if there are any. Chunks are dealt out to all holders that are equally near, and each
/// further attempt asks another one. Ordered by chunk.
pub(super) fn deliveries(
    holders: &[u32],
    needers: &[u32],
    hosts: &[u32],
    needs: &[u8],
    attempt: usize,
) -> Vec<Delivery> {
    let chunks = needs.len() / needers.len().max(1);
    let mut all = Vec::new();
    for (place, to) in needers.iter().enumerate() {
        let is_near = |holder: &&u32| hosts[**holder as usize] == hosts[*to as usize];
        let (near, far): (Vec<u32>, Vec<u32>) = holders.iter().partition(is_near);
        let needed = (0..chunks).filter(|chunk| needs[place * chunks + chunk] != 0);
        all.extend(needed.map(|chunk| Delivery {
            chunk,
            from: server(&near, &far, chunk + place, attempt),
            to: *to,
        }));
    }
    all.sort_by_key(|delivery| delivery.chunk);
    all
}

/// Cuts deliveries, which are ordered by chunk, into batches. A single rank may have to send every chunk to all
/// needers.
pub(super) fn batches(all: &[Delivery], needers: usize) -> impl Iterator<Item = &[Delivery]> {
    let chunks = (MESSAGES_AT_ONCE / needers.max(1)).clamp(1, CHUNKS_AT_ONCE);
    all.chunk_by(move |one, next| one.chunk / chunks == next.chunk / chunks)
}

fn server(near: &[u32], far: &[u32], number: usize, attempt: usize) -> u32 {
    let attempt = attempt % (near.len() + far.len());
    match attempt.checked_sub(near.len()) {
        None => near[(number + attempt) % near.len()],
        Some(attempt) => far[(number + attempt) % far.len()],
    }
}

/// Returns the rank that hashes a chunk: not its first sender, if several ranks have the state, so that these check
/// each other.
pub(super) fn hasher(holders: &[u32], chunk: usize) -> u32 {
    holders[(chunk + 1) % holders.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::MAX_WORLD_SIZE;

    #[test]
    fn chunks_come_from_all_that_are_near_and_each_attempt_asks_another() {
        let hosts = [0, 0, 1, 1, 1];
        let from = |attempt| -> Vec<u32> {
            let needs = [1; 6];
            deliveries(&[0, 1, 2, 3], &[4], &hosts, &needs, attempt).iter().map(|d| d.from).collect()
        };
        assert_eq!(from(0), [2, 3, 2, 3, 2, 3], "those on its host share the work");
        assert_eq!(from(1), [3, 2, 3, 2, 3, 2]);
        assert!(from(2).iter().chain(&from(3)).all(|from| [0, 1].contains(from)), "then the others");
        assert!((0..6).all(|chunk| {
            (0..4).map(|a| from(a)[chunk]).collect::<std::collections::BTreeSet<_>>().len() == 4
        }));
        assert_eq!(from(4), from(0));
    }

    #[test]
    fn no_batch_has_more_messages_than_may_be_outstanding() {
        let hosts = [0; MAX_WORLD_SIZE as usize];
        for (ranks, most) in [(2, 64), (1000, 32), (MAX_WORLD_SIZE, 7)] {
            let needers: Vec<u32> = (1..ranks).collect();
            let all = deliveries(&[0], &needers, &hosts, &vec![1; needers.len() * 64], 0);
            let batches: Vec<_> = batches(&all, needers.len()).collect();
            assert_eq!(batches[0].len(), needers.len() * most, "as many as there is room for");
            assert!(batches.iter().all(|batch| batch.len() <= MOST_SLOTS / 2), "{ranks} ranks");
            assert_eq!(batches.concat(), all);
        }
    }

    #[test]
    fn only_what_is_needed_is_sent() {
        let hosts = [0, 1, 2];
        // Ranks 1 and 2 need some of three chunks.
        let sent = deliveries(&[0], &[1, 2], &hosts, &[0, 1, 0, 1, 1, 0], 0);
        let sent: Vec<_> = sent.iter().map(|d| (d.chunk, d.from, d.to)).collect();
        assert_eq!(sent, [(0, 0, 2), (1, 0, 1), (1, 0, 2)]);
        assert!(deliveries(&[0], &[1], &hosts, &[0, 0], 0).is_empty());
    }
}
