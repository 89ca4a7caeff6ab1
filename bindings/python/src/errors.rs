//! Converts Kolo's errors to the exception classes of `kolo.errors`.

use kolo_rs::{AbortReason, Error, ErrorContext};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule};

static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Makes the exception for an error. The class says the kind of the error; the error's fields become attributes.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let (class, context, peer) = match error {
        Error::Usage { context, .. } => ("Usage", Some(context), None),
        Error::Configuration { .. } => ("Configuration", None, None),
        Error::Join { .. } => ("Join", None, None),
        Error::Mismatch { context, peer, .. } => ("Mismatch", Some(context), Some(*peer)),
        Error::PeerLost { context, peer, .. } => ("PeerLost", Some(context), Some(*peer)),
        Error::Timeout { context, waiting_for, .. } => {
            ("Timeout", Some(context), waiting_for.first().map(|awaited| awaited.rank))
        }
        Error::Aborted { context, by, kind, .. } => {
            let class = match kind {
                AbortReason::Revoked => "Revoked",
                AbortReason::Fenced => "Fenced",
                AbortReason::Minority => "Minority",
                _ => "Aborted",
            };
            (class, Some(context), Some(*by))
        }
        Error::Unsupported { context, .. } => ("Unsupported", Some(context), None),
        Error::Transport { context, .. } => ("Transport", Some(context), None),
        Error::System { .. } => ("System", None, None),
        _ => ("Error", None, None),
    };
    let rank = match error {
        Error::Join { rank, .. } => *rank,
        _ => context.and_then(|context| context.rank),
    };
    let made = make(py, class, &error.to_string(), rank, context, peer, Some(error.code()));
    made.unwrap_or_else(|problem| problem)
}

/// Makes the exception of a call that makes no sense, for calls that do not reach the runtime.
pub(crate) fn usage(problem: impl AsRef<str>) -> PyErr {
    Python::attach(|py| {
        make(py, "Usage", problem.as_ref(), None, None, None, None).unwrap_or_else(|problem| problem)
    })
}

fn make(
    py: Python<'_>,
    class: &str,
    message: &str,
    rank: Option<u32>,
    context: Option<&ErrorContext>,
    peer: Option<u32>,
    code: Option<&str>,
) -> PyResult<PyErr> {
    let classes = CLASSES.get_or_try_init(py, || Ok::<_, PyErr>(py.import("kolo.errors")?.unbind()))?;
    let fields = PyDict::new(py);
    fields.set_item("rank", rank)?;
    fields.set_item("operation", context.map(|context| context.operation.as_str()))?;
    fields.set_item("sequence", context.and_then(|context| context.sequence))?;
    fields.set_item("peer", peer)?;
    fields.set_item("code", code)?;
    let exception = classes.bind(py).getattr(class)?.call((message,), Some(&fields))?;
    Ok(PyErr::from_value(exception))
}
