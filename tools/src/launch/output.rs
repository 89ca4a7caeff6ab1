//! Merges the outputs of ranks, line by line.

use std::fmt;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::process::Child;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use super::job::Prefix;
use lines::{Copied, Destination, Sink, Source, Stream, write_whole};

mod lines;

/// Most bytes that are copied from a pipe after its job, so that a process that the job has left behind cannot keep the
/// launcher for ever. A pipe holds no more, unless root has raised the limit.
const MAX_LEFT_BYTES: usize = 1 << 20;

/// Interval at which a launcher that waits for its readers checks whether it must hurry.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Time in which a last message must be written, since nobody may be reading.
const LAST_MOST: Duration = Duration::from_secs(1);

/// The user's outputs. Those of an agent are pipes, so its launcher tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Destinations {
    stdout: Destination,
    stderr: Destination,
}

impl Destinations {
    /// Returns those of this process.
    pub(crate) fn own() -> Self {
        Self { stdout: Destination::of(&io::stdout()), stderr: Destination::of(&io::stderr()) }
    }
}

/// Destinations of the lines.
#[derive(Clone)]
pub(crate) struct Outputs {
    stdout: Sink,
    stderr: Sink,
    /// Messages of the launcher itself, which a thread of its own writes: the launcher must not wait for a reader of its
    /// outputs, since it has ranks to end.
    messages: Sender<String>,
    unwritten: Arc<Unwritten>,
}

/// The number of messages that have not been written.
#[derive(Default)]
struct Unwritten {
    count: Mutex<usize>,
    fell: Condvar,
}

impl Unwritten {
    fn change(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.count.lock().unpoisoned());
        self.fell.notify_all();
    }

    /// Waits until all messages have been written. Returns false if that takes longer.
    fn is_none_within(&self, time: Duration) -> bool {
        let count = self.count.lock().unpoisoned();
        let waited = self.fell.wait_timeout_while(count, time, |count| *count > 0);
        *waited.unpoisoned().0 == 0
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outputs")
    }
}

impl Outputs {
    /// Writes to this process's own outputs.
    ///
    /// # Errors
    /// The system's, if it refuses a thread.
    pub(crate) fn own(end: Destinations) -> io::Result<Self> {
        Self::to(sink(end.stdout, Waiting(io::stdout())), sink(end.stderr, Waiting(io::stderr())))
    }

    /// Writes to the same outputs as long as somebody reads them, and then to a file `kolo-run-*.log` in the
    /// folder for temporary files. For ranks that outlive their launcher.
    ///
    /// # Errors
    /// As [`Outputs::own`].
    pub(crate) fn outliving(end: Destinations) -> io::Result<Self> {
        let log = Arc::new(Mutex::new(None));
        let to = |end, stream: Box<dyn Write + Send>| {
            sink(end, Outliving { stream: Some(stream), log: log.clone() })
        };
        Self::to(
            to(end.stdout, Box::new(Waiting(io::stdout()))),
            to(end.stderr, Box::new(Waiting(io::stderr()))),
        )
    }

    fn to(stdout: Sink, stderr: Sink) -> io::Result<Self> {
        let (messages, pending) = mpsc::channel::<String>();
        let unwritten = Arc::new(Unwritten::default());
        let (sink, written) = (stderr.clone(), unwritten.clone());
        let write = move || {
            for message in pending {
                let _ = write_whole(&sink, message.as_bytes());
                written.change(|count| *count -= 1);
            }
        };
        thread::Builder::new().name("messages".into()).spawn(write)?;
        Ok(Self { stdout, stderr, messages, unwritten })
    }

    /// Writes a message of the launcher itself, without waiting until somebody reads it.
    pub(crate) fn say(&self, message: &str) {
        self.unwritten.change(|count| *count += 1);
        // The thread lives as long as this sender.
        let _ = self.messages.send(format!("{message}\n"));
    }

    /// Writes the last message of a process that is about to end.
    pub(crate) fn say_last(message: &str) {
        // Without a thread for it, the message could keep this process waiting for a reader.
        let Ok(outputs) = Self::own(Destinations::default()) else { return };
        outputs.say(message);
        let _ = outputs.unwritten.is_none_within(LAST_MOST);
    }
}

