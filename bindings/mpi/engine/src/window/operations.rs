//! The one-sided operations: put, get, accumulate and their variants.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::backlog::Until;
use super::handle_messages::awaited;
use super::near::Near;
use super::wire::{Kind, Message};
use super::{Operation, Window, lookup};
use crate::args::{count, put};
use crate::constants::*;
use crate::datatype::{self, Basic, Run, Shape, Type};
use crate::error::{Class, Outcome, fail};
use crate::net::{self, Elements, Sink};
use crate::op::{self, Builtin};
use crate::request::{self, Active};
use crate::staging;

/// Elements in this rank's memory.
pub(super) struct Own {
    at: usize,
    count: usize,
    of: Arc<Type>,
}

impl Own {
    fn new(at: *const c_void, n: i64, of: c_int) -> Outcome<Self> {
        let (count, of) = (count(n)?, datatype::committed(of)?);
        of.check_address(at, count)?;
        Ok(Self { at: at as usize, count, of })
    }

    /// Appends the data of the elements.
    pub(super) fn pack(&self, into: &mut Vec<u8>) {
        // SAFETY: reads the program's elements.
        unsafe { self.of.pack(self.at as *const u8, self.count, into) };
    }

    fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pack(&mut bytes);
        bytes
    }

    /// Calls `call` with a copy of the elements' data.
    pub(super) fn with_packed<T>(&self, call: impl FnOnce(&[u8]) -> T) -> T {
        let mut data = staging::reserve(self.bytes()).unwrap_or_default();
        self.pack(&mut data);
        let result = call(&data);
        staging::recycle(data);
        result
    }

    /// Returns where the data begins, if it has no gaps.
    pub(super) fn flat(&self) -> Option<*mut u8> {
        let start = (self.at as *mut u8).wrapping_offset(self.of.true_lower as isize);
        self.of.is_flat().then_some(start)
    }

    pub(super) fn sink(&self) -> Sink {
        Sink::Typed(Elements { ptr: self.at as *mut u8, count: self.count, of: Arc::clone(&self.of) })
    }

    pub(super) fn bytes(&self) -> usize {
        self.count * self.of.size()
    }
}

/// Elements in a target's memory. `rank` is `None` for `MPI_PROC_NULL`.
struct Target {
    window: Arc<Window>,
    rank: Option<u32>,
    offset: i64,
    count: usize,
    of: Arc<Type>,
}

impl Target {
    fn new(rank: c_int, disp: i64, n: i64, of: c_int, window: c_int) -> Outcome<Self> {
        let window = lookup(window)?;
        let (count, of) = (count(n)?, datatype::committed(of)?);
        let Some(at) = u32::try_from(rank).ok().filter(|rank| *rank < window.comm.size()) else {
            if rank == PROC_NULL {
                return Ok(Self { window, rank: None, offset: 0, count, of });
            }
            return fail(
                Class::Rank,
                format!("rank {rank} is out of range for a window of {}", window.comm.size()),
            );
        };
        window.access(at)?;
        let part = window.parts[at as usize];
        let dynamic = window.flavor == WIN_FLAVOR_DYNAMIC;
        if disp < 0 && !dynamic {
            return fail(Class::Disp, format!("the displacement is {disp}"));
        }
        let Some(offset) = disp.checked_mul(part.unit) else {
            return fail(Class::Disp, "the displacement is too large");
        };
        let target = Self { window, rank: Some(at), offset, count, of };
        let (low, high) = target.span();
        if !dynamic && (low < 0 || high > part.size) {
            return fail(
                Class::RmaRange,
                format!("bytes {low} to {high} of a window of {} bytes on rank {at}", part.size),
            );
        }
        Ok(target)
    }

    fn span(&self) -> (i64, i64) {
        if self.count == 0 || self.of.size() == 0 {
            return (0, 0);
        }
        let last = (self.count as i64 - 1).saturating_mul(self.of.extent);
        let start = self.offset.saturating_add(self.of.true_lower);
        (
            start.saturating_add(last.min(0)),
            start.saturating_add(last.max(0)).saturating_add(self.of.true_extent),
        )
    }

    /// Returns the positions of the bytes.
    fn bytes(&self) -> Shape {
        Shape::elements(&self.of, self.count, self.offset)
    }

