//! Broadcast of a module's parameters.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor};
use kolo::Communicator;

use crate::{Error, Result, elements};

/// Returns the module with the root's parameters and states, on every rank, so that all ranks begin a training with the same values.
/// Parameters keep their identities, their devices, and whether they have gradients.
///
/// # Errors
/// As [`broadcast`](crate::broadcast).
pub fn broadcast_module<M: Module>(comm: &Communicator, module: M, root: u32) -> Result<M> {
    let mut copying = Copying { comm, root, failure: None };
    let module = module.map(&mut copying);
    copying.failure.map_or(Ok(module), Err)
}

struct Copying<'c> {
    comm: &'c Communicator,
    root: u32,
    failure: Option<Error>,
}

impl Copying<'_> {
    fn copy<const D: usize, K: Basic>(&mut self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        if self.failure.is_some() {
            return tensor;
        }
        let device = tensor.device();
        let copied =
            elements::read(tensor.clone()).and_then(|own| elements::broadcast(self.comm, own, self.root));
        match copied {
            Ok(copied) => {
                let dtype = copied.dtype();
                Tensor::from_data(copied, (&device, dtype))
            }
            Err(error) => {
                self.failure = Some(error);
                tensor
            }
        }
    }
}

impl ModuleMapper for Copying<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let has_gradient = tensor.is_require_grad();
            self.copy(tensor).set_require_grad(has_gradient)
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| self.copy(tensor))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| self.copy(tensor))
    }
}
