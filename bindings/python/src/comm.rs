//! Communicators: all operations, on addresses, and queries.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kolo_rs::internal::Unpoisoned;
use kolo_rs::{Communicator, Error};
use pyo3::prelude::*;

use crate::calls::{Addresses, Irregular, Message, Plain, Transfer, Uneven};
use crate::errors::{exception, usage};
use crate::fork::OfProcess;
use crate::numbers::{self, limit};
use crate::symmetric::Symmetric;
use crate::work::{Owner, Progress, Work};

/// A waiting message: its source, tag, bytes and type.
type Seen = (u32, u32, usize, Option<u8>);

/// A communicator. See `kolo.communicator`, which wraps it.
#[pyclass(frozen, module = "kolo._kolo")]
#[derive(Debug)]
pub(crate) struct Comm {
    /// `None` once closed. A call in progress keeps its own reference, so closing does not disturb it.
    open: OfProcess<Mutex<Option<Arc<Communicator>>>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    world_size: u32,
}

#[pymethods]
impl Comm {
    /// Runs a collective and blocks until it is done.
    #[pyo3(signature = (call, seconds, /))]
    fn run(&self, py: Python<'_>, call: Plain, seconds: f64) -> PyResult<()> {
        self.run_call(py, Addresses::new(call)?, limit(seconds))
    }

    /// Starts a collective and waits for it at once. Unlike `run`, it matches started calls of other ranks.
    #[pyo3(signature = (call, seconds, /))]
    fn start_and_wait(&self, py: Python<'_>, call: Plain, seconds: f64) -> PyResult<()> {
        let call = Addresses::new(call)?;
        // SAFETY: Python's promise, until this returns.
        self.with(py, move |comm| unsafe { comm.start_raw_and_wait(&call.get(), limit(seconds)) })
    }

    /// Starts a collective; keeps `owner` until it is complete.
    #[pyo3(signature = (call, owner, /))]
    fn start(&self, py: Python<'_>, call: Plain, owner: Owner) -> PyResult<Work> {
        self.start_call(py, Addresses::new(call)?, owner)
    }

    /// Runs a collective with blocks of unequal length and blocks until it is done.
    #[pyo3(signature = (call, seconds, /))]
    fn run_v(&self, py: Python<'_>, call: Uneven, seconds: f64) -> PyResult<()> {
        let call = Irregular::new(call)?;
        // SAFETY: Python's promise, until this returns.
        self.with(py, move |comm| unsafe { comm.call_raw_v_within(&call.get(), limit(seconds)) })
    }

    /// Starts a collective with blocks of unequal length; keeps `owner` until it is complete.
    #[pyo3(signature = (call, owner, /))]
    fn start_v(&self, py: Python<'_>, call: Uneven, owner: Owner) -> PyResult<Work> {
        let call = Irregular::new(call)?;
        // SAFETY: Python's promise, for as long as the owner lives.
        let work = self.with(py, move |comm| unsafe { comm.start_raw_v_keeping(&call.get(), owner) })?;
        Ok(Work::new(Progress::Plain(work)))
    }

    /// Runs sends and receives together and blocks until all are done. Returns the sources of the receives, in order.
    #[pyo3(signature = (transfers, seconds, /))]
    fn transfer(&self, py: Python<'_>, transfers: Vec<Transfer>, seconds: f64) -> PyResult<Vec<Option<u32>>> {
        let messages = transfers.into_iter().map(Message::new).collect::<PyResult<Vec<_>>>()?;
        self.run_messages(py, messages, limit(seconds))
    }

    /// Starts a send or receive; keeps `owner` until it is complete.
    #[pyo3(signature = (transfer, owner, /))]
    fn start_transfer(&self, py: Python<'_>, transfer: Transfer, owner: Owner) -> PyResult<Work> {
        self.start_message(py, Message::new(transfer)?, owner)
    }

    /// Returns the source, tag, bytes and type of a waiting message with a tag from `first` to `last`. Without `seconds` it does not wait,
    /// and returns `None` if there is no such message.
    #[pyo3(signature = (source, first, last, seconds, /))]
    fn probe(
        &self,
        py: Python<'_>,
        source: Option<u32>,
        first: u32,
        last: u32,
        seconds: Option<f64>,
    ) -> PyResult<Option<Seen>> {
        let found = self.with(py, move |comm| match seconds.map(limit) {
            Some(limit) => comm.probe_within(source, first..=last, limit).map(Some),
            None => comm.probe_now(source, first..=last),
        })?;
        Ok(found.map(|it| (it.source, it.tag, it.bytes, it.data_type.map(|of| of as u8))))
    }

