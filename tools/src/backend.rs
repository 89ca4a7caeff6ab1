//! Interface between `kolo perf` and the runtime: the operations that the measurements need from a communicator.
//!
//! Everything above this file is written against [`Comm`], so that it can be tested without a cluster.

use std::collections::HashMap;
use std::ops::DerefMut;
use std::sync::Mutex;

use kolo::JoinSpec;
use kolo::{Cluster, Collective, Communicator, Config, DataType, RawCall, ReduceOp, SymmetricBuffer, Work};
use kolo_collectives::Task;
use kolo_collectives::overrides::{Overrides, Rule};
use kolo_collectives::plan::Placement;

use crate::error::{CliError, Result};

/// Requested properties of the communicators of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Transports that may be used; `None` for all.
    pub transport: Option<String>,
    /// Algorithm to use instead of the one that would be selected.
    pub algorithm: Option<String>,
    /// Time limit of every operation; `None` for the library's default.
    pub timeout: Option<std::time::Duration>,
    /// Number of this thread rank within the process, and number of its thread ranks.
    pub thread: (u32, u32),
}

/// One collective on raw memory; `count` is NCCL's count argument of that collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The collective.
    pub collective: Collective,
    /// Address of the input.
    pub input: *const u8,
    /// Address of the output. The call is in place as NCCL defines it, by equality of addresses.
    pub output: *mut u8,
    /// Elements.
    pub count: u64,
    /// Type of the elements.
    pub data_type: DataType,
    /// Operator that combines them.
    pub op: ReduceOp,
    /// Root, if the collective has one.
    pub root: u32,
}

/// Bytes to a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// The receiver.
    pub to: u32,
    /// Address of the bytes.
    pub bytes: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// Bytes from a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// The sender.
    pub from: u32,
    /// Address of the receive buffer.
    pub bytes: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

/// An operation in progress. The caller must wait for it before dropping it.
pub(crate) trait Pending {
    /// Waits until the operation ends.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A communicator, as far as the tools use it.
pub(crate) trait Comm {
    /// Returns this rank.
    fn rank(&self) -> u32;
    /// Returns the number of ranks.
    fn world_size(&self) -> u32;
    /// Returns this rank's number among the ranks of its host.
    fn local_rank(&self) -> u32;
    /// Returns the number of ranks on this host.
    fn local_size(&self) -> u32;
    /// Returns lines for people that name the transports and the reasons for them.
    fn summary(&self) -> Vec<String>;

    /// Returns which of the library's ways a collective would take, and why.
    fn way(&self, call: &Call) -> Option<String>;

    /// Runs a collective to its end.
    ///
    /// # Safety
    /// Input and output are valid for as many elements as the collective reads and writes there, and nothing
    /// else touches them until this returns.
    unsafe fn call(&self, call: &Call) -> Result<()>;

    /// Starts a collective without waiting for it.
    ///
    /// # Safety
    /// As for [`Comm::call`], until the returned handle has been waited for.
    unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>>;

    /// Runs sends and receives together to their end. Both sides skip empty ones.
    ///
    /// # Safety
    /// All memory is valid for its length, and nothing else touches it until this returns.
    unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()>;

    /// Blocks until all ranks have called.
    fn barrier(&self) -> Result<()>;

    /// Allocates zeroed memory of `bytes` bytes that the ranks of a host reach directly. All ranks must call.
    fn symmetric(&self, bytes: usize) -> Result<Box<dyn Memory>>;

