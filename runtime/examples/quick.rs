use kolo::{Cluster, Config, ReduceOp, TransportKind, Transports};
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let kind = if args[1] == "shm" { TransportKind::Shm } else { TransportKind::Tcp };
    let ranks: u32 = args[2].parse().unwrap();
    let config = Config { transports: Transports::Only(vec![kind]), algorithms: args.get(3).cloned().unwrap_or_default(), ..Config::from_env().unwrap() };
    for bytes in [8usize, 1024, 8192, 32768, 131072, 524288, 2 << 20, 8 << 20, 32 << 20, 128 << 20] {
        let t = Cluster::with_config(ranks, &config, |comm| {
            let mut data = vec![1.0f32; bytes / 4];
            for _ in 0..2 { comm.all_reduce(&mut data, ReduceOp::Max).unwrap(); }
            let iters = ((0.3e9 / (bytes as f64 + 2000.0)) as usize).clamp(3, 20000);
            let mut best = f64::MAX; let mut all = vec![];
            for _ in 0..5 {
                comm.barrier().unwrap();
                let s = Instant::now();
                for _ in 0..iters { comm.all_reduce(&mut data, ReduceOp::Max).unwrap(); }
                let e = s.elapsed().as_secs_f64() / iters as f64;
                best = best.min(e); all.push(e);
            }
            all.sort_by(f64::total_cmp);
            (best, all[2])
        }).unwrap();
        println!("{kind:?} {ranks} ranks {bytes:>10} B  best {:>10.2} us  median {:>10.2} us busbw {:.2} GB/s", t[0].0 * 1e6, t[0].1 * 1e6, bytes as f64 / t[0].1 / 1e9 * 2.0 * (ranks as f64 - 1.0) / ranks as f64);
    }
}
