//! Broken connections between two healthy ranks.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, Error, JoinSpec, ReduceOp, TransportKind};
use kolo_tests::arrangement::{Arrangement, in_guest};
use kolo_tests::watchdog::{Gate, bounded};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::{SockAddr, SockFilter, SockRef};

/// Calls `each` for every TCP connection of this process with this port at one end; returns their number.
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

/// Returns the port at which a peer accepts connections, from the text of its route: "10.0.0.2:40001 via eth0".
fn port_of(comm: &Communicator, peer: u32) -> u16 {
    let route = comm.routes().iter().find(|route| route.peer == peer).expect("a peer");
    let address = route.how.split(' ').find_map(|word| word.parse::<SocketAddr>().ok());
    address.unwrap_or_else(|| panic!("no address in {:?}", route.how)).port()
}

/// Waits for the error that reaches a rank outside of any call.
fn told(comm: &Communicator) -> Error {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(error) = comm.error() {
            return error;
        }
        assert!(Instant::now() < until, "rank {} is not told", comm.rank());
        std::thread::yield_now();
    }
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
                // This rank is in no call, and not an end of the connection.
                told(&comm)
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
            // The end of a rank must not be taken for the reason.
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
        let change = |config: Config| config.with(|config| config.timeout = Duration::from_secs(5));
        Arrangement::Tcp.run_with(3, change, |comm| {
            let error = if comm.rank() == 0 {
                // This rank is in no call, and not an end of the connection.
                told(&comm)
            } else {
                let peer = 3 - comm.rank();
                comm.send_recv(&[1_u8], peer, &mut [0], peer).expect("all is well");
                gate.wait();
                if comm.rank() == 1 {
                    // A filter that accepts nothing: packets are dropped without notice.
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
            assert!(text.contains("not finished after 5.0 s; waiting for"), "{text}");
            assert!(text.contains("reached over tcp") && text.contains(" via "), "no address: {text}");
            end.wait();
        });
    });
}

