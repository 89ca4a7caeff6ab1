//! Reduction of a model's gradients.

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use kolo::{Communicator, ReduceOp};

use crate::{Result, elements};

/// The largest number of bytes of gradients that are reduced in one call. A call serves many small gradients, and runs while the next ones
/// are gathered.
pub const BUCKET_BYTES: usize = 8 << 20;

/// Returns the variables of a map sorted by name, which is the same order on all ranks. The order of [`VarMap::all_vars`] differs between
/// processes, so calls in that order would not match.
///
/// # Panics
/// If a thread panicked while it held the map.
#[must_use]
pub fn ordered_vars(map: &VarMap) -> Vec<Var> {
    let vars = map.data().lock().expect("the map is whole");
    let mut named: Vec<_> = vars.iter().collect();
    named.sort_by_key(|(name, _)| *name);
    named.into_iter().map(|(_, var)| var.clone()).collect()
}

/// Replaces each variable's gradient by its reduction over all ranks; `op` is usually [`ReduceOp::Avg`]. `vars` has the same variables in
/// the same order on all ranks: see [`ordered_vars`]. If some rank has a gradient of a variable, the others contribute zeros, and all
/// have one afterwards. A variable without a gradient on any rank stays without one, so that no optimizer changes it.
///
/// Gradients of one type are reduced in buckets of [`BUCKET_BYTES`]; while one bucket is reduced, the next one is gathered.
///
/// # Errors
/// As [`all_reduce`](crate::all_reduce). After an error, some gradients may be replaced and others not.
pub fn all_reduce_gradients(
    comm: &Communicator,
    gradients: &mut GradStore,
    vars: &[Var],
    op: ReduceOp,
) -> Result<()> {
    let mut is_used: Vec<u8> = vars.iter().map(|var| gradients.get(var).is_some().into()).collect();
    comm.all_reduce(&mut is_used, ReduceOp::Max)?;
    let vars: Vec<_> =
        vars.iter().zip(is_used).filter(|(_, is_used)| *is_used > 0).map(|(var, _)| var).collect();
    let mut own = Vec::with_capacity(vars.len());
    for var in &vars {
        own.push(match gradients.get(var) {
            Some(gradient) => gradient.clone(),
            None => var.zeros_like()?,
        });
    }
    let mut started = Vec::new();
    for bucket in own.chunk_by_bytes() {
        started.push(elements::all_reduce(comm, bucket, op)?);
    }
    let mut vars = vars.iter();
    for bucket in started {
        for (gradient, var) in bucket.finish()?.into_iter().zip(vars.by_ref()) {
            gradients.insert(var, gradient);
        }
    }
    Ok(())
}

trait ChunkByBytes {
    /// Divides the tensors into runs of one type, of up to [`BUCKET_BYTES`] each.
    fn chunk_by_bytes(&self) -> Vec<&[Tensor]>;
}

impl ChunkByBytes for [Tensor] {
    fn chunk_by_bytes(&self) -> Vec<&[Tensor]> {
        let mut chunks = Vec::new();
        let mut rest = self;
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fits = |tensor: &&Tensor| {
                bytes += tensor.elem_count() * tensor.dtype().size_in_bytes();
                tensor.dtype() == first.dtype() && bytes <= BUCKET_BYTES
            };
            let (chunk, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            chunks.push(chunk);
            rest = after;
        }
        chunks
    }
}
