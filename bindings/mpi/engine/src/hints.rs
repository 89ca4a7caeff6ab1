//! Hints: the standard's info keys for communicators and windows.
//!
//! Programs get back the hints that have a default, with the values they have set. Other keys, and values that mean nothing, are ignored,
//! which programs see by their absence.

use crate::info::Pairs;

/// A key that the standard defines.
pub(crate) struct Hint {
    key: &'static str,
    default: &'static str,
    is_value: fn(&str) -> bool,
}

fn is_bool(value: &str) -> bool {
    matches!(value, "true" | "false")
}

fn is_ordering(value: &str) -> bool {
    value == "none" || value.split(',').all(|one| matches!(one.trim(), "rar" | "raw" | "war" | "waw"))
}

fn is_operators(value: &str) -> bool {
    matches!(value, "same_op" | "same_op_no_op")
}

const fn promise(key: &'static str) -> Hint {
    Hint { key, default: "false", is_value: is_bool }
}

/// The hints of communicators.
pub(crate) static OF_COMMUNICATORS: [Hint; 5] = [
    promise("mpi_assert_no_any_tag"),
    promise("mpi_assert_no_any_source"),
    promise("mpi_assert_exact_length"),
    promise("mpi_assert_allow_overtaking"),
    promise("mpi_assert_strict_persistent_collective_ordering"),
];

/// The hints of windows.
pub(crate) static OF_WINDOWS: [Hint; 5] = [
    promise("no_locks"),
    Hint { key: "accumulate_ordering", default: "rar,raw,war,waw", is_value: is_ordering },
    Hint { key: "accumulate_ops", default: "same_op_no_op", is_value: is_operators },
    promise("same_size"),
    promise("same_disp_unit"),
];

/// The further hints of windows of shared memory.
pub(crate) static OF_SHARED_WINDOWS: [Hint; 1] = [promise("alloc_shared_noncontig")];

/// Returns the defaults.
pub(crate) fn defaults<'a>(known: impl IntoIterator<Item = &'a Hint>) -> Pairs {
    known.into_iter().map(|hint| (hint.key.to_owned(), hint.default.to_owned())).collect()
}

/// Sets those of the current hints that the new ones name.
pub(crate) fn merge(current: &mut Pairs, new: Pairs) {
    let all = || OF_COMMUNICATORS.iter().chain(&OF_WINDOWS).chain(&OF_SHARED_WINDOWS);
    for (key, value) in new {
        let is_value = all().find(|hint| hint.key == key).is_some_and(|hint| (hint.is_value)(&value));
        if let Some(place) = current.iter_mut().find(|(known, _)| *known == key && is_value) {
            place.1 = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_with_values_that_mean_something() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut hints = defaults(&OF_WINDOWS);
        let new = [
            pair("no_locks", "true"),
            pair("same_size", "perhaps"),
            pair("accumulate_ordering", "rar, waw"),
            pair("accumulate_ops", "any"),
            pair("mpi_assert_no_any_tag", "true"),
            pair("ours", "1"),
        ];
        merge(&mut hints, new.to_vec());
        let mut wanted = defaults(&OF_WINDOWS);
        (wanted[0].1, wanted[1].1) = ("true".to_owned(), "rar, waw".to_owned());
        assert_eq!(hints, wanted);
        merge(&mut hints, vec![pair("accumulate_ordering", "none")]);
        assert_eq!((hints[0].1.as_str(), hints[1].1.as_str()), ("true", "none"));
    }
}