    /// Makes a communicator of the ranks that give the same color, ordered by key and then by rank; `None` for ranks without a color.
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        Ok(self.with(py, move |comm| comm.split(color, key))?.map(Self::new))
    }

    /// Takes part in a split in place of a wrong call, so that it raises on every rank.
    fn refuse_split(&self, py: Python<'_>, problem: &str) -> PyResult<()> {
        self.with(py, move |comm| Err(comm.refuse_split(problem)))
    }

    /// If the address is in GPU memory, waits for a stream of that GPU.
    #[pyo3(signature = (address, stream, /))]
    fn synchronize(&self, py: Python<'_>, address: usize, stream: usize) -> PyResult<()> {
        // SAFETY: Python's promise: the caller keeps the stream alive during the call.
        self.with(py, move |comm| unsafe { comm.synchronize_stream(address as *const u8, stream) })
    }

    /// Makes a communicator of the same ranks, with calls independent of this one's.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, |comm| comm.duplicate(comm.config().clone())).map(Self::new)
    }

    /// Allocates memory that the other ranks of the host reach directly.
    fn alloc(&self, py: Python<'_>, bytes: usize) -> PyResult<Symmetric> {
        self.with(py, move |comm| comm.alloc_raw(bytes)).map(Symmetric::new)
    }

    /// Makes a communicator of the listed ranks, in this order; only these ranks call it. They wait for each other for `seconds`, by
    /// default for as long as they would to join a job. With a `number`, which may be used once and needs `seconds`, the call
    /// matches that of the same number, in whatever order the ranks' threads make their groups.
    #[pyo3(signature = (ranks, seconds=None, number=None))]
    fn group(
        &self,
        py: Python<'_>,
        ranks: Vec<u32>,
        seconds: Option<f64>,
        number: Option<u32>,
    ) -> PyResult<Self> {
        if number.is_some() && seconds.is_none() {
            return Err(usage("a group with a number needs its time in seconds"));
        }
        let make = move |comm: &Communicator| match seconds {
            Some(seconds) => comm.group_within(&ranks, number, limit(seconds)),
            None => comm.group(&ranks),
        };
        self.with(py, make).map(Self::new)
    }

    /// Makes every call in progress and every later one fail, on all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let communicator = self.communicator()?;
        py.detach(|| communicator.abort(reason));
        Ok(())
    }

    /// Runs an all-reduce over shards and blocks until it is done. The input has this rank's own shards.
    #[pyo3(signature = (call, shards, seconds, /))]
    fn run_shards(&self, py: Python<'_>, call: Plain, shards: u32, seconds: f64) -> PyResult<()> {
        let call = Addresses::new(call)?;
        let limit = limit(seconds);
        // SAFETY: Python's promise: the buffers are as long as the call says, and stay until this returns.
        self.with(py, move |comm| unsafe { comm.call_raw_shards(&call.get(), shards, Some(limit)) })
    }

    /// Returns the first of this rank's shards, and the one behind the last.
    fn own_shards(&self, shards: u32) -> PyResult<(u32, u32)> {
        let own = self.communicator()?.own_shards(shards);
        Ok((own.start, own.end))
    }

    /// Makes all calls fail on all ranks, so that the live ranks can shrink the communicator.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let communicator = self.communicator()?;
        py.detach(|| communicator.revoke());
        Ok(())
    }

    /// Returns the AND of all ranks' flags, and the ranks that took part. After `seconds`, a late rank counts as having set no flag.
    #[pyo3(signature = (flags, seconds=None))]
    fn agree(&self, py: Python<'_>, flags: u64, seconds: Option<f64>) -> PyResult<(u64, Vec<u32>)> {
        let agreed = self.with(py, move |comm| match seconds {
            Some(seconds) => comm.agree_within(flags, limit(seconds)),
            None => comm.agree(flags),
        })?;
        Ok((agreed.flags, agreed.ranks))
    }

    /// Makes a communicator of the live ranks. Fails on all of them if one has not called it after `seconds`.
    #[pyo3(signature = (seconds=None))]
    fn shrink(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Self> {
        let shrunk = self.with(py, move |comm| match seconds {
            Some(seconds) => comm.shrink_within(limit(seconds)),
            None => comm.shrink(),
        });
        shrunk.map(Self::new)
    }

    /// Limits all following calls to `seconds` from now on, in addition to their own time-outs; `None` removes the limit.
    fn limit_calls(&self, seconds: Option<f64>) -> PyResult<()> {
        self.communicator()?.limit_calls(seconds.map(|seconds| Instant::now() + limit(seconds)));
        Ok(())
    }

    /// Returns how many times the group has changed.
    fn epoch(&self) -> PyResult<u64> {
        Ok(self.communicator()?.epoch())
    }

    /// Returns each rank's rank in the previous communicator; `None` for newcomers.
    fn ranks_before(&self) -> PyResult<Vec<Option<u32>>> {
        Ok(self.communicator()?.ranks_before())
    }

    /// Returns an invitation for newcomers, as text.
    fn accept(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |comm| comm.accept().map(|invitation| invitation.to_string()))
    }

    /// Returns how many newcomers wait at this rank's port, whether a slot can be given to one of them, and whether one asks for the state.
    fn waiting(&self) -> PyResult<(u32, bool, bool)> {
        let communicator = self.communicator()?;
        Ok((communicator.waiting(), communicator.has_candidates(), communicator.is_asked_for_state()))
    }

    /// Makes a communicator of the live ranks and newcomers. Newcomers come last, or first take free slots.
    fn grow(&self, py: Python<'_>, most: u32, free_first: bool) -> PyResult<Self> {
        let grow = if free_first { Communicator::admit_up_to } else { Communicator::grow };
        self.with(py, move |comm| grow(comm, most)).map(Self::new)
    }

    /// Makes a communicator of the live ranks, and of newcomers in the slots of lost ranks.
    fn replace(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, Communicator::replace).map(Self::new)
    }

    /// Returns the smallest and the largest number of ranks, if the launcher has set them.
    fn bounds(&self) -> PyResult<Option<(u32, u32)>> {
        Ok(self.communicator()?.elastic_bounds())
    }

    /// Returns the slot of each rank.
    fn slots(&self) -> PyResult<Vec<u32>> {
        Ok(self.communicator()?.slots())
    }

    /// Leaves: waits up to five seconds until the data of started calls has left. Further calls raise; closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.get()?;
        py.detach(|| {
            let communicator = open.lock().unpoisoned().take();
            drop(communicator);
        });
        Ok(())
    }

    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(self.open.get()?.lock().unpoisoned().is_none())
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
    pub(crate) fn timeout(&self) -> PyResult<f64> {
        Ok(self.communicator()?.config().timeout.as_secs_f64())
    }

    fn summary(&self) -> PyResult<String> {
        Ok(self.communicator()?.summary())
    }

    fn settings(&self) -> PyResult<String> {
        Ok(self.communicator()?.config().settings())
    }

    /// Returns for each other rank its number, the transport, how it is reached, and the alternatives declined, with reasons.
    #[allow(clippy::type_complexity, reason = "a plain tuple becomes a plain tuple")]
    fn routes(&self) -> PyResult<Vec<(u32, &'static str, String, Vec<(String, String)>)>> {
        let communicator = self.communicator()?;
        let routes = communicator.routes().iter();
        Ok(routes.map(|r| (r.peer, r.transport, r.how.clone(), r.declined.clone())).collect())
    }

    /// Returns the last collectives, oldest first, as text.
    fn recent(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let communicator = self.communicator()?;
        let records = py.detach(|| communicator.recent());
        Ok(records.iter().map(ToString::to_string).collect())
    }

    /// Returns the last collectives, oldest first: sequence number, name, elements (`None` with unequal blocks), type, seconds from the
    /// creation of the communicator to the start, and duration in seconds (`None` while it runs).
    #[allow(clippy::type_complexity, reason = "a plain tuple becomes a plain tuple")]
    fn records(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(u64, &'static str, Option<usize>, &'static str, f64, Option<f64>)>> {
        let communicator = self.communicator()?;
        let records = py.detach(|| communicator.recent());
        Ok(records
            .iter()
            .map(|record| {
                let call = &record.summary;
                let took = record.took.map(|took| took.as_secs_f64());
                let (name, data_type) = (call.collective.name(), call.data_type.name());
                (record.sequence, name, call.count, data_type, record.started.as_secs_f64(), took)
            })
            .collect())
    }

    /// Returns whether calls treat this address as GPU memory.
    fn is_gpu_memory(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        self.with(py, move |comm| comm.is_gpu_memory(address as *const u8))
    }

    /// Returns the algorithm that a call would use, and why.
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
        // The buffers are not touched, but null pointers and overlaps would be refused. Vectors are reduced in place, as calls
        // without an output do; blocks go to another buffer, which lies beyond the longest one that can be addressed.
        let from = std::ptr::NonNull::<u8>::dangling().as_ptr() as usize;
        let has_blocks = numbers::collective(collective)?.has_block_per_rank();
        let to = if has_blocks { from + isize::MAX as usize } else { from };
        let call = Addresses::new((collective, from, to, count, data_type, op, 1.0, root))?;
        self.with(py, move |comm| comm.explain(&call.get()))
    }
}

