//! Connects a queue pair of two processes, on one host or two, over a TCP connection, and measures it.
//!
//! Run `cargo run -p kolo-verbs --example pingpong` on one host, and the same with `-- HOST` on the other. This is
//! also the shortest complete program over this crate: [`main`] shows the order of the steps.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kolo_verbs::*;

const PORT: u16 = 29_777;
const ROUNDS: usize = 1000;
const BUFFER_BYTES: usize = 1 << 20;
const RECEIVES: u32 = 64;
/// Number of writes in flight when measuring throughput.
const WINDOW: usize = 16;
/// Ids of requests: receives, writes that the peer is notified of, and other writes.
const RECEIVED: u64 = 0;
const TOLD: u64 = 1;
const PLAIN: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    // The devices, with the result of trying them; or the remedy if there are none.
    let devices = match probe() {
        Probe::Ready(devices) => devices,
        Probe::Absent(absence) => return Err(format!("{absence}; {}", absence.remedy()).into()),
    };
    let usable = |device: &&DeviceReport| device.trouble.is_none();
    let device = devices.iter().find(usable).ok_or("no usable device")?;
    let report = device.ports.iter().find(|report| report.path().is_some()).ok_or("no usable port")?;
    let path = report.path().ok_or("no way out")?;
    let context = Library::open()?.devices()?.find(&device.name).ok_or("the device is gone")?.open()?;

    // The parts of a connection. Receives are posted before the peer can send.
    let domain = context.protection_domain()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let buffer = domain.allocate(BUFFER_BYTES, access)?;
    let queue = context.completion_queue(2 * RECEIVES, None, 0)?;
    let pair = domain.queue_pair(&QueuePairSpec {
        send_queue: &queue,
        receive_queue: &queue,
        send_depth: 64,
        receive_depth: RECEIVES,
        send_pieces: 1,
        receive_pieces: 1,
        inline_bytes: 0,
    })?;
    pair.initialize(&path, Access::REMOTE_WRITE)?;
    for _ in 0..RECEIVES {
        // SAFETY: the receive has no memory.
        unsafe { pair.post_receive(RECEIVED, &[])? };
    }

    // Both ends exchange their addresses; then both connect; then both confirm it.
    let gid = report.gids.iter().find(|entry| entry.index == path.gid_index).map(|entry| entry.gid);
    let mine = Address {
        number: pair.number(),
        first_packet: std::process::id() & 0xff_ffff,
        lid: report.port.lid,
        mtu: path.mtu,
        gid: gid.unwrap_or_default(),
    };
    let host = std::env::args().nth(1);
    let mut control = meet(host.as_deref())?;
    control.write_all(&mine.to_bytes())?;
    control.write_all(&buffer.region().remote(0).address.to_be_bytes())?;
    control.write_all(&buffer.region().remote_key().to_be_bytes())?;
    let peer = Address::from_bytes(&take(&mut control)?).ok_or("the peer's address makes no sense")?;
    let target = Remote {
        address: u64::from_be_bytes(take(&mut control)?),
        key: u32::from_be_bytes(take(&mut control)?),
    };
    pair.connect(&path, mine.first_packet, &peer, &Reliability::default())?;
    control.write_all(b"!")?;
    let [_] = take::<1>(&mut control)?;
    println!("{}, {} to {}, MTU {}", device.name, mine.gid, peer.gid, path.mtu.min(peer.mtu).bytes());

    let end = End { pair, queue, buffer, target };
    end.there_and_back(host.is_some())?;
    if host.is_some() {
        for bytes in [4 << 10, 64 << 10, BUFFER_BYTES] {
            end.stream(bytes)?;
        }
    }
    // An end that has finished waits for the other, because a queue pair that is gone does not acknowledge.
    control.write_all(b"!")?;
    let [_] = take::<1>(&mut control)?;
    Ok(())
}

struct End {
    pair: QueuePair,
    queue: CompletionQueue,
    buffer: PinnedBuffer,
    target: Remote,
}

impl End {
    fn write(&self, bytes: usize, told: bool) -> Result<(), kolo_verbs::Error> {
        let local = [self.buffer.region().local(0, bytes)];
        let (id, operation) = match told {
            true => (TOLD, Operation::WriteWithImmediate(self.target, 0)),
            false => (PLAIN, Operation::Write(self.target)),
        };
        let request = Send { id, operation, local: &local, report: Report::Yes, flags: Flags::NONE };
        // SAFETY: the buffer outlives the queue pair, which is declared and therefore dropped first; nobody reads the
        // buffer.
        unsafe { self.pair.post_send(&request) }
    }

    /// Waits for the completion of a request with this id; others may come before.
    fn wait(&self, id: u64) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut one = [Completion::default()];
        loop {
            if self.queue.poll(&mut one)? == 1 {
                one[0].result()?;
                if one[0].id() == id {
                    return Ok(());
                }
            } else if Instant::now() > deadline {
                return Err("the peer has fallen silent".into());
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn there_and_back(&self, first: bool) -> Result<(), Box<dyn Error>> {
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            if first {
                self.write(8, true)?;
            }
            self.wait(RECEIVED)?;
            // SAFETY: the receive has no memory.
            unsafe { self.pair.post_receive(RECEIVED, &[])? };
            if !first {
                self.write(8, true)?;
            }
            rounds.push(start.elapsed());
        }
        rounds.sort();
        println!("8 bytes there and back: median {:?}, best {:?}", rounds[ROUNDS / 2], rounds[0]);
        Ok(())
    }

    fn stream(&self, bytes: usize) -> Result<(), Box<dyn Error>> {
        let count = ((32 << 20) / bytes).max(WINDOW);
        let start = Instant::now();
        for index in 0..count {
            if index >= WINDOW {
                self.wait(PLAIN)?;
            }
            self.write(bytes, false)?;
        }
        for _ in 0..WINDOW {
            self.wait(PLAIN)?;
        }
        let rate = (count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("writes of {bytes} bytes: {rate:.0} MB/s");
        Ok(())
    }
}

/// Connects to `host`, or accepts a connection if there is none; either end may be started first.
fn meet(host: Option<&str>) -> Result<TcpStream, Box<dyn Error>> {
    let Some(host) = host else {
        return Ok(TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0);
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect((host, PORT)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn take<const N: usize>(from: &mut TcpStream) -> Result<[u8; N], std::io::Error> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
