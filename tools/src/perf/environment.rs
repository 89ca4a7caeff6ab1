//! Environment variables of nccl-tests, which are read here only.

use super::numbers::parse_integer;
use super::pieces::Skew;
use crate::error::{CliError, Result};

/// How ranks are split into groups that run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// The colour is the bitwise AND of rank and number.
    And(u32),
    /// The colour is the bitwise OR of rank and number.
    Or(u32),
    /// The colour is the remainder of rank divided by number.
    Mod(u32),
    /// The colour is the quotient of rank and number.
    Div(u32),
}

impl Split {
    /// Returns the colour of a rank.
    #[must_use]
    pub(crate) const fn colour(self, rank: u32) -> u32 {
        match self {
            Self::And(mask) => rank & mask,
            Self::Or(mask) => rank | mask,
            Self::Mod(divisor) => rank % divisor,
            Self::Div(divisor) => rank / divisor,
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let bad = || {
            CliError::usage(
                format!("NCCL_TESTS_SPLIT '{text}' is not valid"),
                "Use AND, OR, MOD or DIV and a number, for example 'MOD 2' or '& 0x7'",
            )
        };
        let text = text.trim();
        let digits = text.find(|c: char| c.is_ascii_digit()).ok_or_else(bad)?;
        let number = parse_integer(&text[digits..]).and_then(|n| u32::try_from(n).ok()).ok_or_else(bad)?;
        match text[..digits].trim().to_ascii_uppercase().as_str() {
            "AND" | "&" => Ok(Self::And(number)),
            "OR" | "|" => Ok(Self::Or(number)),
            "MOD" | "%" if number > 0 => Ok(Self::Mod(number)),
            "DIV" | "/" if number > 0 => Ok(Self::Div(number)),
            _ => Err(bad()),
        }
    }
}

/// Values of the variables.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Environment {
    /// `NCCL_TESTS_MIN_BW`: the run fails if the bandwidth is below nine tenths of it.
    pub wanted_bandwidth: Option<f64>,
    /// `NCCL_TESTS_SPLIT_MASK`, or else `NCCL_TESTS_SPLIT`.
    pub split: Option<Split>,
    /// `NCCL_TESTS_ALLTOALLV_SPREAD`.
    pub skew: Skew,
}

impl Environment {
    /// Reads the variables through `variable`.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let number = |name: &str, remedy: &str| match variable(name).map(|text| (text.parse::<f64>(), text)) {
            None => Ok(None),
            Some((Ok(value), _)) if value.is_finite() && value >= 0.0 => Ok(Some(value)),
            Some((_, text)) => Err(CliError::usage(format!("{name} '{text}' is not valid"), remedy)),
        };
        // As in nccl-tests, the mask is looked at first, and then the other variable not at all.
        let split = match variable("NCCL_TESTS_SPLIT_MASK") {
            None => variable("NCCL_TESTS_SPLIT").map(|text| Split::parse(&text)).transpose()?,
            Some(text) => {
                let digits = text.trim().trim_start_matches("0x").trim_start_matches("0X");
                Some(Split::And(u32::from_str_radix(digits, 16).map_err(|_| {
                    CliError::usage(
                        format!("NCCL_TESTS_SPLIT_MASK '{text}' is not valid"),
                        "Use a hexadecimal number, for example 0x7",
                    )
                })?))
            }
        };
        if variable("NCCL_TESTS_ALLTOALLV_MATRIX_FILE").is_some() {
            return Err(CliError::usage(
                "NCCL_TESTS_ALLTOALLV_MATRIX_FILE is not supported",
                "Unset it; NCCL_TESTS_ALLTOALLV_SPREAD sets how much the lengths of blocks differ",
            ));
        }
        let remedy =
            "Use a number from 0 (blocks of equal length) to 1 (proportional to the distance of the ranks)";
        let spread = number("NCCL_TESTS_ALLTOALLV_SPREAD", remedy)?;
        if let Some(spread) = spread.filter(|spread| *spread > 1.0) {
            return Err(CliError::usage(format!("NCCL_TESTS_ALLTOALLV_SPREAD is {spread}"), remedy));
        }
        Ok(Self {
            wanted_bandwidth: number("NCCL_TESTS_MIN_BW", "Use a bus bandwidth in GB/s, for example 10")?,
            split,
            skew: spread.map_or(Skew::DISTANCE, |spread| Skew { spread }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Environment> {
        Environment::read(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn splits() {
        for (text, rank, colour) in [
            ("AND 0x7", 9, 1),
            ("&0b11", 5, 1),
            ("MOD 8", 9, 1),
            ("div 4", 9, 2),
            ("OR 1", 8, 9),
            ("% 2", 3, 1),
        ] {
            assert_eq!(Split::parse(text).unwrap().colour(rank), colour, "{text}");
        }
        for text in ["", "MOD", "MOD 0", "XOR 1", "MOD -1", "DIV x"] {
            assert!(Split::parse(text).is_err(), "{text}");
        }
        let mask = ("NCCL_TESTS_SPLIT_MASK", "0x3");
        for other in ["MOD 2", "not looked at"] {
            assert_eq!(read(&[mask, ("NCCL_TESTS_SPLIT", other)]).unwrap().split, Some(Split::And(3)));
        }
    }

    #[test]
    fn bandwidth_and_spread() {
        let nothing = read(&[]).unwrap();
        assert_eq!((nothing.wanted_bandwidth, nothing.split, nothing.skew), (None, None, Skew::DISTANCE));
        assert_eq!(read(&[("NCCL_TESTS_MIN_BW", "12.5")]).unwrap().wanted_bandwidth, Some(12.5));
        assert!(read(&[("NCCL_TESTS_MIN_BW", "much")]).is_err());
        assert_eq!(read(&[("NCCL_TESTS_ALLTOALLV_SPREAD", "0.25")]).unwrap().skew.spread, 0.25);
        for wrong in ["4", "-1", "wide", "nan"] {
            let error = read(&[("NCCL_TESTS_ALLTOALLV_SPREAD", wrong)]).unwrap_err();
            assert!(error.message.contains("from 0"), "{error}");
        }
    }
}
