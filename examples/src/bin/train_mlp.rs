//! Trains a small network on Fashion-MNIST, data-parallel; prints loss, accuracy, speed, and the time lost to
//! communication.
//!
//! It runs as threads or as processes:
//!
//! ```text
//! train_mlp --ranks 2
//! kolo run -n 2 -- train_mlp
//! ```
//!
//! Both learn the same as `--ranks 1` within rounding, which `--compare` checks. All ranks of a run end with the same
//! bits, which is always checked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kolo::Communicator;
use kolo_examples::Result;
use kolo_examples::agreement::{distance, identical, tolerance};
use kolo_examples::cluster::Ranks;
use kolo_examples::console::Console;
use kolo_examples::dataset::Dataset;
use kolo_examples::group::{Alone, Group};
use kolo_examples::mlp::Mlp;
use kolo_examples::train::{Settings, train};

/// Trains a network of dense layers on images; the ranks share every batch.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    ranks: Ranks,
    /// Folder with the four files of MNIST, Fashion-MNIST or another set in that format [default: Debian's
    /// dataset-fashion-mnist, or else the bundled subset of Fashion-MNIST]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Train on the bundled subset of Fashion-MNIST
    #[arg(long, conflicts_with = "data")]
    bundled: bool,
    /// Train on this many images only, the first of the set
    #[arg(long)]
    images: Option<usize>,
    /// Passes over the data
    #[arg(long, default_value_t = 5)]
    epochs: u32,
    /// Images per step, of all ranks together
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Factor of the mean gradient in a step
    #[arg(long, default_value_t = 0.02)]
    learning_rate: f32,
    /// Factor of the previous step in a step (momentum)
    #[arg(long, default_value_t = 0.9)]
    momentum: f32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// KiB of gradients that travel together
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    bucket_kib: u32,
    /// Afterwards also train on one rank, without Kolo, and fail if the networks differ by more than rounding.
    /// Learning rates far above the default enlarge the rounding errors until this fails
    #[arg(long)]
    compare: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("train_mlp: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything is as expected.
fn run(arguments: &Arguments) -> Result<bool> {
    let mut data =
        if arguments.bundled { Dataset::bundled() } else { Dataset::load(arguments.data.as_deref()) }?;
    if let Some(images) = arguments.images {
        data.train.truncate(images);
    }
    if data.train.is_empty() || arguments.batch == 0 {
        return Err("nothing to train with: --images and --batch must be at least 1".into());
    }
    let settings = settings(arguments, &data);
    let outcomes = arguments.ranks.run(|ranks| run_rank(ranks, &data, &settings))?;
    let same = outcomes.iter().all(|outcome| outcome.identical);
    match outcomes.into_iter().find(|outcome| outcome.rank == 0) {
        Some(outcome) if arguments.compare => Ok(compare(&outcome.network, &data, &settings)? && same),
        _ => Ok(same),
    }
}

fn settings(arguments: &Arguments, data: &Dataset) -> Settings {
    let labels = data.train.labels.iter().chain(&data.test.labels);
    Settings {
        hidden: vec![256, 128],
        classes: labels.max().map_or(1, |&label| 1 + usize::from(label)),
        epochs: arguments.epochs,
        batch: arguments.batch,
        learning_rate: arguments.learning_rate,
        momentum: arguments.momentum,
        seed: arguments.seed,
        bucket_bytes: (arguments.bucket_kib as usize) << 10,
    }
}

/// The result of one rank.
struct Outcome {
    rank: u32,
    network: Mlp,
    identical: bool,
}

/// The work of each rank.
fn run_rank(ranks: &Communicator, data: &Dataset, settings: &Settings) -> Result<Outcome> {
    let rank = ranks.rank();
    if rank == 0 {
        let (learnt, tested) = (data.train.len(), data.test.len());
        println!("data: {}: {learnt} images, {tested} to test with", data.source);
    }
    let network = show_training(ranks, data, settings)?;
    let identical = identical(ranks, &network)?;
    if rank == 0 {
        let (count, fingerprint) = (network.parameter_count(), network.fingerprint());
        let answer = if identical { "yes" } else { "no" };
        println!(
            "weights identical on all ranks: {answer} ({} ranks, {count} weights, rank 0's fingerprint {fingerprint:016x})",
            ranks.world_size(),
        );
    }
    Ok(Outcome { rank, network, identical })
}

/// Trains while rank 0 shows the progress.
fn show_training<G: Group>(group: &G, data: &Dataset, settings: &Settings) -> Result<Mlp> {
    let console = (group.rank() == 0).then(|| Console::new(data.train.len()));
    let network = train(group, &data.train, &data.test, settings, |progress| {
        if let Some(console) = &console {
            console.show(progress);
        }
    })?;
    if let Some(console) = console {
        console.close();
    }
    Ok(network)
}

/// Trains on one rank, and returns whether the network is the same within rounding.
fn compare(network: &Mlp, data: &Dataset, settings: &Settings) -> Result<bool> {
    println!("the same on 1 rank:");
    let alone = show_training(&Alone, data, settings)?;
    let (distance, tolerance) = (distance(network, &alone), tolerance(settings.steps(data.train.len())));
    let within = distance <= tolerance;
    let verdict = if within { "within rounding" } else { "more than rounding" };
    println!(
        "greatest difference from 1 rank, relative to the norm of a layer: {distance:.1e}, {verdict} ({tolerance:.1e})"
    );
    Ok(within)
}
