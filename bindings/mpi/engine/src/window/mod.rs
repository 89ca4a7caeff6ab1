//! One-sided communication.
//!
//! If all ranks share the memory of a window, operations access it directly (`near.rs`). Otherwise, every operation is a message to the
//! target, whose process handles it in any call of MPI, or in the library's own thread, which polls while there are windows. Messages from
//! one rank to another are handled in order, so the answer to a message means that all earlier messages are done. Messages are handled under the lock of the messages, so accumulates are atomic with respect to each other.

mod backlog;
mod calls;
mod epochs;
mod handle_messages;
mod locks;
mod make;
mod near;
mod operations;
mod shared;
mod wire;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use calls::*;
pub use epochs::*;
pub use make::*;
pub use operations::*;

use crate::attributes::Attributes;
use crate::comm::Comm;
use crate::constants::*;
use crate::datatype::{Run, Shape, Type};
use crate::error::{Class, Fail, Outcome, fail};
use crate::handle::Table;
use crate::handlers::{self, Handler};
use crate::info::Pairs;
use crate::net::{self, Sink};
use backlog::Backlog;
use epochs::Epochs;
use kolo_transport::Unpoisoned;
use locks::Locks;
use shared::Segment;

/// The size and the displacement unit of one rank's part of a window, which all ranks know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) size: i64,
    pub(crate) unit: i64,
}

/// A window.
#[derive(Debug)]
pub struct Window {
    handle: AtomicI32,
    /// The window's own communicator.
    comm: Arc<Comm>,
    base: usize,
    size: i64,
    flavor: c_int,
    /// The displacement unit, if the attribute, an `int`, can hold it.
    shown_unit: Option<c_int>,
    /// Flavor and memory model as numbers of the program.
    shown_flavor: c_int,
    shown_model: c_int,
    parts: Vec<Part>,
    segment: Option<Segment>,
    attached: Mutex<Vec<(usize, usize)>>,
    epochs: Mutex<Epochs>,
    locks: Mutex<Locks>,
    backlog: Backlog,
    pub(crate) attributes: Attributes,
    handler: Mutex<Handler>,
    name: Mutex<String>,
    info: Mutex<Pairs>,
}

static WINDOWS: Table<Arc<Window>> = Table::new(0x8);

impl Window {
    /// Returns the window's handle.
    #[must_use]
    pub fn handle(&self) -> c_int {
        self.handle.load(Ordering::Relaxed)
    }

    /// Returns the error handler.
    #[must_use]
    pub fn handler(&self) -> Handler {
        self.handler.lock().unpoisoned().clone()
    }

    /// Sets the error handler.
    pub fn set_handler(&self, handler: Handler) {
        handlers::replace(&self.handler, handler);
    }

    fn epochs(&self) -> MutexGuard<'_, Epochs> {
        self.epochs.lock().unpoisoned()
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unpoisoned()
    }

    /// Returns the number by which messages name the window; it is the same on all ranks.
    fn number(&self) -> u32 {
        self.comm.context(0)
    }

    fn world(&self, rank: u32) -> u32 {
        self.comm.members[rank as usize]
    }

    /// Returns whether `len` bytes from an offset on are part of this rank's memory in the window.
    fn holds(&self, offset: i64, len: usize) -> bool {
        if self.flavor == WIN_FLAVOR_DYNAMIC {
            let (mut start, end) = (offset as usize, (offset as usize).saturating_add(len));
            let attached = self.attached.lock().unpoisoned();
            // The memory may consist of pieces that were attached one by one.
            let next = |from: usize| attached.iter().find(|(at, size)| (*at..at + size).contains(&from));
            while start < end {
                let Some((at, size)) = next(start) else { return false };
                start = at + size;
            }
            return true;
        }
        offset >= 0 && offset.checked_add(len as i64).is_some_and(|end| end <= self.size)
    }

    /// Returns whether all elements of a type at these positions are part of this rank's memory in the window.
    fn holds_all(&self, shape: &Shape, of: &Type) -> bool {
        let reach = |len: usize| {
            let last = len.div_ceil(of.size()).saturating_sub(1);
            last.saturating_mul(of.extent as usize).saturating_add(of.true_extent as usize)
        };
        if shape.bytes() == 0 {
            // No elements may have any address.
            return true;
        }
        let span = shape.span(reach).and_then(|(low, high)| Some((low, high.checked_sub(low)?)));
        match span {
            Some((low, len)) if self.holds(low, len as usize) => true,
            // Elements of dynamic windows may lie in pieces of memory with gaps between them.
            _ => {
                let holds = |run: Run| self.holds(run.offset, reach(run.len));
                self.flavor == WIN_FLAVOR_DYNAMIC && shape.each_run(holds)
            }
        }
    }
}

