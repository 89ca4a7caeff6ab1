//! Element types and operators under the names nccl-tests gives them.

use kolo::{DataType, ReduceOp};

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

/// The types `-d` means, and the line to print if it means none of them.
#[must_use]
pub(crate) fn types(text: &str) -> (Vec<NamedType>, Option<String>) {
    if text == "all" {
        return (TYPES.to_vec(), None);
    }
    match TYPES.into_iter().find(|known| known.name == text) {
        Some(known) => (vec![known], None),
        None => (vec![FLOAT], Some(format!("invalid type {text}, defaulting to {} .. ", FLOAT.name))),
    }
}

/// The operators `-o` means, and the line to print if it means none of them.
#[must_use]
pub(crate) fn ops(text: &str) -> (Vec<NamedOp>, Option<String>) {
    if text == "all" {
        return (NamedOp::ALL.to_vec(), None);
    }
    match NamedOp::ALL.into_iter().find(|known| known.name() == text) {
        Some(known) => (vec![known], None),
        None => (vec![NamedOp::Sum], Some(format!("invalid op {text}, defaulting to sum .. "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_fall_back_with_a_line() {
        assert_eq!(types("float"), (vec![FLOAT], None));
        assert_eq!(types("all").0.len(), 10);
        let (chosen, line) = types("f8e4m3");
        assert_eq!(
            (chosen, line.as_deref()),
            (vec![FLOAT], Some("invalid type f8e4m3, defaulting to float .. "))
        );
        let (chosen, line) = ops("mean");
        assert_eq!(
            (chosen, line.as_deref()),
            (vec![NamedOp::Sum], Some("invalid op mean, defaulting to sum .. "))
        );
        assert_eq!(ops("all").0.len(), 6);
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
