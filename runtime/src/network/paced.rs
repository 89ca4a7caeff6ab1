//! Description of the pacing of long messages to several hosts at the same time.

use kolo_transport::Paced;

/// Describes how often this rank has paced, and the last limit of a connection.
pub(crate) fn in_words(paced: &Paced) -> String {
    match &paced.problem {
        Some(problem) => format!("long messages to several hosts are not paced: {problem}"),
        None => format!(
            "connections with long messages to several hosts paced {} times, lately at {:.1} MB/s each",
            paced.times,
            paced.bytes_per_second / 1e6
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_and_refusals_are_said() {
        let mut paced = Paced::default();
        (paced.times, paced.bytes_per_second) = (21, 15.94e6);
        let words = in_words(&paced);
        assert_eq!(
            words,
            "connections with long messages to several hosts paced 21 times, lately at 15.9 MB/s each"
        );
        paced.problem = Some("not permitted".to_owned());
        assert_eq!(in_words(&paced), "long messages to several hosts are not paced: not permitted");
    }
}