/// Returns the window of a handle.
///
/// # Errors
/// [`Class::Win`] for an invalid handle.
pub fn lookup(handle: c_int) -> Outcome<Arc<Window>> {
    crate::world::check_running()?;
    WINDOWS.get(handle).map_or_else(|| fail(Class::Win, format!("{handle:#x} is not a window")), Ok)
}

pub(crate) fn predefined_attribute(window: &Arc<Window>, keyval: c_int) -> Outcome<Option<Option<usize>>> {
    let found = match keyval {
        WIN_BASE => window.base,
        WIN_SIZE => &raw const window.size as usize,
        WIN_DISP_UNIT => match &window.shown_unit {
            Some(unit) => &raw const *unit as usize,
            None => return Ok(Some(None)),
        },
        WIN_CREATE_FLAVOR => &raw const window.shown_flavor as usize,
        WIN_MODEL => &raw const window.shown_model as usize,
        _ => return Ok(None),
    };
    Ok(Some(Some(found)))
}

/// Registers the handler of messages for windows.
pub(crate) fn prepare() {
    if let Ok(mut net) = net::net() {
        net.handle_windows(handle_messages::handle);
    }
}

/// An operation on a window in progress, whose end the target reports.
#[derive(Debug)]
pub struct Operation {
    over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sink: Option<Sink>,
    error: Option<Fail>,
    /// The window and the target whose next synchronisation reports a failure, for an operation without a request.
    reports_to: Option<(Arc<Window>, u32)>,
}

impl Operation {
    fn new(sink: Option<Sink>) -> Arc<Self> {
        let state = State { sink, error: None, reports_to: None };
        Arc::new(Self { over: AtomicBool::new(false), state: Mutex::new(state) })
    }

    /// Makes an operation that is complete.
    fn done() -> Arc<Self> {
        let operation = Self::new(None);
        operation.finish(&[], None);
        operation
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Has the next synchronisation with a target report a failure.
    fn report_to(&self, window: &Arc<Window>, target: u32) {
        let mut state = self.state();
        if state.error.is_some() {
            window.locks().failures.insert(target);
        } else if !self.is_over() {
            state.reports_to = Some((Arc::clone(window), target));
        }
    }

    /// Returns whether the operation is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns the error, if the operation has failed.
    #[must_use]
    pub fn error(&self) -> Option<Fail> {
        self.state().error.clone()
    }

    fn finish(&self, data: &[u8], error: Option<Fail>) {
        let mut state = self.state();
        if let (Some(sink), None) = (&state.sink, &error) {
            sink.put(data);
        }
        state.error = error;
        if let (Some((window, target)), Some(_)) = (state.reports_to.take(), &state.error) {
            window.locks().failures.insert(target);
        }
        drop(state);
        self.over.store(true, Ordering::Release);
    }

    /// Gives the operation up, since a wait for it has failed: the answer no longer writes to the program's memory.
    pub(crate) fn give_up(&self, why: &Fail) {
        if !self.is_over() {
            handle_messages::forsake(why);
        }
    }

    fn wait(&self) -> Outcome {
        net::wait_until(|| self.is_over()).inspect_err(handle_messages::forsake)?;
        self.error().map_or(Ok(()), Err)
    }
}
