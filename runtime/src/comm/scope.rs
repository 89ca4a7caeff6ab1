//! Asynchronous operations on borrowed buffers: everything started in a scope is done when the scope ends.

use std::cell::RefCell;
use std::marker::PhantomData;

use kolo_collectives::plan::Collective;

use super::{Communicator, Ticket};
use crate::call::{Call, RawCall};
use crate::error::Result;
use crate::types::{Element, ReduceOp};

/// Starts operations on buffers that outlive the scope. See [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'buffers, 'communicator> {
    communicator: &'communicator Communicator,
    started: RefCell<Vec<Ticket>>,
    /// Invariant in the lifetime of the buffers, as [`std::thread::Scope`] is.
    _buffers: PhantomData<&'buffers mut &'buffers ()>,
}

impl Communicator {
    /// Runs `body`, which may start operations on borrowed buffers, and then waits for all of them, even if `body`
    /// panics. Blocks until all are done.
    ///
    /// # Errors
    /// The first error of `body` or of an operation.
    pub fn scope<'buffers, R>(
        &self,
        body: impl for<'c> FnOnce(&Scope<'buffers, 'c>) -> Result<R>,
    ) -> Result<R> {
        let scope = Scope { communicator: self, started: RefCell::default(), _buffers: PhantomData };
        let finish = Finish(&scope);
        let result = body(finish.0);
        std::mem::forget(finish);
        let waited = scope.wait();
        result.and_then(|value| waited.map(|()| value))
    }
}

/// Waits when `body` unwinds.
struct Finish<'a, 'buffers, 'communicator>(&'a Scope<'buffers, 'communicator>);

impl Drop for Finish<'_, '_, '_> {
    fn drop(&mut self) {
        // The panic is the news; an error besides it is in the communicator, which reports it at the next call.
        let _ = self.0.wait();
    }
}

impl<'buffers> Scope<'buffers, '_> {
    /// Starts an in-place all-reduce.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(&self, buffer: &'buffers mut [T], op: ReduceOp) -> Result<()> {
        let at = buffer.as_mut_ptr();
        self.start(Collective::AllReduce, at, at, buffer.len(), op, 0)
    }

    /// Starts a broadcast.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast<T: Element>(&self, buffer: &'buffers mut [T], root: u32) -> Result<()> {
        let at = buffer.as_mut_ptr();
        self.start(Collective::Broadcast, at, at, buffer.len(), ReduceOp::Sum, root)
    }

    /// Starts an all-gather.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`].
    pub fn all_gather<T: Element>(&self, input: &'buffers [T], output: &'buffers mut [T]) -> Result<()> {
        let want = input.len() * self.communicator.world_size() as usize;
        self.communicator.expect_len(Collective::AllGather, "output", output.len(), want)?;
        self.start(Collective::AllGather, input.as_ptr(), output.as_mut_ptr(), input.len(), ReduceOp::Sum, 0)
    }

    /// Starts a reduce-scatter.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &'buffers [T],
        output: &'buffers mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let want = output.len() * self.communicator.world_size() as usize;
        self.communicator.expect_len(Collective::ReduceScatter, "input", input.len(), want)?;
        self.start(Collective::ReduceScatter, input.as_ptr(), output.as_mut_ptr(), output.len(), op, 0)
    }

    fn start<T: Element>(
        &self,
        collective: Collective,
        input: *const T,
        output: *mut T,
        count: usize,
        op: ReduceOp,
        root: u32,
    ) -> Result<()> {
        let call = RawCall {
            collective,
            input: input.cast(),
            output: output.cast(),
            count,
            data_type: T::TYPE,
            op,
            root,
        };
        let call = Call::check(&call, self.communicator.rank(), self.communicator.world_size())?;
        // SAFETY: the buffers are borrowed for 'buffers, which outlives the scope, and the scope does not end before
        // the operation is done or the engine was aborted.
        let ticket = unsafe { self.communicator.shared.start(&call, None) }?;
        self.started.borrow_mut().push(ticket);
        Ok(())
    }

    /// Waits for everything started; after an error the engine has been aborted, so the rest is over too.
    fn wait(&self) -> Result<()> {
        let shared = &self.communicator.shared;
        let mut result = Ok(());
        for Ticket { id, waited } in self.started.borrow_mut().drain(..) {
            if result.is_ok() {
                match shared.wait_for(shared.core(), id, waited, shared.config.timeout) {
                    Ok(mut core) => {
                        drop(core.engine.finish(id));
                        shared.end(&mut core, waited);
                    }
                    Err(error) => result = Err(error),
                }
            } else {
                drop(shared.core().engine.finish(id));
            }
        }
        result
    }
}