    /// Returns the predefined type and the positions of the elements.
    fn elements(&self, op: Builtin) -> Outcome<(c_int, Shape)> {
        if let Some(handle) = self.of.builtin_handle().filter(|_| self.of.size() > 0) {
            return Ok((handle, Shape::run(self.offset, self.count * self.of.size())));
        }
        if op == Builtin::Replace || op == Builtin::NoOp {
            return Ok((BYTE, self.bytes()));
        }
        if matches!(op, Builtin::Minloc | Builtin::Maxloc) {
            return self.pairs(op);
        }
        let mut kinds = Vec::new();
        self.of.add_kinds(&mut kinds);
        match kinds[..] {
            [] => Ok((BYTE, Shape::empty())),
            [one] => Ok((handle_of(one), self.bytes())),
            _ => several_types(),
        }
    }

    /// Returns the predefined type of a value and an index of which the elements consist, and the positions of these pairs.
    fn pairs(&self, op: Builtin) -> Outcome<(c_int, Shape)> {
        let (mut kind, mut runs) = (None, Vec::new());
        for element in 0..self.count as i64 {
            let base = self.offset + element * self.of.extent;
            let mut add = |pair: &Type, at: i64| {
                let handle = pair.builtin_handle().filter(|handle| kind.is_none_or(|kind| kind == *handle));
                runs.push(Run { offset: base + at, len: pair.size() });
                kind = handle;
                handle.is_some()
            };
            if !self.of.each_predefined(0, &mut add) {
                return several_types();
            }
        }
        let Some(kind) = kind else { return Ok((BYTE, Shape::empty())) };
        let pair = datatype::lookup(kind)?;
        crate::numbers::check(op, &pair)?;
        Ok((kind, Shape::list(&runs)))
    }

    /// Returns the target's part of the window, if this process has mapped it.
    fn near(&self) -> Option<Near<'_>> {
        self.rank.and_then(|rank| self.window.near(rank))
    }

    fn send(&self, message: Message<'_>) -> Outcome {
        let Some(rank) = self.rank else { return Ok(()) };
        let message = Message { window: self.window.number(), ..message }.encode();
        let bytes = message.len();
        let sent = net::net()?.send_to_window(self.window.world(rank), message);
        self.window.has_told(rank);
        sent.map_or(Ok(()), |done| self.window.backlog.add(rank, Until::Sent(done), bytes))
    }

    /// Waits while the answers of operations that have been sent are too long for their targets' memory.
    fn limit(&self, operation: &Arc<Operation>, bytes: usize) -> Outcome {
        let until = |rank| (rank, Until::Answered(Arc::clone(operation)));
        self.rank.map(until).map_or(Ok(()), |(rank, until)| self.window.backlog.add(rank, until, bytes))
    }

    /// Leaves an operation without a request to the next synchronisation with the target.
    fn leave(&self, operation: &Operation) {
        if let Some(rank) = self.rank {
            operation.report_to(&self.window, rank);
        }
    }

    /// Makes the operation and the number of its answer. With `MPI_PROC_NULL` as the target, the operation is already complete.
    fn operation(&self, sink: Option<Sink>) -> (Arc<Operation>, u64) {
        let operation = Operation::new(sink);
        if self.rank.is_none() {
            operation.finish(&[], None);
            return (operation, 0);
        }
        let number = awaited(&operation);
        (operation, number)
    }
}

fn several_types<T>() -> Outcome<T> {
    fail(Class::Type, "a datatype with elements of several types cannot be accumulated")
}

/// Returns a predefined type of this kind of number.
fn handle_of(basic: Basic) -> c_int {
    0x4c00_0000
        | match basic {
            Basic::I8 => 0x0137,
            Basic::I16 => 0x0238,
            Basic::I32 => 0x0439,
            Basic::I64 => 0x083a,
            Basic::I128 => 0x1032,
            Basic::U8 => 0x013b,
            Basic::U16 => 0x023c,
            Basic::U32 => 0x043d,
            Basic::U64 => 0x083e,
            Basic::LongInt => 0x0807,
            Basic::UnsignedLong => 0x0808,
            Basic::F16 => 0x0246,
            Basic::Bf16 => 0x024c,
            Basic::F32 => 0x040a,
            Basic::F64 => 0x080b,
            Basic::Long => 0x100c,
            Basic::Quad => 0x102b,
            Basic::C16 => 0x042e,
            Basic::C32 => 0x0840,
            Basic::C64 => 0x1041,
            Basic::CLong => 0x2042,
            Basic::CQuad => 0x202c,
            Basic::Bool => 0x013f,
            Basic::Logical(1) => 0x0147,
            Basic::Logical(2) => 0x0248,
            Basic::Logical(4) => 0x0449,
            Basic::Logical(8) => 0x084a,
            Basic::Logical(_) => 0x104b,
            Basic::Char => 0x0101,
            Basic::Wide => 0x040e,
            Basic::Byte => 0x010d,
            Basic::Packed => 0x010f,
        }
}

