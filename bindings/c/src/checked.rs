//! Checked conversion of C's numbers and pointers to values.

use std::ffi::{CStr, c_char, c_int};

use kolo_rs::{Collective, DataType, ReduceOp};

use crate::abi::Versioned;
use crate::guard::{Outcome, usage};

/// Parses a `koloDataType_t`.
pub(crate) fn data_type(number: c_int) -> Outcome<DataType> {
    known(&DataType::ALL, number)
        .ok_or_else(|| usage(format!("{number} is not a koloDataType_t; use a value such as KOLO_FLOAT32")))
}

/// Parses a `koloCollective_t`.
pub(crate) fn collective(number: c_int) -> Outcome<Collective> {
    known(&Collective::ALL, number).ok_or_else(|| {
        usage(format!("{number} is not a koloCollective_t; use a value such as KOLO_ALL_REDUCE"))
    })
}

/// Parses a `koloRedOp_t`. `factor` is `None` in calls that take no factor.
pub(crate) fn op(number: c_int, factor: Option<f64>) -> Outcome<ReduceOp> {
    match (known(&ReduceOp::ALL, number), factor) {
        (Some(ReduceOp::PremulSum(_)), Some(factor)) => Ok(ReduceOp::PremulSum(factor)),
        (Some(ReduceOp::PremulSum(_)), None) => {
            Err(usage("KOLO_PREMUL_SUM needs a factor; use koloRun or koloStart"))
        }
        (Some(op), _) => Ok(op),
        (None, _) => Err(usage(format!("{number} is not a koloRedOp_t; use a value such as KOLO_SUM"))),
    }
}

/// Returns the value with this number.
fn known<T: Copy>(all: &[T], number: c_int) -> Option<T> {
    usize::try_from(number).ok().and_then(|at| all.get(at).copied())
}

/// Checks a rank, root, key or number of ranks.
pub(crate) fn number(what: &str, number: c_int) -> Outcome<u32> {
    u32::try_from(number).map_err(|_| usage(format!("{what} is {number}, but must be 0 or more")))
}

/// Returns a string; `None` for null.
///
/// # Safety
/// `text` is null or a C string that lives as long as the call.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a C string by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| usage(format!("{what} is not UTF-8: {}", text.to_string_lossy())))
}

/// Checks the head of a struct that C filled.
pub(crate) fn head(name: &str, found: Versioned, known: Versioned) -> Outcome {
    let initializer = match name {
        "koloConfig_t" => "KOLO_CONFIG_INITIALIZER",
        _ => "KOLO_CALL_INITIALIZER",
    };
    if found.magic != known.magic {
        return Err(usage(format!("the {name} was not initialized; start from {initializer}")));
    }
    if found.version > known.version || found.size > known.size {
        return Err(usage(format!(
            "the {name} has version {} and {} bytes, but this library knows version {} with {}: it is older \
             than the kolo.h that the program was compiled with; install the newer library",
            found.version, found.size, known.version, known.size
        )));
    }
    // There is one version so far. Later versions will accept the sizes of earlier ones, and fill in the missing fields.
    if found.version != known.version || found.size != known.size {
        return Err(usage(format!(
            "the {name} was changed after its initialization; start from {initializer}"
        )));
    }
    Ok(())
}
