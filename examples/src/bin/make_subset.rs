//! Makes the bundled data set from the full one: the first images of each class, as four idx files.
//!
//! ```text
//! cargo run -p kolo-examples --bin make_subset -- /usr/share/datasets/fashion-mnist examples/data
//! ```

use std::path::{Path, PathBuf};

use clap::Parser;
use kolo_examples::Result;
use kolo_examples::dataset::{Dataset, Images};
use kolo_examples::idx::{Array, write_compressed};

/// Writes the first images of each class of a data set as a smaller set.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder of the full set
    from: PathBuf,
    /// Folder to write to
    to: PathBuf,
    /// Images of each class to train with
    #[arg(long, default_value_t = 200)]
    train: usize,
    /// Images of each class to test with
    #[arg(long, default_value_t = 50)]
    test: usize,
    /// Rows of an image
    #[arg(long, default_value_t = 28)]
    rows: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let full = Dataset::load(Some(&arguments.from))?;
    std::fs::create_dir_all(&arguments.to)?;
    write(&arguments, "train", &full.train.first_of_each_class(arguments.train))?;
    write(&arguments, "t10k", &full.test.first_of_each_class(arguments.test))
}

fn write(arguments: &Arguments, part: &str, images: &Images) -> Result<()> {
    if arguments.rows == 0 || !images.pixels.is_multiple_of(arguments.rows) {
        return Err(format!("images of {} bytes have no {} rows", images.pixels, arguments.rows).into());
    }
    let dimensions = vec![images.len(), arguments.rows, images.pixels / arguments.rows];
    let pixels = Array { dimensions, data: images.data.clone() };
    let labels = Array { dimensions: vec![images.len()], data: images.labels.clone() };
    for (kind, array) in [("images-idx3", pixels), ("labels-idx1", labels)] {
        let path: &Path = &arguments.to.join(format!("{part}-{kind}-ubyte.gz"));
        write_compressed(path, &array).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}: {:?}", path.display(), array.dimensions);
    }
    Ok(())
}
