//! Copies the output of ranks line by line, so that lines of different ranks do not mix.
//!
//! A rank may stop in the middle of a line, to ask its user something for instance. On a terminal, such a line is written
//! after a short time as far as it goes, and is then *open*: the rank continues it, unless another one writes a line first,
//! which ends it. A stream has at most one open line. A carriage return ends a line there too: programs that show their
//! progress write no other end. Files and pipes get whole lines only, unless a line is too long to be kept.
//!
//! A file or a pipe gets the bytes of the ranks and no others, except prefixes and ends of lines that another rank or a
//! prefix makes necessary: the output of one rank may be binary data.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};

/// Lines longer than this are written in pieces, so that a rank that prints no line ends cannot fill memory.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes that are read at once.
const READ_BYTES: usize = 8 << 10;

/// Time without output after which a line that has begun is written: too short for a user to notice, and longer than a
/// program takes between the parts of a line.
const IDLE: Duration = Duration::from_millis(100);

/// A destination of lines, common to several ranks.
pub(super) type Sink = Arc<Mutex<Stream<dyn Write + Send>>>;

/// A kind of stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Destination {
    /// A terminal, where a user waits for lines that have begun.
    Terminal,
    /// A file or a pipe.
    #[default]
    File,
}

impl Destination {
    /// Returns what an output of this process leads to.
    pub(super) fn of(output: &impl IsTerminal) -> Self {
        if output.is_terminal() { Self::Terminal } else { Self::File }
    }
}

/// A stream, and who has an open line on it.
#[derive(Default)]
pub(super) struct Stream<W: ?Sized> {
    open: Option<usize>,
    destination: Destination,
    pub(super) to: W,
}

impl<W> Stream<W> {
    pub(super) const fn new(destination: Destination, to: W) -> Self {
        Self { open: None, destination, to }
    }
}

impl<W: Write + ?Sized> Stream<W> {
    /// Writes text of `who`, after `prefix` if it begins a line. The line of another one is ended first.
    fn put(&mut self, who: usize, prefix: &str, text: &[u8], stays_open: bool) -> io::Result<()> {
        let mut bytes = Vec::new();
        if self.open != Some(who) {
            bytes = self.ended();
            bytes.extend_from_slice(prefix.as_bytes());
        }
        bytes.extend_from_slice(text);
        self.open = stays_open.then_some(who);
        self.to.write_all(&bytes).and_then(|()| self.to.flush())
    }

    /// Returns the bytes that end an open line.
    fn ended(&mut self) -> Vec<u8> {
        if self.open.take().is_some() { b"\n".to_vec() } else { Vec::new() }
    }

    /// Returns whether a line of `who` may become or stay open.
    fn is_free_for(&self, who: usize) -> bool {
        self.open.is_none_or(|open| open == who)
    }
}

/// Writes whole lines without lines of other threads in between.
pub(super) fn write_whole(to: &Sink, lines: &[u8]) -> io::Result<()> {
    let mut stream = to.lock().unpoisoned();
    let mut bytes = stream.ended();
    bytes.extend_from_slice(lines);
    stream.to.write_all(&bytes).and_then(|()| stream.to.flush())
}

/// The output of a rank.
pub(super) trait Source {
    /// Reads some bytes, 0 at the end; `None` if there are none for this time.
    fn read(&mut self, bytes: &mut [u8], patience: Option<Duration>) -> io::Result<Option<usize>>;
}

/// A piece of an output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// A whole line, or the last part of one.
    Line,
    /// A part of a line that is too long to be kept.
    Part,
    /// The second half of the end of a line that is already written.
    End,
}

/// Where the lines of an output go.
pub(super) struct Copied<'a> {
    /// Tells outputs of the same stream apart.
    pub who: usize,
    pub prefix: &'a str,
    pub to: &'a Sink,
}

