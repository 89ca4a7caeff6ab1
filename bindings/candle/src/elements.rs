//! Conversion of tensors to vectors of one type, as Kolo takes them, and back.

use candle_core::{DType, Tensor, WithDType};
use half::{bf16, f16};
use kolo::{Communicator, Element, ReduceOp};

use crate::{Error, Result};

/// Calls `$act::<T>($arguments)` with the type of a tensor's elements.
macro_rules! by_type {
    ($tensor:expr, $act:ident($($argument:expr),*)) => {
        match $tensor.dtype() {
            DType::U8 => $act::<u8>($($argument),*),
            DType::U32 => $act::<u32>($($argument),*),
            DType::I16 => $act::<i16>($($argument),*),
            DType::I32 => $act::<i32>($($argument),*),
            DType::I64 => $act::<i64>($($argument),*),
            DType::BF16 => $act::<bf16>($($argument),*),
            DType::F16 => $act::<f16>($($argument),*),
            DType::F32 => $act::<f32>($($argument),*),
            DType::F64 => $act::<f64>($($argument),*),
            other => Err(Error::DType(other)),
        }
    };
}

/// A reduction in progress.
pub(crate) struct Started<'c>(Box<dyn FnOnce() -> Result<Vec<Tensor>> + 'c>);

impl Started<'_> {
    /// Waits for the reduction; the results have the shapes and devices of the inputs.
    pub(crate) fn finish(self) -> Result<Vec<Tensor>> {
        (self.0)()
    }
}

/// Starts to reduce tensors of one type, joined into one vector.
pub(crate) fn all_reduce<'c>(
    comm: &'c Communicator,
    tensors: &[Tensor],
    op: ReduceOp,
) -> Result<Started<'c>> {
    match tensors {
        [] => Ok(Started(Box::new(|| Ok(Vec::new())))),
        [first, ..] => by_type!(first, start(comm, tensors, op)),
    }
}

fn start<'c, T: Element + WithDType>(
    comm: &'c Communicator,
    tensors: &[Tensor],
    op: ReduceOp,
) -> Result<Started<'c>> {
    let mut elements: Vec<T> = Vec::with_capacity(tensors.iter().map(Tensor::elem_count).sum());
    for tensor in tensors {
        elements.extend(vector::<T>(tensor)?);
    }
    let like: Vec<_> =
        tensors.iter().map(|tensor| (tensor.shape().clone(), tensor.device().clone())).collect();
    let work = comm.all_reduce_start(elements, op)?;
    Ok(Started(Box::new(move || {
        let sums = work.wait()?;
        let mut at = 0;
        let tensors = like.into_iter().map(|(shape, device)| {
            let own = &sums[at..at + shape.elem_count()];
            at += own.len();
            Ok(Tensor::from_slice(own, shape, &device)?)
        });
        tensors.collect()
    })))
}

pub(crate) fn all_gather(comm: &Communicator, tensor: &Tensor) -> Result<Tensor> {
    fn gather<T: Element + WithDType>(comm: &Communicator, tensor: &Tensor) -> Result<Tensor> {
        let mut dims = tensor.dims().to_vec();
        tensor.dim(0)?;
        let own = vector::<T>(tensor)?;
        let ranks = comm.world_size() as usize;
        let mut all = vec![T::zero(); own.len() * ranks];
        comm.all_gather(&own, &mut all)?;
        dims[0] *= ranks;
        Ok(Tensor::from_vec(all, dims, tensor.device())?)
    }
    by_type!(tensor, gather(comm, tensor))
}

pub(crate) fn broadcast(comm: &Communicator, tensor: &Tensor, root: u32) -> Result<Tensor> {
    fn send<T: Element + WithDType>(comm: &Communicator, tensor: &Tensor, root: u32) -> Result<Tensor> {
        let mut elements = vector::<T>(tensor)?;
        comm.broadcast(&mut elements, root)?;
        Ok(Tensor::from_vec(elements, tensor.shape(), tensor.device())?)
    }
    by_type!(tensor, send(comm, tensor, root))
}

fn vector<T: WithDType>(tensor: &Tensor) -> Result<Vec<T>> {
    Ok(tensor.flatten_all()?.to_vec1::<T>()?)
}
