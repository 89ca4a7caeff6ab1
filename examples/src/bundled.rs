//! A subset of Fashion-MNIST that is compiled into the program, so that the examples run anywhere.
//!
//! The first 200 images of each class of the training set and the first 50 of the test set, made by `make_subset`.
//! Copyright (c) 2017 Zalando SE, MIT licence: see `data/LICENSE-fashion-mnist`.

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/", $name)))),*]
    };
}

static FILES: [(&str, &[u8]); 4] = files!(
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz"
);

/// Returns a file of the set by its name.
pub(crate) fn file(name: &str) -> Option<&'static [u8]> {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}