impl Copied<'_> {
    fn put(&self, text: &[u8], piece: Piece) -> io::Result<()> {
        let mut stream = self.to.lock().unpoisoned();
        let prefix = if piece == Piece::End { "" } else { self.prefix };
        stream.put(self.who, prefix, text, piece == Piece::Part)
    }

    /// Writes a line that has begun, unless another one is open. Returns whether it did.
    fn put_open(&self, text: &[u8]) -> io::Result<bool> {
        let mut stream = self.to.lock().unpoisoned();
        let is_free = stream.is_free_for(self.who);
        if is_free {
            stream.put(self.who, self.prefix, text, true)?;
        }
        Ok(is_free)
    }

    /// Writes the rest of this output. A line without an end gets one where people read it, or programs that expect
    /// prefixes.
    fn finish(&self, mut rest: Vec<u8>) -> io::Result<()> {
        let mut stream = self.to.lock().unpoisoned();
        if rest.is_empty() && stream.open != Some(self.who) {
            return Ok(());
        }
        let is_ended = !self.prefix.is_empty() || stream.destination == Destination::Terminal;
        if is_ended {
            rest.push(b'\n');
        }
        stream.put(self.who, self.prefix, &rest, !is_ended)
    }

    /// Copies until the output ends, or until nobody reads the copies: the rank's next write then fails, as it would
    /// without this process. Calls `lost` for a line that cannot be written for another reason.
    pub(super) fn copy(&self, mut from: impl Source, lost: impl Fn(&io::Error)) {
        let mut buffer = vec![0; READ_BYTES];
        let destination = self.to.lock().unpoisoned().destination;
        let mut lines = Lines::new(destination);
        // Returns whether somebody may still read the copies.
        let is_read = |written: io::Result<()>| match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => false,
            Err(error) => {
                lost(&error);
                true
            }
            Ok(()) => true,
        };
        loop {
            let is_awaited = destination == Destination::Terminal && !lines.begun.is_empty();
            let patience = is_awaited.then_some(IDLE);
            let goes_on = match from.read(&mut buffer, patience) {
                Ok(Some(count @ 1..)) => {
                    lines.read(&buffer[..count], |text, piece| is_read(self.put(text, piece)))
                }
                Ok(None) => match self.put_open(&lines.begun) {
                    Ok(true) => {
                        lines.begun.clear();
                        true
                    }
                    written => is_read(written.map(drop)),
                },
                Ok(Some(0)) | Err(_) => {
                    is_read(self.finish(lines.begun));
                    return;
                }
            };
            if !goes_on {
                return;
            }
        }
    }
}

/// Finds the ends of lines.
struct Lines {
    destination: Destination,
    /// The line that has begun, without what is written of it.
    begun: Vec<u8>,
    /// Whether the last line ended in a carriage return, which may be the first half of its end.
    returned: bool,
}

impl Lines {
    const fn new(destination: Destination) -> Self {
        Self { destination, begun: Vec::new(), returned: false }
    }

    fn is_end(&self, byte: u8) -> bool {
        byte == b'\n' || byte == b'\r' && self.destination == Destination::Terminal
    }