    /// Returns the bytes of all ranks, by rank. Lengths may differ.
    fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Makes the communicator of the ranks that pass the same colour, in the same order.
    fn split(&self, colour: u32) -> Result<Box<dyn Comm>>;
}

/// Memory to measure on.
pub(crate) trait Memory: DerefMut<Target = [u8]> + std::fmt::Debug {}

impl Memory for Vec<u8> {}
impl Memory for SymmetricBuffer<u8> {}

/// The work of a rank with its communicator.
pub(crate) type Body<'a> = &'a (dyn Fn(Box<dyn Comm>) -> Result<()> + Sync);

/// Checks, before anything is started, that a request is understood and can be fulfilled.
pub(crate) fn check(request: &Request, task: Option<&Task>) -> Result<()> {
    let overrides: Overrides = config(request)?.algorithms.parse().unwrap_or_default();
    let Some(task) = task else { return Ok(()) };
    let served =
        |rule: &Rule| rule.collective != Some(task.collective) || rule.algorithm.supports(task).is_ok();
    match overrides.rules.iter().find(|rule| !served(rule)) {
        None => Ok(()),
        Some(rule) => Err(CliError::usage(
            format!(
                "{} cannot serve {}: {}",
                rule.algorithm,
                task.collective,
                rule.algorithm.supports(task).err().unwrap_or_default()
            ),
            format!("`kolo explain {}` lists those that can", task.collective),
        )),
    }
}

/// Joins the ranks that a launcher started.
pub(crate) fn join(request: &Request) -> Result<Box<dyn Comm>> {
    let mut spec = JoinSpec::from_process_env()?;
    let (thread, threads) = request.thread;
    if threads > 1 {
        // Each process has several consecutive ranks.
        let too_many =
            || CliError::usage(format!("{threads} ranks per process are too many"), "Use fewer with -t");
        spec.world_size = spec.world_size.checked_mul(threads).ok_or_else(too_many)?;
        spec.rank = spec.rank * threads + thread;
        spec.local_rank = spec.local_rank.map(|local| local * threads + thread);
    }
    let communicator = Communicator::builder().config(config(request)?).join(spec).connect()?;
    Ok(Box::new(communicator))
}

/// Runs `count` ranks as threads of this process.
pub(crate) fn threads(count: u32, request: &Request, body: Body<'_>) -> Result<()> {
    let failure = Mutex::new(None);
    Cluster::with_config(count, &config(request)?, |communicator| {
        if let Err(error) = body(Box::new(communicator)) {
            // Of several failures, the first is the cause; the others follow from it.
            failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
        }
    })?;
    failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
}

/// Returns how the ranks of a task, on this host, would carry out its collective of `count` elements.
pub(crate) fn way_here(request: &Request, task: &Task, count: u64, data_type: DataType) -> Result<String> {
    let blocks = if task.collective.has_block_per_rank() { task.world_size as usize } else { 1 };
    let bytes = count as usize * data_type.size() * blocks;
    let way = Mutex::new(None);
    threads(task.world_size, request, &|comm| {
        // No data is sent: only lengths and places matter.
        let (mut output, input) = (vec![0_u8; bytes], vec![0_u8; bytes]);
        let call = Call {
            collective: task.collective,
            input: if task.placement == Placement::InPlace { output.as_ptr() } else { input.as_ptr() },
            output: output.as_mut_ptr(),
            count,
            data_type,
            op: ReduceOp::Sum,
            root: task.root,
        };
        if comm.rank() == 0 {
            *way.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = comm.way(&call);
        }
        comm.barrier()
    })?;
    Ok(way.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).unwrap_or_default())
}

/// Returns the settings in force: those of the environment, overridden by the command line.
pub(crate) fn config(request: &Request) -> Result<Config> {
    let mut config = Config::from_env()?;
    if let Some(list) = &request.transport {
        config.transports = kolo::config::parse_transports(list).map_err(|_| {
            let names = kolo::TransportKind::ALL.map(kolo::TransportKind::name);
            CliError::usage(
                format!("--transport '{list}' is not understood"),
                format!("Use auto, or a list of {}", names.join(", ")),
            )
        })?;
    }
    if let Some(text) = &request.algorithm {
        config.algorithms.clone_from(text);
    }
    overrides(&config)?;
    if let Some(timeout) = request.timeout {
        config.timeout = timeout;
    }
    Ok(config)
}

/// Returns the algorithms that the settings ask for.
pub(crate) fn overrides(config: &Config) -> Result<Overrides> {
    config.algorithms.parse().map_err(|error| {
        CliError::usage(
            format!("the algorithm '{}' (--algo or KOLO_ALGO) is not understood: {error}", config.algorithms),
            "Examples: ring, or all_reduce@0-64K:one_shot,all_reduce:ring",
        )
    })
}

