//! Tests of joining through a PyTorch TCPStore. The store here is a small one that speaks the same protocol: queries of
//! one byte, strings with 64-bit lengths, validation first. It serves the queries that PyTorch's own clients and Kolo
//! use.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kolo::internal::control::{Control, ControlRuntime, GatherKey, Round};
use kolo::{JoinSpec, Locator};

const LONG: Duration = Duration::from_secs(30);

/// Deadline that a test is meant to reach after something else has happened, even if the machine pauses.
const AMPLE: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Store {
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    changed: Condvar,
}

impl Store {
    /// Serves until the test process ends.
    fn start() -> (Arc<Self>, u16) {
        let store = Arc::new(Self::default());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = serving.clone();
                std::thread::spawn(move || store.serve(stream));
            }
        });
        (store, port)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut validated = false;
        loop {
            let query = read::<1>(&mut stream)?[0];
            match (query, validated) {
                (0, _) => {
                    if u32::from_ne_bytes(read(&mut stream)?) != 0x3C85_F7CE {
                        return Ok(());
                    }
                    validated = true;
                }
                (_, false) => return Ok(()), // as the libuv server does
                (1, _) => {
                    let (key, value) = (string(&mut stream)?, string(&mut stream)?);
                    self.values.lock().unwrap().insert(key, value);
                    self.changed.notify_all();
                }
                (3, _) => {
                    let key = string(&mut stream)?;
                    let value = self.values.lock().unwrap().get(&key).cloned();
                    let value = value.ok_or(io::ErrorKind::NotFound)?;
                    stream.write_all(&(value.len() as u64).to_ne_bytes())?;
                    stream.write_all(&value)?;
                }
                (6, _) => {
                    let count = u64::from_ne_bytes(read(&mut stream)?);
                    let keys: Vec<_> = (0..count).map(|_| string(&mut stream)).collect::<io::Result<_>>()?;
                    let values = self.values.lock().unwrap();
                    let all = |values: &mut HashMap<_, _>| !keys.iter().all(|key| values.contains_key(key));
                    drop(self.changed.wait_while(values, all).unwrap());
                    stream.write_all(&[0])?;
                }
                (13, _) => {
                    let nonce: [u8; 4] = read(&mut stream)?;
                    stream.write_all(&nonce)?;
                }
                _ => return Ok(()),
            }
        }
    }
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn string(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; u64::from_ne_bytes(read(stream)?) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn torchrun(rank: u32, port: u16, restart: u32) -> JoinSpec {
    let environment = move |name: &str| {
        Some(match name {
            "RANK" | "LOCAL_RANK" => rank.to_string(),
            "WORLD_SIZE" => "3".to_owned(),
            "MASTER_ADDR" => "127.0.0.1".to_owned(),
            "MASTER_PORT" => port.to_string(),
            "TORCHELASTIC_USE_AGENT_STORE" => "True".to_owned(),
            "TORCHELASTIC_RUN_ID" => "run".to_owned(),
            "TORCHELASTIC_RESTART_COUNT" => restart.to_string(),
            _ => return None,
        })
    };
    JoinSpec { timeout: LONG, ..JoinSpec::from_env(&environment).unwrap() }
}

fn join_and_leave(specs: Vec<JoinSpec>) {
    let threads: Vec<_> = specs.into_iter().map(join_and_meet).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Joins on a thread of its own, exchanges messages with the other two ranks, and leaves.
fn join_and_meet(spec: JoinSpec) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let control = Control::join(&spec, &ControlRuntime::new().unwrap()).unwrap();
        let key = GatherKey { communicator: 1, round: Round::Numbered(0) };
        let blobs =
            control.all_gather(key, &[0, 1, 2], &vec![spec.rank as u8], Instant::now() + LONG).unwrap();
        assert_eq!(blobs, [[0], [1], [2]]);
    })
}

#[test]
fn torchruns_ranks_meet_in_its_store_and_again_after_a_restart() {
    let (store, port) = Store::start();
    for restart in 0..2 {
        join_and_leave((0..3).rev().map(|rank| torchrun(rank, port, restart)).collect());
    }
    // A second communicator of the same workers finds the first one's key, which is stale by then.
    join_and_leave((0..3).map(|rank| torchrun(rank, port, 1)).collect());
    let keys: Vec<String> =
        store.values.lock().unwrap().keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    assert!(
        keys.contains(&"/kolo/run/0/coordinator".to_owned())
            && keys.contains(&"/kolo/run/1/coordinator".to_owned()),
        "{keys:?}"
    );
}

#[test]
fn a_worker_that_comes_again_waits_until_rank_0_has_left_the_job_before() {
    let (_, port) = Store::start();
    let start =
        |spec: JoinSpec| std::thread::spawn(move || Control::join(&spec, &ControlRuntime::new().unwrap()));
    let [zero, one, two] = [0, 1, 2].map(|rank| start(torchrun(rank, port, 0)));
    let [zero, one, two] = [zero, one, two].map(|joining| joining.join().unwrap().unwrap());
    drop(one);
    let early =
        start(JoinSpec { timeout: AMPLE, ..torchrun(1, port, 0) }).join().unwrap().unwrap_err().to_string();
    assert!(early.contains("and rank 0 has not yet"), "{early}");
    let one = join_and_meet(torchrun(1, port, 0));
    drop((two, zero));
    join_and_leave(vec![torchrun(0, port, 0), torchrun(2, port, 0)]);
    one.join().unwrap();
}

#[test]
fn a_store_that_is_none_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let join = |rank| {
        let spec = JoinSpec { timeout: AMPLE, ..torchrun(rank, port, 0) };
        let error = Control::join(&spec, &ControlRuntime::new().unwrap()).unwrap_err().to_string();
        assert!(error.contains("not a TCPStore") && error.contains(&port.to_string()), "{error}");
    };
    std::thread::scope(|scope| [0, 1].map(|rank| drop(scope.spawn(move || join(rank)))));
}

#[test]
fn an_absent_store_is_named() {
    let port = kolo_transport::conformance::free_port();
    let join = |rank| {
        let locator = Locator::Store { host: "127.0.0.1".into(), port, prefix: "x".into() };
        let spec = JoinSpec { timeout: AMPLE, ..JoinSpec::new(rank, 2, locator, "a test") };
        let error = Control::join(&spec, &ControlRuntime::new().unwrap()).unwrap_err().to_string();
        assert!(error.contains("efused") && error.contains(&port.to_string()), "{error}");
    };
    std::thread::scope(|scope| [0, 1].map(|rank| drop(scope.spawn(move || join(rank)))));
}
