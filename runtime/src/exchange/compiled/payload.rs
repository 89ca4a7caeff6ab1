//! The payloads of an exchange, and the result that each rank computes from them.

use std::ops::Range;

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::Needs;
use kolo_transport::shm::Slot;

use super::CompiledExchange;
use super::cursor::{ExchangeCursor, Part, place};
use crate::call::{Call, reduces};
use crate::reduce::scale;

impl CompiledExchange {
    /// Publishes this rank's contribution to the current exchange.
    ///
    /// # Safety
    /// The contribution is as long as the collective defines.
    #[inline]
    pub(super) unsafe fn publish(&mut self, call: &Call, cursor: &ExchangeCursor, own: Option<*const u8>) {
        let (Part { at, len }, block) = (cursor.part, cursor.block);
        let (rank, members, skips_own) = (self.rank, self.members, !self.reads_own_back(call));
        let fill = own.map(|own| {
            move |mut slot: Slot<'_>| {
                let mut put = |to: usize, from: usize, len: usize| {
                    // SAFETY: this is a part of the contribution, by the shape of the call.
                    unsafe {
                        match call.factor() {
                            Some(factor) => {
                                let to = slot.part(to, len);
                                scale(call.data_type, to, own.add(from), len / call.data_type.size(), factor);
                            }
                            None => slot.copy(to, own.add(from), len),
                        }
                    }
                };
                match call.collective {
                    Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => {
                        let others = (0..members).filter(|i| !skips_own || *i != rank);
                        others.for_each(|i| put(place(call.collective, rank, i) * len, i * block + at, len));
                    }
                    _ => put(0, at, len),
                }
            }
        });
        self.area.publish(cursor.tag, cursor.published(), self.needs(call), fill);
    }

    /// Returns the members that this rank waits for.
    #[inline]
    fn needs(&self, call: &Call) -> Needs {
        let (root, rank) = (call.root as usize, self.rank);
        match call.collective {
            Collective::Broadcast | Collective::Scatter if rank == root => Needs::Nobody,
            Collective::Broadcast | Collective::Scatter => Needs::Only(root),
            Collective::Reduce | Collective::Gather if rank != root => Needs::Nobody,
            Collective::Scan | Collective::ExScan => Needs::Below(rank),
            _ => Needs::All,
        }
    }

    /// Computes this rank's result from the payloads of the current exchange.
    ///
    /// # Safety
    /// The buffers of the call are valid, and all payloads that are needed have been published.
    #[inline]
    pub(super) unsafe fn take(&self, call: &Call, cursor: &ExchangeCursor) {
        let at = cursor.part.at;
        let (rank, root, members) = (self.rank, call.root as usize, self.members);
        let reduced = match call.collective {
            Collective::AllReduce => Some((0, 0..members)),
            Collective::Reduce if rank == root => Some((0, 0..members)),
            Collective::ReduceScatter => Some((rank, 0..members)),
            Collective::Scan => Some((0, 0..rank + 1)),
            Collective::ExScan if rank > 0 => Some((0, 0..rank)),
            _ => None,
        };
        // SAFETY: for the whole block: outputs are as long as the collective defines, and payloads are as long as
        // published.
        unsafe {
            if let Some((index, members)) = reduced {
                return self.reduce(call, cursor, index, members);
            }
            match call.collective {
                Collective::Broadcast | Collective::Scatter if rank != root => {
                    self.fetch(call, cursor, root, call.output.add(at));
                }
                Collective::AllGather | Collective::AllToAll => self.fetch_all(call, cursor),
                Collective::Gather if rank == root => self.fetch_all(call, cursor),
                // There is no result, or only other ranks have one.
                _ => {}
            }
        }
    }

    /// Copies this rank's block for itself, unless it is already in place. The copy comes before the wait for other
    /// ranks, not with the data taken from them: it fills the time until they arrive, and finds the bytes just
    /// published still in the caches. All-gathers and all-to-alls of 2 ranks and 128 KiB take 0.93 times as long.
    ///
    /// # Safety
    /// As [`Self::publish`], and the output is as long as the collective defines.
    #[inline]
    pub(super) unsafe fn keep(&self, call: &Call, cursor: &ExchangeCursor, own: Option<*const u8>) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.keep_part(call, cursor, own, cursor.part) }
    }

    /// Copies a part of this rank's block.
    ///
    /// # Safety
    /// As [`Self::keep`]; the part is inside the block.
    #[inline]
    pub(super) unsafe fn keep_part(
        &self,
        call: &Call,
        cursor: &ExchangeCursor,
        own: Option<*const u8>,
        Part { at, len }: Part,
    ) {
        let (rank, root) = (self.rank, call.root as usize);
        // Index of the block in the contribution, and in the output.
        let (from, to) = match call.collective {
            Collective::Broadcast if rank == root => (0, 0),
            Collective::Scatter if rank == root => (rank, 0),
            Collective::Gather if rank == root => (0, rank),
            Collective::AllGather => (0, rank),
            Collective::AllToAll => (rank, rank),
            // Reductions read it where they need it.
            _ => return,
        };
        let Some(own) = own else { return };
        let block = cursor.block;
        // SAFETY: both ranges are inside the buffers, by the shape of the call; input and output are the same memory or
        // do not overlap.
        unsafe {
            let (from, to) = (own.add(from * block + at), call.output.add(to * block + at));
            if from != to.cast_const() {
                cursor.copy(from, to, len);
            }
        }
    }

    /// Returns the address of this rank's contribution; `None` if only its presence counts.
    #[inline]
    pub(super) fn contribution(&self, call: &Call) -> Option<*const u8> {
        let in_place = call.placement == Placement::InPlace;
        match call.collective {
            Collective::Barrier => None,
            Collective::Broadcast | Collective::Scatter if self.rank != call.root as usize => None,
            // In place, the input of these collectives is a part of the output.
            Collective::AllGather | Collective::Gather | Collective::ReduceScatter | Collective::Scatter => {
                Some(call.input)
            }
            _ if in_place => Some(call.output.cast_const()),
            _ => Some(call.input),
        }
    }

    /// Returns the address of what this rank publishes; `None` if only its presence counts, since no rank reads more: see
    /// docs/measurements.md, "One shot or two".
    #[inline]
    pub(super) fn given(&self, call: &Call) -> Option<*const u8> {
        let is_read = match call.collective {
            Collective::Reduce => self.rank != call.root as usize || self.reads_own_back(call),
            Collective::Gather => self.rank != call.root as usize,
            Collective::Scan | Collective::ExScan => {
                self.rank + 1 != self.members || self.reads_own_back(call)
            }
            _ => true,
        };
        self.contribution(call).filter(|_| is_read)
    }

    /// Returns whether this rank reads its own contribution from its payload rather than from the caller's buffer, which
    /// is quicker to read. Two cases need the payload: only the payload is scaled; or the call is in place and the rank is
    /// 2 or higher, so that the output holds the sum of earlier ranks when this rank's own value is added.
    #[inline]
    pub(super) fn reads_own_back(&self, call: &Call) -> bool {
        let is_scaled = call.factor().is_some();
        is_scaled || (reduces(call.collective) && call.placement == Placement::InPlace && self.rank >= 2)
    }

    /// Returns the address of this rank's own contribution, unless it [reads that back](Self::reads_own_back).
    #[inline]
    pub(super) fn own(&self, call: &Call) -> Option<*const u8> {
        if self.reads_own_back(call) { None } else { self.contribution(call) }
    }

    /// Returns the address of part `index` of a member's payload; `own` comes from [`Self::own`].
    #[inline]
    unsafe fn source(
        &self,
        call: &Call,
        cursor: &ExchangeCursor,
        own: Option<*const u8>,
        Part { at, len }: Part,
        member: usize,
        index: usize,
    ) -> *const u8 {
        match own {
            // SAFETY: the address is inside the contribution, by the shape of the call.
            Some(own) if member == self.rank => unsafe { own.add(index * cursor.block + at) },
            _ => {
                let place = place(call.collective, member, index);
                self.area.payload(member).part(place * len, len)
            }
        }
    }

    /// Copies each other member's payload for this one into that member's block of the output.
    #[inline]
    unsafe fn fetch_all(&self, call: &Call, cursor: &ExchangeCursor) {
        let at = cursor.part.at;
        for member in (0..self.members).filter(|member| *member != self.rank) {
            // SAFETY: the output has a block for each member.
            unsafe {
                self.fetch(call, cursor, member, call.output.add(member * cursor.block + at));
            }
        }
    }

    /// Copies another member's payload for this one.
    #[inline]
    unsafe fn fetch(&self, call: &Call, cursor: &ExchangeCursor, member: usize, to: *mut u8) {
        let len = cursor.part.len;
        let index = match call.collective {
            Collective::Scatter | Collective::AllToAll => place(call.collective, member, self.rank),
            // Each member publishes one block for all.
            _ => 0,
        };
        let from = self.area.payload(member).part(index * len, len);
        // SAFETY: the caller's promise for `to`.
        unsafe { cursor.copy(from, to, len) };
    }

    /// Reduces part `index` of the given members' payloads into the output.
    #[inline]
    unsafe fn reduce(&self, call: &Call, cursor: &ExchangeCursor, index: usize, members: Range<usize>) {
        let (part, own) = (cursor.part, self.own(call));
        // SAFETY: the output has room for the part, and the sources are as long.
        unsafe {
            let payload = |member| self.source(call, cursor, own, part, member, index);
            self.fold(call, cursor, call.output.add(part.at), part.len, members, payload);
        }
    }

    /// Reduces `bytes` bytes of each given member at `payload` into `output`, which may be the payload of one of the
    /// first two.
    ///
    /// # Safety
    /// All of them are valid for `bytes` bytes.
    #[inline]
    pub(super) unsafe fn fold(
        &self,
        call: &Call,
        cursor: &ExchangeCursor,
        output: *mut u8,
        bytes: usize,
        members: Range<usize>,
        payload: impl Fn(usize) -> *const u8,
    ) {
        let arithmetic = call.arithmetic(cursor.combine, self.canonical);
        let first = members.start;
        // SAFETY: the caller's promise, for the whole block.
        unsafe {
            let how = arithmetic.folding(&self.scratch);
            how.fold(output, bytes, members.len(), |index| payload(first + index));
            arithmetic.divide(output, bytes);
        }
    }
}
