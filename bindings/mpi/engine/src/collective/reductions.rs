//! Collectives that reduce.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kolo::Collective;

use super::buffers::{Buffer, Scratch, aliased, not_in_place};
use super::{How, fast, go, inter, is_in_place, reducing, root};
use crate::args::{Counts, count};
use crate::comm::{self, Comm};
use crate::error::Outcome;
use crate::op::{self, Reducer};

/// The arguments of a reduction.
struct Reduction {
    comm: Arc<Comm>,
    own: Buffer,
    op: c_int,
    user: Reducer,
}

impl Reduction {
    fn new(
        sendbuf: *const c_void,
        recvbuf: *const c_void,
        n: i64,
        of: c_int,
        op: c_int,
        comm: Arc<Comm>,
    ) -> Outcome<Self> {
        let own = Buffer::new(if is_in_place(sendbuf) { recvbuf } else { sendbuf }, n, of)?;
        let user = op::reducing(op, of, &own.of)?;
        if comm.inter.is_some() && is_in_place(sendbuf) {
            return inter::in_place();
        }
        Ok(Self { comm, own, op, user })
    }

    /// Checks the input, and that a place for a result of `count` elements is not that of the input.
    fn check_result(&self, sendbuf: *const c_void, recvbuf: *const c_void, count: usize) -> Outcome {
        self.own.check()?;
        if count == 0 {
            return Ok(());
        }
        not_in_place(recvbuf)?;
        self.own.of.check_address(recvbuf, count)?;
        // The types are the same, so data begins at the same byte if the addresses are the same.
        let is_alias = sendbuf == recvbuf && self.own.bytes() > 0 && self.comm.inter.is_none();
        if is_alias { aliased() } else { Ok(()) }
    }

    /// Returns Kolo's form of the call if its collectives can serve the call.
    fn fast(&self, how: How) -> Option<fast::Form> {
        if how != How::Blocking || self.comm.size() == 1 || self.comm.inter.is_some() {
            None
        } else {
            fast::reducible(self.op, &self.own.of)
        }
    }
}

pub unsafe fn allreduce(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    comm: c_int,
) -> Outcome {
    if let Some(comm) = fast::members(how, comm)
        && let Some((input, count, kolo)) = fast::operand(sendbuf, recvbuf, (n, of), op)
        && !recvbuf.is_null()
    {
        return fast::reduction(&comm, Collective::AllReduce, (input, recvbuf.cast()), count, kolo, 0);
    }
    let call = Reduction::new(sendbuf, recvbuf, n, of, op, comm::lookup(comm)?)?;
    call.check_result(sendbuf, recvbuf, call.own.count)?;
    if let Some(kolo) = call.fast(how) {
        let buffers = (call.own.address().cast_const(), recvbuf.cast());
        return fast::reduction(&call.comm, Collective::AllReduce, buffers, call.own.count, kolo, 0);
    }
    let into = Buffer::new(recvbuf, n, of)?;
    go(how, &call.comm, |s| {
        let own = Scratch::load(s, &call.own);
        match &call.comm.inter {
            Some(of_both) => inter::all_reduce(s, &call.comm, of_both, &call.user, own, &into),
            None => reducing::all_reduce(s, &call.user, own, &into),
        }
        Ok(())
    })
}

pub unsafe fn reduce(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    to: c_int,
    comm: c_int,
) -> Outcome {
    if let Some(comm) = fast::members(how, comm) {
        let to = root(&comm, to)?;
        // Other ranks may pass anything as the output, such as the address of the input.
        let output = if comm.rank == to { recvbuf } else { std::ptr::null_mut() };
        if let Some((input, count, kolo)) = fast::operand(sendbuf, output, (n, of), op)
            && (comm.rank != to || !output.is_null())
        {
            if comm.rank != to && count > 0 {
                not_in_place(sendbuf)?;
            }
            return fast::reduction(&comm, Collective::Reduce, (input, output.cast()), count, kolo, to);
        }
    }
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let own = || inter::buffer(sendbuf, n, of);
        return inter::reduce(how, &comm, of_both, own, || Buffer::new(recvbuf, n, of), (op, of), to);
    }
    let to = root(&comm, to)?;
    let is_root = comm.rank == to;
    if !is_root && n > 0 {
        not_in_place(sendbuf)?;
    }
    let call = Reduction::new(sendbuf, recvbuf, n, of, op, comm)?;
    call.check_result(sendbuf, recvbuf, if is_root { call.own.count } else { 0 })?;
    if let Some(kolo) = call.fast(how) {
        let output = if is_root { recvbuf.cast() } else { std::ptr::null_mut() };
        let buffers = (call.own.address().cast_const(), output);
        return fast::reduction(&call.comm, Collective::Reduce, buffers, call.own.count, kolo, to);
    }
    let into = if is_root { Buffer::new(recvbuf, n, of)? } else { Buffer::none() };
    go(how, &call.comm, |s| {
        let own = Scratch::load(s, &call.own);
        reducing::reduce(s, &call.user, own, &into, to);
        Ok(())
    })
}