fn sink(destination: Destination, stream: impl Write + Send + 'static) -> Sink {
    Arc::new(Mutex::new(Stream::new(destination, stream)))
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
        let mut log = self.log.lock().unpoisoned();
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
    /// A pipe whose end of file tells the threads that the job is over.
    job: (Arc<PipeReader>, PipeWriter),
    /// The report that output cannot be written, which is made once.
    reported: Arc<Once>,
}

impl Readers {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let job = (Arc::new(reader), writer);
        Ok(Self { running: 0, done: mpsc::channel(), job, reported: Arc::new(Once::new()) })
    }

    /// Copies those outputs of a child that are pipes, line by line, each preceded by its rank if `prefix` asks
    /// for that.
    ///
    /// # Errors
    /// The system's, if it refuses a thread.
    pub(super) fn attach(
        &mut self,
        prefix: Prefix,
        rank: u32,
        child: &mut Child,
        outputs: &Outputs,
    ) -> io::Result<()> {
        if let Some(pipe) = child.stdout.take() {
            self.read(prefix, rank, pipe, outputs.stdout.clone(), outputs)?;
        }
        if let Some(pipe) = child.stderr.take() {
            self.read(prefix, rank, pipe, outputs.stderr.clone(), outputs)?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        prefix: Prefix,
        rank: u32,
        pipe: impl Read + AsFd + Send + 'static,
        sink: Sink,
        outputs: &Outputs,
    ) -> io::Result<()> {
        let who = self.running;
        let (done, job) = (self.done.0.clone(), self.job.0.clone());
        let (outputs, reported) = (outputs.clone(), self.reported.clone());
        let lost = move |error: &io::Error| {
            let text = format!("kolo: output of the job is lost, since it cannot be written: {error}");
            reported.call_once(|| outputs.say(&text));
        };
        let copy = move || {
            let prefix = if prefix == Prefix::Rank { format!("[{rank}] ") } else { String::new() };
            let from = UntilOver { pipe, job, left: MAX_LEFT_BYTES };
            Copied { who, prefix: &prefix, to: &sink }.copy(from, lost);
            let _ = done.send(());
        };
        thread::Builder::new().name(format!("output of {rank}")).spawn(copy)?;
        self.running += 1;
        Ok(())
    }

    /// Waits until everything has been written that ranks wrote, and what the processes that they left behind write
    /// within `patience`. However slowly the outputs are read, nothing is cut off unless `hurry` says so.
    pub(super) fn finish(self, outputs: &Outputs, patience: Duration, mut hurry: impl FnMut() -> bool) {
        let limit = Instant::now() + patience;
        let (mut running, mut job) = (self.running, Some(self.job));
        while running > 0 {
            job.take_if(|_| Instant::now() >= limit);
            if hurry() {
                return;
            }
            if self.done.1.recv_timeout(LOOK_AGAIN).is_ok() {
                running -= 1;
            }
        }
        while !outputs.unwritten.is_none_within(LOOK_AGAIN) && !hurry() {}
    }
}

/// A pipe whose writers may outlive the job. Once the job is over, it ends where it is empty.
struct UntilOver<R> {
    pipe: R,
    /// Reaches its end of file when the job is over.
    job: Arc<PipeReader>,
    /// Most bytes that are still read after that.
    left: usize,
}

impl<R: Read + AsFd> Source for UntilOver<R> {
    fn read(&mut self, bytes: &mut [u8], patience: Option<Duration>) -> io::Result<Option<usize>> {
        let limit = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let (has_data, is_over) = {
            let mut both = [PollFd::new(&self.pipe, PollFlags::IN), PollFd::new(&*self.job, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut both, limit.as_ref()))? == 0 {
                return Ok(None);
            }
            (!both[0].revents().is_empty(), !both[1].revents().is_empty())
        };
        if !is_over {
            return self.pipe.read(bytes).map(Some);
        }
        if !has_data || self.left == 0 {
            return Ok(Some(0));
        }
        let most = bytes.len().min(self.left);
        let count = self.pipe.read(&mut bytes[..most])?;
        self.left -= count;
        Ok(Some(count))
    }
}

