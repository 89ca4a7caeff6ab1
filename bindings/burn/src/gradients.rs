//! Reduction of a module's gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use kolo::{Communicator, ReduceOp};

use crate::elements::{self, Started};
use crate::{Error, Result};

/// The largest number of bytes of gradients that are reduced in one call. A call serves many small gradients, and runs while the next ones
/// are gathered.
pub const BUCKET_BYTES: usize = 8 << 20;

/// Returns the gradients of a module's parameters, reduced over all ranks; `op` is usually [`ReduceOp::Avg`]. All ranks have modules of
/// the same shape. If some rank has a gradient of a parameter, the others contribute zeros, and all have one afterwards. A parameter without
/// a gradient on any rank stays without one, so that no optimizer changes it.
///
/// Gradients of one type are reduced in buckets of [`BUCKET_BYTES`]; while one bucket is reduced, the next one is gathered.
///
/// # Errors
/// As [`all_reduce`](crate::all_reduce).
pub fn all_reduce_gradients<M: Module>(
    comm: &Communicator,
    module: &M,
    gradients: GradientsParams,
    op: ReduceOp,
) -> Result<GradientsParams> {
    let mut looking = Looking { gradients: &gradients, is_used: Vec::new() };
    module.visit(&mut looking);
    let mut is_used = looking.is_used;
    comm.all_reduce(&mut is_used, ReduceOp::Max)?;
    let mut gathering = Gathering {
        comm,
        op,
        gradients: &gradients,
        is_used: is_used.iter(),
        bucket: Vec::new(),
        bytes: 0,
        started: Vec::new(),
        failure: None,
    };
    module.visit(&mut gathering);
    gathering.end_bucket();
    if let Some(failure) = gathering.failure {
        return Err(failure);
    }
    let mut sums = Vec::new();
    for bucket in gathering.started {
        sums.extend(bucket.finish()?);
    }
    let mut placing = Placing { sums: sums.into_iter(), is_used: is_used.iter(), gradients };
    module.visit(&mut placing);
    Ok(placing.gradients)
}

/// A visitor that notes which parameters have a gradient on this rank.
struct Looking<'g> {
    gradients: &'g GradientsParams,
    is_used: Vec<u8>,
}

impl ModuleVisitor for Looking<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.is_used.push(self.gradients.get::<D>(param.id).is_some().into());
    }
}

/// A visitor that starts the reductions, in the order of the parameters.
struct Gathering<'c, 'g> {
    comm: &'c Communicator,
    op: ReduceOp,
    gradients: &'g GradientsParams,
    is_used: std::slice::Iter<'g, u8>,
    bucket: Vec<TensorData>,
    bytes: usize,
    started: Vec<Started<'c>>,
    failure: Option<Error>,
}

impl Gathering<'_, '_> {
    fn end_bucket(&mut self) {
        self.bytes = 0;
        match elements::start(self.comm, std::mem::take(&mut self.bucket), self.op) {
            Ok(started) if self.failure.is_none() => self.started.push(started),
            Ok(_) => {}
            Err(error) => drop(self.failure.get_or_insert(error)),
        }
    }
}

impl ModuleVisitor for Gathering<'_, '_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.is_used.next() == Some(&0) || self.failure.is_some() {
            return;
        }
        let own = match self.gradients.get::<D>(param.id) {
            Some(gradient) => elements::read(gradient),
            None => elements::read(param.val().zeros_like()),
        };
        let own = match own {
            Ok(own) => own,
            Err(error) => return self.failure = Some(error),
        };
        let bytes = own.as_bytes().len();
        let is_another = self.bucket.first().is_some_and(|first| first.dtype() != own.dtype());
        if is_another || self.bytes + bytes > BUCKET_BYTES && !self.bucket.is_empty() {
            self.end_bucket();
        }
        self.bytes += bytes;
        self.bucket.push(own);
    }
}

/// A visitor that replaces the gradients by the results.
struct Placing<'u> {
    sums: std::vec::IntoIter<TensorData>,
    is_used: std::slice::Iter<'u, u8>,
    gradients: GradientsParams,
}

impl ModuleVisitor for Placing<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.is_used.next() == Some(&0) {
            return;
        }
        let Some(sum) = self.sums.next() else { unreachable!("there is one for each parameter in use") };
        let (dtype, device) = (sum.dtype(), param.val().device().inner());
        self.gradients.register(param.id, Tensor::<D>::from_data(sum, (&device, dtype)));
    }
}
