//! Element types and operators under the names nccl-tests gives them.

use kolo::{DataType, ReduceOp};

use crate::error::{CliError, Result};

/// An element type as the type column shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedType {
    /// As in `-d`.
    pub name: &'static str,
    /// What it is.
    pub data_type: DataType,
}

/// An operator as the redop column shows it.
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
    /// Sum of the ranks' values, each times a factor of its own.
    MulSum,
}

/// The types in the order in which `-d all` goes through them.
pub(crate) const TYPES: [NamedType; 10] = [
    NamedType { name: "int8", data_type: DataType::I8 },
    NamedType { name: "uint8", data_type: DataType::U8 },
    NamedType { name: "int32", data_type: DataType::I32 },
    NamedType { name: "uint32", data_type: DataType::U32 },
    NamedType { name: "int64", data_type: DataType::I64 },
    NamedType { name: "uint64", data_type: DataType::U64 },
    NamedType { name: "half", data_type: DataType::F16 },
    NamedType { name: "float", data_type: DataType::F32 },
    NamedType { name: "double", data_type: DataType::F64 },
    NamedType { name: "bfloat16", data_type: DataType::BF16 },
];

/// The type to fall back to.
pub(crate) const FLOAT: NamedType = TYPES[7];

impl NamedOp {
    /// In the order in which `-o all` goes through them.
    pub(crate) const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// As in `-o`.
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

    /// The operator that `rank` passes. The factor of `mulsum` is 1 on even and 2 on odd ranks.
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

/// What becomes of a name that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It is an error.
    Refused,
    /// nccl-tests' default is taken, and its line printed: for scripts that call its programs.
    Defaults,
}

/// The types `-d` means, and the line to print if it means none of them.
pub(crate) fn types(text: &str, unknown: Unknown) -> Result<(Vec<NamedType>, Option<String>)> {
    if text == "all" {
        return Ok((TYPES.to_vec(), None));
    }
    match TYPES.into_iter().find(|known| known.name == text) {
        Some(known) => Ok((vec![known], None)),
        None if unknown == Unknown::Defaults => {
            Ok((vec![FLOAT], Some(format!("invalid type {text}, defaulting to {} .. ", FLOAT.name))))
        }
        None => Err(no_such("-d", "element type", text, TYPES.map(|known| known.name))),
    }
}

/// The operators `-o` means, and the line to print if it means none of them.
pub(crate) fn ops(text: &str, unknown: Unknown) -> Result<(Vec<NamedOp>, Option<String>)> {
    if text == "all" {
        return Ok((NamedOp::ALL.to_vec(), None));
    }
    match NamedOp::ALL.into_iter().find(|known| known.name() == text) {
        Some(known) => Ok((vec![known], None)),
        None if unknown == Unknown::Defaults => {
            Ok((vec![NamedOp::Sum], Some(format!("invalid op {text}, defaulting to sum .. "))))
        }
        None => Err(no_such("-o", "operator", text, NamedOp::ALL.map(NamedOp::name))),
    }
}

fn no_such<const N: usize>(option: &str, what: &str, text: &str, known: [&str; N]) -> CliError {
    CliError::usage(
        format!("{option} says '{text}', and there is no such {what}"),
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
    fn every_op_supports_every_type() {
        for named in TYPES {
            for op in NamedOp::ALL {
                assert!(op.on_rank(1).supports(named.data_type));
            }
        }
    }
}
