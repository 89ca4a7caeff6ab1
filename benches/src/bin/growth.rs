//! Measures the cost of joining by the number of ranks: `growth [threads|processes] [shm|tcp|HOSTS] [ranks ...]`, for
//! example `growth threads shm 64 256 1024`. A number HOSTS distributes the ranks over as many simulated hosts on one
//! machine.
//!
//! Each row runs in a process of its own (or in one for each rank), so that nothing is left of the row before. Figures
//! are taken when all ranks have joined and made one all-reduce of 8 bytes: the time from the start to the end of
//! joining, processor time of all ranks, memory (anonymous, and its peak), descriptors and threads of a rank, and the
//! bytes that the coordinator of rank 0 has sent and received.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, ReduceOp, TransportKind, Transports};
use kolo_benches::status;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Figures of one process.
#[derive(Clone, Copy, Default)]
struct Figures {
    seconds: f64,
    processor_seconds: f64,
    anonymous: u64,
    peak: u64,
    descriptors: u64,
    threads: u64,
    sent: u64,
    received: u64,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, default: &str| arguments.get(at).map_or_else(|| default.to_owned(), Clone::clone);
    if word(0, "") == "--row" {
        return threads_row(&word(1, "shm"), word(2, "2").parse()?);
    }
    if word(0, "") == "--rank" {
        return process_rank(&word(1, "shm"));
    }
    let (kind, way) = (word(0, "threads"), word(1, "shm"));
    let mut sizes: Vec<u32> = arguments.iter().skip(2).map(|text| text.parse()).collect::<Result<_, _>>()?;
    if sizes.is_empty() {
        sizes = vec![16, 64, 256];
    }
    println!("{kind}, {way}");
    println!(
        "| ranks | joined s | processor s | MB per rank | at its peak | descriptors per rank | threads per rank | rank 0 sent MB | received MB |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for ranks in sizes {
        let all = match kind.as_str() {
            "threads" => row_of_threads(&way, ranks)?,
            "processes" => row_of_processes(&way, ranks)?,
            _ => return Err(format!("'{kind}' is neither threads nor processes").into()),
        };
        print_row(ranks, &all);
    }
    Ok(())
}

fn print_row(ranks: u32, all: &[Figures]) {
    let sum = |of: fn(&Figures) -> u64| all.iter().map(of).sum::<u64>() as f64;
    let each = |of: fn(&Figures) -> u64| sum(of) / f64::from(ranks);
    let most = all.iter().map(|f| f.seconds).fold(0.0, f64::max);
    let processor: f64 = all.iter().map(|f| f.processor_seconds).sum();
    println!(
        "| {ranks} | {most:.2} | {processor:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.2} | {:.2} |",
        each(|f| f.anonymous) / 1e6,
        each(|f| f.peak) / 1e6,
        each(|f| f.descriptors),
        each(|f| f.threads),
        sum(|f| f.sent) / 1e6,
        sum(|f| f.received) / 1e6,
    );
}

/// Returns the settings of a rank.
fn config(way: &str, rank: u32, ranks: u32) -> Outcome<Config> {
    let mut config = Config::from_env()?;
    match way {
        "shm" => config.transports = Transports::Only(vec![TransportKind::Shm]),
        "tcp" => config.transports = Transports::Only(vec![TransportKind::Tcp]),
        "auto" => {}
        hosts => {
            let per_host = ranks.div_ceil(hosts.parse::<u32>()?);
            config.host_id = Some(format!("host-{}", rank / per_host));
        }
    }
    Ok(config)
}

fn use_it(comm: &Communicator) -> kolo::Result<()> {
    comm.all_reduce(&mut [1_u64], ReduceOp::Sum)
}

fn figures(seconds: f64, bytes: Option<(u64, u64)>) -> Outcome<Figures> {
    let (sent, received) = bytes.unwrap_or_default();
    Ok(Figures {
        seconds,
        processor_seconds: status::processor_time().as_secs_f64(),
        anonymous: status::kib("RssAnon:")? << 10,
        peak: status::kib("VmHWM:")? << 10,
        descriptors: std::fs::read_dir("/proc/self/fd")?.count() as u64,
        threads: std::fs::read_dir("/proc/self/task")?.count() as u64,
        sent,
        received,
    })
}

