//! Reductions over shards: the bits of their results depend neither on the number of ranks nor on which ranks there
//! are.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use kolo_collectives::plan::{Collective, Placement};
use kolo_collectives::shards::{MAX_RANKS, MAX_SHARDS, are_aligned, of_rank};

use super::Communicator;
use crate::call::ranges::is_addressable;
use crate::call::{Call, Counts, Form, RawCall, Waited};
use crate::communicator::{Shared, on_gpus};
use crate::config::Determinism;
use crate::drive;
use crate::error::{Error, Result};
use crate::reduce::{DefaultFloats, combine_fn};
use crate::types::{Element, ReduceOp};

/// # Reductions over shards
impl Communicator {
    /// Returns this rank's run of the `shards` shards: from `rank * shards / world_size` to where the next rank's
    /// begins. Some ranks have none if there are fewer shards than ranks.
    #[must_use]
    pub fn own_shards(&self, shards: u32) -> Range<u32> {
        of_rank(shards, self.rank(), self.world_size())
    }

    /// Reduces `shards` vectors, the *shards* of a job, element by element to `output` on every rank. `input` holds
    /// this rank's run of them ([`Communicator::own_shards`]), one behind the other, each as long as `output`.
    ///
    /// Additions follow a balanced tree over the shards. The result is therefore the same, bit for bit, for any
    /// number of ranks, on any transports and with all settings, even after ranks have died and others have taken
    /// over their shards. A job that fixes the number of shards, and computes each of them alike, gets the same
    /// result with 1 rank and with 16. [`ReduceOp::Avg`] divides by the number of shards.
    ///
    /// Where all ranks have the same power of two of shards, the call takes as long as reducing the rank's own shards
    /// and an all-reduce, and with [`Determinism::Canonical`] it takes the same paths. In other cases each rank sends
    /// several partial results: see docs/elastic.md.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls). [`Error::Usage`] if `shards` is 0 or more than 16,384, if
    /// `input` has the wrong length, or for [`ReduceOp::PremulSum`].
    pub fn all_reduce_shards<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        shards: u32,
        op: ReduceOp,
    ) -> Result<()> {
        let wanted = self.own_shards(shards).len().saturating_mul(output.len());
        if input.len() != wanted && (1..=MAX_SHARDS).contains(&shards) {
            let (run, count, found) = (self.own_shards(shards), output.len(), input.len());
            let problem = format!(
                "the input holds {found} elements, but {wanted} are needed: shards {} to {} of {shards}, \
                 {count} each",
                run.start, run.end
            );
            return Err(self.usage("all_reduce_shards", problem));
        }
        let raw = RawCall {
            collective: Collective::AllReduce,
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            count: output.len(),
            data_type: T::TYPE,
            op,
            root: 0,
        };
        let call = self.shards_call(&raw, shards)?;
        // SAFETY: the slices are as long as the call says, which was checked, and borrowed until it is over.
        unsafe { run(&self.shared, call, self.shared.config.timeout) }
    }

    /// Like [`Communicator::all_reduce_shards`], on raw memory: `call` is an all-reduce of `count` elements per
    /// shard, out of place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_shards`]; [`Error::Unsupported`] on a GPU's memory.
    ///
    /// # Safety
    /// As [`Communicator::call_raw`]: the input is valid for `count` elements for each of [`Communicator::own_shards`].
    pub unsafe fn call_raw_shards(&self, call: &RawCall, shards: u32, limit: Option<Duration>) -> Result<()> {
        let mut call = self.shards_call(call, shards)?;
        on_gpus::locate(&self.shared, &mut call)?;
        if call.gpus.is_some() {
            let context = self.shared.context(Waited::unnumbered(call.summary(Form::Blocking)));
            let problem = "shards are reduced in the host's memory only; copy them there".to_owned();
            return Err(Error::Unsupported { context, problem });
        }
        // SAFETY: the caller's promise.
        unsafe { run(&self.shared, call, limit.unwrap_or(self.shared.config.timeout)) }
    }

    fn shards_call(&self, raw: &RawCall, shards: u32) -> Result<Call> {
        let refuse = |problem: String| Err(self.usage("all_reduce_shards", problem));
        let ranks = self.world_size();
        if raw.collective != Collective::AllReduce {
            return refuse(format!("{} does not support shards", raw.collective.name()));
        } else if !(1..=MAX_SHARDS).contains(&shards) {
            return refuse(format!("{shards} shards were given; 1 to {MAX_SHARDS} are supported"));
        } else if ranks > MAX_RANKS {
            return refuse(format!("{ranks} ranks are more than the {MAX_RANKS} that can share shards"));
        } else if matches!(raw.op, ReduceOp::PremulSum(_)) {
            return refuse("operator premul_sum is not defined for shards; scale them".to_owned());
        }
        let own = self.own_shards(shards).len();
        let bytes =
            raw.count.checked_mul(raw.data_type.size()).and_then(|bytes| bytes.checked_mul(own.max(1)));
        if !bytes.is_some_and(is_addressable) {
            return refuse(format!(
                "{} elements for each of {own} shards are more than can be addressed",
                raw.count
            ));
        }
        if own > 0 && raw.count > 0 && raw.input.is_null() {
            return refuse("a null pointer was given for an input that is not empty".to_owned());
        }
        // The rules for an all-reduce of a vector per rank hold here too, except for the input.
        let input = if own == 0 { std::ptr::null() } else { raw.input };
        let vector = RawCall { input: raw.output.cast_const(), ..*raw };
        let call = Call::check(&vector, self.member())?;
        let call = Call {
            input,
            counts: Counts::Shards(raw.count),
            placement: Placement::OutOfPlace,
            shards: Some(shards),
            ..call
        };
        call.apart()
    }
}

/// Runs a checked call on shards.
///
/// # Safety
/// See [`drive::run_within`].
unsafe fn run(shared: &Shared, call: Call, limit: Duration) -> Result<()> {
    let (ranks, shards) = (shared.group.size, call.shards.unwrap_or(0));
    let is_canonical = shared.config.determinism == Determinism::Canonical;
    let Counts::Shards(count) = call.counts else { unreachable!("it is a call of shards") };
    if !is_canonical || !are_aligned(shards, ranks) {
        // SAFETY: the caller's promise.
        return unsafe { drive::run_within(shared, &call, limit) };
    }
    // The tree over this rank's shards is a subtree, and the tree above these subtrees is the canonical tree over the
    // ranks.
    shared.check_process(|| Waited::unnumbered(call.summary(Form::Blocking)))?;
    let own = (shards / ranks) as usize;
    let bytes = count * call.data_type.size();
    let mut folded = Call { counts: Counts::Even(count), ..call };
    if own > 1 && bytes > 0 {
        let scratch = RefCell::default();
        let how = folded.arithmetic(combine_fn(folded.data_type, folded.op), true).folding(&scratch);
        let input = folded.input;
        let _floats = DefaultFloats::enter();
        // SAFETY: the caller's promise: the input has `own` vectors of `bytes` bytes each, and lies apart from the
        // output.
        unsafe { how.fold(folded.output, bytes, own, |shard| input.wrapping_add(shard * bytes)) };
        folded.input = folded.output;
        folded.placement = Placement::InPlace;
    }
    // SAFETY: the caller's promise: each buffer holds a vector.
    unsafe { drive::run_within(shared, &folded, limit) }
}
