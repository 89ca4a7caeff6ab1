//! The simultaneous loss of half of many thread ranks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Barrier, OnceLock};
use std::time::Instant;

use kolo::{Cluster, Config, ReduceOp, Survivors, TransportKind, Transports};

use crate::Outcome;

/// Lets half of many thread ranks die at once, repeatedly, each time in a new cluster.
pub(crate) fn threads(way: &str, ranks: u32, rounds: u32) -> Outcome<()> {
    let kind = if way == "tcp" { TransportKind::Tcp } else { TransportKind::Shm };
    let mut config = Config::from_env()?;
    config.transports = Transports::Only(vec![kind]);
    println!(
        "{way}, {ranks} thread ranks, every other one dies; ms until the last survivor has summed again"
    );
    for _ in 0..rounds {
        let all = Barrier::new(ranks as usize);
        let died_at = OnceLock::new();
        let times = Cluster::with_configs(
            ranks,
            |_| config.clone(),
            |comm| {
                let dies = comm.rank().is_multiple_of(2);
                comm.all_reduce(&mut [1_u64], ReduceOp::Sum)?;
                all.wait();
                let died_at = *died_at.get_or_init(Instant::now);
                if dies {
                    // A panic whose thread drops its communicator while unwinding, without output on the
                    // terminal.
                    let panics = AssertUnwindSafe(|| {
                        let _of_this_rank = comm;
                        resume_unwind(Box::new("it was to die"));
                    });
                    return catch_unwind(panics).map_or(Ok(None), |()| Ok(None));
                }
                let mut group = Survivors::new(comm);
                let mut sum = [0_u64];
                while sum != [u64::from(ranks / 2)] {
                    group.all_reduce(&[1], &mut sum, ReduceOp::Sum)?;
                }
                Ok(Some((died_at.elapsed(), group.comm().epoch())))
            },
        )?;
        let times: Vec<_> =
            times.into_iter().collect::<kolo::Result<Vec<_>>>()?.into_iter().flatten().collect();
        let last = times.iter().max().ok_or("somebody is left")?;
        println!("{:.0} ms, after {} shrinks", last.0.as_secs_f64() * 1e3, last.1);
    }
    Ok(())
}
