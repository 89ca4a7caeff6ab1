//! The one door between the tools and the runtime: what `kolo perf` needs from a communicator, and nothing else.
//!
//! Everything above this file is written against [`Comm`], so that it is tested without a cluster.

use kolo::join::JoinSpec;
use kolo::{Cluster, Communicator, Config, DataType, RawCall, ReduceOp, Work};
use kolo_collectives::plan::Collective;

use crate::error::{CliError, Result};

/// What the communicators of a run should be like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Transports that may be used; `None` for all.
    pub transport: Option<String>,
    /// Algorithm to use instead of the selected one.
    pub algorithm: Option<String>,
    /// Limit of every operation; `None` for the library's own.
    pub timeout: Option<std::time::Duration>,
    /// Which of the thread ranks of this process, and how many there are.
    pub thread: (u32, u32),
}

/// One collective on raw memory; `count` is NCCL's count argument of that collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Which.
    pub collective: Collective,
    /// Where to read.
    pub input: *const u8,
    /// Where to write. In place as NCCL defines it, by equality of addresses.
    pub output: *mut u8,
    /// Elements.
    pub count: u64,
    /// Of this type.
    pub data_type: DataType,
    /// Combined by this.
    pub op: ReduceOp,
    /// Root, where there is one.
    pub root: u32,
}

/// Bytes to a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// To whom.
    pub to: u32,
    /// What.
    pub bytes: *const u8,
    /// How much.
    pub len: usize,
}

/// Bytes from a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// From whom.
    pub from: u32,
    /// Where to put it.
    pub bytes: *mut u8,
    /// How much.
    pub len: usize,
}

/// An operation that was started. Dropping it without waiting is a mistake of the caller.
pub(crate) trait Pending {
    /// Waits for its end.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A communicator.
pub(crate) trait Comm {
    /// Own rank.
    fn rank(&self) -> u32;
    /// Number of ranks.
    fn world_size(&self) -> u32;
    /// Own rank among those of this host.
    fn local_rank(&self) -> u32;
    /// Number of ranks on this host.
    fn local_size(&self) -> u32;
    /// Lines for people: transports, and why.
    fn summary(&self) -> Vec<String>;

    /// Runs a collective to its end.
    ///
    /// # Safety
    /// Input and output are valid for as many elements as the collective reads and writes there, and nothing
    /// else touches them until this returns.
    unsafe fn call(&self, call: &Call) -> Result<()>;

    /// Starts a collective.
    ///
    /// # Safety
    /// As for [`Comm::call`], until the returned handle has been waited for.
    unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>>;

    /// Runs sends and receives together to their end. Empty ones are skipped on both sides.
    ///
    /// # Safety
    /// All memory is valid for its length, and nothing else touches it until this returns.
    unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()>;

    /// Returns when all ranks have called.
    fn barrier(&self) -> Result<()>;

    /// Everybody's bytes, by rank. Lengths may differ.
    fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The communicator of the ranks that pass the same colour, in the same order.
    fn split(&self, colour: u32) -> Result<Box<dyn Comm>>;
}

/// What a rank does with its communicator.
pub(crate) type Body<'a> = &'a (dyn Fn(Box<dyn Comm>) -> Result<()> + Sync);

/// Joins the ranks that a launcher started.
pub(crate) fn join(request: &Request) -> Result<Box<dyn Comm>> {
    let mut spec = JoinSpec::from_process_env()?;
    let (thread, threads) = request.thread;
    spec.rank = spec.rank * threads + thread;
    spec.world_size *= threads;
    spec.local_rank = spec.local_rank.map(|rank| rank * threads + thread);
    let communicator = Communicator::builder().config(config(request)?).join(spec).connect()?;
    Ok(Box::new(Runtime(communicator)))
}

/// Runs `count` ranks as threads of this process.
pub(crate) fn threads(count: u32, request: &Request, body: Body<'_>) -> Result<()> {
    let results = Cluster::with_config(count, &config(request)?, |comm| body(Box::new(Runtime(comm))))?;
    results.into_iter().collect()
}

/// Version of the library, for people.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The environment's settings, with what the command line says over them.
fn config(request: &Request) -> Result<Config> {
    let mut config = Config::from_env()?;
    if let Some(transport) = &request.transport {
        config.transports = kolo::config::parse_transports(transport)?;
    }
    if let Some(algorithm) = &request.algorithm {
        config.algorithms.clone_from(algorithm);
    }
    if let Some(timeout) = request.timeout {
        config.timeout = timeout;
    }
    Ok(config)
}

/// A communicator of the runtime.
struct Runtime(Communicator);

impl Pending for Work<()> {
    fn wait(self: Box<Self>) -> Result<()> {
        Ok(Self::wait(*self)?)
    }
}

impl Comm for Runtime {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn world_size(&self) -> u32 {
        self.0.world_size()
    }

    fn local_rank(&self) -> u32 {
        self.0.local_rank()
    }

    fn local_size(&self) -> u32 {
        let hosts = self.0.hosts();
        let own = hosts[self.rank() as usize];
        hosts.iter().filter(|host| **host == own).count() as u32
    }

    fn summary(&self) -> Vec<String> {
        vec![self.0.summary()]
    }

    unsafe fn call(&self, call: &Call) -> Result<()> {
        // SAFETY: passed on.
        Ok(unsafe { self.0.call_raw(&raw(call)) }?)
    }

    unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>> {
        // SAFETY: passed on.
        Ok(Box::new(unsafe { self.0.start_raw(&raw(call)) }?))
    }

    unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()> {
        let mut batch = self.0.batch();
        for send in sends.iter().filter(|send| send.len > 0) {
            // SAFETY: passed on.
            batch = unsafe { batch.send_raw(send.bytes, send.len, DataType::U8, send.to) };
        }
        for receive in receives.iter().filter(|receive| receive.len > 0) {
            // SAFETY: passed on.
            batch = unsafe { batch.recv_raw(receive.bytes, receive.len, DataType::U8, receive.from) };
        }
        Ok(batch.run()?)
    }

    fn barrier(&self) -> Result<()> {
        Ok(self.0.barrier()?)
    }

    fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lengths = vec![0_u64; self.world_size() as usize];
        self.0.all_gather(&[bytes.len() as u64], &mut lengths)?;
        let counts: Vec<usize> = lengths.iter().map(|len| *len as usize).collect();
        let mut all = vec![0; counts.iter().sum()];
        self.0.all_gather_v(bytes, &mut all, &counts)?;
        let mut rest = all.as_slice();
        Ok(counts
            .iter()
            .map(|count| {
                let (own, behind) = rest.split_at(*count);
                rest = behind;
                own.to_vec()
            })
            .collect())
    }

    fn split(&self, colour: u32) -> Result<Box<dyn Comm>> {
        let part = self.0.split(Some(colour), 0)?;
        let part = part.ok_or_else(|| CliError::failure("the split gave no part", "Report this as a defect"))?;
        Ok(Box::new(Self(part)))
    }
}

fn raw(call: &Call) -> RawCall {
    RawCall {
        collective: call.collective,
        input: call.input,
        output: call.output,
        count: call.count as usize,
        data_type: call.data_type,
        op: call.op,
        root: call.root,
    }
}
