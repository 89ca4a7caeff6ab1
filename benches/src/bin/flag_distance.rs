//! Measures the distance between two processors: the one-way time of a bare flag between the first two allowed ones, in
//! nanoseconds.
//!
//! Prints a number, or nothing if there is only one processor. Takes some milliseconds. With `--every MS` it prints the
//! time of the monotonic clock in seconds and such a number at this interval, taking tens of microseconds each, until
//! nobody reads its output. The host of a virtual machine may move processors from one part of a chip to another at any
//! time, which changes all communication between them by a factor. `benches/peers/run` watches this time, so as not to
//! compare measurements from before and after a move.

use std::error::Error;
use std::io::{self, Write};
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use kolo_benches::bare_flag::BareFlag;
use kolo_benches::processors::{allowed, pin};
use rustix::time::{ClockId, clock_gettime};

/// Numbers of samples and of round trips in each. The least sample counts, since disturbances only add time.
struct Care {
    round_trips: u32,
    samples: u32,
}

const ONCE: Care = Care { round_trips: 2_000, samples: 7 };
/// Takes less than a thousandth of the interval, so that the watched processes are hardly disturbed.
const OFTEN: Care = Care { round_trips: 100, samples: 3 };

fn main() -> Result<(), Box<dyn Error>> {
    let every = match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => None,
        [flag, millis] if flag == "--every" => Some(Duration::from_millis(millis.parse()?)),
        _ => return Err("usage: flag_distance [--every MILLISECONDS]".into()),
    };
    let [first, second, ..] = allowed()?[..] else { return Ok(()) };
    let Some(every) = every else {
        println!("{:.1}", nanoseconds(first, second, &ONCE)?);
        return Ok(());
    };
    loop {
        let at = clock_gettime(ClockId::Monotonic);
        let seconds = at.tv_sec as f64 + at.tv_nsec as f64 * 1e-9;
        let distance = nanoseconds(first, second, &OFTEN)?;
        if writeln!(io::stdout(), "{seconds:.4} {distance:.1}").is_err() {
            return Ok(());
        }
        thread::sleep(every);
    }
}

fn nanoseconds(first: usize, second: usize, care: &Care) -> io::Result<f64> {
    let flag = BareFlag::default();
    let (own, other) = (flag.side(0), flag.side(1));
    // The barrier sleeps. In a real-time class, a spinning thread on the processor where both begin would keep the
    // other from leaving it.
    let ready = Barrier::new(2);
    let pinned = AtomicU32::new(0);
    let meet = |processor| {
        let result = pin(processor);
        pinned.fetch_add(u32::from(result.is_ok()), Relaxed);
        ready.wait();
        // A side must not spin for a side that is not there.
        result.map(|()| pinned.load(Relaxed) == 2)
    };
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            let mut side = other;
            if meet(second)? {
                (0..care.round_trips * care.samples).for_each(|_| side.round_trip());
            }
            io::Result::Ok(())
        });
        let mut side = own;
        let mut sample = || {
            let start = Instant::now();
            (0..care.round_trips).for_each(|_| side.round_trip());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(2 * care.round_trips)
        };
        let samples = if meet(first)? { care.samples } else { 0 };
        let least = (0..samples).map(|_| sample()).fold(f64::INFINITY, f64::min);
        answers.join().expect("the other side does not panic")?;
        Ok(least)
    })
}
