//! Images with labels, from the four files that MNIST, Fashion-MNIST and their kin come in.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::idx::{self, Array};

/// Where Debian's package `dataset-fashion-mnist` puts its files.
pub const DEBIAN: &str = "/usr/share/datasets/fashion-mnist";

/// Images of one size, with labels.
#[derive(Clone, Debug)]
pub struct Images {
    /// Bytes of an image.
    pub pixels: usize,
    /// The images, one after the other.
    pub data: Vec<u8>,
    /// A class for each.
    pub labels: Vec<u8>,
}

/// What to learn from, and what to test with.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// To learn from.
    pub train: Images,
    /// To test with.
    pub test: Images,
    /// The folder that it was read from.
    pub from: PathBuf,
}

/// Why there is no data.
#[derive(Debug)]
pub enum Error {
    /// There is no such file, plain or with `.gz`.
    Missing {
        /// The folders that were searched.
        searched: Vec<PathBuf>,
    },
    /// A file cannot be read.
    File(idx::Error),
    /// The files do not fit each other.
    Inconsistent {
        /// Their folder.
        folder: PathBuf,
        /// How they differ.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { searched } => {
                let searched: Vec<_> = searched.iter().map(|path| path.display().to_string()).collect();
                write!(
                    f,
                    "no data set in {}. On Debian and Ubuntu, `apt install dataset-fashion-mnist` provides one. \
                     Elsewhere, get train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, \
                     t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from \
                     https://github.com/zalandoresearch/fashion-mnist (folder data/fashion) and pass their folder \
                     with --data",
                    searched.join(" or ")
                )
            }
            Self::File(error) => write!(f, "{error}"),
            Self::Inconsistent { folder, problem } => write!(f, "{}: {problem}", folder.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            _ => None,
        }
    }
}

impl Images {
    /// Number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Keeps the first so many.
    pub fn truncate(&mut self, count: usize) {
        self.labels.truncate(count);
        self.data.truncate(count * self.pixels);
    }
}

impl Dataset {
    /// Loads the data set of a folder if one is given, otherwise Debian's.
    ///
    /// # Errors
    /// With how to get the data, if there is none; otherwise with the file that is damaged. A folder that is given is
    /// the only one searched.
    pub fn load(folder: Option<&Path>) -> Result<Self, Error> {
        let folder = folder.unwrap_or(Path::new(DEBIAN));
        let train = load_images(folder, "train")?;
        let test = load_images(folder, "t10k")?;
        if train.pixels == test.pixels {
            Ok(Self { train, test, from: folder.to_owned() })
        } else {
            let problem =
                format!("images of {} bytes to train with, of {} to test with", train.pixels, test.pixels);
            Err(Error::Inconsistent { folder: folder.to_owned(), problem })
        }
    }
}

fn load_images(folder: &Path, part: &str) -> Result<Images, Error> {
    let images = load(folder, &format!("{part}-images-idx3-ubyte"), 3)?;
    let labels = load(folder, &format!("{part}-labels-idx1-ubyte"), 1)?;
    let (count, pixels) = (images.dimensions[0], images.dimensions[1] * images.dimensions[2]);
    if count == labels.data.len() && pixels > 0 {
        Ok(Images { pixels, data: images.data, labels: labels.data })
    } else {
        let problem = format!("{part}: {count} images of {pixels} bytes with {} labels", labels.data.len());
        Err(Error::Inconsistent { folder: folder.to_owned(), problem })
    }
}

fn load(folder: &Path, name: &str, dimensions: usize) -> Result<Array, Error> {
    let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
    let path = candidates.iter().find(|path| path.exists());
    let path = path.ok_or_else(|| Error::Missing { searched: vec![folder.to_owned()] })?;
    idx::read(path, dimensions).map_err(Error::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_to_get_data() {
        let message = Dataset::load(Some(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(message.starts_with("no data set in /nonexistent. On Debian"), "{message}");
    }
}
