//! Compares the smallest operations between two ranks with the limits of the machine: `message_latency`.
//!
//! - Half the round trip of an 8-byte message, compared with the same over a bare socket or with a bare flag in memory:
//!   the best of many batches, since other activity on the machine only adds time.
//! - All-reduce of 8 bytes in shared memory, compared with half the round trip of the flag, batch by batch in turn, on
//!   two threads with a processor each, since the host of a virtual machine may move processors farther apart at any
//!   time. Medians.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, ReduceOp, Result, TransportKind, Transports};
use kolo_benches::bare_flag::BareFlag;
use kolo_benches::limit::{HEAD, Row, Unit, median};
use kolo_benches::processors;

const BATCHES: usize = 300;
const ROUND_TRIPS: u32 = 100;

/// Limit on Kolo's time for a message, relative to a bare blocking socket.
const SOCKETS_MAX: f64 = 1.15;
/// Limit on Kolo's time for an all-reduce, relative to a bare flag.
const FLAGS_MAX: f64 = 2.0;

/// Returns the time of a batch.
fn batch(mut round_trip: impl FnMut()) -> Duration {
    let begin = Instant::now();
    (0..ROUND_TRIPS).for_each(|_| round_trip());
    begin.elapsed()
}

/// Returns the microseconds of one round trip in the batch.
fn micros(batch: Duration) -> f64 {
    batch.as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS)
}

/// Returns the best time of a batch, as microseconds for one way.
fn best(mut round_trip: impl FnMut()) -> f64 {
    let batches = std::iter::repeat_with(|| batch(&mut round_trip)).take(BATCHES);
    micros(batches.min().unwrap_or(Duration::ZERO)) / 2.0
}

/// Measures a connection without delay between two threads, blocking or spinning.
fn bare_socket(spins: bool) -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut here = TcpStream::connect(listener.local_addr()?)?;
    let (mut there, _) = listener.accept()?;
    for end in [&here, &there] {
        end.set_nodelay(true)?;
        end.set_nonblocking(spins)?;
    }
    let receive = |end: &mut TcpStream| {
        let mut message = [0; 8];
        while end.read_exact(&mut message).is_err() {
            assert!(spins, "the other end is there");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..BATCHES * ROUND_TRIPS as usize {
                receive(&mut there);
                there.write_all(&[2; 8]).expect("the other end is there");
            }
        });
        Ok(best(|| {
            here.write_all(&[1; 8]).expect("the other end is there");
            receive(&mut here);
        }))
    })
}

type Message = [u64; 1];

fn over_kolo(
    kind: TransportKind,
    send: impl Fn(&Communicator, &Message, u32) -> Result<()> + Sync,
    recv: impl Fn(&Communicator, &mut Message, u32) -> Result<()> + Sync,
) -> Result<f64> {
    let config = Config::from_env()?.with(|config| config.transports = Transports::Only(vec![kind]));
    let times = Cluster::with_configs(
        2,
        |_| config.clone(),
        |comm| {
            let mut message = [7];
            let mut trip = |first: bool| {
                if first {
                    send(&comm, &message, 1)?;
                    recv(&comm, &mut message, 1)
                } else {
                    recv(&comm, &mut message, 0)?;
                    send(&comm, &message, 0)
                }
            };
            best(|| trip(comm.rank() == 0).expect("a round trip"))
        },
    )?;
    Ok(times[0])
}

/// Returns the one-way time of a bare flag, the best of many batches.
fn bare_flag(places: [usize; 2]) -> std::io::Result<f64> {
    let flag = BareFlag::default();
    std::thread::scope(|scope| {
        let mut answers = flag.side(1);
        let other = scope.spawn(move || {
            processors::pin(places[1])?;
            (0..BATCHES * ROUND_TRIPS as usize).for_each(|_| answers.round_trip());
            Ok(())
        });
        // This side also runs on a thread of its own, so that the calling thread is not pinned.
        let mut begins = flag.side(0);
        let one = scope.spawn(move || {
            processors::pin(places[0])?;
            Ok(best(|| begins.round_trip()))
        });
        other.join().expect("no panic").and(one.join().expect("no panic"))
    })
}

/// Returns the medians of the one-way time of a bare flag and of an all-reduce of 8 bytes, measured in turn.
fn flag_and_all_reduce(places: [usize; 2]) -> std::result::Result<[f64; 2], Box<dyn std::error::Error>> {
    let config =
        Config::from_env()?.with(|config| config.transports = Transports::Only(vec![TransportKind::Shm]));
    let flag = BareFlag::default();
    let times = Cluster::with_config(2, &config, |comm| {
        let me = comm.rank() as usize;
        processors::pin(places[me])?;
        let (mut side, mut data, mut times) = (flag.side(me), [1.0_f64], [const { Vec::new() }; 2]);
        for _ in 0..BATCHES {
            comm.barrier().expect("both are there");
            times[0].push(micros(batch(|| side.round_trip())) / 2.0);
            times[1].push(micros(batch(|| {
                data = [0.0];
                comm.all_reduce(&mut data, ReduceOp::Sum).expect("both are there");
            })));
        }
        Ok::<_, std::io::Error>(times.map(median))
    })?;
    Ok(times.into_iter().next().expect("rank 0")?)
}

fn row(what: &str, possible: f64, kolo: f64, target: Option<f64>) {
    println!("{}", Row { what, ranks: 2, bytes: 8, unit: Unit::Micros, possible, kolo, target });
}

/// Prints lines for each way of sending, compared with some limits. The target applies to plain messages and the first
/// limit.
fn messages<const N: usize>(
    kind: TransportKind,
    limits: [&str; N],
    possible: [f64; N],
    target: Option<f64>,
) -> Result<()> {
    let lines = |way: &str, kolo: f64, target: Option<f64>| {
        for (index, (limit, possible)) in limits.iter().zip(possible).enumerate() {
            let what = format!("{limit}: {}, {way}", kind.name());
            row(&what, possible, kolo, target.filter(|_| index == 0));
        }
    };
    lines("send and recv", over_kolo(kind, |c, m, to| c.send(m, to), |c, m, from| c.recv(m, from))?, target);
    let tagged = over_kolo(kind, |c, m, to| c.send_tagged(m, to, 9), |c, m, from| c.recv_tagged(m, from, 9))?;
    lines("with a tag", tagged, None);
    let any = over_kolo(kind, |c, m, to| c.send(m, to), |c, m, _| c.recv_any(m).map(drop))?;
    lines("from any source", any, None);
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    println!("{HEAD}");
    let places = match processors::allowed()?[..] {
        [one, other, ..] => Some([one, other]),
        _ => None,
    };
    let (blocking, spinning) = (bare_socket(false)?, bare_socket(true)?);
    messages(
        TransportKind::Tcp,
        ["bare blocking socket", "bare spinning socket"],
        [blocking, spinning],
        Some(1.0 / SOCKETS_MAX),
    )?;
    match places {
        Some(places) => {
            messages(TransportKind::Shm, ["bare flag"], [bare_flag(places)?], None)?;
            let [flag, all_reduce] = flag_and_all_reduce(places)?;
            row("bare flag: shm, all_reduce", flag, all_reduce, Some(1.0 / FLAGS_MAX));
        }
        None => eprintln!(
            "message_latency: a bare flag needs two processors; there is one, so nothing about memory"
        ),
    }
    Ok(())
}
