//! Trains a small network on Fashion-MNIST, data-parallel: loss, accuracy, speed, and time lost to communication.
//!
//! Alone, as threads, and as processes:
//!
//! ```text
//! train_mlp
//! train_mlp --ranks 2
//! kolo run -n 2 -- train_mlp
//! ```
//!
//! All three learn the same, and the ranks of a run print the same fingerprint of their networks.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kolo::{Cluster, Communicator};
use kolo_examples::Result;
use kolo_examples::dataset::Dataset;
use kolo_examples::train::{Settings, train};

/// Trains a network of dense layers on images, with every batch shared out over the ranks.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder with the four files of MNIST, Fashion-MNIST or another set in that format [default: Debian's
    /// dataset-fashion-mnist]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Train on the first so many images only
    #[arg(long)]
    images: Option<usize>,
    /// Passes over the data
    #[arg(long, default_value_t = 5)]
    epochs: u32,
    /// Images per step, of all ranks together
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Factor of the mean gradient
    #[arg(long, default_value_t = 0.05)]
    learning_rate: f32,
    /// Factor of the previous step
    #[arg(long, default_value_t = 0.9)]
    momentum: f32,
    /// Start of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Least KiB of gradients that travel together
    #[arg(long, default_value_t = 128)]
    bucket_kib: usize,
    /// So many ranks as threads of this process, instead of one rank of a launcher
    #[arg(long)]
    ranks: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train_mlp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut data = Dataset::load(arguments.data.as_deref())?;
    if let Some(images) = arguments.images {
        data.train.truncate(images);
    }
    if data.train.is_empty() || arguments.batch == 0 {
        return Err("nothing to train with: --images and --batch must be at least 1".into());
    }
    match arguments.ranks {
        Some(ranks) => Cluster::local(ranks, |rank| run_rank(&rank, &data, arguments))?.into_iter().collect(),
        None => run_rank(&Communicator::from_env()?, &data, arguments),
    }
}

/// What each rank does.
fn run_rank(group: &Communicator, data: &Dataset, arguments: &Arguments) -> Result<()> {
    if group.rank() == 0 {
        let shapes = format!("{} + {} images", data.train.len(), data.test.len());
        println!("data: {}, {shapes} of {} bytes", data.from.display(), data.train.pixels);
    }
    let classes =
        data.train.labels.iter().chain(&data.test.labels).max().map_or(1, |&label| 1 + usize::from(label));
    let settings = Settings {
        hidden: vec![256, 128],
        classes,
        epochs: arguments.epochs,
        batch: arguments.batch,
        learning_rate: arguments.learning_rate,
        momentum: arguments.momentum,
        seed: arguments.seed,
        bucket_bytes: arguments.bucket_kib << 10,
    };
    let network = train(group, &data.train, &data.test, &settings, |epoch| {
        if group.rank() == 0 {
            println!(
                "epoch {:2}: loss {:.4}, accuracy {:.2} %, {:6.0} images/s, {:.1} % of the time waiting",
                epoch.number,
                epoch.loss,
                100.0 * epoch.accuracy,
                epoch.images_per_second,
                100.0 * epoch.waiting
            );
        }
    })?;
    println!(
        "rank {} of {}: {} parameters, fingerprint {:016x}",
        group.rank(),
        group.world_size(),
        network.parameter_count(),
        network.fingerprint()
    );
    Ok(())
}
