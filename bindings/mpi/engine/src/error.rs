//! Errors: one of the standard's classes with a text, and error codes by which the text can be found.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use crate::comm::Comm;
use crate::constants::{ERR_LASTCODE, MAX_ERROR_STRING};
use crate::window::Window;

macro_rules! classes {
    ($($name:ident = $value:literal, $text:literal;)+) => {
        /// The standard's error classes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the standard's names")]
        #[repr(i32)]
        pub enum Class {
            $($name = $value,)+
        }

        fn class_text(class: c_int) -> Option<&'static str> {
            match class {
                0 => Some("no error"),
                $($value => Some($text),)+
                _ => None,
            }
        }
    };
}

classes! {
    Buffer = 1, "invalid buffer";
    Count = 2, "invalid count";
    Type = 3, "invalid datatype";
    Tag = 4, "invalid tag";
    Comm = 5, "invalid communicator";
    Rank = 6, "invalid rank";
    Root = 7, "invalid root";
    Group = 8, "invalid group";
    Op = 9, "invalid operator";
    Topology = 10, "invalid topology";
    Dims = 11, "invalid dimensions";
    Arg = 12, "invalid argument";
    Unknown = 13, "unknown error";
    Truncate = 14, "message truncated: it is longer than the receive buffer";
    Other = 15, "error";
    Intern = 16, "internal error";
    InStatus = 17, "the error codes are in the statuses";
    Pending = 18, "pending request";
    Request = 19, "invalid request";
    Access = 20, "permission denied";
    Amode = 21, "invalid access mode";
    BadFile = 22, "invalid file name";
    Conversion = 23, "error in a data conversion function";
    DupDatarep = 24, "data representation already defined";
    FileExists = 25, "file exists";
    FileInUse = 26, "file in use";
    File = 27, "invalid file handle";
    Info = 28, "invalid info object";
    InfoKey = 29, "invalid info key";
    InfoValue = 30, "invalid info value";
    InfoNokey = 31, "info key not defined";
    Io = 32, "input or output error";
    Name = 33, "name not published";
    NoMem = 34, "out of memory";
    NotSame = 35, "arguments differ between ranks";
    NoSpace = 36, "not enough space";
    NoSuchFile = 37, "no such file";
    Port = 38, "invalid port";
    Quota = 39, "quota exceeded";
    ReadOnly = 40, "read-only file or file system";
    Service = 41, "invalid service name";
    Spawn = 42, "could not start processes";
    UnsupportedDatarep = 43, "unsupported data representation";
    UnsupportedOperation = 44, "unsupported operation";
    Win = 45, "invalid window";
    Base = 46, "invalid base address";
    Locktype = 47, "invalid lock type";
    Keyval = 48, "invalid keyval";
    RmaConflict = 49, "conflicting accesses to a window";
    RmaSync = 50, "wrong synchronisation of a window";
    Size = 51, "invalid size";
    Disp = 52, "invalid displacement";
    Assert = 53, "invalid assertion";
    RmaRange = 55, "target memory is not part of the window";
    RmaAttach = 56, "memory cannot be attached";
    RmaShared = 57, "memory cannot be shared";
    RmaFlavor = 58, "wrong flavor of window";
    Session = 75, "invalid session";
    ProcAborted = 76, "a process has aborted";
    ValueTooLarge = 77, "value too large for the type of the argument";
    Errhandler = 80, "invalid error handler";
    Abi = 81, "wrong ABI";
    ProcFailed = 101, "a process has failed";
    ProcFailedPending = 102, "a process has failed, and the request is still pending";
    Revoked = 103, "the communicator has been revoked";
}

/// An object with an error handler. It keeps the handler even if the program has freed its handle.
#[derive(Clone, Debug)]
pub enum Object {
    /// A communicator.
    Comm(Arc<Comm>),
    /// A window.
    Win(Arc<Window>),
}

/// The reason why a call fails.
#[derive(Clone, Debug)]
pub struct Fail {
    /// Class, or a code that the program has added.
    pub class: c_int,
    /// Explanation for people, beyond the class.
    pub text: Box<str>,
    /// The object whose error handler is called, if the arguments of the call do not tell.
    pub object: Option<Object>,
}

/// Result of calls.
pub type Outcome<T = ()> = Result<T, Fail>;

impl Fail {
    /// Makes a failure of a class, with an explanation.
    pub fn new(class: Class, text: impl fmt::Display) -> Self {
        Self { class: class as c_int, text: text.to_string().into_boxed_str(), object: None }
    }

    /// Returns whether a rank is lost, or the survivors of a loss have ended the communicator.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.class == Class::ProcFailed as c_int || self.class == Class::Revoked as c_int
    }

    /// Makes a failure with a code of the program's own.
    #[must_use]
    pub fn code(code: c_int) -> Self {
        Self { class: code, text: "".into(), object: None }
    }

    /// Makes the failure go to an object's error handler.
    #[must_use]
    pub fn on(self, object: Object) -> Self {
        Self { object: Some(object), ..self }
    }
}

/// Returns `Err` with a failure.
pub fn fail<T>(class: Class, text: impl fmt::Display) -> Outcome<T> {
    Err(Fail::new(class, text))
}

