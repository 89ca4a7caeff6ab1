//! Local wall-clock time as text. `unsafe` serves only to ask the C library for the time zone.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time as `YYYY-MM-DD HH:MM:SS` in the local time zone.
#[must_use]
pub(crate) fn local_now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format_local(seconds as libc::time_t)
}

fn format_local(seconds: libc::time_t) -> String {
    // SAFETY: an all-zero `tm` is a valid value of this plain struct (its pointer may be null), and
    // `localtime_r` writes only there. Test `has_the_right_shape` reads what it wrote.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&raw const seconds, &raw mut time).is_null() {
            return "1970-01-01 00:00:00".into();
        }
        time
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        time.tm_year + 1900,
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_right_shape() {
        // 36 hours after the epoch it is 1970-01-02, or an adjacent day in some time zones.
        let text = format_local(36 * 3600);
        assert!(text.starts_with("1970-01-0") && text.len() == 19, "{text}");
    }
}
