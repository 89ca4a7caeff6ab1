//! Data sets as files: they are read as they were written, and damaged ones are refused with a clear message.

use std::fs;
use std::path::Path;

use kolo_examples::dataset::{Dataset, Source};
use kolo_examples::idx::{Array, write_compressed};

const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// Writes two training and two test images of 2 x 3 pixels, with labels.
fn write_set(folder: &Path) {
    for name in NAMES {
        let dimensions = if name.contains("images") { vec![2, 2, 3] } else { vec![2] };
        let data = (0..dimensions.iter().product::<usize>()).map(|i| i as u8).collect();
        write_compressed(&folder.join(format!("{name}.gz")), &Array { dimensions, data }).unwrap();
    }
}

fn message(folder: &Path) -> String {
    Dataset::load(Some(folder)).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write_set(folder.path());
    let data = Dataset::load(Some(folder.path())).unwrap();
    assert_eq!(data.source, Source::Folder(folder.path().to_owned()));
    assert_eq!((data.train.pixels, data.train.len(), data.test.len()), (6, 2, 2));
    assert_eq!(data.train.labels, [0, 1]);
    assert_eq!(data.test.data, (0..12).collect::<Vec<u8>>());
    let first = fs::read(folder.path().join("train-images-idx3-ubyte.gz")).unwrap();
    write_set(folder.path());
    assert_eq!(fs::read(folder.path().join("train-images-idx3-ubyte.gz")).unwrap(), first, "files repeat");
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, damage, words) in [
        ("train-images-idx3-ubyte.gz", Damage::Remove, "neither train-images-idx3-ubyte nor"),
        ("t10k-labels-idx1-ubyte.gz", Damage::Remove, "neither t10k-labels-idx1-ubyte nor"),
        ("train-images-idx3-ubyte.gz", Damage::Cut, "ends too early"),
        ("train-labels-idx1-ubyte", Damage::Write(b"\x89PNG\r\n"), "not an idx file of bytes"),
        ("train-labels-idx1-ubyte", Damage::Write(&[0, 0, 8, 1, 0, 0, 0, 9, 1]), "1 bytes of data"),
        (
            "train-labels-idx1-ubyte",
            Damage::Write(&[0, 0, 8, 1, 0, 0, 0, 1, 7]),
            "2 images of 6 bytes with 1",
        ),
        ("train-images-idx3-ubyte", Damage::Write(&[0, 0, 8, 1, 0, 0, 0, 1, 7]), "mixed up"),
        ("t10k-images-idx3-ubyte.gz", Damage::Write(b"<html>not found</html>"), "gzip"),
    ] {
        write_set(folder.path());
        let path = folder.path().join(name);
        damage.inflict(&path);
        let message = message(folder.path());
        assert!(message.contains(words), "{name}: {message}");
        assert!(message.contains(folder.path().to_str().unwrap()), "{message}");
        if !name.ends_with(".gz") {
            fs::remove_file(path).unwrap();
        }
    }
}

enum Damage {
    Remove,
    Cut,
    Write(&'static [u8]),
}

impl Damage {
    fn inflict(&self, path: &Path) {
        match self {
            Self::Remove => fs::remove_file(path).unwrap(),
            Self::Cut => {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            }
            Self::Write(bytes) => fs::write(path, bytes).unwrap(),
        }
    }
}
