//! Asynchronous copies from and to a GPU's memory: a stream, with marks in it that tell how far the copies are.

use std::collections::VecDeque;
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

use crate::gpu::Gpu;
use crate::library::{Address, Handle};

/// A stream that waits for no other; what it copies from the caller must have synchronised.
const NON_BLOCKING: c_uint = 1;
/// An event that is only asked whether it is over.
const DISABLE_TIMING: c_uint = 2;
const NOT_READY: i32 = 600;

/// Copies that run one after the other. A mark of type `T` comes back once all copies before it are done.
#[derive(Debug)]
pub struct Copies<T> {
    gpu: Arc<Gpu>,
    stream: Handle,
    /// In their order.
    under_way: VecDeque<(Handle, T)>,
    idle_events: Vec<Handle>,
    /// Whether there are copies behind the last mark.
    unmarked: bool,
}

// SAFETY: stream and events are names that any thread may use, one at a time: `&mut self` sees to that.
unsafe impl<T: Send> Send for Copies<T> {}

impl<T> Copies<T> {
    /// A stream of its own.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        let stream = gpu.within(|library| {
            let create = library.need(library.functions.create_stream)?;
            let mut stream = ptr::null_mut();
            // SAFETY: writes one handle.
            library.check("making a stream", unsafe { create(&raw mut stream, NON_BLOCKING) })?;
            Ok(stream)
        })?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            stream,
            under_way: VecDeque::new(),
            idle_events: Vec::new(),
            unmarked: false,
        })
    }

    /// The GPU whose memory it copies from and to.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Starts copies, and marks their end.
    ///
    /// # Errors
    /// The driver's error; some of the copies may be under way then.
    ///
    /// # Safety
    /// Every part (from, to, bytes) names valid memory: a GPU's, or pinned memory of the host. It stays so, and is
    /// otherwise untouched, until the mark has come back or this was settled or dropped.
    pub unsafe fn start(
        &mut self,
        parts: impl IntoIterator<Item = (*const u8, *mut u8, usize)>,
        mark: T,
    ) -> Result<(), String> {
        let Self { gpu, stream, idle_events, unmarked, .. } = self;
        let event = gpu.within(|library| {
            let functions = &library.functions;
            let (copy, record) = (library.need(functions.copy)?, library.need(functions.record_event)?);
            library.need(functions.query_event)?;
            for (from, to, bytes) in parts {
                *unmarked = true;
                // SAFETY: the caller's promise.
                let code = unsafe { copy(to.addr() as Address, from.addr() as Address, bytes, *stream) };
                library.check(&format!("copying {bytes} bytes from or to GPU {}", gpu.number()), code)?;
            }
            let event = match idle_events.pop() {
                Some(event) => event,
                None => {
                    let create = library.need(functions.create_event)?;
                    let mut event = ptr::null_mut();
                    // SAFETY: writes one handle.
                    library.check("making an event", unsafe { create(&raw mut event, DISABLE_TIMING) })?;
                    event
                }
            };
            // SAFETY: an event that nobody waits for, and our stream.
            let code = unsafe { record(event, *stream) };
            if code != 0 {
                idle_events.push(event);
            }
            library.check("marking the end of copies", code)?;
            Ok(event)
        })?;
        self.unmarked = false;
        self.under_way.push_back((event, mark));
        Ok(())
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The next mark, if all copies before it are done.
    ///
    /// # Errors
    /// If a copy failed.
    pub fn poll(&mut self) -> Result<Option<T>, String> {
        let Some((event, _)) = self.under_way.front() else { return Ok(None) };
        let code = self.gpu.within(|library| {
            let query = library.need(library.functions.query_event)?;
            // SAFETY: an event of ours.
            Ok(unsafe { query(*event) })
        })?;
        if code == NOT_READY {
            return Ok(None);
        }
        let what = format!("copying from or to GPU {}", self.gpu.number());
        self.gpu.library.check(&what, code)?;
        Ok(self.under_way.pop_front().map(|(event, mark)| {
            self.idle_events.push(event);
            mark
        }))
    }

    /// Blocks until nothing is under way any more; forgets the marks.
    ///
    /// # Errors
    /// If a copy failed; nothing is under way then either.
    pub fn finish(&mut self) -> Result<(), String> {
        if self.under_way.is_empty() && !self.unmarked {
            return Ok(());
        }
        let result = self.gpu.within(|library| {
            let synchronize = library.need(library.functions.synchronize_stream)?;
            // SAFETY: our stream.
            let code = unsafe { synchronize(self.stream) };
            library.check(&format!("copying from or to GPU {}", self.gpu.number()), code)
        });
        self.unmarked = false;
        self.idle_events.extend(self.under_way.drain(..).map(|(event, _)| event));
        result
    }

    /// As [`Copies::finish`], for whoever gives the copies up: what became of them is no news.
    pub fn settle(&mut self) {
        let _ = self.finish();
    }
}

impl<T> Drop for Copies<T> {
    fn drop(&mut self) {
        self.settle();
        let events = std::mem::take(&mut self.idle_events);
        // At the end of a process the driver may be gone before us; there is nobody to tell.
        let _ = self.gpu.within(|library| {
            for event in events {
                let destroy = library.need(library.functions.destroy_event)?;
                // SAFETY: of ours, and not under way.
                unsafe { destroy(event) };
            }
            let destroy = library.need(library.functions.destroy_stream)?;
            // SAFETY: ours, and idle.
            library.check("ending a stream", unsafe { destroy(self.stream) })
        });
    }
}