/// An output of this process. Another program may have made the file behind it non-blocking, such as a program that shares the
/// terminal; a slow reader misses nothing all the same.
struct Waiting<F>(F);

impl<F: AsFd> Write for Waiting<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.0, bytes) {
                Err(rustix::io::Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Outputs that tests inspect.
#[cfg(test)]
#[derive(Default)]
pub(super) struct Captured {
    stdout: Arc<Mutex<Stream<Vec<u8>>>>,
    stderr: Arc<Mutex<Stream<Vec<u8>>>>,
}

#[cfg(test)]
impl Captured {
    pub(super) fn outputs(&self) -> Outputs {
        Outputs::to(self.stdout.clone(), self.stderr.clone()).unwrap()
    }

    pub(super) fn stdout(&self) -> String {
        String::from_utf8(self.stdout.lock().unwrap().to.clone()).unwrap()
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8(self.stderr.lock().unwrap().to.clone()).unwrap()
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
        let sink = sink(Destination::File, Outliving { stream: Some(stream), log });
        for line in ["one\n", "two\n", "three\n"] {
            write_whole(&sink, line.as_bytes()).unwrap();
        }
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two\nthree\n");
    }

    /// A writer whose reader takes nothing until a gate is open.
    struct Gated(Arc<Mutex<()>>, Arc<Mutex<Vec<u8>>>);

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.0.lock().unwrap();
            self.1.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_reader_misses_nothing() {
        let (gate, text) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
        let sink = sink(Destination::File, Gated(gate.clone(), text.clone()));
        let outputs = Outputs::to(sink.clone(), sink.clone()).unwrap();
        let mut closed = Some(gate.lock().unwrap());
        // The writing end stays open, as in a process that a rank has left behind.
        let (pipe, mut rank) = io::pipe().unwrap();
        rank.write_all("line\n".repeat(5000).as_bytes()).unwrap();
        let mut readers = Readers::new().unwrap();
        readers.read(Prefix::Rank, 1, pipe, sink, &outputs).unwrap();
        outputs.say("over");
        let mut looks = 0;
        readers.finish(&outputs, Duration::ZERO, || {
            looks += 1;
            // The reader of the outputs begins to read long after the patience is over.
            closed.take_if(|_| looks == 3);
            false
        });
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().filter(|line| *line == "[1] line").count(), 5000);
        assert_eq!(text.lines().filter(|line| *line == "over").count(), 1);
    }

    #[test]
    fn an_output_that_does_not_block_misses_nothing() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        let line = [b'x'; 3000];
        let writing = thread::spawn(move || {
            let sink = sink(Destination::File, Waiting(writer));
            (0..100).all(|_| write_whole(&sink, &line).is_ok())
        });
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(writing.join().unwrap() && read.len() == 100 * line.len(), "{} bytes", read.len());
    }

    #[test]
    fn a_launcher_in_a_hurry_waits_for_no_reader() {
        let gate = Arc::new(Mutex::new(()));
        let sink = sink(Destination::File, Gated(gate.clone(), Arc::default()));
        let outputs = Outputs::to(sink.clone(), sink).unwrap();
        let _closed = gate.lock().unwrap();
        outputs.say("nobody reads this");
        let mut looks = 0;
        Readers::new().unwrap().finish(&outputs, LAST_MOST, || {
            looks += 1;
            looks == 2
        });
        assert_eq!(looks, 2);
    }

    #[test]
    fn an_output_without_room_is_reported_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let captured = Captured::default();
        let outputs = captured.outputs();
        let sink = sink(Destination::File, Waiting(full));
        let mut readers = Readers::new().unwrap();
        for rank in 0..2 {
            let (pipe, mut written) = io::pipe().unwrap();
            written.write_all(b"one\ntwo\n").unwrap();
            readers.read(Prefix::Rank, rank, pipe, sink.clone(), &outputs).unwrap();
        }
        readers.finish(&outputs, Duration::ZERO, || false);
        let said = captured.stderr();
        assert!(said.contains("output of the job is lost") && said.lines().count() == 1, "{said}");
    }
}
