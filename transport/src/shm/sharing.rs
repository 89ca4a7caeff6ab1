//! Memory of the program that all ranks of a host map: how it is made and shared.
//!
//! Every rank makes a sealed memory file and a listening socket, and tells the others the socket's address and a
//! cookie, by a way that the owner chooses. It then sends its descriptor to every other rank and receives theirs. No
//! call blocks, except [`MemorySharing::wait`] and those that back or copy memory: connections queue in the
//! listener's backlog, and the owner polls until it has heard from all ranks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use super::establish::NAME;
use super::hello::{Ends, Hello, Purpose};
use super::host::{self, NAME_BYTES};
use super::pending::{Caller, EPOLL_PENDING, PendingConnections};
use crate::error::{Error, ErrorKind};
use crate::sys::map::Mapping;
use crate::sys::{descriptors, memfd, unix};

const COOKIE_BYTES: usize = 16;

/// Memory of whole pages, shared with other processes or private. It is unmapped when dropped; the pages live as long
/// as any process maps them.
///
/// Other processes may write to shared memory at any time: code that makes references into it must know when they do.
#[derive(Debug)]
pub struct SharedMemory {
    map: Mapping,
    is_shared: bool,
}

impl SharedMemory {
    /// Allocates zeroed memory of this process alone, of at least `bytes` bytes. Its pages come with
    /// [`back`](Self::back), or on first use.
    ///
    /// # Errors
    /// If the system has no address space for it.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let map = Mapping::private(whole_pages(bytes)?)?;
        Ok(Self { map, is_shared: false })
    }

    /// Backs a range with pages now (huge ones where the system grants them). Blocks for as long as that takes: some
    /// tenths of a second for each gigabyte.
    ///
    /// # Errors
    /// If the system has too few pages. A system that does not report this may kill a process instead.
    ///
    /// # Panics
    /// If the range is not inside the memory, or does not begin at a page.
    pub fn back(&self, offset: usize, len: usize) -> io::Result<()> {
        self.map.back(offset, len)
    }

    /// Returns the address of its first byte, which is aligned to a page.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.map.bytes(0, 0)
    }

    /// Returns its length in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Returns the pages to the system now, for all processes that map them. The addresses stay valid; they read as
    /// zeroes, and writes there allocate pages again.
    pub fn discard(&self) {
        if self.is_shared {
            self.map.discard();
        }
    }

    /// Replaces whole pages of this process's mapping, which are not private yet, by private copies, which other
    /// processes can no longer reach. Contents and addresses stay; bytes that others write at this moment may be in the
    /// copy or not. The shared pages go back to the system piece by piece, and other processes then read zeroes there. So
    /// the copies need no further memory, unless the program has locked its memory (`mlockall`). Blocks for as long as
    /// copying takes.
    ///
    /// # Errors
    /// If the system has no address space or memory for the copies. The pages may not be used any more: some may be
    /// private already, and others empty.
    ///
    /// # Panics
    /// If the range is not inside the memory, or does not consist of whole pages.
    pub fn take_private(&self, offset: usize, len: usize) -> io::Result<()> {
        if self.is_shared { self.map.take_private(offset, len) } else { Ok(()) }
    }
}

