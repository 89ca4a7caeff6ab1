//! Tests of the laboratory's own promises, measured with bare sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kolo_netlab::network::Network;
use kolo_netlab::{Host, Lab};

use crate::Test;

pub(crate) const TESTS: &[Test] = tests![
    Moment rates_are_kept,
    Moment delays_are_kept,
    Moment cards_and_directions_have_rates_of_their_own,
    Moment losses_have_their_share,
    Moment a_router_leads_from_subnet_to_subnet,
    Moment dialling_can_be_forbidden,
    Moment a_cut_cable_can_be_mended,
    Moment nothing_is_left_of_a_killed_laboratory,
];

const LONG: Duration = Duration::from_secs(60);
/// Share of a full packet's bytes on the wire that is TCP payload.
const PAYLOAD: f64 = 1448.0 / 1538.0;

/// Makes a connection from one host to an address of another.
fn connect(from: &Host, to: &Host, at: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.on(|| TcpListener::bind((at, 0))).expect("there").expect("listens");
    let address = listener.local_addr().expect("bound");
    let dial = || TcpStream::connect_timeout(&address, LONG);
    let near = from.on(dial).expect("there").expect("connects");
    let far = listener.accept().expect("accepted").0;
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(LONG)).expect("a socket option");
        stream.set_write_timeout(Some(LONG)).expect("a socket option");
    }
    (near, far)
}

/// Measures the payload that arrives, in bits per second. The first quarter is not counted.
fn goodput(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let piece = vec![1; 64 << 10];
            let mut left = bytes;
            while left > 0 {
                left -= from.write(&piece[..left.min(piece.len())]).expect("sent");
            }
        });
        let mut buffer = vec![0; 64 << 10];
        let (mut got, mut began, mut counted) = (0, None, 0);
        while got < bytes {
            let len = to.read(&mut buffer).expect("received");
            assert!(len > 0, "the connection ends after {got} of {bytes} bytes");
            got += len;
            match began {
                None if got >= bytes / 4 => began = Some(Instant::now()),
                None => {}
                Some(_) => counted += len,
            }
        }
        counted as f64 * 8.0 / began.expect("begun").elapsed().as_secs_f64()
    })
}

/// Returns the shortest of some round trips of one byte, in seconds.
fn round_trip(from: &mut TcpStream, mut to: &TcpStream, count: usize) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            for _ in 0..count {
                to.read_exact(&mut byte).and_then(|()| to.write_all(&byte)).expect("echoed");
            }
        });
        let trip = |_| {
            let (began, mut byte) = (Instant::now(), [1]);
            from.write_all(&byte).and_then(|()| from.read_exact(&mut byte)).expect("an echo");
            began.elapsed()
        };
        (0..count).map(trip).min().expect("some").as_secs_f64()
    })
}

/// Checks that a measurement is close to the wanted value. Measures up to three times, since a busy machine may take
/// the CPU away from the switch.
fn close(wanted: f64, what: &str, mut measure: impl FnMut() -> f64) {
    let is_close = |_| {
        let measured = measure();
        println!("{what}: {measured:.3e}, wanted {wanted:.3e}");
        (0.9..=1.1).contains(&(measured / wanted))
    };
    assert!((0..3).any(is_close), "{what}: wanted {wanted:.3e}; what was measured stands above");
}

fn rate_between(lab: &Lab, from: usize, to: usize, nic: usize, bytes: usize) -> f64 {
    let at = lab.host(to).addresses()[nic][0];
    let (near, far) = connect(lab.host(from), lab.host(to), at);
    goodput(&near, &far, bytes)
}

fn rates_are_kept() {
    for (rate, bytes) in [(20_000_000, 2 << 20), (200_000_000, 16 << 20), (1_000_000_000, 64 << 20)] {
        let lab =
            Lab::new(&Network::hosts(2).rate(rate).delay(Duration::from_micros(25))).expect("a network");
        close(rate as f64 * PAYLOAD, "bit/s", || rate_between(&lab, 0, 1, 0, bytes));
    }
}

fn delays_are_kept() {
    for delay in [Duration::from_millis(2), Duration::from_millis(20)] {
        let lab = Lab::new(&Network::hosts(2).delay(delay)).expect("a network");
        for at in &lab.host(1).addresses()[0] {
            let (mut near, far) = connect(lab.host(0), lab.host(1), *at);
            close(2.0 * delay.as_secs_f64(), "s there and back", || round_trip(&mut near, &far, 20));
        }
    }
}

