//! Asynchronous copies from and to a GPU's memory: a stream, with marks that show how far the copies have come.

use std::collections::VecDeque;
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

use crate::gpu::Gpu;
use crate::library::{Address, Handle};

/// Flag for a stream that waits for no other stream. The caller must have synchronised the data that it copies.
const NON_BLOCKING: c_uint = 1;
/// Flag for an event that is only asked whether it has passed.
const DISABLE_TIMING: c_uint = 2;
const NOT_READY: i32 = 600;

/// A queue of copies that run one after the other. A mark of type `T` comes back once all copies before it are done.
#[derive(Debug)]
pub struct Copies<T> {
    gpu: Arc<Gpu>,
    stream: Handle,
    /// Marks in their order, with their events.
    under_way: VecDeque<(Handle, T)>,
    idle_events: Vec<Handle>,
    /// Whether copies have been started behind the last mark.
    unmarked: bool,
}

// SAFETY: stream and events are handles that any thread may use, one at a time, which `&mut self` ensures.
unsafe impl<T: Send> Send for Copies<T> {}

impl<T> Copies<T> {
    /// Makes a queue with a stream of its own.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        let stream = gpu.within(|library| {
            let create = library.need(library.functions.create_stream)?;
            let mut stream = ptr::null_mut();
            // SAFETY: the call writes one handle.
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

    /// Returns the GPU from and to whose memory it copies.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Starts copies, with a mark behind them.
    ///
    /// # Errors
    /// The driver's error; some of the copies may then be in progress.
    ///
    /// # Safety
    /// Every part (from, to, bytes) names valid memory: a GPU's, or pinned memory of the host. It stays valid, and is
    /// otherwise untouched, until the mark has come back or this queue was settled or dropped.
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
                    // SAFETY: the call writes one handle.
                    library.check("making an event", unsafe { create(&raw mut event, DISABLE_TIMING) })?;
                    event
                }
            };
            // SAFETY: the event is one that nobody waits for, and the stream belongs to this queue.
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

    /// Returns whether no mark is outstanding.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns the next mark, if all copies before it are done.
    ///
    /// # Errors
    /// If a copy failed.
    pub fn poll(&mut self) -> Result<Option<T>, String> {
        let Some((event, _)) = self.under_way.front() else { return Ok(None) };
        let code = self.gpu.within(|library| {
            let query = library.need(library.functions.query_event)?;
            // SAFETY: the event belongs to this queue.
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

    /// Blocks until no copy is in progress, and forgets the marks.
    ///
    /// # Errors
    /// If a copy failed; no copy is then in progress either.
    pub fn finish(&mut self) -> Result<(), String> {
        if self.under_way.is_empty() && !self.unmarked {
            return Ok(());
        }
        let result = self.gpu.within(|library| {
            let synchronize = library.need(library.functions.synchronize_stream)?;
            // SAFETY: the stream belongs to this queue.
            let code = unsafe { synchronize(self.stream) };
            library.check(&format!("copying from or to GPU {}", self.gpu.number()), code)
        });
        self.unmarked = false;
        self.idle_events.extend(self.under_way.drain(..).map(|(event, _)| event));
        result
    }

    /// Like [`Copies::finish`], for a caller that gives the copies up and does not care for errors.
    pub fn settle(&mut self) {
        let _ = self.finish();
    }
}

impl<T> Drop for Copies<T> {
    fn drop(&mut self) {
        self.settle();
        let events = std::mem::take(&mut self.idle_events);
        // At the end of a process, the driver may be gone already; nobody can be told.
        let _ = self.gpu.within(|library| {
            for event in events {
                let destroy = library.need(library.functions.destroy_event)?;
                // SAFETY: the event belongs to this queue and is not in use.
                unsafe { destroy(event) };
            }
            let destroy = library.need(library.functions.destroy_stream)?;
            // SAFETY: the stream belongs to this queue and is idle.
            library.check("ending a stream", unsafe { destroy(self.stream) })
        });
    }
}
