//! A connection that breaks between two ranks that are well.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kolo::{Communicator, Config, Error, TransportKind};
use kolo_tests::arrangement::{Arrangement, in_guest};
use kolo_tests::watchdog::{Gate, bounded};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::{SockAddr, SockFilter, SockRef};

/// Calls `each` for every TCP connection of this process one of whose ends is this port; returns for how many.
fn each_connection(port: u16, each: impl Fn(&SockRef<'_>)) -> usize {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    let entries = std::fs::read_dir("/proc/self/fd").expect("its descriptors");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut count = 0;
    for number in numbers.collect::<Vec<_>>() {
        let Ok(fd) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let socket = SockRef::from(&fd);
        let port_of = |address: std::io::Result<SockAddr>| Some(address.ok()?.as_socket()?.port());
        let (here, there) = (port_of(socket.local_addr()), port_of(socket.peer_addr()));
        if there.is_some() && (here == Some(port) || there == Some(port)) {
            each(&socket);
            count += 1;
        }
    }
    count
}

/// The port at which a peer takes connections, from how it is reached: "10.0.0.2:40001 via eth0".
fn port_of(comm: &Communicator, peer: u32) -> u16 {
    let route = comm.routes().iter().find(|route| route.peer == peer).expect("a peer");
    let address = route.how.split(' ').find_map(|word| word.parse::<SocketAddr>().ok());
    address.unwrap_or_else(|| panic!("no address in {:?}", route.how)).port()
}

#[test]
fn both_ends_are_named_on_all_ranks_and_none_is_called_lost() {
    if in_guest() {
        return;
    }
    bounded("a connection shut down", || {
        let gates = (Gate::new(2), Gate::new(3));
        let (gate, end) = (&gates.0, &gates.1);
        Arrangement::Tcp.run(3, |comm| {
            assert!(comm.routes().iter().all(|route| route.transport == TransportKind::Tcp.name()));
            let error = if comm.rank() == 0 {
                // It is in no call, and has no part in the connection.
                let until = Instant::now() + Duration::from_secs(20);
                loop {
                    if let Some(error) = comm.error() {
                        break error;
                    }
                    assert!(Instant::now() < until, "rank 0 is not told");
                    std::thread::yield_now();
                }
            } else {
                // Connections are made on first use: this is the only one.
                let peer = 3 - comm.rank();
                comm.send_recv(&[1_u8], peer, &mut [0], peer).expect("all is well");
                gate.wait();
                if comm.rank() == 1 {
                    let shut_down = |socket: &SockRef<'_>| {
                        let _ = socket.shutdown(std::net::Shutdown::Both);
                    };
                    assert!(each_connection(port_of(&comm, 2), shut_down) > 0, "no connection found");
                }
                comm.recv(&mut [0_u8; 100], peer).expect_err("the connection has ended")
            };
            let text = error.to_string();
            println!("{text}");
            let named = ["rank 1 lost its connection to rank 2", "rank 2 lost its connection to rank 1"];
            assert!(named.iter().any(|pair| text.contains(pair)), "{text}");
            assert!(text.contains(" via "), "no address: {text}");
            assert!(!text.contains("is lost") && !matches!(error, Error::PeerLost { .. }), "{text}");
            // Nobody's end is to be taken for the reason.
            end.wait();
        });
    });
}

#[test]
fn a_pair_that_is_cut_silently_is_named_with_its_addresses() {
    if in_guest() {
        return;
    }
    bounded("a connection that carries nothing", || {
        let gates = (Gate::new(2), Gate::new(3));
        let (gate, end) = (&gates.0, &gates.1);
        let change = |config| Config { timeout: Duration::from_secs(2), ..config };
        Arrangement::Tcp.run_with(3, change, |comm| {
            let error = if comm.rank() == 0 {
                let until = Instant::now() + Duration::from_secs(20);
                loop {
                    if let Some(error) = comm.error() {
                        break error;
                    }
                    assert!(Instant::now() < until, "rank 0 is not told");
                    std::thread::yield_now();
                }
            } else {
                let peer = 3 - comm.rank();
                comm.send_recv(&[1_u8], peer, &mut [0], peer).expect("all is well");
                gate.wait();
                if comm.rank() == 1 {
                    // A filter that takes nothing: packets are dropped, and nobody is told.
                    let drop_all = |socket: &SockRef<'_>| {
                        socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]).expect("a filter");
                    };
                    assert!(each_connection(port_of(&comm, 2), drop_all) > 1, "no connection found");
                }
                gate.wait();
                comm.send_recv(&[1_u8; 100], peer, &mut [0; 100], peer).expect_err("nothing arrives")
            };
            let text = error.to_string();
            println!("{text}");
            assert!(text.contains("rank 1") && text.contains("rank 2"), "{text}");
            assert!(text.contains("not finished after 2.0 s; waiting for"), "{text}");
            assert!(text.contains("reached over tcp") && text.contains(" via "), "no address: {text}");
            end.wait();
        });
    });
}