impl Figures {
    fn tell(&self) {
        let Self { seconds, processor_seconds, anonymous, peak, descriptors, threads, sent, received } = self;
        println!(
            "@ {seconds} {processor_seconds} {anonymous} {peak} {descriptors} {threads} {sent} {received}"
        );
    }

    fn heard(line: &str) -> Outcome<Self> {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let [seconds, processor_seconds, anonymous, peak, descriptors, threads, sent, received] = words[..]
        else {
            return Err(format!("a process said {line:?}").into());
        };
        Ok(Self {
            seconds: seconds.parse()?,
            processor_seconds: processor_seconds.parse()?,
            anonymous: anonymous.parse()?,
            peak: peak.parse()?,
            descriptors: descriptors.parse()?,
            threads: threads.parse()?,
            sent: sent.parse()?,
            received: received.parse()?,
        })
    }
}

fn row_of_threads(way: &str, ranks: u32) -> Outcome<Vec<Figures>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--row", way, &ranks.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let told = hear(&mut child);
    child.wait()?;
    Ok(vec![told?])
}

/// Runs all ranks as threads of this process.
fn threads_row(way: &str, ranks: u32) -> Outcome<()> {
    let all = Barrier::new(ranks as usize);
    let begun = Instant::now();
    let configs: Vec<Config> = (0..ranks).map(|rank| config(way, rank, ranks)).collect::<Outcome<_>>()?;
    let told = Cluster::with_configs(
        ranks,
        |rank| configs[rank as usize].clone(),
        |comm| {
            let joined = begun.elapsed().as_secs_f64();
            use_it(&comm)?;
            all.wait();
            let told = (comm.rank() == 0)
                .then(|| figures(joined, comm.coordinator_bytes()).map_err(|e| e.to_string()));
            all.wait();
            Ok::<_, kolo::Error>(told)
        },
    )?;
    for rank in told {
        if let Some(figures) = rank? {
            figures?.tell();
        }
    }
    Ok(())
}

fn row_of_processes(way: &str, ranks: u32) -> Outcome<Vec<Figures>> {
    let folder = std::env::temp_dir().join(format!("kolo-growth-{}", std::process::id()));
    let _ = std::fs::remove_file(&folder);
    let mut children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(std::env::current_exe()?)
                .args(["--rank", way])
                .env("KOLO_RENDEZVOUS", format!("file://{}", folder.display()))
                .env("KOLO_RANK", rank.to_string())
                .env("KOLO_WORLD_SIZE", ranks.to_string())
                .env("KOLO_JOIN_TIMEOUT", "300")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let told: Outcome<Vec<Figures>> = children.iter_mut().map(hear).collect();
    // All ranks stay until all have reported.
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for mut child in children {
        child.wait()?;
    }
    told
}

fn hear(child: &mut Child) -> Outcome<Figures> {
    let out = child.stdout.take().ok_or("piped")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        if line.starts_with('@') {
            return Figures::heard(&line);
        }
    }
    Err("a process ended without a word".into())
}

/// Runs one rank as a process.
fn process_rank(way: &str) -> Outcome<()> {
    let begun = Instant::now();
    let [rank, ranks] = ["KOLO_RANK", "KOLO_WORLD_SIZE"].map(|name| std::env::var(name).unwrap_or_default());
    let config =
        config(way, rank.parse()?, ranks.parse()?)?.with(|config| config.timeout = Duration::from_secs(300));
    let comm = Communicator::builder().config(config).connect()?;
    let joined = begun.elapsed().as_secs_f64();
    use_it(&comm)?;
    figures(joined, comm.coordinator_bytes())?.tell();
    std::io::stdout().flush()?;
    // Waits until the parent closes the input.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
