//! One rank of a job that goes on after losses: sums until it is told to stop, and shrinks whenever a call fails. Reports lines
//! that begin with "@", with the time of the machine's clock in nanoseconds where it matters.
//!
//! Every rank adds the bit of the rank that it was at first, so the sum tells who is in. A first argument says how many
//! elements; then follow ranks that kill themselves so many microseconds after their first call has failed: "2:500"; or that stop
//! themselves, once: "2~500".

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use kolo::{AbortReason, Communicator, Error, ReduceOp};
use kolo_tests::system;

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Whether this rank is one that does something to itself, and after what.
fn harms_itself_after(how: char, arguments: &[String], rank: u32) -> Option<std::time::Duration> {
    let mut of_ranks = arguments.iter().filter_map(|argument| argument.split_once(how));
    let (_, delay) = of_ranks.find(|(of, _)| of.parse() == Ok(rank))?;
    delay.parse().ok().map(std::time::Duration::from_micros)
}

static STOP: AtomicBool = AtomicBool::new(false);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let elements: usize = arguments.first().and_then(|a| a.parse().ok()).unwrap_or(3).max(3);
    let mut comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return report(&format!("@error {error}")),
    };
    std::thread::spawn(|| {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            STOP.store(line == "stop", Ordering::Relaxed);
        }
    });
    let first = comm.rank();
    let mut fresh = false;
    let mut data = vec![0.0_f32; elements];
    for turn in 0_u64.. {
        data.fill(1.0);
        data[0] = if STOP.load(Ordering::Relaxed) { 1.0 } else { 0.0 };
        data[1] = (1_u32 << first) as f32;
        match comm.all_reduce(&mut data, ReduceOp::Sum) {
            Ok(()) => {
                let size = comm.world_size() as f32;
                if data[2..].iter().any(|value| *value != size) {
                    report(&format!("@wrong {turn}: {} of {size}", data[2]));
                }
                if std::mem::take(&mut fresh) {
                    let (now, epoch) = (system::machine_time().as_nanos(), comm.epoch());
                    report(&format!("@again {now} {} {size} {epoch} {}", data[1] as u32, comm.rank()));
                }
                if turn == 3 {
                    report("@running");
                }
                if data[0] > 0.0 {
                    break;
                }
            }
            Err(error) => {
                report(&format!("@failed {} {error}", system::machine_time().as_nanos()));
                if let Some(delay) = harms_itself_after(':', &arguments, first) {
                    std::thread::spawn(move || system::end_by_kill(delay));
                }
                if let Some(delay) = harms_itself_after('~', &arguments, first).filter(|_| comm.epoch() == 0)
                {
                    std::thread::spawn(move || system::stop(delay));
                }
                comm.revoke();
                match comm.shrink() {
                    Ok(next) => {
                        report(&format!("@shrunk {}", system::machine_time().as_nanos()));
                        comm = next;
                        fresh = true;
                    }
                    Err(Error::Aborted { kind: AbortReason::Fenced, .. }) => return report("@fenced"),
                    Err(Error::Aborted { kind: AbortReason::Minority, .. }) => return report("@minority"),
                    Err(error) => return report(&format!("@error {error}")),
                }
            }
        }
    }
    drop(comm);
    report("@gone");
}
