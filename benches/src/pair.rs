//! Runs two threads, each on a processor of its own, which repeat a common task on demand.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::processors;

/// Runs `with` on this thread, and gives it a function that runs both parts a given number of times at once, each on
/// its own thread, and returns the time that this took the first.
///
/// # Panics
/// If a part panics, or may not use its processor.
pub fn in_pair<R>(
    places: [usize; 2],
    mut first: impl FnMut() + Send,
    mut second: impl FnMut() + Send,
    with: impl FnOnce(&mut dyn FnMut(u64) -> Duration) -> R,
) -> R {
    std::thread::scope(|scope| {
        let (order_first, orders_first) = mpsc::channel::<u64>();
        let (order_second, orders_second) = mpsc::channel::<u64>();
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            processors::pin(places[0]).expect("one of the processors that are allowed");
            for times in orders_first {
                // The common work begins when both are there.
                first();
                let begin = Instant::now();
                (0..times).for_each(|_| first());
                let _ = tell.send(begin.elapsed());
            }
        });
        scope.spawn(move || {
            processors::pin(places[1]).expect("one of the processors that are allowed");
            for times in orders_second {
                (0..=times).for_each(|_| second());
            }
        });
        with(&mut |times| {
            order_first.send(times).expect("the first part is there");
            order_second.send(times).expect("the second part is there");
            told.recv().expect("the first part has ended well")
        })
    })
}

/// Returns pairs of processors that probably differ in distance, judging by their numbers: neighbours, and the two
/// ends. Empty if there is only one processor.
///
/// # Errors
/// If the system does not report its processors.
pub fn places() -> std::io::Result<Vec<(&'static str, [usize; 2])>> {
    let allowed = processors::allowed()?;
    Ok(match allowed[..] {
        [] | [_] => Vec::new(),
        [one, other] => vec![("neighbours", [one, other])],
        [one, other, .., last] => vec![("neighbours", [one, other]), ("ends", [one, last])],
    })
}
