//! Rendezvous through PMI-1, the protocol by which Hydra (the process manager of MPICH, Intel MPI and others) lets its
//! processes exchange short texts.
//!
//! The launcher passes a socket in `PMI_FD`. Each side writes lines of `key=value` words, and every query has one
//! answer. Rank 0 puts its notice into the job's key-value space, all ranks enter the launcher's barrier, and the
//! others then get the notice. A rank sends `finalize` as soon as it has no more to say, because the launcher treats a
//! process that ends without it as crashed. A process can therefore join in this way only once.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use kolo_transport::Unpoisoned;
use kolo_transport::foreign::printable;
use kolo_transport::peer_of;
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::board::Board;

/// Longest wait for an answer that the launcher gives by itself.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the barrier between two checks of the deadline for joining. The barrier waits for other ranks.
const BARRIER_PATIENCE: Duration = Duration::from_millis(200);
/// Longest line that is read. The protocol's longest line is shorter.
const LINE_BYTES: u64 = 8192;
/// Most bytes of a line that are shown.
const SHOWN_BYTES: usize = 200;
/// Most parts of a notice, which has some hundred bytes.
const MOST_PARTS: usize = 256;

/// The key-value space of a job that Hydra started.
#[derive(Debug)]
pub(super) struct Pmi {
    descriptor: RawFd,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Fresh,
    /// The rank is in the barrier.
    Waiting(Box<Talk>),
    /// The notice has been read.
    Read(Vec<u8>),
    Over,
}

impl Pmi {
    /// Makes the key-value space behind the launcher's socket.
    pub(super) const fn new(descriptor: RawFd) -> Self {
        Self { descriptor, state: Mutex::new(State::Fresh) }
    }

    fn talk(&self) -> io::Result<Talk> {
        Talk::begin(socket(self.descriptor)?)
    }
}

/// Returns a copy of the launcher's socket. Nothing is read or written: if the variable is stale, as when a wrapper has
/// closed the socket, the program uses the number for something of its own.
fn socket(descriptor: RawFd) -> io::Result<UnixStream> {
    let no_launchers = |what: &str| Err(wrong(format!("it is no launcher's socket: {what}")));
    if descriptor < 0 {
        return no_launchers("its number is negative");
    }
    // SAFETY: the number is not -1, and the borrow lasts for one call, in which the kernel copies what is open under this
    // number, or refuses. Test: `what_is_no_launcher_is_said_so`.
    let inherited = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let copy = inherited.try_clone_to_owned()?;
    let is_unix = sockopt::socket_domain(&copy).is_ok_and(|domain| domain == AddressFamily::UNIX);
    let is_stream = sockopt::socket_type(&copy).is_ok_and(|kind| kind == SocketType::STREAM);
    if !(is_unix && is_stream && rustix::net::getpeername(&copy).is_ok()) {
        return no_launchers("it is not connected within this host");
    }
    let uid = peer_of(&copy)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return no_launchers("its other end belongs to another user");
    }
    Ok(UnixStream::from(copy))
}