impl Comm {
    pub(crate) fn new(communicator: Communicator) -> Self {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        Self { open: OfProcess::new(Mutex::new(Some(Arc::new(communicator)))), rank, world_size }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Runs a collective on memory that the caller keeps until this returns.
    #[inline]
    pub(crate) fn run_call(&self, py: Python<'_>, call: Addresses, limit: Duration) -> PyResult<()> {
        // SAFETY: Python's promise, until this returns.
        self.with(py, move |comm| unsafe { comm.call_raw_within(&call.get(), limit) })
    }

    /// Starts a collective on memory that `owner` keeps.
    pub(crate) fn start_call(&self, py: Python<'_>, call: Addresses, owner: Owner) -> PyResult<Work> {
        // SAFETY: Python's promise, for as long as the owner lives.
        let work = self.with(py, move |comm| unsafe { comm.start_raw_keeping(&call.get(), owner) })?;
        Ok(Work::new(Progress::Plain(work)))
    }

    /// Runs messages on memory that the caller keeps until this returns.
    pub(crate) fn run_messages(
        &self,
        py: Python<'_>,
        messages: Vec<Message>,
        limit: Duration,
    ) -> PyResult<Vec<Option<u32>>> {
        self.with(py, move |comm| {
            let mut sources = vec![None; messages.len()];
            let mut found = vec![0; messages.len()];
            let mut batch = comm.batch();
            for ((message, source), found) in messages.iter().zip(&mut sources).zip(&mut found) {
                let memory = message.memory();
                // SAFETY: Python's promise, until this returns.
                batch = unsafe {
                    match (message.send, message.peer) {
                        (true, peer) => batch.send_message(memory, peer.unwrap_or(u32::MAX)),
                        (false, Some(peer)) => {
                            *source = Some(peer);
                            batch.recv_message(memory, peer)
                        }
                        (false, None) => batch.recv_any_message(memory, found),
                    }
                };
            }
            batch.run_within(limit)?;
            let any = |message: &Message, found: u32| (!message.send).then_some(found);
            Ok(sources
                .into_iter()
                .zip(messages.iter().zip(found))
                .map(|(source, (message, found))| source.or_else(|| any(message, found)))
                .collect())
        })
    }

    /// Starts a message on memory that `owner` keeps.
    pub(crate) fn start_message(&self, py: Python<'_>, message: Message, owner: Owner) -> PyResult<Work> {
        let started = self.with(py, move |comm| {
            let memory = message.memory();
            // SAFETY: Python's promise, for as long as the owner lives.
            unsafe {
                if message.send {
                    let to = message.peer.unwrap_or(u32::MAX);
                    comm.send_raw_keeping(&memory, to, owner).map(Progress::Plain)
                } else {
                    comm.recv_raw_keeping(&memory, message.peer, owner).map(Progress::Receive)
                }
            }
        });
        started.map(Work::new)
    }

    fn communicator(&self) -> PyResult<Arc<Communicator>> {
        let open = self.open.get()?.lock().unpoisoned();
        open.clone().ok_or_else(|| usage("the communicator is closed"))
    }

    /// Runs a closure on the communicator without the interpreter's lock. Its captures and the reference to the communicator are dropped
    /// without the lock too.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Communicator) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let communicator = self.communicator()?;
        py.detach(move || run(&communicator)).map_err(|error| exception(py, &error))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Ok(open) = self.open.get() {
            let last = open.lock().unpoisoned().take();
            Python::attach(|py| py.detach(|| drop(last)));
        }
    }
}
