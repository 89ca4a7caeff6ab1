//! Communicators: every operation on addresses, and questions.

use std::sync::{Arc, Mutex, PoisonError};

use kolo_rs::{Communicator, DataType, Error, RawCall};
use pyo3::prelude::*;

use crate::errors::{exception, usage};
use crate::fork::OfProcess;
use crate::irregular::{self, Irregular};
use crate::numbers::{self, limit};
use crate::work::{Owner, Work};

/// A communicator. See `kolo.communicator`, which wraps it.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Comm {
    /// Gone once closed. A call in progress keeps its own reference, so closing never pulls anything from under it.
    open: OfProcess<Mutex<Option<Arc<Communicator>>>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    world_size: u32,
}

/// One send or receive of a batch: whether it is a send, the peer, the address, the bytes, the type.
type Transfer = (bool, u32, usize, usize, u8);

#[pymethods]
impl Comm {
    /// Runs a collective and blocks until it is done. Addresses are those of Python's buffers, 0 where there is none.
    #[allow(clippy::too_many_arguments, reason = "one flat call is the cheapest that Python can make")]
    #[pyo3(signature = (collective, input, output, count, data_type, op, factor, root, seconds, /))]
    fn run(
        &self,
        py: Python<'_>,
        collective: u8,
        input: usize,
        output: usize,
        count: usize,
        data_type: u8,
        op: u8,
        factor: f64,
        root: u32,
        seconds: f64,
    ) -> PyResult<()> {
        let communicator = self.communicator()?;
        let call = Addresses(raw(collective, input, output, count, data_type, op, factor, root)?);
        // SAFETY: Python's promise, until this returns.
        self.finish(py, move || unsafe { communicator.call_raw_within(&call.get(), limit(seconds)) })
    }

    /// Starts a collective; `owner` is kept until it is over.
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[pyo3(signature = (collective, input, output, count, data_type, op, factor, root, owner, /))]
    fn start(
        &self,
        py: Python<'_>,
        collective: u8,
        input: usize,
        output: usize,
        count: usize,
        data_type: u8,
        op: u8,
        factor: f64,
        root: u32,
        owner: Owner,
    ) -> PyResult<Work> {
        let communicator = self.communicator()?;
        let call = Addresses(raw(collective, input, output, count, data_type, op, factor, root)?);
        // SAFETY: Python's promise, for as long as the owner lives.
        self.finish(py, move || unsafe { communicator.start_raw_keeping(&call.get(), owner) }).map(Work::new)
    }

    /// Runs a collective with blocks of unequal length.
    #[allow(clippy::too_many_arguments, reason = "as above")]
    #[pyo3(signature = (collective, input, input_counts, output, output_counts, data_type, op, factor, root, /))]
    fn run_v(
        &self,
        py: Python<'_>,
        collective: u8,
        input: usize,
        input_counts: Vec<usize>,
        output: usize,
        output_counts: Vec<usize>,
        data_type: u8,
        op: u8,
        factor: f64,
        root: u32,
    ) -> PyResult<()> {
        let communicator = self.communicator()?;
        let call = Irregular {
            collective: numbers::collective(collective)?,
            input,
            input_counts,
            output,
            output_counts,
            data_type: numbers::data_type(data_type)?,
            op: numbers::op(op, factor)?,
            root,
        };
        // SAFETY: Python's promise, until this returns.
        self.finish(py, move || unsafe { irregular::run(&communicator, &call) })
    }

    /// Runs sends and receives together; blocks until all are done.
    #[pyo3(signature = (transfers, /))]
    fn transfer(&self, py: Python<'_>, transfers: Vec<Transfer>) -> PyResult<()> {
        let communicator = self.communicator()?;
        let transfers = transfers
            .into_iter()
            .map(|(send, peer, at, bytes, data_type)| {
                Ok((send, peer, at, bytes, numbers::data_type(data_type)?))
            })
            .collect::<PyResult<Vec<(bool, u32, usize, usize, DataType)>>>()?;
        self.finish(py, move || {
            let mut batch = communicator.batch();
            for (send, peer, at, bytes, data_type) in transfers {
                // SAFETY: Python's promise, until this returns.
                batch = unsafe {
                    match send {
                        true => batch.send_raw(at as *const u8, bytes, data_type, peer),
                        false => batch.recv_raw(at as *mut u8, bytes, data_type, peer),
                    }
                };
            }
            batch.run()
        })
    }