/// The exchange of memory in progress: this rank's new memory on its way to the others, and theirs on the way here.
#[derive(Debug)]
pub struct MemorySharing {
    memory: SharedMemory,
    fd: OwnedFd,
    newcomers: PendingConnections,
    epoll: OwnedFd,
    address: Address,
    /// The user of all ranks.
    uid: u32,
    rank: u32,
    peers: Vec<Peer>,
    /// The first error.
    failure: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Address {
    name: [u8; NAME_BYTES],
    cookie: [u8; COOKIE_BYTES],
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_address(bytes: &[u8]) {
    let _ = Address::decode(bytes);
}

#[derive(Debug)]
struct Peer {
    rank: u32,
    address: Address,
    /// The connection over which the peer has been given this rank's memory.
    given: Option<unix::Socket>,
    /// Whether the peer cannot be given this rank's memory any more.
    is_out_of_reach: bool,
    memory: Option<SharedMemory>,
}

impl Peer {
    /// Returns whether nothing is left to do here for the peer to get this rank's memory.
    fn is_served(&self) -> bool {
        self.given.is_some() || self.is_out_of_reach
    }
}

impl MemorySharing {
    /// Makes zeroed memory of at least `bytes` bytes. Its pages come with [`SharedMemory::back`], or on first use.
    ///
    /// # Errors
    /// If the system refuses memory, descriptors or sockets.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = whole_pages(bytes)?;
        let fd = memfd::create_sealed("kolo-memory", bytes)?;
        let memory = SharedMemory { map: Mapping::new(&fd, bytes)?, is_shared: true };
        let address = Address { name: host::random_name()?, cookie: host::random_bits()? };
        let listener = unix::listen(&address.name)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(EPOLL_PENDING), epoll::EventFlags::IN)?;
        let uid = rustix::process::geteuid().as_raw();
        let newcomers = PendingConnections::new(listener, uid);
        Ok(Self { memory, fd, newcomers, epoll, address, uid, rank: 0, peers: Vec::new(), failure: None })
    }

    /// Returns this rank's memory.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the address blob for the other ranks.
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        [&self.address.name[..], &self.address.cookie[..]].concat()
    }

    /// Sets this rank's number and the other ranks, each by its rank and [address](Self::address).
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if an address is malformed.
    pub fn introduce(&mut self, rank: u32, peers: &[(u32, &[u8])]) -> Result<(), Error> {
        self.rank = rank;
        for (peer, address) in peers {
            let address = Address::decode(address).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, NAME, Some(*peer), "not an address of memory")
            })?;
            self.peers.push(Peer { rank: *peer, address, given: None, is_out_of_reach: false, memory: None });
        }
        Ok(())
    }

    /// Makes progress without waiting for a peer. Returns `true` once this rank's memory is on its way to all others
    /// and all of theirs has arrived. Blocks only to back the memory that arrives.
    ///
    /// # Errors
    /// [`ErrorKind::PeerLost`] if a peer's socket is gone; [`ErrorKind::System`] if the memory that it sent cannot be
    /// mapped. The error comes once this rank's memory is on its way to all peers that can take it, so that none of
    /// them waits for this rank.
    pub fn poll(&mut self) -> Result<bool, Error> {
        // Receiving first takes descriptors out of flight, of which the kernel limits the number for each user.
        self.receive();
        self.send();
        match &self.failure {
            Some(failure) if self.peers.iter().all(Peer::is_served) => Err(failure.clone()),
            Some(_) => Ok(false),
            None => Ok(self.peers.iter().all(|peer| peer.given.is_some() && peer.memory.is_some())),
        }
    }

    /// Gives this rank's memory to the peers that do not have it and can take it now.
    fn send(&mut self) {
        let bytes = self.memory.bytes();
        for peer in self.peers.iter_mut().filter(|peer| !peer.is_served()) {
            let hello = Hello {
                purpose: Purpose::Memory { bytes: bytes as u64 },
                rank: self.rank,
                nonce: [0; 16], // no answer follows
            };
            let ends = Ends { caller: &self.address.cookie, callee: &peer.address.cookie };
            let given = unix::connect_to(&peer.address.name, self.uid).and_then(|stream| {
                unix::send(&stream, &hello.encode(ends), Some(self.fd.as_fd()))?;
                Ok(stream)
            });
            let error = match given {
                Ok(stream) => {
                    peer.given = Some(stream);
                    continue;
                }
                Err(error) if unix::is_transient(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    Error::new(ErrorKind::PeerLost, NAME, Some(peer.rank), "its process is gone")
                }
                Err(error) => Error::system(NAME, Some(peer.rank), "handing memory over", error),
            };
            peer.is_out_of_reach = true;
            self.failure.get_or_insert(error);
        }
    }

    /// Takes the memory that has arrived.
    fn receive(&mut self) {
        let mut callers = Vec::new();
        if let Err(e) = self.newcomers.receive(&self.epoll, &mut callers) {
            let to_do = "accept ranks that hand memory over";
            let error = descriptors::shortage(NAME, (self.rank, None), to_do, &e);
            self.failure.get_or_insert(error);
        }
        for caller in callers {
            if let Err(error) = self.take(caller) {
                self.failure.get_or_insert(error);
            }
        }
    }

    /// Takes the memory that a peer hands over.
    fn take(&mut self, caller: Caller) -> Result<(), Error> {
        let bytes = self.memory.bytes();
        let Hello { purpose: Purpose::Memory { bytes: theirs }, rank, .. } = caller.greeting.hello else {
            return Ok(());
        };
        let own = &self.address.cookie;
        let known = |peer: &&mut Peer| {
            let ends = Ends { caller: &peer.address.cookie, callee: own };
            peer.rank == rank && caller.greeting.is_between(ends)
        };
        let Some(peer) = self.peers.iter_mut().find(known) else { return Ok(()) };
        let (true, Some(fd)) = (theirs == bytes as u64, caller.fd) else { return Ok(()) };
        let fd = fd.map_err(|e| {
            descriptors::shortage(NAME, (self.rank, Some(rank)), "take the memory that a peer shares", &e)
        })?;
        let map = memfd::check_sealed(&fd, bytes).and_then(|()| Mapping::new(&fd, bytes)).and_then(|map| {
            map.back(0, bytes)?;
            Ok(map)
        });
        let map = map.map_err(|e| Error::system(NAME, Some(rank), "mapping a peer's memory", e))?;
        peer.memory = Some(SharedMemory { map, is_shared: true });
        Ok(())
    }

    /// Sleeps until there may be something to do, for at most `patience`.
    pub fn wait(&self, patience: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        };
        let _ = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
    }

    /// Returns the ranks whose memory has not come.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<u32> {
        self.peers.iter().filter(|peer| peer.memory.is_none()).map(|peer| peer.rank).collect()
    }

    /// Returns this rank's memory, and that of the others in the order of their introduction.
    ///
    /// # Panics
    /// Unless [`poll`](Self::poll) has returned `true`.
    #[must_use]
    pub fn finish(self) -> (SharedMemory, Vec<SharedMemory>) {
        let peers = self.peers.into_iter().map(|peer| peer.memory.expect("everybody's memory is here"));
        (self.memory, peers.collect())
    }
}