fn builtin(handle: c_int) -> Outcome<Builtin> {
    match op::builtin(handle) {
        Some(op) => Ok(op),
        None => op::lookup(handle).and_then(|_| fail(Class::Op, "only predefined operators can accumulate")),
    }
}

/// Checks that an operator is defined for a predefined type.
fn check_op(op: Builtin, of: c_int) -> Outcome {
    match datatype::builtin(of) {
        Some(of) if !matches!(op, Builtin::Replace | Builtin::NoOp) => crate::numbers::check(op, of),
        _ => Ok(()),
    }
}

fn putting(own: &Own, target: &Target, answered: bool) -> Outcome<Arc<Operation>> {
    if let Some(near) = target.near() {
        near.put(own, &target.bytes())?;
        return Ok(Operation::done());
    }
    let shape = target.bytes();
    let (operation, number) = if answered { target.operation(None) } else { (Operation::new(None), 0) };
    own.with_packed(|data| {
        target.send(Message { of: BYTE, shape, data, ..Message::plain(Kind::Put, 0, number) })
    })?;
    Ok(operation)
}

fn getting(own: &Own, target: &Target) -> Outcome<Arc<Operation>> {
    if let Some(near) = target.near() {
        near.get(own, &target.bytes());
        return Ok(Operation::done());
    }
    let (operation, number) = target.operation(Some(own.sink()));
    target.send(Message { of: BYTE, shape: target.bytes(), ..Message::plain(Kind::Get, 0, number) })?;
    target.limit(&operation, own.bytes())?;
    Ok(operation)
}

/// Accumulates. If there is a `result`, it receives the target's former contents.
fn accumulating(
    own: Option<&Own>,
    result: Option<&Own>,
    target: &Target,
    op: c_int,
    answered: bool,
) -> Outcome<Arc<Operation>> {
    let op = builtin(op)?;
    let (of, shape) = target.elements(op)?;
    if target.rank.is_some() && shape.bytes() > 0 {
        check_op(op, of)?;
    }
    let kind = if result.is_some() { Kind::Fetch } else { Kind::Accumulate };
    let number_of_op = 0x5800_0000 | op as c_int;
    if let Some(near) = target.near() {
        let message = Message { op: number_of_op, of, shape, ..Message::plain(kind, 0, 0) };
        near.combine(message, own, result)?;
        return Ok(Operation::done());
    }
    let data = own.map_or_else(Vec::new, Own::packed);
    let (operation, number) = match answered {
        true => target.operation(result.map(Own::sink)),
        false => (Operation::new(None), 0),
    };
    let message = Message { op: number_of_op, of, shape, data: &data, ..Message::plain(kind, 0, number) };
    target.send(message)?;
    if let Some(result) = result {
        target.limit(&operation, result.bytes())?;
    }
    Ok(operation)
}

/// Makes the two ends of a transfer, which have equally many bytes.
fn ends(
    buf: *const c_void,
    n: i64,
    of: c_int,
    rank: c_int,
    disp: i64,
    m: i64,
    there: c_int,
    win: c_int,
) -> Outcome<(Own, Target)> {
    let (own, target) = (Own::new(buf, n, of)?, Target::new(rank, disp, m, there, win)?);
    let at_target = target.count * target.of.size();
    if target.rank.is_none() || own.bytes() == at_target {
        return Ok((own, target));
    }
    fail(Class::Count, format!("{} bytes at the origin but {at_target} at the target", own.bytes()))
}

unsafe fn requested(operation: Arc<Operation>, target: &Target, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        put(
            into,
            request::register(Active::Window(operation, Arc::clone(&target.window)), &target.window.comm),
        )
    }
}

macro_rules! transfers {
    ($name:ident, $requested:ident, $buffer:ty, |$own:ident, $target:ident, $answered:ident| $call:expr) => {
        pub unsafe fn $name(
            buf: $buffer,
            n: i64,
            of: c_int,
            rank: c_int,
            disp: i64,
            m: i64,
            there: c_int,
            win: c_int,
        ) -> Outcome {
            let (($own, $target), $answered) = (ends(buf, n, of, rank, disp, m, there, win)?, false);
            $call.map(|operation| $target.leave(&operation))
        }

        pub unsafe fn $requested(
            buf: $buffer,
            n: i64,
            of: c_int,
            rank: c_int,
            disp: i64,
            m: i64,
            there: c_int,
            win: c_int,
            into: *mut c_int,
        ) -> Outcome {
            let (($own, $target), $answered) = (ends(buf, n, of, rank, disp, m, there, win)?, true);
            // SAFETY: the caller's promise.
            unsafe { requested($call?, &$target, into) }
        }
    };
}

