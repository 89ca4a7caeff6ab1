//! Asynchronous operations on borrowed buffers: all operations started in a scope are done when the scope ends.

use std::cell::RefCell;
use std::marker::PhantomData;

use kolo_collectives::plan::Collective;

use super::Communicator;
use crate::call::{Call, Waited};
use crate::drive;
use crate::drive::Ticket;
use crate::error::Result;
use crate::types::{Element, ReduceOp};

/// Starts operations on buffers that outlive the scope. See [`Communicator::scope`].
#[derive(Debug)]
pub struct Scope<'buffers, 'communicator> {
    pub(super) communicator: &'communicator Communicator,
    started: RefCell<Vec<Started<'buffers>>>,
    /// Invariant in the lifetime of the buffers, as [`std::thread::Scope`] is.
    _buffers: PhantomData<&'buffers mut &'buffers ()>,
}

/// A started operation to wait for.
#[derive(Debug)]
struct Started<'buffers> {
    ticket: Ticket,
    /// Place for the source of a receive from any source.
    source: Option<&'buffers mut u32>,
}

/// # Asynchronous operations on borrowed buffers
impl Communicator {
    /// Runs `body`, which may start operations on borrowed buffers, and then blocks until all of them are done, even
    /// if `body` panics.
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

/// Waits for the operations of the scope if `body` unwinds.
struct Finish<'a, 'buffers, 'communicator>(&'a Scope<'buffers, 'communicator>);

impl Drop for Finish<'_, '_, '_> {
    fn drop(&mut self) {
        // The panic goes first. The communicator keeps an error besides it, and reports it at the next call.
        let _ = self.0.wait();
    }
}

/// Defines methods that start the call which the communicator builds from the same arguments.
macro_rules! starts {
    ($($what:literal $name:ident($($argument:ident: $type:ty),*) => $call:ident($($given:expr),*);)*) => {$(
        #[doc = concat!("Starts ", $what, ".\n\n# Errors\nAs [`Communicator::", stringify!($name), "`].")]
        pub fn $name<T: Element>(&self, $($argument: $type),*) -> Result<()> {
            self.start(&self.communicator.$call($($given),*)?)
        }
    )*};
}

impl<'buffers> Scope<'buffers, '_> {
    starts! {
        "an in-place all-reduce" all_reduce(buffer: &'buffers mut [T], op: ReduceOp)
            => vector_call(Collective::AllReduce, buffer, op, 0);
        "a broadcast" broadcast(buffer: &'buffers mut [T], root: u32)
            => vector_call(Collective::Broadcast, buffer, ReduceOp::Sum, root);
        "a reduce" reduce(input: &'buffers [T], output: &'buffers mut [T], op: ReduceOp, root: u32)
            => reduce_call(input, output, op, root);
        "an in-place scan" scan(buffer: &'buffers mut [T], op: ReduceOp)
            => vector_call(Collective::Scan, buffer, op, 0);
        "an in-place exclusive scan" exscan(buffer: &'buffers mut [T], op: ReduceOp)
            => vector_call(Collective::ExScan, buffer, op, 0);
        "an all-gather" all_gather(input: &'buffers [T], output: &'buffers mut [T])
            => all_gather_call(input, output);
        "a reduce-scatter" reduce_scatter(input: &'buffers [T], output: &'buffers mut [T], op: ReduceOp)
            => reduce_scatter_call(input, output, op);
        "a gather" gather(input: &'buffers [T], output: &'buffers mut [T], root: u32)
            => gather_call(input, output, root);
        "a scatter" scatter(input: &'buffers [T], output: &'buffers mut [T], root: u32)
            => scatter_call(input, output, root);
        "an all-to-all" all_to_all(input: &'buffers [T], output: &'buffers mut [T])
            => all_to_all_call(input, output);
        "an all-gather of blocks of unequal length. The counts are copied" all_gather_v(
            input: &'buffers [T], output: &'buffers mut [T], counts: &[usize]
        ) => all_gather_v_call(input, output, counts);
        "a reduce-scatter of blocks of unequal length" reduce_scatter_v(
            input: &'buffers [T], output: &'buffers mut [T], counts: &[usize], op: ReduceOp
        ) => reduce_scatter_v_call(input, output, counts, op);
        "a gather of blocks of unequal length" gather_v(
            input: &'buffers [T], output: &'buffers mut [T], counts: &[usize], root: u32
        ) => gather_v_call(input, output, counts, root);
        "a scatter of blocks of unequal length" scatter_v(
            input: &'buffers [T], output: &'buffers mut [T], counts: &[usize], root: u32
        ) => scatter_v_call(input, output, counts, root);
        "an all-to-all of blocks of unequal length" all_to_all_v(
            input: &'buffers [T], send_counts: &[usize], output: &'buffers mut [T], recv_counts: &[usize]
        ) => all_to_all_v_call(input, send_counts, output, recv_counts);
    }

    /// Starts a barrier.
    ///
    /// # Errors
    /// See [`Communicator::barrier`].
    pub fn barrier(&self) -> Result<()> {
        self.start(&self.communicator.barrier_call())
    }

    /// Starts a call made from borrowed buffers.
    fn start(&self, call: &Call) -> Result<()> {
        // SAFETY: only the methods above call this. They make calls from buffers borrowed for 'buffers, which
        // outlives the scope, and the scope does not end before the operation is done or the engine was aborted.
        let ticket = unsafe { drive::start(&self.communicator.shared, call, None) }?;
        self.note(ticket, None);
        Ok(())
    }

    /// Makes the scope wait for a started operation.
    pub(super) fn note(&self, ticket: Ticket, source: Option<&'buffers mut u32>) {
        self.started.borrow_mut().push(Started { ticket, source });
    }

    /// Waits for all started operations. After an error or a panic the engine has been aborted, so the others are
    /// over too.
    fn wait(&self) -> Result<()> {
        let shared = &self.communicator.shared;
        shared.check_process(|| Waited::Other("scope"))?;
        drive::lend(shared, || {
            let mut result = Ok(());
            for Started { ticket: Ticket { id, waited }, source } in self.started.borrow_mut().drain(..) {
                if result.is_ok() {
                    match drive::wait_for(shared, shared.core(), id, waited, shared.config.timeout) {
                        Ok(mut core) => {
                            if let (Some(source), Some(from)) = (source, core.engine.other_end(id)) {
                                *source = from;
                            }
                            core.engine.release(id);
                        }
                        Err(error) => result = Err(error),
                    }
                } else {
                    shared.core().engine.release(id);
                }
            }
            result
        })
    }
}