    /// The ranks that give the same color, ordered by key and then by rank; `None` for those that give none.
    fn split(&self, py: Python<'_>, color: Option<u32>, key: u32) -> PyResult<Option<Self>> {
        let communicator = self.communicator()?;
        Ok(self.finish(py, move || communicator.split(color, key))?.map(Self::new))
    }

    /// The listed ranks, in this order; only these call it.
    fn group(&self, py: Python<'_>, ranks: Vec<u32>) -> PyResult<Self> {
        let communicator = self.communicator()?;
        self.finish(py, move || communicator.group(&ranks)).map(Self::new)
    }

    /// Makes every call in progress and every later one fail, on all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let communicator = self.communicator()?;
        py.detach(|| communicator.abort(reason));
        Ok(())
    }

    /// Leaves: waits up to five seconds until what was started has left. Further calls raise; closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.get()?;
        py.detach(|| {
            let communicator = open.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(communicator);
        });
        Ok(())
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(self.open.get()?.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    #[getter]
    fn local_rank(&self) -> PyResult<u32> {
        Ok(self.communicator()?.local_rank())
    }

    #[getter]
    fn hosts(&self) -> PyResult<Vec<u32>> {
        Ok(self.communicator()?.hosts().to_vec())
    }

    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(self.communicator()?.config().timeout.as_secs_f64())
    }

    fn summary(&self) -> PyResult<String> {
        Ok(self.communicator()?.summary())
    }

    fn settings(&self) -> PyResult<String> {
        Ok(self.communicator()?.config().settings())
    }

    /// Per other rank: its number, the transport, how, and what was declined and why.
    #[allow(clippy::type_complexity, reason = "a plain tuple becomes a plain tuple")]
    fn routes(&self) -> PyResult<Vec<(u32, &'static str, String, Vec<(String, String)>)>> {
        let communicator = self.communicator()?;
        let routes = communicator.routes().iter();
        Ok(routes.map(|r| (r.peer, r.transport, r.how.clone(), r.declined.clone())).collect())
    }

    /// The last collectives, oldest first, as text.
    fn recent(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let communicator = self.communicator()?;
        let records = py.detach(|| communicator.recent());
        Ok(records.iter().map(ToString::to_string).collect())
    }

    /// The algorithm that a call would take, and why.
    #[pyo3(signature = (collective, count, data_type, op, root, /))]
    fn explain(
        &self,
        py: Python<'_>,
        collective: u8,
        count: usize,
        data_type: u8,
        op: u8,
        root: u32,
    ) -> PyResult<String> {
        let communicator = self.communicator()?;
        // Nothing is touched, but a null pointer would be refused.
        let somewhere = std::ptr::NonNull::<u8>::dangling().as_ptr() as usize;
        let call = Addresses(raw(collective, somewhere, somewhere, count, data_type, op, 1.0, root)?);
        self.finish(py, move || communicator.explain(&call.get()))
    }
}

impl Comm {
    pub(crate) fn new(communicator: Communicator) -> Self {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        Self { open: OfProcess::new(Mutex::new(Some(Arc::new(communicator)))), rank, world_size }
    }

    fn communicator(&self) -> PyResult<Arc<Communicator>> {
        let open = self.open.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| usage("the communicator is closed"))
    }

    /// Runs without the interpreter's lock; the closure's captures, a reference to the communicator among them, are
    /// dropped without it too.
    fn finish<T: Send>(&self, py: Python<'_>, run: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
        py.detach(run).map_err(|error| exception(py, &error))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Ok(open) = self.open.get() {
            let last = open.lock().unwrap_or_else(PoisonError::into_inner).take();
            Python::attach(|py| py.detach(|| drop(last)));
        }
    }
}

/// A call whose buffers are Python's, so that they may be used by the thread that asked, without its interpreter's lock.
#[derive(Clone, Copy)]
struct Addresses(RawCall);

// SAFETY: pointers are sent between threads no more than the closure that runs on the calling thread is.
unsafe impl Send for Addresses {}

impl Addresses {
    fn get(self) -> RawCall {
        self.0
    }
}

#[allow(clippy::too_many_arguments, reason = "as its callers")]
fn raw(
    collective: u8,
    input: usize,
    output: usize,
    count: usize,
    data_type: u8,
    op: u8,
    factor: f64,
    root: u32,
) -> PyResult<RawCall> {
    Ok(RawCall {
        collective: numbers::collective(collective)?,
        input: input as *const u8,
        output: output as *mut u8,
        count,
        data_type: numbers::data_type(data_type)?,
        op: numbers::op(op, factor)?,
        root,
    })
}
