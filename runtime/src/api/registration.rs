//! Registering memory with the transports once, rather than with each message.
//!
//! A transport that writes straight into memory (RDMA) pins it first, which costs about as much as copying it. Memory
//! registered here stays pinned until the handle is dropped, whatever `KOLO_IB_CACHE` says. Registering is optional:
//! other memory is found in a cache, or registered for the length of a message.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use kolo_transport::{Backing, MemoryCounters, Piece};

use super::Communicator;
use super::stable::StableBuffer;
use crate::call::Waited;
use crate::call::ranges::is_addressable;
use crate::communicator::Shared;
use crate::drive;
use crate::error::{Error, Result};

const WAITED: Waited = Waited::Other("register");

/// Outcome of a registration at one transport: its name, and the reason if it needed none.
pub type RegistrationStatus = (&'static str, Option<&'static str>);

/// Memory that is registered with a communicator. Dropping the handle or the communicator ends the registration.
#[must_use = "dropping it ends the registration"]
pub struct Registration {
    shared: Weak<Shared>,
    memory: Piece,
    status: Vec<RegistrationStatus>,
}

// SAFETY: the address only names the memory; nothing is read or written through it.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Returns the name of each transport of the communicator, with the reason if it did nothing, or `None` if the
    /// memory is registered there.
    #[must_use]
    pub fn status(&self) -> &[RegistrationStatus] {
        &self.status
    }

    /// Returns whether any transport has use for the registration.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.status.iter().any(|(_, not)| not.is_none())
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("bytes", &self.memory.len)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|shared| shared.is_ours()) {
            shared.core().engine.links_mut().deregister(self.memory);
        }
    }
}

/// A buffer (`Vec`, `Box<[T]>` or `BytesMut`) that stays registered as long as this is kept. It dereferences to its
/// elements. Forgetting it (`mem::forget`) leaks both registration and memory. It does not take a borrowed slice,
/// since forgetting it would leave the slice registered beyond its life; see [`Communicator::with_registered`].
/// ```compile_fail
/// fn register(comm: &kolo::Communicator, data: &mut [u8]) {
///     std::mem::forget(comm.register(data));
/// }
/// ```
#[derive(Debug)]
pub struct RegisteredBuffer<B: StableBuffer> {
    // Declared first, so that it is dropped before the memory.
    registration: Registration,
    buffer: B,
    elements: PhantomData<B::Item>,
}

impl<B: StableBuffer> RegisteredBuffer<B> {
    /// Returns the registration.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Ends the registration and gives the buffer back.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

impl<B: StableBuffer> Deref for RegisteredBuffer<B> {
    type Target = [B::Item];
    fn deref(&self) -> &Self::Target {
        self.buffer.elements_ref()
    }
}

impl<B: StableBuffer> DerefMut for RegisteredBuffer<B> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.buffer.elements()
    }
}

/// # Registered memory
impl Communicator {
    /// Registers a buffer with the transports that have use for it. Local: other ranks need not do the same.
    ///
    /// # Errors
    /// [`Error::Usage`] if the buffer is empty. [`Error::Transport`] if a transport cannot register it, for example
    /// because too little memory may be locked; the text says what to do, and the communicator stays usable.
    pub fn register<B: StableBuffer>(&self, mut buffer: B) -> Result<RegisteredBuffer<B>> {
        let elements = buffer.elements();
        let (start, len) = (elements.as_mut_ptr().cast::<u8>(), size_of_val(elements));
        // SAFETY: the buffer lives, and its elements stay in place, until the registration is dropped.
        let registration = unsafe { self.register_raw(start, len)? };
        Ok(RegisteredBuffer { registration, buffer, elements: PhantomData })
    }

    /// Registers a borrowed slice while `body` runs on it. Local. Blocks as long as `body` does.
    ///
    /// # Errors
    /// As [`Communicator::register`]; then `body` does not run.
    pub fn with_registered<T, R>(
        &self,
        buffer: &mut [T],
        body: impl FnOnce(&mut [T], &Registration) -> R,
    ) -> Result<R> {
        let (start, len) = (buffer.as_mut_ptr().cast::<u8>(), size_of_val(buffer));
        // SAFETY: the slice is borrowed until this returns or unwinds, and the registration is dropped before.
        let registration = unsafe { self.register_raw(start, len)? };
        Ok(body(buffer, &registration))
    }

    /// Registers `len` bytes at `start`. Local.
    ///
    /// # Errors
    /// See [`Communicator::register`].
    ///
    /// # Safety
    /// The memory stays mapped as it is until the registration or the communicator is dropped.
    pub unsafe fn register_raw(&self, start: *mut u8, len: usize) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.register_backed(Piece { ptr: start, len }, Backing::Pages) }
    }

    /// Registers `len` bytes at `start` that belong to a dma-buf from `offset` on, such as memory of a GPU. The
    /// descriptor may be closed afterwards. Local.
    ///
    /// # Errors
    /// As [`Communicator::register`]; also if an adapter's driver does not accept dma-bufs.
    ///
    /// # Safety
    /// As [`Communicator::register_raw`], and the addresses are those of the memory behind the descriptor.
    pub unsafe fn register_dma_buf(
        &self,
        start: *mut u8,
        len: usize,
        descriptor: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.register_backed(Piece { ptr: start, len }, Backing::DmaBuf { descriptor, offset }) }
    }

    /// # Safety
    /// As [`Communicator::register_raw`] and [`Communicator::register_dma_buf`].
    unsafe fn register_backed(&self, memory: Piece, backing: Backing<'_>) -> Result<Registration> {
        self.shared.check_process(|| WAITED)?;
        if memory.ptr.is_null() || memory.len == 0 || !is_addressable(memory.len) {
            let problem = format!("{} bytes at {:?} cannot be registered", memory.len, memory.ptr);
            return Err(Error::Usage { context: self.shared.context(WAITED), problem });
        }
        let mut core = self.shared.core();
        drive::check_usable(&self.shared, &core, WAITED)?;
        // SAFETY: the caller's promise; the registration ends when the handle is dropped.
        let status = unsafe { core.engine.links_mut().register(memory, backing) }.map_err(|source| {
            Error::Transport { context: self.shared.context(WAITED), source: Box::new(source) }
        })?;
        Ok(Registration { shared: Arc::downgrade(&self.shared), memory, status })
    }

    /// Describes whether the adapters keep registrations of buffers after the calls that they were made for, and why
    /// not: for example "kept, and released when the kernel reports that memory has changed". `None` if no peer is reached
    /// by RDMA.
    #[must_use]
    pub fn registration_policy(&self) -> Option<String> {
        self.shared.group.adapters.as_ref().map(|adapters| adapters.registrations.clone())
    }

    /// Describes whether memory that is registered with adapters stays intact when this process forks: for example
    /// "safe: the kernel copies pinned pages". `None` if no peer is reached by RDMA.
    #[must_use]
    pub fn fork_safety(&self) -> Option<String> {
        self.shared.group.adapters.as_ref().map(|adapters| adapters.fork.clone())
    }

    /// Returns counters of the transports' work with memory so far: bytes moved in place, bytes copied, registrations, and
    /// ranges that were found registered.
    #[must_use]
    pub fn memory_counters(&self) -> MemoryCounters {
        self.shared.look(|core| core.engine.links().memory_counters())
    }
}
