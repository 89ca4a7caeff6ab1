//! Texts for lists of ranks in messages.

/// Formats ranks in short: "3, 5-7" for [3, 5, 6, 7]. Long lists are cut, and the text says how many ranks are left
/// out.
pub(crate) fn compact(ranks: &[u32]) -> String {
    const MOST_RANGES: usize = 32;
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    let left_out: u64 = ranges.iter().skip(MOST_RANGES).map(|(a, b)| u64::from(b - a) + 1).sum();
    let mut parts: Vec<String> = ranges
        .iter()
        .take(MOST_RANGES)
        .map(|&(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    if left_out > 0 {
        parts.push(format!("and {left_out} more"));
    }
    parts.join(", ")
}

/// Formats ranks with their noun: "rank 3" or "ranks 3, 5-7".
pub(crate) fn named(ranks: &[u32]) -> String {
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}", compact(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compact() {
        assert_eq!(compact(&[]), "");
        assert_eq!(compact(&[3, 5, 6, 7]), "3, 5-7");
        assert_eq!(compact(&[0, 1, 4]), "0, 1, 4");
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[3, 4, 5]), "ranks 3-5");
        let odd: Vec<u32> = (0..100).map(|i| 2 * i).collect();
        assert!(compact(&odd).ends_with("62, and 68 more"));
    }
}
