//! Collectives of [Kolo](kolo) on tensors, gradients and modules of [burn].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use kolo::{Cluster, ReduceOp};
//!
//! let sums = Cluster::local(3, |comm| -> kolo_burn::Result<Vec<f32>> {
//!     let own = Tensor::<1>::from_data([comm.rank() as f32, 1.0], &Device::default());
//!     Ok(kolo_burn::all_reduce(&comm, own, ReduceOp::Sum)?.into_data().try_to_vec()?)
//! })?;
//! for sum in sums {
//!     assert_eq!(sum?, [3.0, 3.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Data-parallel training needs one more line per step, [`all_reduce_gradients`], between `backward` and the optimizer's step.
//! [`broadcast_module`] gives all ranks the same initial values.
//!
//! Tensors may be on any device, and go through host memory; results are on the device of the input. Elements of all types can be sent,
//! but quantized tensors only by [`broadcast`]. Elements of types that Kolo has too can be reduced: floats except `Flex32`, and integers.
//!
//! All ranks call the same functions in the same order, with tensors of the same shape and type. Every call blocks until its result is
//! there. Kolo's errors are passed on unchanged, with rank, operation and remedy ([`Error::Kolo`]).

mod elements;
mod gradients;
mod modules;

use std::fmt;

use burn::tensor::{DType, Tensor};
use kolo::{Communicator, ReduceOp};

pub use gradients::{BUCKET_BYTES, all_reduce_gradients};
pub use modules::broadcast_module;

/// The error of a call on tensors.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An error of Kolo.
    Kolo(kolo::Error),
    /// An error of burn on this rank alone. The other ranks wait for this rank until their time-out.
    Burn(String),
    /// Kolo does not reduce elements of this type, or the tensor is quantized and was to be gathered. Nothing was sent.
    DType(DType),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kolo(error) => error.fmt(f),
            Self::Burn(problem) => f.write_str(problem),
            Self::DType(DType::QFloat(_)) => {
                f.write_str("quantized tensors can be neither reduced nor gathered; dequantize them first")
            }
            Self::DType(dtype) => write!(f, "tensors of {dtype:?} cannot be reduced; cast them first"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Kolo(error) => Some(error),
            Self::Burn(_) | Self::DType(_) => None,
        }
    }
}

impl From<kolo::Error> for Error {
    fn from(error: kolo::Error) -> Self {
        Self::Kolo(error)
    }
}

impl From<burn::tensor::DataError> for Error {
    fn from(error: burn::tensor::DataError) -> Self {
        Self::Burn(format!("{error:?}"))
    }
}

/// Result of calls on tensors.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the reduction of all ranks' tensors, on every rank, with the shape of the input. The result is detached: gradients do not flow
/// through it.
///
/// # Errors
/// Those of [`Communicator::all_reduce`]; [`Error::DType`].
pub fn all_reduce<const D: usize>(comm: &Communicator, tensor: Tensor<D>, op: ReduceOp) -> Result<Tensor<D>> {
    let device = tensor.device();
    let own = elements::read(tensor)?;
    let dtype = own.dtype();
    let sum = elements::start(comm, vec![own], op)?
        .finish()?
        .pop()
        .unwrap_or_else(|| unreachable!("one tensor, one result"));
    Ok(Tensor::from_data(sum, (&device, dtype)))
}

/// Returns the tensors of all ranks, in rank order, concatenated along the first dimension: `[n, ...]` on each rank gives
/// `[n * world size, ...]`.
///
/// # Errors
/// Those of [`Communicator::all_gather`]; [`Error::DType`] for quantized tensors.
pub fn all_gather<const D: usize>(comm: &Communicator, tensor: Tensor<D>) -> Result<Tensor<D>> {
    let device = tensor.device();
    let own = elements::read(tensor)?;
    let dtype = own.dtype();
    Ok(Tensor::from_data(elements::all_gather(comm, own)?, (&device, dtype)))
}

/// Returns the root's tensor, on every rank. On other ranks, `tensor` gives shape, type and device.
///
/// # Errors
/// Those of [`Communicator::broadcast`].
pub fn broadcast<const D: usize>(comm: &Communicator, tensor: Tensor<D>, root: u32) -> Result<Tensor<D>> {
    let device = tensor.device();
    let own = elements::read(tensor)?;
    let dtype = own.dtype();
    Ok(Tensor::from_data(elements::broadcast(comm, own, root)?, (&device, dtype)))
}
