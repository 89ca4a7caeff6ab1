//! Images with labels, from the four files of MNIST, Fashion-MNIST and similar sets.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::bundled;
use crate::idx::{self, Array};

/// Folder in which Debian's package `dataset-fashion-mnist` puts its files.
pub const DEBIAN: &str = "/usr/share/datasets/fashion-mnist";

/// Images of one size, with labels.
#[derive(Clone, Debug)]
pub struct Images {
    /// Bytes of an image.
    pub pixels: usize,
    /// The images, one after another.
    pub data: Vec<u8>,
    /// The class of each image.
    pub labels: Vec<u8>,
}

/// Training data and test data.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Training images.
    pub train: Images,
    /// Test images.
    pub test: Images,
    /// Origin of the data.
    pub source: Source,
}

/// The origin of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The files of a folder.
    Folder(PathBuf),
    /// The subset of Fashion-MNIST that is part of this program.
    Bundled,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Bundled => write!(f, "the bundled subset of Fashion-MNIST"),
        }
    }
}

/// The reason why there is no data.
#[derive(Debug)]
pub enum Error {
    /// There is no such file, plain or with `.gz`.
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// The file's name.
        name: String,
    },
    /// A file cannot be read.
    File(idx::Error),
    /// The files contradict each other.
    Inconsistent {
        /// Their origin.
        source: Source,
        /// The contradiction.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { folder, name } => {
                write!(
                    f,
                    "no data set in {}: neither {name} nor {name}.gz is there. On Debian and Ubuntu, `apt install \
                     dataset-fashion-mnist` provides one in {DEBIAN}. Elsewhere, get train-images-idx3-ubyte.gz, \
                     train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from \
                     https://github.com/zalandoresearch/fashion-mnist (folder data/fashion) and pass their folder \
                     with --data",
                    folder.display()
                )
            }
            Self::File(error) => write!(f, "{error}"),
            Self::Inconsistent { source, problem } => write!(f, "{source}: {problem}"),
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
    /// Returns the number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no images.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Keeps only the first `count` images.
    pub fn truncate(&mut self, count: usize) {
        self.labels.truncate(count);
        self.data.truncate(count * self.pixels);
    }

    /// Returns the first `count` images of each class, in their order.
    #[must_use]
    pub fn first_of_each_class(&self, count: usize) -> Self {
        let mut taken = [0; 256];
        let mut some = Self { pixels: self.pixels, data: Vec::new(), labels: Vec::new() };
        for (&label, image) in self.labels.iter().zip(self.data.chunks_exact(self.pixels)) {
            let taken = &mut taken[usize::from(label)];
            if *taken < count {
                *taken += 1;
                some.labels.push(label);
                some.data.extend_from_slice(image);
            }
        }
        some
    }
}

impl Dataset {
    /// Loads the data set of a folder if one is given; otherwise Debian's if it is installed, or the bundled one.
    ///
    /// # Errors
    /// If there is no data, the error says how to get it; if a file is damaged, it names the file. A given folder is
    /// the only one searched, and a damaged file is always an error.
    pub fn load(folder: Option<&Path>) -> Result<Self, Error> {
        match folder {
            Some(folder) => Self::of_folder(folder),
            None => match Self::of_folder(Path::new(DEBIAN)) {
                Err(Error::Missing { .. }) => Self::bundled(),
                found => found,
            },
        }
    }

    /// Returns the subset of Fashion-MNIST that is compiled into this program: 2,000 training images and 500 test
    /// images.
    ///
    /// # Errors
    /// Only if the program was built with damaged files.
    pub fn bundled() -> Result<Self, Error> {
        Self::read(Source::Bundled, |name, dimensions| {
            let name = format!("{name}.gz");
            let bytes = bundled::file(&name).ok_or_else(|| missing(Path::new("this program"), &name))?;
            idx::read_compressed(&name, bytes, dimensions).map_err(Error::File)
        })
    }

    fn of_folder(folder: &Path) -> Result<Self, Error> {
        Self::read(Source::Folder(folder.to_owned()), |name, dimensions| {
            let candidates = [folder.join(name), folder.join(format!("{name}.gz"))];
            let path = candidates.iter().find(|path| path.exists()).ok_or_else(|| missing(folder, name))?;
            idx::read(path, dimensions).map_err(Error::File)
        })
    }

    fn read(source: Source, read: impl Fn(&str, usize) -> Result<Array, Error>) -> Result<Self, Error> {
        let inconsistent = |problem| Error::Inconsistent { source: source.clone(), problem };
        let part = |part: &str| {
            let images = read(&format!("{part}-images-idx3-ubyte"), 3)?;
            let labels = read(&format!("{part}-labels-idx1-ubyte"), 1)?.data;
            let (count, pixels) = (images.dimensions[0], images.dimensions[1] * images.dimensions[2]);
            if count == labels.len() && pixels > 0 {
                Ok(Images { pixels, data: images.data, labels })
            } else {
                let labels = labels.len();
                Err(inconsistent(format!("{part}: {count} images of {pixels} bytes with {labels} labels")))
            }
        };
        let (train, test) = (part("train")?, part("t10k")?);
        if train.pixels == test.pixels {
            Ok(Self { train, test, source })
        } else {
            let (learnt, tested) = (train.pixels, test.pixels);
            Err(inconsistent(format!("images of {learnt} bytes to train with, of {tested} to test with")))
        }
    }
}

fn missing(folder: &Path, name: &str) -> Error {
    Error::Missing { folder: folder.to_owned(), name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_to_get_data() {
        let message = Dataset::load(Some(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(message.starts_with("no data set in /nonexistent: neither train-images"), "{message}");
        assert!(message.contains("dataset-fashion-mnist") && message.contains("--data"), "{message}");
    }

    #[test]
    fn files_must_fit_each_other() {
        let read = |images: usize, test_pixels: usize| {
            Dataset::read(Source::Bundled, |name, dimensions| {
                let side = if name.starts_with("t10k") { test_pixels } else { 1 };
                let dimensions = if dimensions == 3 { vec![images, side, 1] } else { vec![2] };
                Ok(Array { data: vec![0; dimensions.iter().product()], dimensions })
            })
        };
        assert_eq!(read(2, 1).unwrap().train.len(), 2);
        assert!(read(3, 1).unwrap_err().to_string().ends_with("train: 3 images of 1 bytes with 2 labels"));
        assert!(read(2, 5).unwrap_err().to_string().contains("of 5 to test with"));
    }

    #[test]
    fn the_bundled_set_is_balanced() {
        let data = Dataset::bundled().unwrap();
        for (images, each) in [(&data.train, 200), (&data.test, 50)] {
            assert_eq!(images.data.len(), images.len() * 28 * 28);
            for class in 0..10 {
                assert_eq!(images.labels.iter().filter(|&&label| label == class).count(), each);
            }
        }
    }
}
