//! Element types and operators under the names that nccl-tests gives them.

use kolo::{DataType, ReduceOp};

use crate::error::{CliError, Result};

/// An element type with its name in the type column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedType {
    /// Name, as in `-d`.
    pub name: &'static str,
    /// The type.
    pub data_type: DataType,
}

/// An operator, as in the redop column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Greatest.
    Max,
    /// Least.
    Min,
    /// Sum divided by the number of ranks.
    Avg,
    /// Sum of the ranks' values, each multiplied by a factor of its own.
    MulSum,
}

/// Returns the types that nccl-tests knows, in the order of their numbers there, which is the order of
/// `-d all`.
pub(crate) fn all_types() -> Vec<NamedType> {
    let mut known: Vec<_> = DataType::ALL
        .into_iter()
        .filter_map(|data_type| {
            data_type.in_nccl().map(|(number, name)| (number, NamedType { name, data_type }))
        })
        .collect();
    known.sort_by_key(|(number, _)| *number);
    known.into_iter().map(|(_, named)| named).collect()
}

/// The default type.
pub(crate) const FLOAT: NamedType = NamedType { name: "float", data_type: DataType::F32 };

impl NamedOp {
    /// All operators, in the order of `-o all`.
    pub(crate) const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// Returns the name, as in `-o`.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }

    /// Returns the operator that `rank` passes. The factor of `mulsum` is 1 on even and 2 on odd ranks.
    #[must_use]
    pub(crate) fn on_rank(self, rank: u32) -> ReduceOp {
        match self {
            Self::Sum => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Max => ReduceOp::Max,
            Self::Min => ReduceOp::Min,
            Self::Avg => ReduceOp::Avg,
            Self::MulSum => ReduceOp::PremulSum(f64::from(1 + rank % 2)),
        }
    }
}

/// How to treat an unknown name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It is an error.
    Refused,
    /// As nccl-tests does: its default is used and its message printed, for scripts that call its programs.
    Defaults,
}

/// Returns the types that `-d` names, and the line to print if it names none.
pub(crate) fn types(text: &str, unknown: Unknown) -> Result<(Vec<NamedType>, Option<String>)> {
    if text == "all" {
        return Ok((all_types(), None));
    }
    match all_types().into_iter().find(|known| known.name == text) {
        Some(known) => Ok((vec![known], None)),
        None if unknown == Unknown::Defaults => {
            Ok((vec![FLOAT], Some(format!("invalid type {text}, defaulting to {} .. ", FLOAT.name))))
        }
        None => Err(no_such("-d", "element type", text, all_types().iter().map(|known| known.name))),
    }
}

/// Returns the operators that `-o` names, and the line to print if it names none.
pub(crate) fn ops(text: &str, unknown: Unknown) -> Result<(Vec<NamedOp>, Option<String>)> {
    if text == "all" {
        return Ok((NamedOp::ALL.to_vec(), None));
    }
    match NamedOp::ALL.into_iter().find(|known| known.name() == text) {
        Some(known) => Ok((vec![known], None)),
        None if unknown == Unknown::Defaults => {
            Ok((vec![NamedOp::Sum], Some(format!("invalid op {text}, defaulting to sum .. "))))
        }
        None => Err(no_such("-o", "operator", text, NamedOp::ALL.into_iter().map(NamedOp::name))),
    }
}

fn no_such<'a>(option: &str, what: &str, text: &str, known: impl Iterator<Item = &'a str>) -> CliError {
    let known: Vec<&str> = known.collect();
    CliError::usage(
        format!("{option} '{text}': there is no such {what}"),
        format!("Choose one of {}, or all", known.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(types("float", Unknown::Refused), Ok((vec![FLOAT], None)));
        assert_eq!(types("all", Unknown::Refused).unwrap().0.len(), 10);
        assert_eq!(ops("all", Unknown::Refused).unwrap().0.len(), 6);
        let error = types("f8e4m3", Unknown::Refused).unwrap_err();
        assert!(error.message.contains("'f8e4m3'") && error.message.contains("bfloat16"), "{error}");
        let error = ops("mean", Unknown::Refused).unwrap_err();
        assert!(error.message.contains("'mean'") && error.message.contains("avg"), "{error}");
    }

    #[test]
    fn the_programs_of_nccl_tests_fall_back_with_a_line() {
        assert_eq!(
            types("f8e4m3", Unknown::Defaults),
            Ok((vec![FLOAT], Some("invalid type f8e4m3, defaulting to float .. ".into())))
        );
        assert_eq!(
            ops("mean", Unknown::Defaults),
            Ok((vec![NamedOp::Sum], Some("invalid op mean, defaulting to sum .. ".into())))
        );
    }

    #[test]
    fn types_come_in_the_order_of_nccl() {
        let names: Vec<&str> = all_types().iter().map(|known| known.name).collect();
        assert_eq!(names.join(" "), "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16");
        assert!(all_types().contains(&FLOAT));
    }

    #[test]
    fn every_op_supports_every_type() {
        for named in all_types() {
            for op in NamedOp::ALL {
                assert!(op.on_rank(1).supports(named.data_type));
            }
        }
    }
}
