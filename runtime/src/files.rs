//! Files that settings name.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::Duration;

use kolo_transport::Unpoisoned;

/// Longest such file, in bytes: enough for a set of plans with the most steps allowed, twice over.
const MOST_BYTES: u64 = 64 << 20;

/// Longest wait for a text to be written or removed. Only a file system that does not answer takes longer.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// Texts to write next, by file. Each file that is here has a thread at work.
static UNWRITTEN: Mutex<BTreeMap<PathBuf, Option<String>>> = Mutex::new(BTreeMap::new());

/// Reads a text, but no endless one, such as a device.
///
/// # Errors
/// The system's, or one that says that the file is too long.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    text_in(File::open(path)?)
}

/// Reads a text that tells this process whom to join. Another user could lead it to a job of their own, so the file
/// must belong to this user or to root.
///
/// # Errors
/// As [`text_of`]; `PermissionDenied` for another user's file.
pub(crate) fn own_text_of(path: &Path) -> Result<String> {
    text_of_users(path, &[rustix::process::geteuid().as_raw(), 0])
}

/// Replaces a file with a text that holds keys, in one step: a reader sees the former text or the new one, and no other
/// user sees either.
///
/// # Errors
/// The system's.
pub(crate) fn replace_secret(path: &Path, text: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // The name is free, whoever else can write to the folder, and whichever other process writes the same file.
    name.push(format!(".{:08x}", getrandom::u32().unwrap_or_else(|_| std::process::id())));
    let draft = path.with_file_name(name);
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
    let written = open.and_then(|mut file| file.write_all(text)).and_then(|()| fs::rename(&draft, path));
    if written.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Replaces a file as [`replace_secret`] does, but on another thread, for which it waits a second at most: the file
/// system may not answer. Of several texts that wait for one file, the last is written. `failed` is told of failures.
///
/// # Errors
/// The system's, if it refuses a thread.
pub(crate) fn keep_secret(path: &Path, text: String, failed: impl Fn(&Error) + Send + 'static) -> Result<()> {
    if unwritten().insert(path.to_owned(), Some(text)).is_some() {
        return Ok(());
    }
    let file = path.to_owned();
    let write = move || {
        while let Some(text) = next_text(&file) {
            if let Err(error) = replace_secret(&file, text.as_bytes()) {
                failed(&error);
            }
        }
    };
    patiently(write).inspect_err(|_| {
        unwritten().remove(path);
    })
}

/// Removes a file if it still has this text, on another thread, for which it waits a second at most: the file system
/// may not answer.
///
/// # Errors
/// The system's, if it refuses a thread.
pub(crate) fn remove_own(path: &Path, text: Vec<u8>) -> Result<()> {
    let file = path.to_owned();
    patiently(move || {
        if own_text_of(&file).is_ok_and(|found| found.as_bytes() == text) {
            let _ = fs::remove_file(&file);
        }
    })
}

/// Works on a thread of its own, for which it waits a second at most.
fn patiently(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let (done, ended) = mpsc::channel::<()>();
    let work = move || {
        let _done = done;
        work();
    };
    std::thread::Builder::new().name("kolo-files".to_owned()).spawn(work)?;
    // Nothing is ever sent here. The other end is dropped.
    let _ = ended.recv_timeout(WRITTEN_WITHIN);
    Ok(())
}

fn unwritten() -> MutexGuard<'static, BTreeMap<PathBuf, Option<String>>> {
    UNWRITTEN.lock().unpoisoned()
}

/// Returns the text that is to be written next. If there is none, the thread's work is done.
fn next_text(path: &Path) -> Option<String> {
    let mut unwritten = unwritten();
    let text = unwritten.get_mut(path).and_then(Option::take);
    if text.is_none() {
        unwritten.remove(path);
    }
    text
}

fn text_of_users(path: &Path, users: &[u32]) -> Result<String> {
    // Opening a pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let owner = facts.uid();
    if !users.contains(&owner) {
        let problem = format!("it belongs to user {owner}, not to this user ({})", users[0]);
        return Err(Error::new(ErrorKind::PermissionDenied, problem));
    }
    text_in(file)
}

fn text_in(file: File) -> Result<String> {
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = text_of(Path::new("/dev/zero")).expect_err("it has no end");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(text_of(Path::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn a_secret_is_replaced_and_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for text in ["one", "two"] {
            replace_secret(&path, text.as_bytes()).unwrap();
            assert_eq!(own_text_of(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o077, 0, "others cannot read it");
        }
        // A folder in the place of the file cannot be replaced.
        fs::create_dir(folder.path().join("folder")).unwrap();
        replace_secret(&folder.path().join("folder"), b"one").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_secret_is_kept_by_another_thread_which_tells_of_failures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for text in ["one", "two"] {
            keep_secret(&path, text.to_owned(), |error| panic!("{error}")).unwrap();
            assert_eq!(own_text_of(&path).unwrap(), text);
        }
        let (tell, told) = mpsc::channel();
        let nowhere = folder.path().join("none/secret");
        keep_secret(&nowhere, "one".to_owned(), move |error| tell.send(error.kind()).unwrap()).unwrap();
        assert_eq!(told.recv(), Ok(ErrorKind::NotFound));
        assert!(!unwritten().contains_key(&path));
    }

    /// A thread that hangs is at work on the first text.
    #[test]
    fn nobody_waits_for_a_file_system_that_does_not_answer_again_and_again() {
        let path = Path::new("/nowhere/at/all/secret");
        unwritten().insert(path.to_owned(), None);
        for text in ["two", "three"] {
            keep_secret(path, text.to_owned(), |_| unreachable!("no other thread is started")).unwrap();
        }
        assert_eq!([next_text(path), next_text(path)], [Some("three".to_owned()), None]);
        assert!(!unwritten().contains_key(path));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("invitation");
        fs::write(&path, "text").unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        assert_eq!(text_of_users(&path, &[owner + 1, owner]).unwrap(), "text");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(
            text_of_users(&pipe, &[owner]).unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "nobody writes"
        );
        let error = text_of_users(&path, &[owner + 1, owner + 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(&format!("belongs to user {owner}")), "{error}");
    }
}
