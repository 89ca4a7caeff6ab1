//! Sends and receives: tags, any source, asynchronous forms, and messages that arrive in another order than they are
//! received.

mod any_source;
mod failing;
mod forms;
mod order;
mod probing;
mod random;
mod unexpected;

use kolo::{Communicator, Config};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

/// Runs `body` in every arrangement, each with a time limit.
fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    everywhere_with(ranks, |config| config, body);
}

fn everywhere_with(
    ranks: u32,
    change: impl Fn(Config) -> Config + Send + Sync + Copy + 'static,
    body: impl Fn(&Communicator) + Send + Sync + Copy + 'static,
) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run_with(ranks, change, |comm| {
                body(&comm);
                comm.barrier().expect("all are done");
            })
        });
    }
}

/// Returns the contents of the `number`th message, of `len` elements, from a rank with a tag.
fn contents(from: u32, tag: u32, number: usize, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i ^ from << 28 ^ tag << 20 ^ (number as u32) << 12).collect()
}

/// Lengths below and above the limits between messages in a cell, in one piece, in many pieces, and (for shared
/// memory) by rendezvous.
const LENGTHS: [usize; 6] = [0, 1, 30, 5_000, 100_000, 600_000];
