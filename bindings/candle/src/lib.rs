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
//! A step of data-parallel training adds one line, [`all_reduce_gradients`], between `backward` and the optimizer's step;
//! [`broadcast_vars`] gives all ranks the same start.
//!
//! Tensors of any device are taken, by way of host memory. They may have any layout; results are contiguous, on the device of the input.
//! Element types are those that both libraries know: `u8`, `u32`, `i16`, `i32`, `i64`, `bf16`, `f16`, `f32`, `f64`.
//!
//! All ranks call the same functions in the same order, with tensors of the same shape and type. Every call blocks until its result is
//! there. Kolo's errors come through as they are, with rank, operation and remedy ([`Error::Kolo`]).

mod elements;
mod gradients;

use std::fmt;

use candle_core::{DType, Tensor, Var};
use kolo::{Communicator, ReduceOp};

pub use gradients::{BUCKET_BYTES, all_reduce_gradients, ordered_vars};

/// Why a call on tensors has failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Kolo's reason.
    Kolo(kolo::Error),
    /// Candle's reason, on this rank alone: the others wait for it until their time-out.
    Candle(candle_core::Error),
    /// Kolo reduces and moves no elements of this type. Nothing was sent.
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

/// The reduction of all ranks' tensors, on every rank, with the shape of the input. Detached: gradients do not flow through it.
///
/// # Errors
/// Those of [`Communicator::all_reduce`]; [`Error::DType`].
pub fn all_reduce(comm: &Communicator, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    elements::all_reduce(comm, std::slice::from_ref(tensor), op)?
        .finish()?
        .pop()
        .ok_or_else(|| unreachable!("one tensor, one result"))
}

/// The tensors of all ranks, in rank order, one after another along the first dimension: `[n, ...]` on each rank gives
/// `[n * world size, ...]`.
///
/// # Errors
/// Those of [`Communicator::all_gather`]; [`Error::DType`]; candle's for a tensor without dimensions.
pub fn all_gather(comm: &Communicator, tensor: &Tensor) -> Result<Tensor> {
    elements::all_gather(comm, tensor)
}

/// The root's tensor, on every rank. On other ranks, `tensor` gives shape, type and device.
///
/// # Errors
/// Those of [`Communicator::broadcast`]; [`Error::DType`].
pub fn broadcast(comm: &Communicator, tensor: &Tensor, root: u32) -> Result<Tensor> {
    elements::broadcast(comm, tensor, root)
}

/// Sets variables to those of the root, one after another: the common start of a training.
///
/// # Errors
/// As [`broadcast`]. Variables before the one that failed are set.
pub fn broadcast_vars(comm: &Communicator, vars: &[Var], root: u32) -> Result<()> {
    for var in vars {
        var.set(&broadcast(comm, var.as_tensor(), root)?)?;
    }
    Ok(())
}
