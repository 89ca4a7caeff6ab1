//! Collectives of [Kolo](kolo) on tensors and gradients of [candle](candle_core).
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use kolo::{Cluster, ReduceOp};
//!
//! let sums = Cluster::local(3, |comm| -> kolo_candle::Result<Vec<f32>> {
//!     let own = Tensor::new(&[comm.rank() as f32, 1.0], &Device::Cpu)?;
//!     Ok(kolo_candle::all_reduce(&comm, &own, ReduceOp::Sum)?.to_vec1()?)
//! })?;
//! for sum in sums {
//!     assert_eq!(sum?, [3.0, 3.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Data-parallel training needs one more line per step, [`all_reduce_gradients`], between `backward` and the optimizer's step.
//! [`broadcast_vars`] gives all ranks the same initial values.
//!
//! Tensors may be on any device, and go through host memory. They may have any layout; results are contiguous, on the device of the
//! input. Element types are those that both libraries have: `u8`, `u32`, `i16`, `i32`, `i64`, `bf16`, `f16`, `f32`, `f64`.
//!
//! All ranks call the same functions in the same order, with tensors of the same shape and type. Every call blocks until its result is
//! there. Kolo's errors are passed on unchanged, with rank, operation and remedy ([`Error::Kolo`]).

mod elements;
mod gradients;

use std::fmt;

use candle_core::{DType, Tensor, Var};
use kolo::{Communicator, ReduceOp};

pub use gradients::{BUCKET_BYTES, all_reduce_gradients, ordered_vars};

/// The error of a call on tensors.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An error of Kolo.
    Kolo(kolo::Error),
    /// An error of candle on this rank alone. The other ranks wait for this rank until their time-out.
    Candle(candle_core::Error),
    /// Kolo neither reduces nor moves elements of this type. Nothing was sent.
    DType(DType),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kolo(error) => error.fmt(f),
            Self::Candle(error) => error.fmt(f),
            Self::DType(dtype) => {
                write!(
                    f,
                    "tensors of {dtype:?} cannot be sent; convert them first, for example by to_dtype(DType::F32)"
                )
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Kolo(error) => Some(error),
            Self::Candle(error) => Some(error),
            Self::DType(_) => None,
        }
    }
}

impl From<kolo::Error> for Error {
    fn from(error: kolo::Error) -> Self {
        Self::Kolo(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

/// Result of calls on tensors.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the reduction of all ranks' tensors, on every rank, with the shape of the input. The result is detached: gradients do not flow
/// through it.
///
/// # Errors
/// Those of [`Communicator::all_reduce`]; [`Error::DType`].
pub fn all_reduce(comm: &Communicator, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    elements::all_reduce(comm, std::slice::from_ref(tensor), op)?
        .finish()?
        .pop()
        .ok_or_else(|| unreachable!("one tensor, one result"))
}

/// Returns the tensors of all ranks, in rank order, concatenated along the first dimension: `[n, ...]` on each rank gives
/// `[n * world size, ...]`.
///
/// # Errors
/// Those of [`Communicator::all_gather`]; [`Error::DType`]; candle's error for a tensor without dimensions.
pub fn all_gather(comm: &Communicator, tensor: &Tensor) -> Result<Tensor> {
    elements::all_gather(comm, tensor)
}

/// Returns the root's tensor, on every rank. On other ranks, `tensor` gives shape, type and device.
///
/// # Errors
/// Those of [`Communicator::broadcast`]; [`Error::DType`].
pub fn broadcast(comm: &Communicator, tensor: &Tensor, root: u32) -> Result<Tensor> {
    elements::broadcast(comm, tensor, root)
}

/// Sets variables to those of the root, one after another, so that all ranks begin a training with the same values.
///
/// # Errors
/// As [`broadcast`]. Variables before the one that failed are set.
pub fn broadcast_vars(comm: &Communicator, vars: &[Var], root: u32) -> Result<()> {
    for var in vars {
        var.set(&broadcast(comm, var.as_tensor(), root)?)?;
    }
    Ok(())
}
