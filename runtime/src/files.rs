//! Files that settings name.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Longest such file, in bytes: enough for a set of plans with the most steps allowed, twice over.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a text, but no endless one, such as a device.
///
/// # Errors
/// The system's, or one that says that the file is too long.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = text_of(Path::new("/dev/zero")).expect_err("it has no end");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(text_of(Path::new("/nowhere/at/all")).is_err());
    }
}