#[test]
fn a_cut_pair_is_named_by_a_rank_that_waits_for_a_healthy_one() {
    if in_guest() {
        return;
    }
    bounded("a rank that waits for one that waits", || {
        const COUNT: usize = 1 << 10;
        let gates = (Gate::new(4), Gate::new(4), Gate::new(4));
        let (ready, cut, end) = (&gates.0, &gates.1, &gates.2);
        let config = |rank| {
            // Round a ring, each rank waits for the one before it. Rank 0 gives up first, while it waits for rank 3.
            let timeout = Duration::from_secs(if rank == 0 { 6 } else { 60 });
            Arrangement::Tcp.config(rank).with(|config| {
                config.timeout = timeout;
                config.algorithms = "all_reduce:ring".into();
            })
        };
        let told = Cluster::with_configs(4, config, |comm| {
            let mut data = [1_f32; COUNT];
            comm.all_reduce(&mut data, ReduceOp::Sum).expect("all is well");
            ready.wait();
            if comm.rank() == 1 {
                // This rank dials rank 2, the only one that it sends to. Bytes that arrive at the other end are
                // dropped.
                let port = port_of(&comm, 2);
                let dropped = AtomicUsize::new(0);
                each_connection(port, |socket| {
                    let here = socket.local_addr().ok().and_then(|address| address.as_socket());
                    if here.is_some_and(|here| here.port() == port) {
                        socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]).expect("a filter");
                        dropped.fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(dropped.into_inner() > 0, "no connection found");
            }
            cut.wait();
            let error = comm.all_reduce(&mut data, ReduceOp::Sum).expect_err("nothing gets through");
            end.wait();
            error.to_string()
        });
        for text in told.expect("a cluster") {
            println!("{text}");
            let pair = "rank 2 (it does not acknowledge data from rank 1: check the network between the two";
            assert!(text.contains(pair), "{text}");
        }
    });
}

/// Returns the bytes that wait to be read on connections made to this port.
fn unread_at(port: u16) -> u64 {
    let unread = AtomicU64::new(0);
    each_connection(port, |socket| {
        let here = socket.local_addr().ok().and_then(|address| address.as_socket());
        if here.is_some_and(|here| here.port() == port) {
            let bytes = rustix::io::ioctl_fionread(&**socket).unwrap_or(0);
            unread.fetch_add(bytes, Ordering::Relaxed);
        }
    });
    unread.into_inner()
}

/// Runs three ranks over TCP, which count as lost after a silence of `dead_after`.
fn three_ranks<R: Send>(dead_after: Duration, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let connect = |mut spec: JoinSpec| {
        spec.liveness.dead_after = dead_after;
        spec.liveness.suspect_after = spec.liveness.suspect_after.min(dead_after);
        spec.liveness.heartbeat = spec.liveness.heartbeat.min(dead_after / 4);
        let config = Arrangement::Tcp.config(spec.rank);
        Communicator::builder().config(config).join(spec).connect().expect("a communicator")
    };
    std::thread::scope(|scope| {
        let spawn = |spec| scope.spawn(|| body(connect(spec)));
        let threads: Vec<_> = JoinSpec::local(3).into_iter().map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, R>| thread.join();
        threads.into_iter().map(|thread| join(thread).unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Rank 2 sends its last message to rank 1 and leaves; none of its packets gets through for `cut`, or ever. Returns the
/// result of the receive, and its time after rank 2 has left.
fn last_message(cut: Option<Duration>, dead_after: Duration) -> (Result<(), Error>, Duration) {
    const COUNT: usize = 1000;
    let gates = (Gate::new(2), Gate::new(2), Gate::new(2));
    let (is_cut, has_left, end) = (&gates.0, &gates.1, &gates.2);
    let came_of_it = three_ranks(dead_after, |comm| {
        let rank = comm.rank();
        if rank == 0 {
            // Without this rank, no rank would report that rank 2 has left.
            end.wait();
            return None;
        }
        let peer = 3 - rank;
        comm.send_recv(&[1_u8], peer, &mut [0], peer).expect("all is well");
        if rank == 2 {
            is_cut.wait();
            comm.send(&[7_u8; COUNT], 1).expect("the kernel takes it");
            drop(comm);
            has_left.wait();
            return None;
        }
        // The lower rank dials, so its end of the connection has the other's port as its peer.
        let port = port_of(&comm, 2);
        let each_end = |each: &dyn Fn(&SockRef<'_>)| {
            let count = AtomicUsize::new(0);
            each_connection(port, |socket| {
                let there = socket.peer_addr().ok().and_then(|address| address.as_socket());
                if there.is_some_and(|there| there.port() == port) {
                    each(socket);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            count.into_inner()
        };
        // Packets are dropped as if lost on the way: the sender's kernel repeats them.
        let lose_all = |socket: &SockRef<'_>| {
            socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]).expect("a filter");
        };
        assert!(each_end(&lose_all) > 0, "no connection found");
        is_cut.wait();
        has_left.wait();
        let since = Instant::now();
        let result = std::thread::scope(|scope| {
            if let Some(cut) = cut {
                scope.spawn(move || {
                    std::thread::sleep(cut);
                    each_end(&|socket| socket.detach_filter().expect("it was attached"));
                });
            }
            let mut into = [0_u8; COUNT];
            comm.recv(&mut into, 2).inspect(|()| assert_eq!(into, [7; COUNT]))
        });
        let took = since.elapsed();
        end.wait();
        Some((result, took))
    });
    came_of_it.into_iter().flatten().next().expect("rank 1 tells")
}

#[test]
fn the_last_bytes_of_a_rank_that_has_left_are_waited_for() {
    if in_guest() {
        return;
    }
    bounded("a goodbye that overtakes the last message", || {
        let cut = Duration::from_secs(1);
        let (result, took) = last_message(Some(cut), Duration::from_secs(60));
        result.expect("the message was lost and sent again");
        assert!(took >= cut, "nothing was lost on the way");
    });
}

#[test]
fn a_rank_that_has_left_behind_a_dead_network_is_not_waited_for_without_end() {
    if in_guest() {
        return;
    }
    bounded("a goodbye without the last message", || {
        let dead_after = Duration::from_secs(5);
        let (result, took) = last_message(None, dead_after);
        let error = result.expect_err("nothing arrives");
        println!("{error} after {took:?}");
        assert!(matches!(error, Error::PeerLost { peer: 2, .. }), "{error}");
        assert!(took >= dead_after && took < dead_after + Duration::from_secs(10), "{took:?}");
    });
}

#[test]
fn what_a_rank_has_sent_arrives_though_it_leaves_a_message_unread() {
    if in_guest() {
        return;
    }
    bounded("a connection that is reset on closing", || {
        // The message is longer than the receiver's kernel takes at once, so part of it is still unsent when the rank
        // leaves.
        const COUNT: usize = 512 << 10;
        let gate = &Gate::new(2);
        Arrangement::Tcp.run(2, |comm| {
            let peer = 1 - comm.rank();
            comm.send_recv(&[1_u8], peer, &mut [0], peer).expect("all is well");
            if comm.rank() == 1 {
                gate.wait();
                comm.send(&vec![7_u8; COUNT], 0).expect("the kernel takes it");
                gate.wait();
                return;
            }
            comm.send(&[1_u8; 100], 1).expect("the kernel takes it");
            // Rank 0 dials: the other end is at the port of rank 1.
            let port = port_of(&comm, 1);
            assert!(unread_at(port) > 0, "the message that nobody reads is not there");
            gate.wait();
            gate.wait();
            // Rank 1 leaves at this point.
            let until = Instant::now() + Duration::from_secs(10);
            while unread_at(port) > 0 {
                assert!(Instant::now() < until, "rank 1 does not leave");
                std::thread::yield_now();
            }
            let mut into = vec![0_u8; COUNT];
            comm.recv(&mut into, 1).expect("it was sent before rank 1 left");
            assert!(into.iter().all(|byte| *byte == 7));
        });
    });
}