impl From<kolo::Error> for Fail {
    fn from(error: kolo::Error) -> Self {
        let class = match &error {
            kolo::Error::PeerLost { .. } => Class::ProcFailed,
            kolo::Error::Aborted { kind: kolo::AbortReason::Revoked, .. } => Class::Revoked,
            kolo::Error::Aborted { .. } => Class::ProcAborted,
            kolo::Error::Usage { .. } => Class::Arg,
            kolo::Error::Unsupported { .. } => Class::UnsupportedOperation,
            kolo::Error::Mismatch { .. } => Class::NotSame,
            _ => Class::Other,
        };
        Self::new(class, error)
    }
}

/// Bits of a code that hold the class; the bits above select a text.
const CLASS_BITS: u32 = 8;
/// The number of texts that are kept. That is enough, since a program that looks at an error does so soon.
const TEXTS: usize = 1024;
/// The first code that a program may add; it lies above the last code of the library.
const ADDED: c_int = ERR_LASTCODE + 1;

#[derive(Default)]
struct Table {
    texts: Vec<Box<str>>,
    next: usize,
    added: BTreeMap<c_int, Added>,
    last: c_int,
}

struct Added {
    class: c_int,
    text: Box<str>,
    is_class: bool,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn table<T>(with: impl FnOnce(&mut Table) -> T) -> T {
    let mut guard = TABLE.lock().unpoisoned();
    with(guard.get_or_insert_with(|| Table { last: ERR_LASTCODE, ..Table::default() }))
}

/// Returns a code for a failure, and keeps its text.
pub fn encode(failure: &Fail) -> c_int {
    if failure.class >= ADDED || failure.text.is_empty() {
        return failure.class;
    }
    table(|table| {
        let at = table.next % TEXTS;
        table.next += 1;
        match table.texts.get_mut(at) {
            Some(place) => place.clone_from(&failure.text),
            None => table.texts.push(failure.text.clone()),
        }
        failure.class | ((at as c_int + 1) << CLASS_BITS)
    })
}

/// Returns the class of a code; `None` for an invalid code. By the standard, every number up to the last code is valid.
pub fn class_of(code: c_int) -> Option<c_int> {
    if code >= ADDED {
        return table(|table| table.added.get(&code).map(|added| added.class));
    }
    let class = code & ((1 << CLASS_BITS) - 1);
    let known = class_text(class).map_or(Class::Unknown as c_int, |_| class);
    (code >= 0).then_some(known)
}

/// Returns the text of a code.
pub fn text_of(code: c_int) -> Option<String> {
    if code >= ADDED {
        return table(|table| table.added.get(&code).map(|added| added.text.to_string()));
    }
    let class = class_of(code)?;
    let name = class_text(class)?;
    let at = (code >> CLASS_BITS) as usize;
    let text = match at {
        0 => None,
        _ => table(|table| table.texts.get(at - 1).cloned()),
    };
    Some(text.map_or_else(|| name.to_owned(), |text| fitted(format!("{name}: {text}"))))
}

/// Shortens a text to the room of the standard's strings. It keeps the code in brackets at the end of Kolo's own texts.
fn fitted(text: String) -> String {
    let room = MAX_ERROR_STRING as usize - 1;
    let code =
        text.rfind(" [K").filter(|at| text.len() > room && text.ends_with(']') && text.len() - at < 10);
    let Some(code) = code else { return text };
    let code = &text[code..];
    let mut end = room - code.len() - "...".len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...{code}", &text[..end])
}

/// Adds a class, or a code of a class.
pub fn add(class: Option<c_int>) -> Outcome<c_int> {
    if class.is_some_and(|class| class_of(class) != Some(class)) {
        return fail(Class::Arg, "this is not an error class");
    }
    Ok(table(|table| {
        table.last += 1;
        let code = table.last;
        let is_class = class.is_none();
        table.added.insert(code, Added { class: class.unwrap_or(code), text: "".into(), is_class });
        code
    }))
}

/// Gives an added code its text.
pub fn name(code: c_int, text: &str) -> Outcome {
    table(|table| match table.added.get_mut(&code) {
        Some(added) => {
            added.text = text.into();
            Ok(())
        }
        None => fail(Class::Arg, format!("{code} is not an error code that the program added")),
    })
}

/// Removes an added class or code.
pub fn remove(code: c_int, is_class: bool) -> Outcome {
    table(|table| {
        if table.added.get(&code).is_none_or(|added| added.is_class != is_class) {
            return fail(Class::Arg, format!("{code} was not added by the program"));
        }
        if table.added.get(&code).is_some_and(|added| !added.text.is_empty()) {
            return fail(Class::Other, "it still has a text");
        }
        if is_class && table.added.iter().any(|(other, added)| *other != code && added.class == code) {
            return fail(Class::Other, "the class still has codes");
        }
        table.added.remove(&code);
        Ok(())
    })
}

/// Returns the highest code so far.
pub fn last_used() -> c_int {
    table(|table| table.last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_their_code() {
        let error = kolo::Error::configuration("KOLO_X", "é".repeat(400), "Set it");
        let text = fitted(Fail::from(error).text.into());
        assert!(text.len() < MAX_ERROR_STRING as usize && text.ends_with("... [K0201]"), "{text}");
        assert_eq!(fitted("short [K0201]".to_owned()), "short [K0201]");
    }
}