impl Address {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (name, cookie) = bytes.split_at_checked(NAME_BYTES)?;
        Some(Self { name: name.try_into().ok()?, cookie: cookie.try_into().ok()? })
    }
}

fn whole_pages(bytes: usize) -> io::Result<usize> {
    let page = rustix::param::page_size();
    let rounded = bytes.max(1).checked_next_multiple_of(page).filter(|b| isize::try_from(*b).is_ok());
    rounded.ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "more than can be addressed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduced(ranks: u32, bytes: usize) -> Vec<MemorySharing> {
        let mut all: Vec<MemorySharing> = (0..ranks).map(|_| MemorySharing::new(bytes).unwrap()).collect();
        let addresses: Vec<Vec<u8>> = all.iter().map(MemorySharing::address).collect();
        for (rank, sharing) in (0..).zip(&mut all) {
            let others = (0..).zip(&addresses).filter(|(peer, _)| *peer != rank);
            let others: Vec<(u32, &[u8])> = others.map(|(peer, address)| (peer, &address[..])).collect();
            sharing.introduce(rank, &others).unwrap();
        }
        all
    }

    fn handed_round(ranks: u32, bytes: usize) -> Vec<(SharedMemory, Vec<SharedMemory>)> {
        let mut all = introduced(ranks, bytes);
        for _ in 0..2 {
            for sharing in &mut all {
                sharing.poll().unwrap();
            }
        }
        all.into_iter().map(MemorySharing::finish).collect()
    }

    #[test]
    fn everybody_sees_everybodys_memory_until_it_is_taken_private() {
        let all = handed_round(3, 5000);
        let read = |memory: &SharedMemory, at: usize| {
            // SAFETY: the byte lies inside the memory, which nobody else touches in this test.
            unsafe { memory.base().add(at).read() }
        };
        for (value, (own, _)) in (1..).zip(&all) {
            assert_eq!(own.bytes(), 8192);
            // SAFETY: as above.
            unsafe { own.base().add(4999).write(value) };
        }
        let seen: Vec<Vec<u8>> =
            all.iter().map(|(_, peers)| peers.iter().map(|peer| read(peer, 4999)).collect()).collect();
        assert_eq!(seen, [[2, 3], [1, 3], [1, 2]]);

        all[0].0.take_private(4096, 4096).unwrap();
        // SAFETY: as above.
        unsafe { all[1].1[0].base().add(4999).write(9) };
        assert_eq!((read(&all[0].0, 4999), read(&all[2].1[0], 4999)), (1, 9));

        all[1].0.discard();
        assert_eq!((read(&all[1].0, 4999), read(&all[0].1[0], 4999)), (0, 0));
    }

    /// Pages that are freed read as zeroes, in all mappings of the file.
    #[test]
    fn memory_that_was_taken_private_is_freed() {
        const BYTES: usize = 5 << 20; // several pieces
        let page = rustix::param::page_size();
        let all = handed_round(2, BYTES);
        let (own, seen) = (&all[0].0, &all[1].1[0]);
        let bytes = |memory: &SharedMemory| {
            let mut bytes = vec![0_u8; BYTES];
            // SAFETY: the memory has these bytes, and nobody else touches it in this test.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(memory.base(), BYTES) };
            bytes
        };
        // SAFETY: as above.
        unsafe { own.base().write_bytes(7, BYTES) };
        let taken = page..4 << 20;
        own.take_private(taken.start, taken.len()).unwrap();
        assert!(bytes(own).iter().all(|byte| *byte == 7));
        let left = bytes(seen);
        assert!(left[taken.clone()].iter().all(|byte| *byte == 0));
        assert!(left[..taken.start].iter().chain(&left[taken.end..]).all(|byte| *byte == 7));

        own.take_private(0, page).unwrap();
        // SAFETY: as above.
        unsafe { seen.base().write_bytes(9, taken.end) };
        own.discard();
        assert!(bytes(own).iter().chain(&bytes(seen)).all(|byte| *byte == 0));
    }

    #[test]
    fn a_peer_that_is_gone_is_named() {
        let mut here = MemorySharing::new(1).unwrap();
        let gone = MemorySharing::new(1).unwrap().address();
        here.introduce(0, &[(1, &gone)]).unwrap();
        let error = here.poll().unwrap_err();
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(1)));
        assert!(here.introduce(0, &[(2, b"nonsense")]).is_err());
    }

    /// Rank 1's listener seems to belong to another user.
    #[test]
    fn another_user_gets_no_memory() {
        let mut all = introduced(2, 5000);
        all[0].uid += 1;
        let error = all[0].poll().unwrap_err();
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(1)));
        assert!(!all[1].poll().unwrap() && all[1].waiting_for() == [0]);
    }

    /// The memory of rank 0 cannot be mapped, as if the others had no address space for it.
    #[test]
    fn a_rank_that_cannot_take_memory_gives_its_own_before_it_says_so() {
        let mut all = introduced(3, 5000);
        all[0].fd = memfd::create_sealed("kolo-test", 4096).unwrap();
        assert!(!all[0].poll().unwrap());
        for rank in [1, 2] {
            let error = all[rank].poll().unwrap_err();
            assert_eq!((error.kind, error.peer), (ErrorKind::System, Some(0)));
        }
        assert!(all[0].poll().unwrap(), "rank 0 has the memory of both");
        assert_eq!(all[2].waiting_for(), [0], "the error concerns one peer");
    }
}
