//! Compares all-reduce over TCP with the capacity of the machine's sockets:
//! `kolo run -n 4 -- socket_limit [MiB ...]`.
//!
//! With any algorithm, n ranks send 2 (n - 1) S bytes through the kernel to all-reduce S bytes. If bare sockets move
//! G bytes per second between processes, both directions added up, the bus bandwidth is at most G / n. Ranks are
//! therefore paired with a neighbour, and both send and receive S bytes at once, over a connection with the
//! congestion control that Kolo would use: all pairs together, or one pair while the others wait, whichever moves
//! more. This and Kolo's all-reduce of S bytes are run in turn, on equally cold buffers. Times are medians over the
//! slowest rank.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use kolo::{Communicator, Config, ReduceOp, TransportKind, Transports};
use kolo_benches::limit::{HEAD, Row, Unit, median};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_tcp_congestion;

/// Kinds of measurement, made in turn.
#[derive(Clone, Copy)]
enum Kind {
    /// All pairs at once, with at most this many bytes per system call: the best number depends on the machine.
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
/// Share of G / n that Kolo is to reach.
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
        // Rate of the bytes through the kernel, of which the n-th part counts as bus bandwidth.
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

/// Returns medians in seconds, in the order of [`KINDS`].
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

/// Connects each even rank with the next rank.
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
    // Kolo's choice; if neither is permitted, the system's congestion control sets the limit.
    let _ = ["cubic", "reno"].iter().any(|name| set_tcp_congestion(&socket, name).is_ok());
    Ok(socket)
}

/// Sends and receives everything, in whichever order the socket allows.
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

/// Returns the number of bytes that a call has moved.
fn done(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