/// Returns the reason why a descriptor is not the launcher's socket, if it is not.
pub(super) fn objection(descriptor: RawFd) -> Option<String> {
    let own = Some(std::process::id());
    match socket(descriptor).and_then(peer_of) {
        // Event loops wake themselves through such a pair.
        Ok(peer) if peer.pid == own => Some("this process made it".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the process that made the launcher's socket: the launcher's own on this host, even if a script stands between
/// it and this process.
pub(super) fn server(descriptor: RawFd) -> Option<u32> {
    peer_of(socket(descriptor).ok()?).ok()?.pid
}

impl Board for Pmi {
    fn publish(&self, notice: &[u8]) -> Result<(), String> {
        let mut talk = self.talk().map_err(words)?;
        talk.put(notice).and_then(|()| talk.enter()).map_err(words)?;
        *self.state.lock().unpoisoned() = State::Over;
        // Joining continues while the others reach the barrier, and it reports any that do not.
        let leaving = move || {
            let _ = talk.await_barrier(None).and_then(|_| talk.end());
        };
        std::thread::Builder::new().name("kolo-pmi".to_owned()).spawn(leaving).map(drop).map_err(words)
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        let mut state = self.state.lock().unpoisoned();
        let mut talk = match std::mem::replace(&mut *state, State::Over) {
            State::Fresh => {
                let mut talk = self.talk().map_err(words)?;
                talk.enter().map_err(words)?;
                Box::new(talk)
            }
            State::Waiting(talk) => talk,
            State::Read(notice) => {
                *state = State::Read(notice.clone());
                return Ok(notice);
            }
            State::Over => {
                return Err("this process has already left the launcher's key-value space".to_owned());
            }
        };
        if !talk.await_barrier(Some(BARRIER_PATIENCE)).map_err(words)? {
            *state = State::Waiting(talk);
            return Err("some ranks have not reached the launcher's barrier".to_owned());
        }
        let notice = talk.get().map_err(words)?;
        talk.end().map_err(words)?;
        *state = State::Read(notice.clone());
        Ok(notice)
    }

    fn name(&self) -> String {
        format!("the launcher's key-value space (PMI_FD={})", self.descriptor)
    }
}

fn words(error: io::Error) -> String {
    error.to_string()
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A conversation with the launcher.
#[derive(Debug)]
struct Talk {
    socket: BufReader<UnixStream>,
    space: String,
    /// Longest value that the launcher stores.
    value_bytes: usize,
    /// The part of a line that has arrived.
    partial: Vec<u8>,
}

impl Talk {
    fn begin(socket: UnixStream) -> io::Result<Self> {
        let mut talk = Self {
            socket: BufReader::new(socket),
            space: String::new(),
            value_bytes: 0,
            partial: Vec::new(),
        };
        talk.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let most = talk.ask("cmd=get_maxes", "maxes")?;
        // The launcher's limit includes the zero at the end of a C string.
        let most = most.value("vallen_max").and_then(|most| most.parse::<usize>().ok()).unwrap_or(1024);
        talk.value_bytes = most.saturating_sub(1).max(2);
        talk.space = talk.ask("cmd=get_my_kvsname", "my_kvsname")?.required("kvsname")?.to_owned();
        Ok(talk)
    }

    /// Puts the notice in parts, as hexadecimal digits, since values may contain neither blanks nor line ends.
    fn put(&mut self, notice: &[u8]) -> io::Result<()> {
        let parts: Vec<&[u8]> = notice.chunks(self.value_bytes / 2).collect();
        self.put_one("kolo-parts", &parts.len().to_string())?;
        for (at, part) in parts.iter().enumerate() {
            let digits: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            self.put_one(&format!("kolo-{at}"), &digits)?;
        }
        Ok(())
    }

    fn put_one(&mut self, key: &str, value: &str) -> io::Result<()> {
        let query = format!("cmd=put kvsname={} key={key} value={value}", self.space);
        self.ask(&query, "put_result").map(drop)
    }

    fn get(&mut self) -> io::Result<Vec<u8>> {
        let parts: usize = self.get_one("kolo-parts")?.parse().unwrap_or(0);
        if parts == 0 || parts > MOST_PARTS {
            return Err(wrong("rank 0's entry there is not one of Kolo's notices".to_owned()));
        }
        let mut notice = Vec::new();
        for at in 0..parts {
            let digits = self.get_one(&format!("kolo-{at}"))?;
            for pair in digits.as_bytes().chunks(2) {
                let byte = std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
                notice.push(byte.ok_or_else(|| {
                    wrong(format!("'{}' is not part of a notice", printable(&digits, SHOWN_BYTES)))
                })?);
            }
        }
        Ok(notice)
    }

    fn get_one(&mut self, key: &str) -> io::Result<String> {
        let query = format!("cmd=get kvsname={} key={key}", self.space);
        Ok(self.ask(&query, "get_result")?.required("value")?.to_owned())
    }

    fn enter(&mut self) -> io::Result<()> {
        self.say("cmd=barrier_in")
    }

    /// Returns whether all ranks have entered the barrier. `patience` limits the wait; `None` waits for ever.
    fn await_barrier(&mut self, patience: Option<Duration>) -> io::Result<bool> {
        match self.hear(patience)? {
            Some(answer) => answer.expect("barrier_out").map(|()| true),
            None => Ok(false),
        }
    }

    fn end(mut self) -> io::Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    fn ask(&mut self, query: &str, answer: &str) -> io::Result<Line> {
        self.say(query)?;
        let Some(line) = self.hear(Some(ANSWER_PATIENCE))? else {
            let seconds = ANSWER_PATIENCE.as_secs();
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer to '{query}' within {seconds} s"),
            ));
        };
        line.expect(answer)?;
        Ok(line)
    }

    fn say(&mut self, query: &str) -> io::Result<()> {
        self.socket.get_mut().write_all(format!("{query}\n").as_bytes())
    }

    /// Returns the next line, or `None` if it does not arrive in time.
    fn hear(&mut self, patience: Option<Duration>) -> io::Result<Option<Line>> {
        self.socket.get_ref().set_read_timeout(patience)?;
        let room = LINE_BYTES - self.partial.len() as u64;
        match io::Read::take(&mut self.socket, room).read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.last() == Some(&b'\n') => {
                let line = String::from_utf8_lossy(&self.partial).trim_end().to_owned();
                self.partial.clear();
                Ok(Some(Line(line)))
            }
            Ok(_) if self.partial.len() as u64 == LINE_BYTES => {
                Err(wrong("the launcher's line does not end".to_owned()))
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the launcher has closed PMI_FD")),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A line from the launcher.
#[derive(Debug)]
struct Line(String);

impl Line {
    fn value(&self, key: &str) -> Option<&str> {
        self.0.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn required(&self, key: &str) -> io::Result<&str> {
        self.value(key)
            .ok_or_else(|| wrong(format!("the launcher answered '{}', without {key}", self.shown())))
    }

    /// Fails unless this is the expected answer and reports success.
    fn expect(&self, command: &str) -> io::Result<()> {
        if self.value("cmd") == Some(command) && self.value("rc").is_none_or(|code| code == "0") {
            return Ok(());
        }
        Err(wrong(format!("the launcher answered '{}' instead of {command}", self.shown())))
    }

    fn shown(&self) -> String {
        printable(&self.0, SHOWN_BYTES)
    }
}

/// Runs the protocol on bytes from the fuzzer: all that a launcher says before it hangs up. See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    /// A socket buffer takes this much at once, and longer input tests nothing new.
    const MOST: usize = 64 << 10;
    let bytes = &bytes[..bytes.len().min(MOST)];
    for is_first in [true, false] {
        let Ok((launcher, own)) = UnixStream::pair() else { return };
        let said = (&launcher).write_all(bytes).and_then(|()| launcher.shutdown(std::net::Shutdown::Write));
        let Ok(mut talk) = said.and_then(|()| Talk::begin(own)) else { continue };
        if is_first {
            let _ = talk.put(&[7; 300]).and_then(|()| talk.enter());
        } else {
            let _ = talk.enter().and_then(|()| talk.await_barrier(None)).and_then(|_| talk.get());
        }
        let _ = talk.end();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::sync::{Arc, Condvar};
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// The launcher that all processes of a job talk to.
    #[derive(Default)]
    struct Launcher {
        state: Mutex<(HashMap<String, String>, usize)>,
        changed: Condvar,
        value_bytes: usize,
    }

    impl Launcher {
        /// Serves a rank as Hydra does: a value becomes visible after the barrier. Returns the rank's queries.
        fn serve(&self, socket: UnixStream, ranks: usize) -> Vec<String> {
            let (mut said, mut own) = (Vec::new(), HashMap::new());
            let mut lines = BufReader::new(socket.try_clone().unwrap());
            let mut text = String::new();
            while lines.read_line(&mut text).unwrap() > 0 {
                let line = Line(text.trim_end().to_owned());
                text.clear();
                let key = line.value("key").unwrap_or_default().to_owned();
                let answer = match line.value("cmd").unwrap() {
                    "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                    "get_maxes" => {
                        format!(
                            "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={} rc=0",
                            self.value_bytes
                        )
                    }
                    "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0 rc=0".to_owned(),
                    "put" => {
                        let value = line.value("value").unwrap();
                        assert!(value.len() < self.value_bytes, "{value}");
                        own.insert(key, value.to_owned());
                        "cmd=put_result rc=0 msg=success".to_owned()
                    }
                    "barrier_in" => {
                        let mut state = self.state.lock().unwrap();
                        state.0.extend(own.drain());
                        state.1 += 1;
                        self.changed.notify_all();
                        drop(
                            self.changed
                                .wait_timeout_while(state, PATIENCE, |state| state.1 < ranks)
                                .unwrap(),
                        );
                        "cmd=barrier_out rc=0".to_owned()
                    }
                    "get" => match self.state.lock().unwrap().0.get(&key) {
                        Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                        None => format!("cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown"),
                    },
                    "finalize" => "cmd=finalize_ack rc=0".to_owned(),
                    other => panic!("{other}"),
                };
                said.push(line.0);
                writeln!(&socket, "{answer}").unwrap();
            }
            said
        }
    }

    fn read_patiently(board: &Pmi) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match board.read() {
                Ok(notice) => return notice,
                Err(why) => assert!(Instant::now() < deadline, "{why}"),
            }
        }
    }

    #[test]
    fn a_notice_goes_round_in_parts_and_every_rank_takes_its_leave() {
        let ranks = 3;
        let launcher = Arc::new(Launcher { value_bytes: 21, ..Launcher::default() });
        let (ends, servers): (Vec<UnixStream>, Vec<_>) = (0..ranks)
            .map(|_| {
                let (own, theirs) = UnixStream::pair().unwrap();
                let launcher = Arc::clone(&launcher);
                (own, std::thread::spawn(move || launcher.serve(theirs, ranks)))
            })
            .unzip();
        let notice: Vec<u8> = (0..=255).collect();
        let boards: Vec<Pmi> = ends.iter().map(|end| Pmi::new(end.as_raw_fd())).collect();
        let why = boards[1].read().unwrap_err();
        assert!(why.contains("barrier"), "{why}");
        boards[0].publish(&notice).unwrap();
        std::thread::scope(|scope| {
            for board in &boards[1..] {
                scope.spawn(|| assert_eq!(read_patiently(board), notice));
            }
        });
        assert_eq!(boards[2].read().unwrap(), notice, "it may be read again");
        drop(ends);
        for server in servers {
            let said = server.join().unwrap();
            assert_eq!(said.last().unwrap(), "cmd=finalize");
            assert_eq!(said.iter().filter(|line| *line == "cmd=barrier_in").count(), 1);
        }
    }

    #[test]
    fn a_launcher_is_found_behind_its_socket() {
        let (own, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(server(own.as_raw_fd()), Some(std::process::id()));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert_eq!(server(listener.as_raw_fd()), None, "it is not of this host");
        for number in [i32::MAX, -1, i32::MIN] {
            assert_eq!(server(number), None);
        }
    }

    #[test]
    fn what_is_no_launcher_is_said_so() {
        let (own, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"cmd=response_to_init rc=-1\n").unwrap();
        let why = Pmi::new(own.as_raw_fd()).read().unwrap_err();
        assert!(why.contains("instead of response_to_init"), "{why}");
        let (own, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"\x1b[2J\n").unwrap();
        let why = Pmi::new(own.as_raw_fd()).read().unwrap_err();
        assert!(why.contains("'\\u{1b}[2J'"), "{why}");
        let (own, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let why = Pmi::new(own.as_raw_fd()).publish(b"here").unwrap_err();
        assert!(!why.is_empty());
        // The number is far beyond the descriptors that a process may have.
        assert!(Pmi::new(i32::MAX).read().is_err());
    }

    /// PMI_FD is stale: the program has opened something else under its number.
    #[test]
    fn what_the_program_has_opened_is_not_touched() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::pair().unwrap();
        for descriptor in [ours.as_raw_fd(), datagrams.0.as_raw_fd(), -1] {
            let why = Pmi::new(descriptor).read().unwrap_err();
            assert!(why.contains("no launcher's socket"), "{why}");
            assert!(Pmi::new(descriptor).publish(b"here").is_err() && objection(descriptor).is_some());
        }
        assert_eq!(ours.read_timeout().unwrap(), None, "its options are the program's");
        datagrams.1.set_nonblocking(true).unwrap();
        assert!(datagrams.1.recv(&mut [0]).is_err(), "nothing was sent");
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "nothing was sent");
        let own = UnixStream::pair().unwrap();
        assert_eq!(objection(own.0.as_raw_fd()).as_deref(), Some("this process made it"));
    }
}