    /// Passes on each line that these bytes end, and the parts of long lines, until `put` returns false. Returns whether
    /// it never did.
    fn read(&mut self, bytes: &[u8], mut put: impl FnMut(&[u8], Piece) -> bool) -> bool {
        let mut rest = bytes;
        if std::mem::take(&mut self.returned) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
            if !put(b"\n", Piece::End) {
                return false;
            }
        }
        while !rest.is_empty() {
            let room = MAX_LINE_BYTES - self.begun.len();
            let end = rest.iter().take(room).position(|byte| self.is_end(*byte));
            let len = match end {
                Some(at) if rest[at..].starts_with(b"\r\n") => at + 2,
                Some(at) => at + 1,
                None => room.min(rest.len()),
            };
            let (line, behind) = rest.split_at(len);
            self.begun.extend_from_slice(line);
            rest = behind;
            if end.is_none() && self.begun.len() < MAX_LINE_BYTES {
                return true;
            }
            self.returned = end.is_some() && rest.is_empty() && line.ends_with(b"\r");
            let goes_on = put(&self.begun, if end.is_some() { Piece::Line } else { Piece::Part });
            self.begun.clear();
            if !goes_on {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// An output that comes in pieces, with a pause where there is none.
    struct Pieces(VecDeque<Option<&'static str>>);

    impl Source for &mut Pieces {
        fn read(&mut self, bytes: &mut [u8], patience: Option<Duration>) -> io::Result<Option<usize>> {
            let piece = match self.0.pop_front() {
                None => return Ok(Some(0)),
                Some(Some(piece)) => piece,
                Some(None) => {
                    assert!(patience.is_some(), "nobody waits for the rest of nothing");
                    return Ok(None);
                }
            };
            bytes[..piece.len()].copy_from_slice(piece.as_bytes());
            Ok(Some(piece.len()))
        }
    }

    fn copied(to: Destination, pieces: &[Option<&'static str>]) -> String {
        copied_from(to, &mut Pieces(pieces.iter().copied().collect()))
    }

    fn copied_from(to: Destination, from: impl Source) -> String {
        copied_with("[0] ", to, from)
    }

    fn copied_with(prefix: &str, to: Destination, from: impl Source) -> String {
        let stream = Arc::new(Mutex::new(Stream::new(to, Vec::new())));
        let to: Sink = stream.clone();
        Copied { who: 0, prefix, to: &to }.copy(from, |_| ());
        let text = stream.lock().unwrap().to.clone();
        String::from_utf8(text).unwrap()
    }

    /// An output of so many bytes without line ends.
    struct Endless(usize);

    impl Source for &mut dyn Source {
        fn read(&mut self, bytes: &mut [u8], patience: Option<Duration>) -> io::Result<Option<usize>> {
            (**self).read(bytes, patience)
        }
    }

    impl Source for Endless {
        fn read(&mut self, bytes: &mut [u8], _: Option<Duration>) -> io::Result<Option<usize>> {
            let count = bytes.len().min(self.0);
            bytes[..count].fill(b'x');
            self.0 -= count;
            Ok(Some(count))
        }
    }

    #[test]
    fn files_get_the_bytes_of_a_rank_unchanged() {
        let long = MAX_LINE_BYTES + 5;
        let written = |prefix, bytes| copied_with(prefix, Destination::File, Endless(bytes));
        assert!(written("", long) == "x".repeat(long), "no end of a line is added");
        assert!(written("", MAX_LINE_BYTES) == "x".repeat(MAX_LINE_BYTES));
        assert!(written("[0] ", long) == format!("[0] {}\n", "x".repeat(long)), "a prefix asks for lines");
        let copied = |text| copied_with("", Destination::File, &mut Pieces([Some(text)].into()));
        assert_eq!(copied("one\ntwo"), "one\ntwo");
        let shown = copied_with("", Destination::Terminal, &mut Pieces([Some("one")].into()));
        assert_eq!(shown, "one\n");
    }

    #[test]
    fn another_rank_ends_a_long_line() {
        let stream = Arc::new(Mutex::new(Stream::new(Destination::File, Vec::new())));
        let to: Sink = stream.clone();
        let copy = |who, from: &mut dyn Source| Copied { who, prefix: "", to: &to }.copy(from, |_| ());
        copy(0, &mut Endless(MAX_LINE_BYTES));
        copy(1, &mut &mut Pieces([Some("one\n")].into()));
        let text = String::from_utf8(stream.lock().unwrap().to.clone()).unwrap();
        assert!(text.len() == MAX_LINE_BYTES + 5 && text.ends_with("x\none\n"));
    }

    /// A stream whose reader leaves after some lines.
    struct Leaving(usize);

    impl Write for Leaving {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_rank_whose_output_nobody_reads_is_not_read() {
        let to: Sink = Arc::new(Mutex::new(Stream::new(Destination::File, Leaving(1))));
        let mut pieces = Pieces(["one\n", "two\n", "three\n"].map(Some).into());
        Copied { who: 0, prefix: "", to: &to }.copy(&mut pieces, |_| ());
        assert_eq!(pieces.0, [Some("three\n")], "the third line stays in the pipe");
    }

    #[test]
    fn a_question_is_shown_before_the_answer() {
        let pieces = [Some("one\nName: "), None, Some("me\ntwo"), Some("\n")];
        let shown = |pieces: &[_]| copied(Destination::Terminal, pieces);
        assert_eq!(shown(&pieces), "[0] one\n[0] Name: me\n[0] two\n");
        assert_eq!(shown(&[Some("Name: "), None]), "[0] Name: \n", "the output ends there");
        assert_eq!(shown(&[Some("Name: ")]), "[0] Name: \n");
    }

    #[test]
    fn a_carriage_return_ends_a_line() {
        let shown = |pieces: &[_]| copied(Destination::Terminal, pieces);
        assert_eq!(shown(&[Some("10%\r20"), Some("%\r"), Some("30%\r")]), "[0] 10%\r[0] 20%\r[0] 30%\r");
        let one_end = "[0] one\r\n[0] two\r\n[0] three\n";
        assert_eq!(shown(&[Some("one\r\ntwo\r"), Some("\nthree\n")]), one_end);
    }

    #[test]
    fn files_get_whole_lines() {
        let written = |pieces: &[_]| copied(Destination::File, pieces);
        assert_eq!(written(&[Some("10%\r20"), Some("%\r"), Some("\n30%")]), "[0] 10%\r20%\r\n[0] 30%\n");
        /// A rank that never waits for a part of a line, since nobody would write it.
        struct Impatient(u8);
        impl Source for Impatient {
            fn read(&mut self, bytes: &mut [u8], patience: Option<Duration>) -> io::Result<Option<usize>> {
                assert_eq!(patience, None, "a line that has begun is not written");
                let Some(left) = self.0.checked_sub(1) else { return Ok(Some(0)) };
                (self.0, bytes[0]) = (left, b'x');
                Ok(Some(1))
            }
        }
        assert_eq!(copied_from(Destination::File, Impatient(3)), "[0] xxx\n");
    }

    #[test]
    fn lines_do_not_run_into_an_open_one() {
        let mut stream = Stream::new(Destination::Terminal, Vec::new());
        stream.put(0, "[0] ", b"Name: ", true).unwrap();
        assert!(stream.is_free_for(0) && !stream.is_free_for(1));
        stream.put(1, "[1] ", b"ready\n", false).unwrap();
        assert!(stream.is_free_for(1));
        stream.put(0, "[0] ", b"me\n", false).unwrap();
        assert_eq!(String::from_utf8(stream.to).unwrap(), "[0] Name: \n[1] ready\n[0] me\n");
    }
}