/// Returns the version of the library, for people.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

impl Pending for Work<()> {
    fn wait(self: Box<Self>) -> Result<()> {
        Ok(Self::wait(*self)?)
    }
}

impl From<&Call> for RawCall {
    fn from(call: &Call) -> Self {
        Self {
            collective: call.collective,
            input: call.input,
            output: call.output,
            count: call.count as usize,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
        }
    }
}

impl Comm for Communicator {
    fn rank(&self) -> u32 {
        Self::rank(self)
    }

    fn world_size(&self) -> u32 {
        Self::world_size(self)
    }

    fn local_rank(&self) -> u32 {
        Self::local_rank(self)
    }

    fn local_size(&self) -> u32 {
        let hosts = self.hosts();
        let own = hosts[Self::rank(self) as usize];
        hosts.iter().filter(|host| **host == own).count() as u32
    }

    fn summary(&self) -> Vec<String> {
        let mut lines = vec![Self::summary(self)];
        // A reason stands once, since it may be long.
        let mut told: HashMap<String, u32> = HashMap::new();
        for route in self.routes() {
            let mut line = format!(
                "rank {} to rank {}: {} ({})",
                Self::rank(self),
                route.peer,
                route.transport,
                route.how
            );
            for (name, reason) in &route.declined {
                let reason = format!("; not {name}: {reason}");
                match told.get(&reason) {
                    Some(peer) => line += &format!("; not {name}: as for rank {peer}"),
                    None => {
                        line += &reason;
                        told.insert(reason, route.peer);
                    }
                }
            }
            lines.push(line);
        }
        lines
    }

    fn way(&self, call: &Call) -> Option<String> {
        let text = self.explain(&call.into()).ok()?;
        text.lines().next().map(str::to_owned)
    }

    unsafe fn call(&self, call: &Call) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.call_raw(&call.into()) }.map_err(CliError::from)
    }

    unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>> {
        // SAFETY: passed on to the caller.
        Ok(Box::new(unsafe { self.start_raw(&call.into())? }))
    }

    unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()> {
        let own = Self::rank(self);
        let to_self = sends.iter().filter(|send| send.to == own);
        for (send, receive) in to_self.zip(receives.iter().filter(|receive| receive.from == own)) {
            // SAFETY: the caller vouches for both; `copy` allows them to overlap.
            unsafe { std::ptr::copy(send.bytes, receive.bytes, send.len.min(receive.len)) };
        }
        let mut batch = self.batch();
        for send in sends.iter().filter(|send| send.to != own && send.len > 0) {
            // SAFETY: passed on to the caller; the batch runs below.
            batch = unsafe { batch.send_raw(send.bytes, send.len, DataType::U8, send.to) };
        }
        for receive in receives.iter().filter(|receive| receive.from != own && receive.len > 0) {
            // SAFETY: as above.
            batch = unsafe { batch.recv_raw(receive.bytes, receive.len, DataType::U8, receive.from) };
        }
        Ok(batch.run()?)
    }

    fn barrier(&self) -> Result<()> {
        Ok(Self::barrier(self)?)
    }

    fn symmetric(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(self.alloc_raw(bytes)?))
    }

    fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lens = vec![0u64; Self::world_size(self) as usize];
        self.all_gather(&[bytes.len() as u64], &mut lens)?;
        let counts: Vec<usize> = lens.iter().map(|len| *len as usize).collect();
        let mut all = vec![0u8; counts.iter().sum()];
        self.all_gather_v(bytes, &mut all, &counts)?;
        let mut rest = all.as_slice();
        let parts = counts.iter().map(|count| {
            let (part, behind) = rest.split_at(*count);
            rest = behind;
            part.to_vec()
        });
        Ok(parts.collect())
    }

    fn split(&self, colour: u32) -> Result<Box<dyn Comm>> {
        match Self::split(self, Some(colour), Self::rank(self))? {
            Some(group) => Ok(Box::new(group)),
            None => {
                Err(CliError::failure("a rank was left out of its own group", "Please report this as a bug"))
            }
        }
    }
}
