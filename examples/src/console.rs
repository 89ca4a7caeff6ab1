//! Progress of a training for people: a line per epoch, and on a terminal a progress bar for the current
//! epoch.

use indicatif::{ProgressBar, ProgressStyle};

use crate::train::Progress;

/// Shows the progress of one training.
#[derive(Debug)]
pub struct Console {
    bar: ProgressBar,
}

impl Console {
    /// Makes a display for epochs of this many images. The bar goes to standard error, and is hidden if that
    /// is not a terminal.
    #[must_use]
    pub fn new(images: usize) -> Self {
        let bar = ProgressBar::new(images as u64);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} images, {eta} left")
        {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Shows a step or an epoch.
    pub fn show(&self, progress: Progress) {
        match progress {
            Progress::Step { epoch, images } => {
                self.bar.set_prefix(format!("epoch {epoch:2}"));
                self.bar.inc(images as u64);
            }
            Progress::Epoch(epoch) => {
                self.bar.suspend(|| {
                    println!(
                        "epoch {:2}: loss {:.4}, accuracy {:.2} %, {:6.0} images/s, {:4.1} % of the time waiting",
                        epoch.number,
                        epoch.loss,
                        100.0 * epoch.accuracy,
                        epoch.images_per_second,
                        100.0 * epoch.waiting
                    );
                });
                self.bar.reset();
            }
        }
    }

    /// Removes the bar.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }
}
