//! Conversion of tensors to vectors of one type, as Kolo takes them, and back.

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Element as BurnElement, Tensor, TensorData};
use half::{bf16, f16};
use kolo::{Communicator, Element, ReduceOp};

use crate::{Error, Result};

/// Returns the elements of a tensor, in host memory.
pub(crate) fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData> {
    tensor.try_into_data().map_err(|error| Error::Burn(format!("{error:?}")))
}

/// A reduction in progress.
pub(crate) struct Started<'c>(Box<dyn FnOnce() -> Result<Vec<TensorData>> + 'c>);

impl Started<'_> {
    /// Waits for the reduction; the results have the shapes of the inputs.
    pub(crate) fn finish(self) -> Result<Vec<TensorData>> {
        (self.0)()
    }
}

/// Starts to reduce tensors of one type, joined into one vector.
pub(crate) fn start<'c>(
    comm: &'c Communicator,
    tensors: Vec<TensorData>,
    op: ReduceOp,
) -> Result<Started<'c>> {
    let Some(first) = tensors.first() else { return Ok(Started(Box::new(|| Ok(Vec::new())))) };
    match first.dtype() {
        DType::F64 => start_of::<f64>(comm, tensors, op),
        DType::F32 => start_of::<f32>(comm, tensors, op),
        DType::F16 => start_of::<f16>(comm, tensors, op),
        DType::BF16 => start_of::<bf16>(comm, tensors, op),
        DType::I64 => start_of::<i64>(comm, tensors, op),
        DType::I32 => start_of::<i32>(comm, tensors, op),
        DType::I16 => start_of::<i16>(comm, tensors, op),
        DType::I8 => start_of::<i8>(comm, tensors, op),
        DType::U64 => start_of::<u64>(comm, tensors, op),
        DType::U32 => start_of::<u32>(comm, tensors, op),
        DType::U16 => start_of::<u16>(comm, tensors, op),
        DType::U8 => start_of::<u8>(comm, tensors, op),
        other => Err(Error::DType(other)),
    }
}

fn start_of<'c, T: Element + BurnElement>(
    comm: &'c Communicator,
    mut tensors: Vec<TensorData>,
    op: ReduceOp,
) -> Result<Started<'c>> {
    let shapes: Vec<_> = tensors.iter().map(|tensor| tensor.shape().clone()).collect();
    let elements = match tensors.len() {
        1 => tensors.remove(0).try_into_vec::<T>()?,
        _ => {
            let mut all = Vec::with_capacity(shapes.iter().map(|shape| shape.num_elements()).sum());
            for tensor in &tensors {
                all.extend_from_slice(tensor.as_slice::<T>()?);
            }
            all
        }
    };
    let work = comm.all_reduce_start(elements, op)?;
    Ok(Started(Box::new(move || {
        let sums = work.wait()?;
        let mut rest = &sums[..];
        let tensors = shapes.into_iter().map(|shape| {
            let (own, after) = rest.split_at(shape.num_elements());
            rest = after;
            TensorData::new(own.to_vec(), shape)
        });
        Ok(tensors.collect())
    })))
}

pub(crate) fn all_gather(comm: &Communicator, own: TensorData) -> Result<TensorData> {
    let (mut shape, dtype) = (own.shape().clone(), own.dtype());
    if let DType::QFloat(_) = dtype {
        // Their scales lie behind the values, so their bytes cannot be concatenated.
        return Err(Error::DType(dtype));
    }
    let ranks = comm.world_size() as usize;
    let mut all = vec![0_u8; own.as_bytes().len() * ranks];
    comm.all_gather(own.as_bytes(), &mut all)?;
    shape[0] *= ranks;
    Ok(TensorData::from_bytes_vec(all, shape, dtype))
}

pub(crate) fn broadcast(comm: &Communicator, own: TensorData, root: u32) -> Result<TensorData> {
    let (shape, dtype) = (own.shape().clone(), own.dtype());
    let mut bytes = own.into_bytes();
    comm.broadcast(&mut bytes[..], root)?;
    Ok(TensorData::from_bytes(bytes, shape, dtype))
}
