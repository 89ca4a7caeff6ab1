//! Reads and writes arrays of bytes in the idx format, plain or compressed with gzip.
//!
//! A file is `00 00 08 d`, then d dimensions as big-endian 32-bit numbers, then the bytes. (08 says "bytes"; the format
//! has other element types, which image data sets do not use.)

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

/// An array of bytes with dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Lengths, the slowest changing first.
    pub dimensions: Vec<usize>,
    /// The elements in that order.
    pub data: Vec<u8>,
}

/// The reason why a file could not be read.
#[derive(Debug)]
pub struct Error {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Io(io::Error),
    NotIdx { found: [u8; 4] },
    Dimensions { expected: usize, found: usize },
    TooLarge { dimensions: Vec<usize> },
    Length { expected: usize, found: usize },
}

/// Largest array that is read: far more than any data set in this format, and far less than memory.
const MAX_BYTES: usize = 1 << 30;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.problem {
            Problem::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "the file ends too early; was it copied completely?")
            }
            Problem::Io(error) => write!(f, "{error}"),
            Problem::NotIdx { found } => {
                write!(f, "not an idx file of bytes: it starts with {found:02x?} instead of 00 00 08")
            }
            Problem::Dimensions { expected, found } => {
                write!(
                    f,
                    "an array of {found} dimensions, where {expected} are expected: images and labels mixed up?"
                )
            }
            Problem::TooLarge { dimensions } => {
                write!(f, "an array of {dimensions:?} bytes, more than {MAX_BYTES}: the file is damaged")
            }
            Problem::Length { expected, found } => {
                write!(f, "{found} bytes of data, where its header promises {expected}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Reads a file, decompressing it if its name ends in `.gz`.
///
/// # Errors
/// The error names the file and the problem. All values from the file are checked before they are used.
pub fn read(path: &Path, dimensions: usize) -> Result<Array, Error> {
    let read = || {
        let file = File::open(path).map_err(Problem::Io)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            parse(GzDecoder::new(file), dimensions)
        } else {
            parse(io::BufReader::new(file), dimensions)
        }
    };
    read().map_err(|problem| Error { path: path.to_owned(), problem })
}

/// Reads the contents of a `.gz` file that are already in memory. `name` is for messages.
///
/// # Errors
/// As [`read`].
pub fn read_compressed(name: &str, bytes: &[u8], dimensions: usize) -> Result<Array, Error> {
    parse(GzDecoder::new(bytes), dimensions).map_err(|problem| Error { path: name.into(), problem })
}

/// Writes a compressed file. Equal arrays give equal files.
///
/// # Errors
/// The error of the file system.
pub fn write_compressed(path: &Path, array: &Array) -> io::Result<()> {
    let too_large = |_| io::Error::new(io::ErrorKind::InvalidInput, "too large for the idx format");
    let mut encoder = GzEncoder::new(File::create(path)?, Compression::best());
    encoder.write_all(&[0, 0, 8, u8::try_from(array.dimensions.len()).map_err(too_large)?])?;
    for &length in &array.dimensions {
        encoder.write_all(&u32::try_from(length).map_err(too_large)?.to_be_bytes())?;
    }
    encoder.write_all(&array.data)?;
    encoder.finish().map(drop)
}

fn parse(mut source: impl Read, expected_dimensions: usize) -> Result<Array, Problem> {
    let mut word = || {
        let mut word = [0; 4];
        source.read_exact(&mut word).map(|()| word).map_err(Problem::Io)
    };
    let magic = word()?;
    let [0, 0, 8, count] = magic else {
        return Err(Problem::NotIdx { found: magic });
    };
    if usize::from(count) != expected_dimensions {
        return Err(Problem::Dimensions { expected: expected_dimensions, found: usize::from(count) });
    }
    let mut dimensions = Vec::new();
    for _ in 0..count {
        dimensions.push(u32::from_be_bytes(word()?) as usize);
    }
    let expected = dimensions.iter().try_fold(1_usize, |product, &n| product.checked_mul(n));
    let Some(expected) = expected.filter(|&bytes| bytes <= MAX_BYTES) else {
        return Err(Problem::TooLarge { dimensions });
    };
    let mut data = Vec::new();
    // One byte more than expected is enough to detect excess data.
    source.take(expected as u64 + 1).read_to_end(&mut data).map_err(Problem::Io)?;
    if data.len() == expected {
        Ok(Array { dimensions, data })
    } else {
        Err(Problem::Length { expected, found: data.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8], dimensions: usize) -> String {
        let problem = parse(bytes, dimensions).unwrap_err();
        Error { path: "f".into(), problem }.to_string()
    }

    #[test]
    fn reads_plain_and_compressed() {
        let bytes = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6];
        let want = Array { dimensions: vec![2, 3], data: vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(parse(&bytes[..], 2).unwrap(), want);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&bytes).unwrap();
        assert_eq!(read_compressed("memory", &encoder.finish().unwrap(), 2).unwrap(), want);
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(message(b"\x89PNG", 1).contains("not an idx file"));
        assert!(message(&[0, 0], 1).contains("ends too early"));
        assert!(
            message(&[0, 0, 8, 1, 0, 0, 0, 5, 1, 2], 1)
                .contains("2 bytes of data, where its header promises 5")
        );
        assert!(message(&[0, 0, 8, 1, 0, 0, 0, 1, 1, 2], 1).contains("promises 1"));
        assert!(message(&[0, 0, 8, 1, 0, 0, 0, 5], 3).contains("mixed up"));
        let huge = [0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255];
        assert!(message(&huge, 2).contains("damaged"));
        let missing = read(Path::new("/nonexistent/images"), 3).unwrap_err();
        assert!(missing.to_string().starts_with("/nonexistent/images: "));
        let cut = read_compressed("f.gz", &[0x1f, 0x8b, 8, 0, 0], 1).unwrap_err().to_string();
        assert!(cut.starts_with("f.gz: ") && cut.contains("ends too early"), "{cut}");
        let other = read_compressed("f.gz", b"not compressed at all", 1).unwrap_err().to_string();
        assert!(other.contains("gzip"), "{other}");
    }
}
