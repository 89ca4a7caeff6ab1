//! Collectives on the in-process cluster.
use kolo::{Cluster, Config, ReduceOp, TransportKind, Transports};

fn config(kind: TransportKind) -> Config {
    Config {
        transports: Transports::Only(vec![kind]),
        timeout: std::time::Duration::from_secs(20),
        ..Config::default()
    }
}

#[test]
fn all_reduce_over_every_transport() {
    for kind in TransportKind::ALL {
        for ranks in 1..=5 {
            for count in [0, 1, 100, 5000, 300_000] {
                let start = std::time::Instant::now();
                let results = Cluster::with_config(ranks, &config(kind), |comm| {
                    let mut data: Vec<u32> = (0..count).map(|i| i as u32 * (comm.rank() + 1)).collect();
                    for _ in 0..3 {
                        comm.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    }
                    data
                })
                .unwrap();
                let factor = (1..=ranks).sum::<u32>() * ranks * ranks;
                for data in results {
                    for (i, v) in data.iter().enumerate() {
                        assert_eq!(*v, (i as u32).wrapping_mul(factor));
                    }
                }
                eprintln!("{kind:?} {ranks} {count} {:?}", start.elapsed());
            }
        }
    }
}
