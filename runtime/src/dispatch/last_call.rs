//! Facts derived for the last call, kept because most programs make the same call again.

use crate::call::{Call, CallLabel, reduces};
use crate::reduce::{Combine, combine_fn, combine_nothing};

/// The label of the last call, with the facts derived from it.
#[derive(Debug)]
pub(crate) struct LastCall {
    label: CallLabel,
    known: Known,
}

/// Facts derived from a call's label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) signature: u64,
    pub(crate) combine: Combine,
}

impl LastCall {
    /// Returns a cache with a label that no call has.
    pub(crate) fn none() -> Self {
        let label = CallLabel { kind: u64::MAX, count: 0 };
        Self { label, known: Known { signature: label.signature(), combine: combine_nothing } }
    }

    /// Returns the facts that follow from the label of a call.
    #[inline]
    pub(crate) fn look_up(&mut self, call: &Call, label: CallLabel) -> Known {
        if label != self.label {
            self.learn(call, label);
        }
        self.known
    }

    fn learn(&mut self, call: &Call, label: CallLabel) {
        let combine =
            if reduces(call.collective) { combine_fn(call.data_type, call.op) } else { combine_nothing };
        *self = Self { label, known: Known { signature: label.signature(), combine } };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Form, Member, RawCall};
    use crate::types::{DataType, ReduceOp};
    use kolo_collectives::plan::Collective;

    #[test]
    fn what_is_known_is_of_the_call_at_hand() {
        let call = |collective, data_type| {
            let (input, output, op) = (std::ptr::null(), std::ptr::null_mut(), ReduceOp::Sum);
            let raw = RawCall { collective, input, output, count: 0, data_type, op, root: 0 };
            Call::check(&raw, Member { rank: 0, world_size: 2 }).expect("a sound call")
        };
        let sums = [DataType::F32, DataType::F64].map(|data_type| call(Collective::AllReduce, data_type));
        let gather = call(Collective::AllGather, DataType::F32);
        let mut last = LastCall::none();
        for call in [&sums[0], &sums[0], &sums[1], &gather, &sums[0]] {
            let label = call.summary(Form::Blocking).label();
            let known = last.look_up(call, label);
            assert_eq!(known.signature, label.signature());
            // Only the kernels have one address each: the compiler may copy the function that does nothing.
            let is_kernel = known.combine as usize == combine_fn(call.data_type, call.op) as usize;
            assert_eq!(is_kernel, reduces(call.collective));
        }
    }
}
