//! The functions that make a process's first communicator.

use std::collections::HashMap;
use std::sync::Arc;

use kolo_rs::internal::join::{UNIQUE_ID_BYTES, UniqueId, launched, own_addresses, process_environment};
use kolo_rs::{Communicator, Config, Error};
use kolo_rs::{JoinSpec, Locator};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::board::PythonBoard;
use crate::comm::Comm;
use crate::errors::{exception, usage};

/// `KOLO_*` settings that the program gives; they override the environment.
type Settings = HashMap<String, String>;

/// Joins as the environment says.
#[pyfunction]
pub(crate) fn connect_env(py: Python<'_>, settings: Settings) -> PyResult<Comm> {
    let joined = py.detach(|| Communicator::builder().connect_by(&lookup(&settings)));
    Ok(Comm::new(joined.map_err(|error| exception(py, &error))?))
}

/// Launcher, rank, world size, local rank and ranks on this host; the last two may be unknown.
type Place = (&'static str, u32, u32, Option<u32>, Option<u32>);

/// Returns the place that an MPI launcher or Slurm gave this process; `None` if none started it.
#[pyfunction]
pub(crate) fn launched_as(py: Python<'_>) -> PyResult<Option<Place>> {
    let found = launched(&process_environment).map_err(|error| exception(py, &error))?;
    Ok(found.map(|at| (at.launcher, at.rank, at.world_size, at.local_rank, at.local_world_size)))
}

/// Returns the addresses of this host; those that others most likely reach come first.
#[pyfunction]
pub(crate) fn reachable_at() -> Vec<String> {
    own_addresses().iter().map(ToString::to_string).collect()
}

/// Joins by a URL. The rank comes from the URL or from the environment.
#[pyfunction]
pub(crate) fn connect_url(py: Python<'_>, url: &str, settings: Settings) -> PyResult<Comm> {
    connect(py, &settings, || JoinSpec::parse_url_with(url, &lookup(&settings)))
}

/// Joins by an id that was passed on by the program's own means.
#[pyfunction]
pub(crate) fn connect_id(
    py: Python<'_>,
    id: &[u8],
    rank: u32,
    world_size: u32,
    settings: Settings,
) -> PyResult<Comm> {
    let bytes: [u8; UNIQUE_ID_BYTES] = id
        .try_into()
        .map_err(|_| usage(format!("the id has {} bytes, but ids have {UNIQUE_ID_BYTES}", id.len())))?;
    let id = UniqueId { bytes };
    let mut reserved = None;
    let joined = connect(py, &settings, || {
        let spec = id.join_spec(world_size, rank)?;
        if rank == 0 {
            // Kept until the runtime itself listens, and released in any case, since an id serves only once.
            reserved = id.take_reservation();
        }
        Ok(spec)
    });
    drop(reserved);
    joined
}

/// Joins through an object that passes rank 0's address to the others.
#[pyfunction]
pub(crate) fn connect_board(
    py: Python<'_>,
    board: Py<PyAny>,
    rank: u32,
    world_size: u32,
    settings: Settings,
) -> PyResult<Comm> {
    connect(py, &settings, || {
        let board = Arc::new(PythonBoard { object: board });
        // Parsing any URL also reads the environment's settings for joining; its address is replaced below.
        let url = format!("tcp://localhost:1?rank={rank}&world_size={world_size}");
        let mut spec = JoinSpec::parse_url_with(&url, &lookup(&settings))?;
        spec.locator = Locator::Board(board);
        "init_process_group".clone_into(&mut spec.source);
        Ok(spec)
    })
}

/// Makes an id of 128 bytes for [`connect_id`]; rank 0 must be on this host.
#[pyfunction]
#[pyo3(signature = (host=None))]
pub(crate) fn unique_id<'py>(py: Python<'py>, host: Option<&str>) -> PyResult<Bound<'py, PyBytes>> {
    let id = UniqueId::new(host).map_err(|error| exception(py, &error))?;
    Ok(PyBytes::new(py, &id.bytes))
}

fn lookup(settings: &Settings) -> impl Fn(&str) -> Option<String> {
    |name| settings.get(name).cloned().or_else(|| process_environment(name))
}

fn connect(
    py: Python<'_>,
    settings: &Settings,
    spec: impl FnOnce() -> Result<JoinSpec, Error> + Send,
) -> PyResult<Comm> {
    let joined = py.detach(|| {
        let config = Config::from_lookup(&lookup(settings))?;
        let mut spec = spec()?;
        spec.timeout = config.join_timeout;
        Communicator::builder().config(config).join(spec).connect()
    });
    Ok(Comm::new(joined.map_err(|error| exception(py, &error))?))
}