transfers!(put_call, rput, *const c_void, |own, target, answered| putting(&own, &target, answered));
transfers!(get, rget, *mut c_void, |own, target, _answered| getting(&own, &target));

pub unsafe fn accumulate(
    buf: *const c_void,
    n: i64,
    of: c_int,
    rank: c_int,
    disp: i64,
    m: i64,
    there: c_int,
    op: c_int,
    win: c_int,
) -> Outcome {
    let (own, target) = ends(buf, n, of, rank, disp, m, there, win)?;
    accumulating(Some(&own), None, &target, op, false).map(|operation| target.leave(&operation))
}

pub unsafe fn raccumulate(
    buf: *const c_void,
    n: i64,
    of: c_int,
    rank: c_int,
    disp: i64,
    m: i64,
    there: c_int,
    op: c_int,
    win: c_int,
    into: *mut c_int,
) -> Outcome {
    let (own, target) = ends(buf, n, of, rank, disp, m, there, win)?;
    // SAFETY: the caller's promise.
    unsafe { requested(accumulating(Some(&own), None, &target, op, true)?, &target, into) }
}

fn exchanging(
    origin: (*const c_void, i64, c_int),
    result: (*mut c_void, i64, c_int),
    target: &Target,
    op: c_int,
) -> Outcome<Arc<Operation>> {
    let into = Own::new(result.0, result.1, result.2)?;
    // With `MPI_NO_OP`, the origin's arguments are ignored.
    let own = match builtin(op)? {
        Builtin::NoOp => None,
        _ => Some(Own::new(origin.0, origin.1, origin.2)?),
    };
    accumulating(own.as_ref(), Some(&into), target, op, true)
}

pub unsafe fn get_accumulate(
    buf: *const c_void,
    n: i64,
    of: c_int,
    result: *mut c_void,
    result_n: i64,
    result_of: c_int,
    rank: c_int,
    disp: i64,
    m: i64,
    there: c_int,
    op: c_int,
    win: c_int,
) -> Outcome {
    let target = Target::new(rank, disp, m, there, win)?;
    exchanging((buf, n, of), (result, result_n, result_of), &target, op)
        .map(|operation| target.leave(&operation))
}

pub unsafe fn rget_accumulate(
    buf: *const c_void,
    n: i64,
    of: c_int,
    result: *mut c_void,
    result_n: i64,
    result_of: c_int,
    rank: c_int,
    disp: i64,
    m: i64,
    there: c_int,
    op: c_int,
    win: c_int,
    into: *mut c_int,
) -> Outcome {
    let target = Target::new(rank, disp, m, there, win)?;
    let operation = exchanging((buf, n, of), (result, result_n, result_of), &target, op)?;
    // SAFETY: the caller's promise.
    unsafe { requested(operation, &target, into) }
}

pub unsafe fn fetch_and_op(
    buf: *const c_void,
    result: *mut c_void,
    of: c_int,
    rank: c_int,
    disp: i64,
    op: c_int,
    win: c_int,
) -> Outcome {
    let target = Target::new(rank, disp, 1, of, win)?;
    exchanging((buf, 1, of), (result, 1, of), &target, op).map(|operation| target.leave(&operation))
}

pub unsafe fn compare_and_swap(
    buf: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    of: c_int,
    rank: c_int,
    disp: i64,
    win: c_int,
) -> Outcome {
    let target = Target::new(rank, disp, 1, of, win)?;
    let Some(basic) = target.of.basic().filter(|basic| !basic.is_float()) else {
        let wanted = "an integer, logical or byte datatype";
        return fail(Class::Type, format!("a compare-and-swap is for one element of {wanted}"));
    };
    let (new, old, into) = (Own::new(buf, 1, of)?, Own::new(compare, 1, of)?, Own::new(result, 1, of)?);
    let mut data = old.packed();
    new.pack(&mut data);
    if let Some(near) = target.near() {
        let message = Message {
            of: handle_of(basic),
            shape: target.bytes(),
            data: &data,
            ..Message::plain(Kind::Swap, 0, 0)
        };
        return near.combine(message, None, Some(&into));
    }
    let (operation, number) = target.operation(Some(into.sink()));
    target.leave(&operation);
    target.send(Message {
        of: handle_of(basic),
        shape: target.bytes(),
        data: &data,
        ..Message::plain(Kind::Swap, 0, number)
    })
}
