//! GPU allocations that adapters reach directly, registered when a call first uses them.

use std::os::fd::AsFd;
use std::sync::Arc;

use kolo_gdr::{Allocation, Gpu, Path};
use kolo_transport::{Backing, DeviceCopier, Piece};

use crate::engine::{Engine, SyncCopier};

/// Most allocations kept registered between calls. A program has few allocations, and uses parts of them.
const REGIONS_MAX: usize = 256;

/// Registered memory, the most recently used last.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    known: Vec<Allocation>,
    /// Allocations that the driver or an adapter has refused, with the reason, the latest last. Asking again costs a call
    /// of the driver, and its answer is the same as long as the allocation lives.
    refused: Vec<(Allocation, String)>,
    sync_copiers: Vec<(u32, Arc<dyn DeviceCopier>)>,
}

impl Regions {
    /// Makes sure that the adapters reach these bytes of GPU memory.
    ///
    /// # Errors
    /// The reason why they do not, as a text.
    pub(crate) fn reach(
        &mut self,
        engine: &mut Engine,
        gpu: &Arc<Gpu>,
        address: *const u8,
        len: usize,
        path: Path,
    ) -> Result<(), String> {
        let found = gpu.allocation(address)?;
        if address.addr() as u64 + len as u64 > found.start + found.bytes as u64 {
            return Err("the buffer is more than one allocation".to_owned());
        }
        if let Some(at) = self.known.iter().position(|known| *known == found) {
            self.known[at..].rotate_left(1);
            return Ok(());
        }
        if let Some((_, because)) = self.refused.iter().find(|(refused, _)| *refused == found) {
            return Err(because.clone());
        }
        // Allocations that were freed since are deregistered, so that another allocation's data is not sent from stale
        // pages.
        let ends = |known: &Allocation| known.start + known.bytes as u64;
        let stale = |known: &Allocation| known.start < ends(&found) && found.start < ends(known);
        for known in self.known.extract_if(.., |known| stale(known)) {
            engine.links_mut().deregister(memory_of(&known));
        }
        self.refused.retain(|(refused, _)| !stale(refused));
        let copier = self.sync_copier(gpu)?;
        if let Err(because) = register(engine, gpu, &found, path, &copier) {
            self.refused.drain(..(self.refused.len() + 1).saturating_sub(REGIONS_MAX));
            self.refused.push((found, because.clone()));
            return Err(because);
        }
        self.known.push(found);
        Ok(())
    }

    /// Deregisters the least recently used allocations beyond the bound, unless a call may be using them. Those of one
    /// call, or of a group of messages, may exceed the bound, so this comes before the first of them.
    pub(crate) fn shrink(&mut self, engine: &mut Engine) {
        let excess = self.known.len().saturating_sub(REGIONS_MAX);
        if excess > 0 && engine.outstanding() == 0 {
            for known in self.known.drain(..excess) {
                engine.links_mut().deregister(memory_of(&known));
            }
        }
    }

    fn sync_copier(&mut self, gpu: &Arc<Gpu>) -> Result<Arc<dyn DeviceCopier>, String> {
        if let Some((_, sync_copier)) = self.sync_copiers.iter().find(|(number, _)| *number == gpu.number()) {
            return Ok(Arc::clone(sync_copier));
        }
        let sync_copier: Arc<dyn DeviceCopier> =
            Arc::new(SyncCopier::new(gpu).map_err(|error| error.to_string())?);
        self.sync_copiers.push((gpu.number(), Arc::clone(&sync_copier)));
        Ok(sync_copier)
    }
}

/// Exports an allocation if the adapters need that, and registers it with them.
fn register(
    engine: &mut Engine,
    gpu: &Arc<Gpu>,
    allocation: &Allocation,
    path: Path,
    copier: &Arc<dyn DeviceCopier>,
) -> Result<(), String> {
    let range = match path {
        Path::DmaBuf(how) => Some(gpu.export(allocation.start, allocation.bytes, how)?),
        Path::PeerMemory => None,
        Path::Staged => return Err("adapters do not reach it".to_owned()),
    };
    let export = range.as_ref().map(|range| (range.descriptor.as_fd(), range.offset));
    // SAFETY: the caller keeps the memory while the call runs. An allocation that is gone is deregistered before
    // another one at its place is used. The export is of these addresses.
    unsafe { engine.links_mut().register(memory_of(allocation), Backing::Device { export, copier }) }
        .map(drop)
        .map_err(|error| error.to_string())
}

fn memory_of(allocation: &Allocation) -> Piece {
    let ptr = std::ptr::with_exposed_provenance_mut(allocation.start as usize);
    Piece { ptr, len: allocation.bytes }
}
