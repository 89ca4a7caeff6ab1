//! `kolo sim --scale`: simulated times of worlds too large to measure, as a page.

use std::fmt::Write as _;

use kolo::Transports;
use kolo_collectives::model::{LinkClass, Model};
use kolo_collectives::plan::Collective;
use kolo_collectives::simulate::Cluster;

use super::{Described, Patience, simulate_one};
use crate::error::Result;
use crate::explain::choose;
use crate::perf::human_bytes;
use crate::planning::{CallArgs, human_seconds};

const RANKS: [u32; 4] = [64, 256, 1024, 4096];
const RANKS_PER_HOST: u32 = 8;
const GIGABITS: [u32; 3] = [10, 100, 400];
const SIZES: [u64; 3] = [1 << 10, 1 << 20, 256 << 20];
const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::AllToAll,
];

const HEAD: &str = "\
# Simulated times for 64 to 4096 ranks

This page has simulated times for 64 to 4096 ranks, 8 on each host, with one network interface of 10, 100 or 400 Gb/s per host.
It is the output of

```sh
kolo sim --scale > docs/scale.md
```

with the built-in constants (`collectives/src/model.rs`): shared memory inside a host, and between hosts the latencies of TCP
(10 Gb/s) or RDMA (100 and 400 Gb/s). Sizes are those of `kolo perf`: the length of the vector, or the total of all ranks' blocks.
Calls are in place, except reduce_scatter and all_to_all. Blocks have at least one element. Bandwidths are bus bandwidths as
nccl-tests defines them. The simulator models neither congestion inside the network nor other programs; `kolo tune --check` says how
accurate it is on one machine.

From 100 Gb/s on, the memory bandwidth of a host limits long vectors (100 GB/s in the model, shared by 8 ranks), so 400 Gb/s adds
little. A profile with a larger `host_bytes_per_second` gives other results.

Times marked * come from the cost model, because simulating so many steps would take long. `kolo sim` simulates them on request.
";

/// Makes the page.
pub(super) fn page() -> Result<String> {
    let mut out = HEAD.to_owned();
    for collective in COLLECTIVES {
        let _ = writeln!(out, "\n## {collective}");
        for bytes in SIZES {
            let _ = writeln!(out, "\n{}\n", human_bytes(bytes as f64));
            let speeds = GIGABITS.map(|gigabits| format!(" {gigabits} Gb/s |")).concat();
            let _ = writeln!(out, "| ranks |{speeds}\n| ---: |{}", " --- |".repeat(GIGABITS.len()));
            for ranks in RANKS {
                let mut row = format!("| {ranks} |");
                for gigabits in GIGABITS {
                    let _ = write!(row, " {} |", cell(collective, bytes, ranks, gigabits)?);
                }
                let _ = writeln!(out, "{row}");
            }
        }
    }
    Ok(out)
}

/// Returns the model of a network of this many gigabits per second, all of which a single rank can use.
fn model(gigabits: u32) -> Model {
    let bytes_per_second = f64::from(gigabits) * 1e9 / 8.0;
    let model = if gigabits <= 10 { Model::TCP } else { Model::RDMA };
    let inter = LinkClass { bytes_per_second, ..model.inter };
    Model { inter, nic_bytes_per_second: bytes_per_second, ..model }
}

fn cell(collective: Collective, bytes: u64, ranks: u32, gigabits: u32) -> Result<String> {
    let in_place = !matches!(collective, Collective::ReduceScatter | Collective::AllToAll);
    let mut call = CallArgs {
        collective,
        bytes,
        root: 0,
        in_place,
        element_bytes: 4,
        algo: None,
        canonical: false,
        shards: None,
        symmetric: false,
    };
    let least = call.element_bytes * u64::from(ranks);
    if call.selection_bytes(ranks) < call.element_bytes {
        call.bytes = least;
    }
    let hosts = ranks / RANKS_PER_HOST;
    let cluster =
        Cluster { hosts, ranks_per_host: RANKS_PER_HOST, model: model(gigabits), ..Cluster::default() };
    let task = call.task(cluster.hosts_of_ranks(), &Transports::Auto)?;
    let choice = choose(&call, &task, &cluster.model)?;
    let described = Described { cluster, segment_given: false, window_given: false };
    let simulated = simulate_one(&call, &described, &task, Some(choice.algorithm), Patience::None);
    let (seconds, mark) =
        simulated.map_or((choice.cost_seconds, "*"), |outcome| (outcome.timing.seconds, ""));
    let bus = bus_share(collective, ranks) * call.bytes as f64 / seconds / 1e9;
    Ok(format!("{} {}{mark}, {bus:.3} GB/s", choice.algorithm, human_seconds(seconds)))
}

/// Returns the factor by which nccl-tests multiplies the bandwidth of an algorithm to get that of the bus.
fn bus_share(collective: Collective, ranks: u32) -> f64 {
    let p = f64::from(ranks);
    match collective {
        Collective::AllReduce => 2.0 * (p - 1.0) / p,
        Collective::Broadcast => 1.0,
        _ => (p - 1.0) / p,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bandwidth_takes_less_time_and_no_link_carries_more_than_it_can() {
        let of = |gigabits| cell(Collective::AllReduce, 256 << 20, 64, gigabits).unwrap();
        let bus = |text: String| text.split(' ').rev().nth(1).unwrap().parse::<f64>().unwrap();
        let (slow, fast) = (bus(of(10)), bus(of(100)));
        // A host's ranks reduce among themselves before data leaves the host, so the bus may show somewhat more
        // than the interface.
        assert!(slow > 0.5 && slow < 2.5 && fast > slow, "{slow} {fast}");
    }
}
