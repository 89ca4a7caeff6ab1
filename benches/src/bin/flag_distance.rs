//! How far apart two processors are: one way of a bare flag between the first two that may be used, in nanoseconds.
//!
//! Prints a number, or nothing where there is only one processor. Takes some milliseconds. The host of a virtual machine
//! may move processors from one part of a chip to another at any time, which changes everything that goes between them by a
//! factor; `benches/peers/run` asks before and after each program, so as not to compare what ran before with what ran after.

use std::error::Error;
use std::thread;
use std::time::Instant;

use kolo_benches::bare_flag::BareFlag;
use kolo_benches::processors::{allowed, pin};

/// Round trips of a sample, and samples: the least counts, since whatever comes in between only adds.
const ROUND_TRIPS: u32 = 2_000;
const SAMPLES: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let processors = allowed()?;
    let [first, second, ..] = processors[..] else { return Ok(()) };
    let flag = BareFlag::default();
    let answers = flag.side(1);
    let nanoseconds = thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut side = answers;
            pin(second)?;
            (0..ROUND_TRIPS * SAMPLES as u32).for_each(|_| side.round_trip());
            std::io::Result::Ok(())
        });
        pin(first)?;
        let mut side = flag.side(0);
        let mut sample = || {
            let start = Instant::now();
            (0..ROUND_TRIPS).for_each(|_| side.round_trip());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(2 * ROUND_TRIPS)
        };
        let least = (0..SAMPLES).map(|_| sample()).fold(f64::INFINITY, f64::min);
        other.join().expect("the other side does not panic")?;
        std::io::Result::Ok(least)
    })?;
    println!("{nanoseconds:.1}");
    Ok(())
}