pub unsafe fn reduce_scatter(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: Counts,
    of: c_int,
    op: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    // SAFETY: the caller's promise.
    let counts = unsafe { counts.list(comm.size() as usize)? };
    let counts = counts.into_iter().map(count).collect::<Outcome<Vec<usize>>>()?;
    scattered(how, sendbuf, recvbuf, &counts, of, op, comm)
}

pub unsafe fn reduce_scatter_block(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    comm: c_int,
) -> Outcome {
    // In place, the result comes where the input begins, so it needs a place of its own first.
    if let Some(comm) = fast::members(how, comm).filter(|_| !is_in_place(sendbuf))
        && let Some((input, count, kolo)) = fast::operand(sendbuf, recvbuf, (n, of), op)
        && !recvbuf.is_null()
    {
        return fast::reduction(&comm, Collective::ReduceScatter, (input, recvbuf.cast()), count, kolo, 0);
    }
    let comm = comm::lookup(comm)?;
    let counts = vec![count(n)?; comm.size() as usize];
    scattered(how, sendbuf, recvbuf, &counts, of, op, comm)
}

fn scattered(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    counts: &[usize],
    of: c_int,
    op: c_int,
    comm: Arc<Comm>,
) -> Outcome {
    let all: usize = counts.iter().sum();
    let rank = comm.rank as usize;
    let call = Reduction::new(sendbuf, recvbuf, all as i64, of, op, comm)?;
    call.check_result(sendbuf, recvbuf, counts[rank])?;
    let into = Buffer::new(recvbuf, counts[rank] as i64, of)?;
    if let Some(kolo) = call.fast(how) {
        let in_place = is_in_place(sendbuf);
        // In place, the result goes to the start of the input, so Kolo writes it to memory of its own first.
        let mut apart = vec![0_u8; if in_place { into.bytes() } else { 0 }];
        let output = if in_place { apart.as_mut_ptr() } else { recvbuf.cast() };
        let buffers = (call.own.address().cast_const(), output);
        let even = counts.iter().all(|count| *count == counts[0]);
        match even {
            true => fast::reduction(&call.comm, Collective::ReduceScatter, buffers, counts[0], kolo, 0)?,
            false => fast::reduce_scatter_v(&call.comm, buffers, counts, kolo)?,
        }
        if in_place {
            // SAFETY: the program's buffer has room for all blocks, and so for its own.
            unsafe { std::ptr::copy_nonoverlapping(apart.as_ptr(), recvbuf.cast(), apart.len()) };
        }
        return Ok(());
    }
    go(how, &call.comm, |s| {
        let own = Scratch::load(s, &call.own);
        match &call.comm.inter {
            Some(of_both) => {
                inter::reduce_scatter(s, &call.comm, of_both, &call.user, own, (counts, &into));
            }
            None => reducing::reduce_scatter(s, &call.user, own, counts, &into),
        }
        Ok(())
    })
}

fn scanned(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    comm: c_int,
    collective: Collective,
) -> Outcome {
    let call = Reduction::new(sendbuf, recvbuf, n, of, op, comm::intra(comm)?)?;
    // The first rank has no result of an exclusive scan.
    let has_result = collective == Collective::Scan || call.comm.rank > 0;
    call.check_result(sendbuf, recvbuf, if has_result { call.own.count } else { 0 })?;
    if let Some(kolo) = call.fast(how) {
        // The first rank may pass anything as the output of an exclusive scan, but Kolo needs a buffer of its own for it.
        let is_no_buffer = recvbuf.is_null() || is_in_place(recvbuf) || sendbuf == recvbuf;
        let is_replaced = !has_result && !is_in_place(sendbuf) && is_no_buffer;
        let mut unused = vec![0_u8; if is_replaced { call.own.bytes() } else { 0 }];
        let output = if is_replaced { unused.as_mut_ptr() } else { recvbuf.cast() };
        let buffers = (call.own.address().cast_const(), output);
        return fast::reduction(&call.comm, collective, buffers, call.own.count, kolo, 0);
    }
    let into = if has_result { Buffer::new(recvbuf, n, of)? } else { Buffer::none() };
    go(how, &call.comm, |s| {
        let own = Scratch::load(s, &call.own);
        reducing::scan(s, &call.user, own, &into, collective);
        Ok(())
    })
}

pub unsafe fn scan(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    comm: c_int,
) -> Outcome {
    scanned(how, sendbuf, recvbuf, n, of, op, comm, Collective::Scan)
}

pub unsafe fn exscan(
    how: How,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    n: i64,
    of: c_int,
    op: c_int,
    comm: c_int,
) -> Outcome {
    scanned(how, sendbuf, recvbuf, n, of, op, comm, Collective::ExScan)
}
