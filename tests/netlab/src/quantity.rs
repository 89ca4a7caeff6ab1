//! Parsers of quantities as people write them: `1G`, `25us`, `256K`, `0.1%`, and quantities of one host: `2=100M`.

use std::str::FromStr;
use std::time::Duration;

/// Parses bits per second, such as `100M` or `2.5G` (powers of 1000).
///
/// # Errors
/// If the text is not a positive rate.
pub fn rate(text: &str) -> Result<u64, String> {
    let factor = |unit: &str| match unit.to_ascii_uppercase().as_str() {
        "" => Some(1.0),
        "K" => Some(1e3),
        "M" => Some(1e6),
        "G" => Some(1e9),
        _ => None,
    };
    let bits =
        scaled(text, factor).ok_or_else(|| format!("{text} is not a rate; write 100M or 2.5G (bit/s)"))?;
    if bits < 1000.0 { Err(format!("{text} is less than 1000 bit/s")) } else { Ok(bits as u64) }
}

/// Parses bytes, such as `256K` or `1M` (powers of 1024).
///
/// # Errors
/// If the text is not a size.
pub fn bytes(text: &str) -> Result<u64, String> {
    let factor = |unit: &str| match unit.to_ascii_uppercase().as_str() {
        "" | "B" => Some(1.0),
        "K" => Some(1024.0),
        "M" => Some(1024.0 * 1024.0),
        "G" => Some(1024.0 * 1024.0 * 1024.0),
        _ => None,
    };
    let bytes = scaled(text, factor).ok_or_else(|| format!("{text} is not a size; write 256K (bytes)"))?;
    Ok(bytes as u64)
}

/// Parses a time, such as `25us`, `20ms` or `2s`.
///
/// # Errors
/// If the text is not a time.
pub fn time(text: &str) -> Result<Duration, String> {
    let factor = |unit: &str| match unit {
        "ns" => Some(1e-9),
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    let wrong = || format!("{text} is not a time; write 25us, 20ms or 2s");
    Duration::try_from_secs_f64(scaled(text, factor).ok_or_else(wrong)?).map_err(|_| wrong())
}

/// Parses a share, such as `0.1%` or `0.001`.
///
/// # Errors
/// If the text is not between 0 and 100 %.
pub fn share(text: &str) -> Result<f64, String> {
    let factor = |unit: &str| match unit {
        "" => Some(1.0),
        "%" => Some(0.01),
        _ => None,
    };
    scaled(text, factor)
        .filter(|share| *share <= 1.0)
        .ok_or_else(|| format!("{text} is not a share; write 0.1% or 0.001"))
}

/// Parses a number with a unit after it. `None` if it is negative or anything else.
fn scaled(text: &str, factor: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    Some(number.parse::<f64>().ok()? * factor(unit.trim())?)
}

/// A value for one host or card: `2=100M`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Of<T> {
    /// The host or card, from 0.
    pub which: usize,
    /// Its value.
    pub value: T,
}

/// Parses [`Of`], with the parser of its value.
///
/// # Errors
/// If the text is not `NUMBER=VALUE`.
pub fn of<T>(text: &str, value: impl Fn(&str) -> Result<T, String>) -> Result<Of<T>, String> {
    let wrong = || format!("{text} is not NUMBER=VALUE, with numbers from 0");
    let (which, rest) = text.split_once('=').ok_or_else(wrong)?;
    Ok(Of { which: which.parse().map_err(|_| wrong())?, value: value(rest)? })
}

/// Parses two hosts: `A:B`.
///
/// # Errors
/// If the text has another form.
pub fn pair(text: &str) -> Result<(usize, usize), String> {
    let wrong = || format!("{text} is not A:B, with hosts from 0");
    let (a, b) = text.split_once(':').ok_or_else(wrong)?;
    let pair = (a.parse().map_err(|_| wrong())?, b.parse().map_err(|_| wrong())?);
    if pair.0 == pair.1 { Err(format!("{text}: a host and itself")) } else { Ok(pair) }
}

/// Parses a host and a moment: `2@4s`.
///
/// # Errors
/// If the text has another form.
pub fn moment(text: &str) -> Result<(usize, Duration), String> {
    let (host, at) = text.split_once('@').ok_or_else(|| format!("{text} is not HOST@TIME, as 2@4s"))?;
    Ok((usize::from_str(host).map_err(|_| format!("{host} is not a host; hosts count from 0"))?, time(at)?))
}

/// Parses two values, `A,B`, of which the second has a default.
///
/// # Errors
/// The error of either parser.
pub fn with_default<A, B>(
    text: &str,
    first: impl Fn(&str) -> Result<A, String>,
    second: impl Fn(&str) -> Result<B, String>,
    default: B,
) -> Result<(A, B), String> {
    match text.split_once(',') {
        Some((a, b)) => Ok((first(a)?, second(b)?)),
        None => Ok((first(text)?, default)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_nonsense_is_refused() {
        assert_eq!(rate("2.5G"), Ok(2_500_000_000));
        assert_eq!(rate("100M"), Ok(100_000_000));
        assert_eq!(bytes("256K"), Ok(262_144));
        assert_eq!(time("25us"), Ok(Duration::from_micros(25)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(share("0.1%"), Ok(0.001));
        assert_eq!(of("2=100M", rate), Ok(Of { which: 2, value: 100_000_000 }));
        assert_eq!(pair("0:3"), Ok((0, 3)));
        assert_eq!(moment("2@4s"), Ok((2, Duration::from_secs(4))));
        assert_eq!(with_default("1%", share, bytes, 7), Ok((0.01, 7)));
        for wrong in ["", "G", "-1G", "1T", "0", "1.2.3M", "5 apples"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(
            time("25").is_err() && time("1e9s").is_err() && share("101%").is_err() && share("-1%").is_err()
        );
        assert!(
            pair("1:1").is_err() && pair("1").is_err() && moment("2s").is_err() && of("=1", bytes).is_err()
        );
    }
}
