//! Half the round trip of an 8-byte message between two ranks, beside that over a bare socket: the best of many batches,
//! since whatever else runs on the machine only adds to it.
//!
//! `message_latency` prints one line per way of sending.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, Result, TransportKind, Transports};

const BATCHES: usize = 300;
const ROUND_TRIPS: u32 = 100;

/// Best time of a batch, as microseconds for one way.
fn best(mut round_trip: impl FnMut()) -> f64 {
    let batch = || {
        let begin = Instant::now();
        (0..ROUND_TRIPS).for_each(|_| round_trip());
        begin.elapsed()
    };
    let best = std::iter::repeat_with(batch).take(BATCHES).min().unwrap_or(Duration::ZERO);
    best.as_secs_f64() * 1e6 / f64::from(2 * ROUND_TRIPS)
}

/// Two threads, a connection without delay, blocking or spinning.
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
    let config = Config { transports: Transports::Only(vec![kind]), ..Config::from_env()? };
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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    println!("bare socket, blocking  {:6.2} us", bare_socket(false)?);
    println!("bare socket, spinning  {:6.2} us", bare_socket(true)?);
    for kind in [TransportKind::Tcp, TransportKind::Shm] {
        let name = kind.name();
        let plain = over_kolo(kind, |c, m, to| c.send(m, to), |c, m, from| c.recv(m, from))?;
        println!("{name}, send and recv     {plain:6.2} us");
        let tagged =
            over_kolo(kind, |c, m, to| c.send_tagged(m, to, 9), |c, m, from| c.recv_tagged(m, from, 9))?;
        println!("{name}, with a tag        {tagged:6.2} us");
        let any = over_kolo(kind, |c, m, to| c.send(m, to), |c, m, _| c.recv_any(m).map(drop))?;
        println!("{name}, from any source   {any:6.2} us");
    }
    Ok(())
}
