//! Reads and prints numbers as nccl-tests (and C) do.

/// Parses a size: a decimal number, optionally followed by K, M or G in either case (powers of 1024). As in
/// `sscanf`, anything after the unit letter is ignored.
#[must_use]
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let digits = number_prefix(text);
    let value: f64 = text[..digits].parse().ok()?;
    let unit: u64 = match text[digits..].trim_start().chars().next() {
        None => 1,
        Some('k' | 'K') => 1 << 10,
        Some('m' | 'M') => 1 << 20,
        Some('g' | 'G') => 1 << 30,
        Some(_) => return None,
    };
    let bytes = value * unit as f64;
    // 2^63: no buffer is larger, and a larger number is most likely a typing error.
    (value >= 0.0 && bytes < 9.3e18).then_some(bytes as u64)
}

/// Returns the length of the longest prefix that is a decimal floating-point number.
fn number_prefix(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits_from = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let mut end = digits_from(usize::from(matches!(bytes.first(), Some(b'+' | b'-'))));
    if bytes.get(end) == Some(&b'.') {
        end = digits_from(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent_end = digits_from(end + 1 + sign);
        if exponent_end > end + 1 + sign {
            end = exponent_end;
        }
    }
    end
}

/// Parses an integer as C's `strtol` with base 0 does: 0x for hexadecimal, a leading 0 for octal. Unlike
/// `strtol`, it returns `None` if characters are left over, so that typing errors are reported.
#[must_use]
pub(crate) fn parse_integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = if let Some(hex) = lower.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (binary, 2)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (lower.as_str(), 10)
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let value = i64::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

/// Prints a value into `width` columns: with two decimals, or if that is too long with one, then none, then in
/// exponent form.
#[must_use]
pub(crate) fn fit(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:.decimals$}");
        if text.len() <= width {
            return format!("{text:>width$}");
        }
    }
    format!("{:>width$}", exponent(value, usize::from(width >= 7)))
}

/// Formats like C's `%.*e`: at least two digits of exponent, with its sign.
fn exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Formats like C's `%g`: six significant digits, no trailing zeros.
#[must_use]
pub(crate) fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return if value.is_nan() {
            "nan".into()
        } else if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let scientific = exponent(value, (DIGITS - 1) as usize);
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    if !(-4..DIGITS).contains(&power) {
        return format!("{}e{}", trim_zeros(mantissa), &scientific[mantissa.len() + 1..]);
    }
    let decimals = (DIGITS - 1 - power) as usize;
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Formats a number of bytes for people: binary units, three digits.
#[must_use]
pub(crate) fn human_bytes(bytes: f64) -> String {
    in_units(bytes, ["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Formats a number of bytes as nccl-tests do, whose KB are KiB.
#[must_use]
pub(crate) fn nccl_bytes(bytes: f64) -> String {
    in_units(bytes, ["B", "KB", "MB", "GB", "TB"])
}

fn in_units(bytes: f64, units: [&str; 5]) -> String {
    let mut amount = bytes;
    let mut unit = 0;
    while amount.abs() >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let decimals = match amount.abs() {
        _ if unit == 0 => 0,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    format!("{amount:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_numbers_into_columns() {
        for (value, width, expected) in [
            (0.0, 7, "   0.00"),
            (9.31, 7, "   9.31"),
            (1324.05, 7, "1324.05"),
            (9999.99, 7, "9999.99"),
            (9999.999, 7, "10000.0"),
            (12345.67, 7, "12345.7"),
            (99999.96, 7, " 100000"),
            (123_456.7, 7, " 123457"),
            (1_234_567.0, 7, "1234567"),
            (12_345_678.0, 7, "1.2e+07"),
            (202.74, 6, "202.74"),
            (1234.56, 6, "1234.6"),
            (123_456.0, 6, "123456"),
            (1_234_567.0, 6, " 1e+06"),
            (0.004, 6, "  0.00"),
        ] {
            assert_eq!(fit(value, width), expected, "{value} in {width}");
        }
    }

    #[test]
    fn general_is_percent_g() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (87.436, "87.436"),
            (0.000_123_456_789, "0.000123457"),
            (0.000_012_345_678, "1.23457e-05"),
            (123_456.7, "123457"),
            (1_234_567.0, "1.23457e+06"),
            (1_048_576.0, "1.04858e+06"),
            (999_999.9, "1e+06"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(general(value), expected);
        }
    }

    #[test]
    fn reads_sizes() {
        for (text, expected) in [
            ("8", Some(8)),
            ("1K", Some(1024)),
            ("1.5k", Some(1536)),
            ("2 M", Some(2 << 20)),
            ("1G", Some(1 << 30)),
            ("128MB", Some(128 << 20)),
            ("1e3", Some(1000)),
            (".5K", Some(512)),
            ("0", Some(0)),
            ("-1", None),
            ("1T", None),
            ("", None),
            ("M", None),
            ("1e400", None),
            ("99999999999G", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    #[test]
    fn reads_integers_like_strtol() {
        for (text, expected) in [
            ("20", Some(20)),
            ("-1", Some(-1)),
            ("0x10", Some(16)),
            ("0b11", Some(3)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("x", None),
            ("1x", None),
            ("", None),
            ("--1", None),
        ] {
            assert_eq!(parse_integer(text), expected, "{text}");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human_bytes(512.0), "512 B");
        assert_eq!(human_bytes(1.2 * 1024.0 * 1024.0 * 1024.0), "1.20 GiB");
        assert_eq!(human_bytes(20.0 * 1024.0), "20.0 KiB");
        assert_eq!(nccl_bytes(20.0 * 1024.0), "20.0 KB");
    }
}
