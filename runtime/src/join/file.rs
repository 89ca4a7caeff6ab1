//! Rendezvous through a file that all ranks see.
//!
//! Rank 0 writes its addresses and a fresh key in one step, so that no rank reads half a file. Readers do not trust the
//! file: they connect, and both sides prove that they know the key. A file left by an earlier job names a dead address
//! or another key; the reader remembers that and looks again until rank 0 has replaced the file. Once all ranks have
//! joined, rank 0 removes the file, and only then tells them so.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kolo_transport::foreign::printable;
use serde::{Deserialize, Serialize};

use super::addresses::{hostname, process_start};
use crate::error::{Error, JoinFailure, Result};
use crate::files::{own_text_of, remove_own, replace_secret};
use crate::job::RendezvousKey;

/// Most bytes of the writer's host name that are shown.
const HOST_BYTES: usize = 256;

/// Most addresses that rank 0 writes into a notice: the most promising ones. Some hosts have hundreds, one for each
/// bridge of containers or service of a load balancer, and readers start to try the 32nd after 3 s.
const MAX_WRITTEN: usize = 32;

/// Most addresses in a notice that is read. Rank 0 never writes so many, so a longer list is not a notice of Kolo's.
const MAX_ADDRESSES: usize = 256;

/// Rank 0's publication. It is not printed, since it holds a key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Notice {
    kolo: u32,
    pub(crate) addresses: Vec<SocketAddr>,
    key: String,
    host: String,
    pid: u32,
    process_start: u64,
}

/// Version of the file's format.
const FORMAT: u32 = 2;

impl Notice {
    /// Makes a notice of the most promising addresses, which come first.
    pub(crate) fn new(mut addresses: Vec<SocketAddr>, key: &RendezvousKey) -> Self {
        addresses.truncate(MAX_WRITTEN);
        let pid = std::process::id();
        Self {
            kolo: FORMAT,
            addresses,
            key: to_hex(key),
            host: hostname(),
            pid,
            process_start: process_start(pid).unwrap_or_default(),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a notice is plain data")
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let notice: Self =
            serde_json::from_slice(bytes).map_err(|e| format!("it is not the notice of a Kolo job ({e})"))?;
        if notice.kolo != FORMAT {
            return Err(format!("it has format {}, but this version reads {FORMAT}", notice.kolo));
        }
        if notice.key().is_none() || notice.addresses.is_empty() {
            return Err("it names no key or no address".into());
        }
        if notice.addresses.len() > MAX_ADDRESSES {
            return Err(format!("it names {} addresses", notice.addresses.len()));
        }
        Ok(notice)
    }

    pub(crate) fn key(&self) -> Option<RendezvousKey> {
        from_hex(&self.key)
    }

    pub(crate) fn writer(&self) -> String {
        format!("process {} on {}", self.pid, printable(&self.host, HOST_BYTES))
    }

    /// Whether another notice has the same key and addresses.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        (self.key(), &self.addresses) == (other.key(), &other.addresses)
    }

    /// Whether the writer is another process of this host that is still running.
    fn writer_lives_here(&self) -> bool {
        self.host == hostname()
            && self.pid != std::process::id()
            && self.process_start != 0
            && process_start(self.pid) == Some(self.process_start)
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Removes the file when dropped, if it is still the one that this process wrote.
pub(crate) struct Posted {
    path: PathBuf,
    text: Vec<u8>,
}

impl Drop for Posted {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        // This is the control thread. Anything may have taken the file's place, and its file system may hang.
        if let Err(error) = remove_own(&self.path, text) {
            tracing::warn!(path = %self.path.display(), %error, "the rendezvous file stays");
        }
    }
}

/// Posts the addresses of rank 0.
pub(crate) fn post(path: &Path, addresses: Vec<SocketAddr>, key: &RendezvousKey) -> Result<Posted> {
    if let Ok(earlier) = read(path)
        && earlier.writer_lives_here()
    {
        return Err(Error::Join {
            rank: Some(0),
            kind: JoinFailure::Rendezvous,
            problem: format!("{} is in use by rank 0 of another job, {}", path.display(), earlier.writer()),
            remedy: "Give every job a file of its own, or end that process".into(),
        });
    }
    let text = Notice::new(addresses, key).to_json();
    replace_secret(path, &text).map_err(|error| {
        let action =
            format!("writing the rendezvous file {} (its folder must exist and be writable)", path.display());
        Error::system(action, error)
    })?;
    Ok(Posted { path: path.to_owned(), text })
}

/// Reads the file that rank 0 has posted. An error is a reason to look again later.
pub(crate) fn read(path: &Path) -> Result<Notice, String> {
    let at = path.display();
    let text = own_text_of(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!("{at}: {e}; rank 0 has not written it yet"),
        _ => format!("{at}: {e}"),
    })?;
    Notice::parse(text.as_bytes()).map_err(|problem| format!("{at}: {problem}"))
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(text: &str) -> Option<RendezvousKey> {
    let value = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_notice_is_posted_read_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        assert!(read(&path).unwrap_err().contains("not written it yet"));
        fs::write(&path, b"{\"other\": 1}").unwrap();
        assert!(read(&path).unwrap_err().contains("not the notice"));
        let address: SocketAddr = "10.0.0.1:5".parse().unwrap();
        let posted = post(&path, vec![address], &[7; 16]).unwrap();
        let notice = read(&path).unwrap();
        assert_eq!((notice.addresses.clone(), notice.key()), (vec![address], Some([7; 16])));
        drop(posted);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no drafts are left");
    }

    #[test]
    fn the_notice_of_a_host_with_very_many_addresses_is_read() {
        let all: Vec<SocketAddr> = (0..1000).map(|port| ([10, 0, 0, 1], port).into()).collect();
        let notice = Notice::parse(&Notice::new(all.clone(), &[7; 16]).to_json()).unwrap();
        assert_eq!(notice.addresses, all[..MAX_WRITTEN]);
    }

    #[test]
    fn a_newer_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let address: SocketAddr = "10.0.0.1:5".parse().unwrap();
        let first = post(&path, vec![address], &[1; 16]).unwrap();
        let second = post(&path, vec![address], &[2; 16]).unwrap();
        drop(first);
        assert_eq!(read(&path).unwrap().key(), Some([2; 16]));
        drop(second);
    }

    #[test]
    fn nobody_waits_for_a_pipe_in_the_place_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let posted = post(&path, vec![([10, 0, 0, 1], 5).into()], &[1; 16]).unwrap();
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            drop(posted);
            tell.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(60)).expect("opening a pipe waits for a writer");
        assert!(fs::symlink_metadata(&path).is_ok(), "it is not this job's");
    }
}
