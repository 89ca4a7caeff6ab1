//! Merges the outputs of ranks, line by line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::job::Prefix;

/// Lines longer than this are cut into pieces, so that a rank that prints no line ends cannot fill memory.
const MAX_LINE_BYTES: u64 = 1 << 20;

type Sink = Arc<Mutex<dyn Write + Send>>;

/// Destinations of the lines.
#[derive(Clone)]
pub(crate) struct Outputs {
    stdout: Sink,
    stderr: Sink,
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outputs")
    }
}

impl Outputs {
    /// Writes to this process's own outputs.
    pub(crate) fn own() -> Self {
        Self { stdout: Arc::new(Mutex::new(io::stdout())), stderr: Arc::new(Mutex::new(io::stderr())) }
    }

    /// Writes to the same outputs as long as somebody reads them, and then to a file `kolo-run-*.log` in the
    /// folder for temporary files. For ranks that outlive their launcher.
    pub(crate) fn outliving() -> Self {
        let log = Arc::new(Mutex::new(None));
        let to = |stream: Box<dyn Write + Send>| -> Sink {
            Arc::new(Mutex::new(Outliving { stream: Some(stream), log: log.clone() }))
        };
        Self { stdout: to(Box::new(io::stdout())), stderr: to(Box::new(io::stderr())) }
    }

    /// Writes a message of the launcher itself.
    pub(crate) fn say(&self, message: &str) {
        write_whole(&self.stderr, format!("{message}\n").as_bytes());
    }
}

/// A stream, and a log for what the stream no longer takes.
struct Outliving {
    /// `None` once nobody reads it.
    stream: Option<Box<dyn Write + Send>>,
    /// The log, shared by both streams.
    log: Arc<Mutex<Option<File>>>,
}

impl Write for Outliving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(stream) = &mut self.stream {
            if stream.write_all(bytes).and_then(|()| stream.flush()).is_ok() {
                return Ok(bytes.len());
            }
            self.stream = None;
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_none() {
            let made = tempfile::Builder::new().prefix("kolo-run-").suffix(".log").tempfile()?;
            *log = Some(made.keep().map_err(|error| error.error)?.0);
        }
        if let Some(log) = &mut *log {
            log.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One thread for each output of a rank.
#[derive(Debug)]
pub(super) struct Readers {
    running: usize,
    done: (Sender<()>, Receiver<()>),
}

impl Default for Readers {
    fn default() -> Self {
        Self { running: 0, done: mpsc::channel() }
    }
}

impl Readers {
    /// Copies those outputs of a child that are pipes, line by line, each preceded by its rank if `prefix` asks
    /// for that.
    pub(super) fn attach(&mut self, prefix: Prefix, rank: u32, child: &mut Child, outputs: &Outputs) {
        if let Some(pipe) = child.stdout.take() {
            self.read(prefix, rank, pipe, outputs.stdout.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            self.read(prefix, rank, pipe, outputs.stderr.clone());
        }
    }

    fn read(&mut self, prefix: Prefix, rank: u32, pipe: impl Read + Send + 'static, sink: Sink) {
        self.running += 1;
        let done = self.done.0.clone();
        std::thread::spawn(move || {
            let before = if prefix == Prefix::Rank { format!("[{rank}] ") } else { String::new() };
            copy_lines(&before, BufReader::new(pipe), &sink);
            let _ = done.send(());
        });
    }

    /// Waits until everything has been copied, but at most for `patience`.
    pub(super) fn finish(self, patience: Duration) {
        let limit = Instant::now() + patience;
        for _ in 0..self.running {
            if self.done.1.recv_timeout(limit.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

fn copy_lines(prefix: &str, mut from: impl BufRead, to: &Sink) {
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        match from.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write_whole(to, &line);
    }
}

/// Writes lines without lines of other threads in between. Errors are ignored, since nobody may be reading.
fn write_whole(to: &Sink, bytes: &[u8]) {
    let mut sink = to.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = sink.write_all(bytes);
    let _ = sink.flush();
}

/// Outputs that tests inspect.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Captured {
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

#[cfg(test)]
impl Captured {
    pub(super) fn outputs(&self) -> Outputs {
        Outputs { stdout: self.stdout.clone(), stderr: self.stderr.clone() }
    }

    pub(super) fn stdout(&self) -> String {
        String::from_utf8(self.stdout.lock().unwrap().clone()).unwrap()
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8(self.stderr.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose reader disappears after some lines.
    struct Leaving(Vec<u8>, usize);

    impl Write for Leaving {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = self.1.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_reads_go_to_the_log() {
        let mut file = tempfile::tempfile().unwrap();
        let log = Arc::new(Mutex::new(Some(file.try_clone().unwrap())));
        let stream: Box<dyn Write + Send> = Box::new(Leaving(Vec::new(), 1));
        let sink: Sink = Arc::new(Mutex::new(Outliving { stream: Some(stream), log }));
        for line in ["one\n", "two\n", "three\n"] {
            write_whole(&sink, line.as_bytes());
        }
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two\nthree\n");
    }

    #[test]
    fn endless_lines_are_cut() {
        let captured = Captured::default();
        let sink: Sink = captured.stdout.clone();
        copy_lines("[3] ", io::Cursor::new(vec![b'x'; MAX_LINE_BYTES as usize + 5]), &sink);
        let text = captured.stdout();
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with("\n[3] xxxxx\n"));
    }
}
