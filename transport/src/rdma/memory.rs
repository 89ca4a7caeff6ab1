//! Registration of memory, as the endpoint offers it.

use std::sync::Arc;

use kolo_verbs::{Access, DmaBufSupport};

use super::NAME;
use super::endpoint::RdmaEndpoint;
use super::options::Keep;
use super::registrations::{Pages, Registrations};
use super::stats::Counters;
use crate::endpoint::Piece;
use crate::error::{Error, ErrorKind};
use crate::memory::{Backing, DeviceAccess, RegistrationPolicy};

impl RdmaEndpoint {
    pub(super) fn access(&self) -> DeviceAccess {
        DeviceAccess {
            registrations: self.registration_policy(),
            takes_dma_bufs: self.takes_dma_bufs(),
            fork: self.fork_safety(),
        }
    }

    /// Returns the treatment of registrations of the caller's memory that are no longer in use.
    #[must_use]
    pub fn registration_policy(&self) -> RegistrationPolicy {
        match (self.options.keep, &self.unwatched) {
            (Keep::Always, _) => RegistrationPolicy::Promised,
            (Keep::Never, _) => RegistrationPolicy::Never,
            (Keep::Watched, None) if self.registrations.iter().all(Registrations::are_watched) => {
                RegistrationPolicy::Watched
            }
            (Keep::Watched, None) => {
                RegistrationPolicy::Unwatched { because: "a change of memory never ended".into() }
            }
            (Keep::Watched, Some(because)) => RegistrationPolicy::Unwatched { because: because.clone() },
        }
    }

    /// Returns the effect of a `fork` of this process on registered memory, in words.
    #[must_use]
    pub fn fork_safety(&self) -> String {
        self.rails.first().map_or_else(String::new, |rail| rail.context().fork_safety().to_string())
    }

    /// Returns the endpoint's counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = self.counters;
        for registrations in &self.registrations {
            let of = registrations.counters;
            all.cache.hits += of.hits;
            all.cache.misses += of.misses;
            all.cache.evicted += of.evicted;
            all.cache.invalidated += of.invalidated;
        }
        all
    }

    /// Registers memory with all adapters, or, after an error, with none.
    ///
    /// # Safety
    /// As [`Endpoint::register`](crate::Endpoint::register).
    pub(super) unsafe fn register_backed(
        &mut self,
        memory: Piece,
        backing: Backing<'_>,
    ) -> Result<(), Error> {
        for at in 0..self.registrations.len() {
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { self.register_with(at, memory, backing) } {
                for earlier in &mut self.registrations[..at] {
                    earlier.unpin(memory.ptr, memory.len);
                }
                let rail = self.rails[at].describe();
                let words = format!("registering memory with {rail}: {error}");
                return Err(Error::new(ErrorKind::System, NAME, None, words));
            }
        }
        if let Backing::Device { copier, .. } = backing {
            let device_copiers = self.device_copiers.get_or_insert_default();
            Arc::make_mut(device_copiers).add(memory.ptr.addr(), memory.len, copier);
        }
        Ok(())
    }

    /// # Safety
    /// As [`RdmaEndpoint::register_backed`].
    unsafe fn register_with(
        &mut self,
        at: usize,
        memory: Piece,
        backing: Backing<'_>,
    ) -> Result<(), kolo_verbs::Error> {
        let cache = &mut self.registrations[at];
        match backing {
            // SAFETY: the caller's promise.
            Backing::Pages => unsafe { cache.pin(memory.ptr, memory.len, Pages::Host) },
            // SAFETY: the caller's promise.
            Backing::Device { export: None, .. } => unsafe {
                cache.pin(memory.ptr, memory.len, Pages::Device)
            },
            Backing::DmaBuf { descriptor, offset }
            | Backing::Device { export: Some((descriptor, offset)), .. } => {
                let address = memory.ptr.expose_provenance() as u64;
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let domain = &self.rails[at].domain;
                // SAFETY: the caller's promise.
                let region =
                    unsafe { domain.register_dma_buf(descriptor, offset, memory.len, address, access)? };
                cache.adopt(region);
                Ok(())
            }
        }
    }

    /// Ends an explicit registration. Returns whether there was one.
    pub(super) fn unpin(&mut self, memory: Piece) -> bool {
        if let Some(device_copiers) = &mut self.device_copiers {
            let ranges = Arc::make_mut(device_copiers);
            ranges.remove(memory.ptr.addr(), memory.len);
            if ranges.is_empty() {
                self.device_copiers = None;
            }
        }
        self.registrations.iter_mut().fold(false, |any, cache| cache.unpin(memory.ptr, memory.len) | any)
    }

    /// Checks that all adapters take memory of other drivers, such as a GPU's, as dma-bufs.
    ///
    /// # Errors
    /// Names an adapter or library that does not, and why.
    pub fn takes_dma_bufs(&self) -> Result<(), String> {
        self.rails.iter().try_for_each(|rail| match rail.domain.dma_buf_support() {
            DmaBufSupport::Yes => Ok(()),
            DmaBufSupport::NotInLibrary => {
                Err("libibverbs is too old for dma-bufs (rdma-core 34 or newer)".into())
            }
            DmaBufSupport::NotInDriver => {
                Err(format!("the driver of {} does not accept dma-bufs", rail.device))
            }
        })
    }

    /// Returns whether messages from and to this memory need no registration of their own now.
    #[must_use]
    pub fn is_registered(&self, memory: Piece) -> bool {
        self.registrations.iter().all(|cache| cache.holds(memory.ptr, memory.len))
    }
}