fn cards_and_directions_have_rates_of_their_own() {
    let network = Network::hosts(3).nics(2).rate(200_000_000).nic_rate(1, 50_000_000);
    let network = network.host_up(1, 20_000_000).host_down(2, 100_000_000);
    let lab = Lab::new(&network).expect("a network");
    for (from, to, nic, rate) in [
        (0, 1, 0, 200e6),
        (1, 0, 0, 20e6),
        (0, 2, 0, 100e6),
        // A later setting for a host also applies to its second card.
        (2, 0, 1, 50e6),
    ] {
        let bytes = (rate / 8.0 * 0.5) as usize;
        let what = format!("bit/s {from} to {to}");
        close(rate * PAYLOAD, &what, || rate_between(&lab, from, to, nic, bytes));
    }
    lab.set_rate(0, 10_000_000);
    close(10e6 * PAYLOAD, "bit/s after a change", || rate_between(&lab, 2, 0, 0, 1 << 20));
}

fn losses_have_their_share() {
    let network = Network::hosts(2).rate(100_000_000).delay(Duration::from_micros(100)).queue(4 << 20);
    for (network, share) in [(network.clone().loss(0.01), 0.01), (network.burst(0.01, 4.0), 0.01)] {
        let lab = Lab::new(&network.reorder(0.01, Duration::from_millis(1))).expect("a network");
        rate_between(&lab, 0, 1, 0, 8 << 20);
        let counts = lab.counts();
        let lost = counts.lost as f64 / (counts.lost + counts.passed) as f64;
        println!("{counts:?}");
        assert!((share * 0.5..share * 2.0).contains(&lost), "{lost} of {counts:?}");
    }
}

fn a_router_leads_from_subnet_to_subnet() {
    let delay = Duration::from_millis(5);
    let network = Network::hosts(4).groups(2).rate(1_000_000_000).router(Some(50_000_000), delay);
    let lab = Lab::new(&network).expect("a network");
    for at in &lab.host(3).addresses()[0] {
        let (mut near, far) = connect(lab.host(0), lab.host(3), *at);
        close(2.0 * delay.as_secs_f64(), "s by the router", || round_trip(&mut near, &far, 10));
        // The rate is a little lower for IPv6, whose header is longer.
        close(50e6 * PAYLOAD, "bit/s by the router", || goodput(&near, &far, 4 << 20));
    }
    let (mut near, far) = connect(lab.host(2), lab.host(3), lab.host(3).address());
    let trip = round_trip(&mut near, &far, 20);
    assert!(trip < delay.as_secs_f64(), "{trip} s within a subnet");
}

fn dialling_can_be_forbidden() {
    let lab = Lab::new(&Network::hosts(2)).expect("a network");
    let [a, b] = [lab.host(0), lab.host(1)];
    let listener = a.on(|| TcpListener::bind((a.address(), 0))).expect("there").expect("listens");
    let address: SocketAddr = listener.local_addr().expect("bound");
    let dial = |patience| b.on(|| TcpStream::connect_timeout(&address, patience)).expect("there");
    lab.block_dialling(1, 0);
    assert!(dial(Duration::from_millis(300)).is_err(), "a SYN came through");
    // A connection in the other direction works, and carries data both ways.
    connect(a, b, b.address());
    lab.unblock();
    assert!(dial(LONG).is_ok());
}

fn a_cut_cable_can_be_mended() {
    let lab = Lab::new(&Network::hosts(2).rate(100_000_000)).expect("a network");
    let (mut near, mut far) = connect(lab.host(0), lab.host(1), lab.host(1).address());
    let mut byte = [0];
    near.write_all(&[1]).and_then(|()| far.read_exact(&mut byte)).expect("it works");
    lab.cut(1);
    near.write_all(&[2]).expect("the kernel keeps it");
    far.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket option");
    assert!(far.read_exact(&mut byte).is_err(), "a byte came over a cut cable");
    lab.restore(1);
    far.set_read_timeout(Some(LONG)).expect("a socket option");
    far.read_exact(&mut byte).expect("TCP sends it again");
    assert_eq!(byte, [2]);
}

/// Kills a laboratory inside this laboratory, whose ranks would sleep for an hour.
fn nothing_is_left_of_a_killed_laboratory() {
    const HOUR: &str = "3601.25";
    let sleepers = || {
        let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
        let lines = pids.filter_map(|pid| std::fs::read(pid.path().join("cmdline")).ok());
        lines.filter(|line| line.starts_with(b"sleep\0") && line[6..].starts_with(HOUR.as_bytes())).count()
    };
    let words = ["run", "--hosts", "2", "--ranks-per-host", "2", "--", "sh", "-c"];
    let mut lab = Command::new(env!("CARGO_BIN_EXE_kolo-netlab"))
        .args(words)
        .arg(format!("echo up; exec sleep {HOUR}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(lab.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.take(4).filter(|line| line.ends_with("up")).count(), 4, "all ranks run");
    let until = Instant::now() + LONG;
    while sleepers() < 4 {
        assert!(Instant::now() < until, "the ranks do not sleep");
        std::thread::yield_now();
    }
    lab.kill().and_then(|()| lab.wait()).expect("killed");
    while sleepers() > 0 {
        assert!(Instant::now() < until, "{} processes are left", sleepers());
        std::thread::yield_now();
    }
}
