//! Rendezvous through a Python object.

use kolo_rs::internal::join::Board;
use pyo3::prelude::*;

/// An object with the methods `publish(bytes)`, `read() -> bytes or None`, `name() -> str` and `served_by() -> str or
/// None`. The texts of its exceptions become reasons of errors.
#[derive(Debug)]
pub(crate) struct PythonBoard {
    pub(crate) object: Py<PyAny>,
}

impl Board for PythonBoard {
    fn publish(&self, notice: &[u8]) -> Result<(), String> {
        Python::attach(|py| self.object.call_method1(py, "publish", (notice,)).map(drop).map_err(reason))
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        let read = |py: Python<'_>| -> PyResult<Option<Vec<u8>>> {
            self.object.call_method0(py, "read")?.extract(py)
        };
        let found = Python::attach(|py| read(py).map_err(reason))?;
        found.ok_or_else(|| "rank 0 has not published its address yet".to_owned())
    }

    fn name(&self) -> String {
        let name = |py: Python<'_>| -> PyResult<String> { self.object.call_method0(py, "name")?.extract(py) };
        Python::attach(|py| name(py).unwrap_or_else(reason))
    }

    fn served_by(&self) -> Option<String> {
        let host = |py: Python<'_>| -> PyResult<Option<String>> {
            self.object.call_method0(py, "served_by")?.extract(py)
        };
        Python::attach(|py| host(py).ok().flatten())
    }
}

fn reason(error: PyErr) -> String {
    error.to_string()
}
