//! How near all-reduce over TCP comes to what the machine's sockets carry: `kolo run -n 4 -- socket_limit [MiB ...]`.
//!
//! With any algorithm, n ranks send 2 (n - 1) S bytes through the kernel to all-reduce S bytes. If bare sockets move G bytes per second
//! between processes, both ways at once and added up, bus bandwidth is at most G / n. So ranks are paired with a neighbour, and both send
//! S bytes and receive S bytes at once, over a connection with the congestion control that Kolo would take: all pairs together, or one
//! while the others wait, whichever moves more. This and Kolo's all-reduce of S bytes are run in turn, on buffers that are as cold. Times
//! are the slowest rank's, and medians.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use kolo::{Communicator, Config, ReduceOp, TransportKind, Transports};
use kolo_benches::limit::{HEAD, Row, Unit, median};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_tcp_congestion;

/// Kind of measurement, in turn.
#[derive(Clone, Copy)]
enum Kind {
    /// With at most so many bytes for each call: which is better depends on the machine.
    AllPairs(usize),
    OnePair(usize),
    Kolo,
}

const KINDS: [Kind; 5] = [
    Kind::AllPairs(256 << 10),
    Kind::AllPairs(1 << 20),
    Kind::OnePair(256 << 10),
    Kind::OnePair(1 << 20),
    Kind::Kolo,
];
const ROUNDS: usize = 9;
/// Of G / n, that Kolo is to reach.
const SHARE: f64 = 0.85;

fn main() -> Result<(), Box<dyn Error>> {
    let mut sizes: Vec<usize> = Vec::new();
    for argument in std::env::args().skip(1) {
        sizes.push(argument.parse::<usize>().map_err(|error| format!("{argument} MiB: {error}"))? << 20);
    }
    if sizes.is_empty() {
        sizes = vec![32 << 20, 128 << 20];
    }
    let config =
        Config::from_env()?.with(|config| config.transports = Transports::Only(vec![TransportKind::Tcp]));
    let comm = Communicator::builder().config(config).connect()?;
    let ranks = comm.world_size();
    if ranks % 2 == 1 {
        return Err(format!("{ranks} ranks do not make pairs; start an even number").into());
    }
    let socket = neighbour(&comm)?;
    if comm.rank() == 0 {
        println!("{HEAD}");
    }
    for bytes in sizes {
        let seconds = measure(&comm, &socket, bytes)?;
        // Bytes that go through the kernel, and what of them counts as bus bandwidth: the n-th part.
        let rate = |kind: Kind, seconds: f64| {
            let sends = match kind {
                Kind::AllPairs(_) => ranks,
                Kind::OnePair(_) => 2,
                Kind::Kolo => 2 * (ranks - 1),
            };
            f64::from(sends) * bytes as f64 / seconds / f64::from(ranks) * 1e-9
        };
        let [bare @ .., kolo] = std::array::from_fn::<_, { KINDS.len() }, _>(|i| rate(KINDS[i], seconds[i]));
        if comm.rank() == 0 {
            let row = Row {
                what: "G / n of bare sockets: all_reduce over TCP",
                ranks,
                bytes,
                unit: Unit::GigabytesPerSecond,
                possible: bare.into_iter().fold(0.0, f64::max),
                kolo,
                target: Some(SHARE),
            };
            println!("{row}");
        }
    }
    Ok(())
}

/// Medians in seconds, in the order of [`KINDS`].
fn measure(
    comm: &Communicator,
    socket: &TcpStream,
    bytes: usize,
) -> Result<[f64; KINDS.len()], Box<dyn Error>> {
    let (out, mut back) = (vec![1; bytes], vec![2; bytes]);
    let mut data = vec![0.0_f32; bytes / 4];
    let mut times = [const { Vec::new() }; KINDS.len()];
    for round in 0..=ROUNDS {
        for (kind, times) in KINDS.iter().zip(&mut times) {
            comm.barrier()?;
            let begin = Instant::now();
            match *kind {
                Kind::OnePair(_) if comm.rank() >= 2 => {}
                Kind::AllPairs(call) | Kind::OnePair(call) => exchange(socket, &out, &mut back, call)?,
                Kind::Kolo => comm.all_reduce(&mut data, ReduceOp::Sum)?,
            }
            comm.barrier()?;
            let mut took = [begin.elapsed().as_secs_f64()];
            comm.all_reduce(&mut took, ReduceOp::Max)?;
            if round > 0 {
                times.push(took[0]);
            }
        }
    }
    Ok(times.map(median))
}

/// A connection of each even rank with the next one.
fn neighbour(comm: &Communicator) -> Result<TcpStream, Box<dyn Error>> {
    let peer = comm.rank() ^ 1;
    let socket = if peer > comm.rank() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        comm.send(&[i32::from(listener.local_addr()?.port())], peer)?;
        listener.accept()?.0
    } else {
        let mut port = [0_i32];
        comm.recv(&mut port, peer)?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, u16::try_from(port[0])?))?
    };
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    // As Kolo chooses; where neither is permitted the system's is the limit.
    let _ = ["cubic", "reno"].iter().any(|name| set_tcp_congestion(&socket, name).is_ok());
    Ok(socket)
}

/// Sends and receives everything, whichever is possible.
fn exchange(mut socket: &TcpStream, out: &[u8], back: &mut [u8], call: usize) -> io::Result<()> {
    let (mut sent, mut received) = (0, 0);
    while sent < out.len() || received < back.len() {
        let mut moved = 0;
        if sent < out.len() {
            let end = out.len().min(sent + call);
            let count = done(socket.write(&out[sent..end]))?;
            sent += count;
            moved += count;
        }
        if received < back.len() {
            let end = back.len().min(received + call);
            let count = done(socket.read(&mut back[received..end]))?;
            received += count;
            moved += count;
        }
        if moved == 0 {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::OUT, sent < out.len());
            wanted.set(PollFlags::IN, received < back.len());
            poll(&mut [PollFd::new(socket, wanted)], None)?;
        }
    }
    Ok(())
}

/// How much a call has moved.
fn done(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
