//! Handling of messages for windows at the target. It runs under the lock of the messages, in the thread that polls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use super::locks::Wish;
use super::wire::{Kind, Message};
use super::{Operation, WINDOWS, Window};
use crate::constants::LOCK_EXCLUSIVE;
use crate::datatype::{self, Type};
use crate::error::{Class, Fail};
use crate::net::{self, Net};
use crate::numbers;
use crate::op;
use crate::staging;

/// Windows by number.
static KNOWN: Mutex<Option<HashMap<u32, Arc<Window>>>> = Mutex::new(None);
/// Operations that wait for an answer, by number.
static AWAITED: Mutex<Option<HashMap<u64, Arc<Operation>>>> = Mutex::new(None);
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn with<K, V, T>(map: &Mutex<Option<HashMap<K, V>>>, call: impl FnOnce(&mut HashMap<K, V>) -> T) -> T {
    call(map.lock().unpoisoned().get_or_insert_with(HashMap::new))
}

pub(super) fn know(window: &Arc<Window>) {
    with(&KNOWN, |known| known.insert(window.number(), Arc::clone(window)));
}

pub(super) fn forget(window: &Window) {
    with(&KNOWN, |known| known.remove(&window.number()));
    WINDOWS.remove(window.handle());
}

/// Registers an operation; returns the number by which its answer will name it.
pub(super) fn awaited(operation: &Arc<Operation>) -> u64 {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    with(&AWAITED, |awaited| awaited.insert(number, Arc::clone(operation)));
    number
}

/// Gives up all operations, since the job has failed: answers no longer write to the program's memory.
pub(super) fn forsake(why: &Fail) {
    // Answers are handled under this lock.
    let _net = net::net();
    let all = with(&AWAITED, std::mem::take);
    all.values().for_each(|operation| operation.finish(&[], Some(why.clone())));
}

fn answer(net: &mut Net, to: u32, number: u64, data: &[u8]) {
    if number != 0 {
        net.send_to_window(to, Message { data, ..Message::plain(Kind::Answer, 0, number) }.encode());
    }
}

/// Answers that all earlier operations of an origin are done, or that one of them was refused.
fn conclude(net: &mut Net, window: &Window, to: u32, rank: u32, number: u64) {
    if window.locks().refused.remove(&rank) {
        refuse(net, to, number);
    } else {
        answer(net, to, number, &[]);
    }
}

fn refuse(net: &mut Net, to: u32, number: u64) {
    net.send_to_window(to, Message::plain(Kind::Refusal, 0, number).encode());
}

/// Makes the failure of an operation that its target has refused.
pub(super) fn refusal() -> Fail {
    Fail::new(Class::RmaRange, "the target memory is not part of the window, or not attached")
}

/// Handles a message.
pub(super) fn handle(net: &mut Net, from: u32, bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    if matches!(message.kind, Kind::Answer | Kind::Refusal) {
        if let Some(operation) = with(&AWAITED, |awaited| awaited.remove(&message.number)) {
            operation.finish(message.data, (message.kind == Kind::Refusal).then(refusal));
        }
        return;
    }
    let Some(window) = with(&KNOWN, |known| known.get(&message.window).cloned()) else { return };
    let rank = window.comm.rank_of(from);
    match message.kind {
        Kind::Flush => conclude(net, &window, from, rank, message.number),
        Kind::Lock => {
            let wish = Wish { from, number: message.number, exclusive: message.op == LOCK_EXCLUSIVE };
            let granted = window.locks().lock(wish);
            if let Some(wish) = granted {
                answer(net, wish.from, wish.number, &[]);
            }
        }
        Kind::Unlock => {
            let granted = window.locks().unlock();
            conclude(net, &window, from, rank, message.number);
            granted.into_iter().for_each(|wish| answer(net, wish.from, wish.number, &[]));
        }
        Kind::Post => window.locks().posts[rank as usize] += 1,
        Kind::Complete => window.locks().completes[rank as usize] += 1,
        _ => match access(&window, &message) {
            Some(data) => {
                answer(net, from, message.number, &data);
                staging::recycle(data);
            }
            None if message.number != 0 => refuse(net, from, message.number),
            None => drop(window.locks().refused.insert(rank)),
        },
    }
}

/// Reads or writes this rank's memory. Returns the answer; `None` if the memory is not part of the window, or the data has a wrong length.
fn access(window: &Window, message: &Message<'_>) -> Option<Vec<u8>> {
    let of = datatype::builtin(message.of).filter(|of| of.size() > 0)?;
    if !window.holds_all(&message.shape, of) {
        return None;
    }
    // SAFETY: `holds_all` has checked that the elements lie in memory that the program has lent to the window until it frees the window.
    unsafe { carry_out(message, of, window.base as *mut u8) }
}

/// Carries out an operation; the positions count from `memory`.
///
/// # Safety
/// The elements at the message's positions are accessible.
pub(super) unsafe fn carry_out(message: &Message<'_>, of: &Type, memory: *mut u8) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    unsafe {
        match message.kind {
            Kind::Put => message.shape.unpack(message.data, memory).map(|()| Vec::new()),
            Kind::Get => contents(message, of, memory),
            Kind::Accumulate => accumulate(message, of, memory).map(|()| Vec::new()),
            Kind::Fetch => {
                let former = contents(message, of, memory)?;
                accumulate(message, of, memory).map(|()| former)
            }
            Kind::Swap => swap(message, of, memory),
            _ => None,
        }
    }
}

/// Returns the data of the elements.
///
/// # Safety
/// As [`carry_out`].
unsafe fn contents(message: &Message<'_>, of: &Type, memory: *mut u8) -> Option<Vec<u8>> {
    let mut data = staging::reserve(message.shape.bytes())?;
    // SAFETY: the caller's promise.
    unsafe {
        if of.is_flat() {
            message.shape.pack(memory, &mut data);
        } else {
            message.shape.each_run(|run| {
                of.pack(memory.wrapping_offset(run.offset as isize), run.len / of.size(), &mut data);
                true
            });
        }
    }
    Some(data)
}

/// Combines the message's data with that of the elements.
///
/// # Safety
/// As [`carry_out`].
unsafe fn accumulate(message: &Message<'_>, of: &Type, memory: *mut u8) -> Option<()> {
    let (op, mut data) = (op::builtin(message.op)?, message.data);
    if op == op::Builtin::NoOp {
        return Some(());
    }
    if data.len() != message.shape.bytes() {
        return None;
    }
    // Holds elements with gaps. The memory is aligned for numbers of 16 bytes.
    let mut elements: Vec<u128> = Vec::new();
    let is_done = message.shape.each_run(|run| {
        let count = run.len / of.size();
        let (now, rest) = data.split_at(run.len);
        data = rest;
        let target = memory.wrapping_offset(run.offset as isize);
        if of.is_flat() {
            // SAFETY: the data has `count` elements, which `apply` only reads; the caller's promise holds for the target.
            return unsafe { numbers::apply(op, now.as_ptr().cast_mut(), target, count, of) }.is_ok();
        }
        let room = (count * of.extent as usize).div_ceil(16);
        elements.resize(room.max(elements.len()), 0);
        let elements = elements.as_mut_ptr().cast::<u8>();
        // SAFETY: `elements` has room for `count` elements; the caller's promise holds for the target.
        unsafe {
            of.unpack(now, elements, count);
            numbers::apply(op, elements, target, count, of).is_ok()
        }
    });
    is_done.then_some(())
}

/// Replaces the element by the second half of the data if it equals the first half. Returns its former value.
///
/// # Safety
/// As [`carry_out`].
unsafe fn swap(message: &Message<'_>, of: &Type, memory: *mut u8) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    unsafe {
        let former = contents(message, of, memory)?;
        let (compare, new) = message.data.split_at_checked(former.len())?;
        if former == compare {
            message.shape.unpack(new, memory)?;
        }
        Some(former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datatype::Shape;

    /// `MPI_INT` and `MPI_SUM`.
    const INT: i32 = 0x4c00_0405;
    const SUM: i32 = 0x5800_0003;

    #[test]
    fn only_those_who_ask_for_the_former_contents_get_them() {
        let of = datatype::builtin(INT).expect("predefined");
        let mut memory = [1_i32, 2];
        let data: Vec<u8> = [10_i32, 20].into_iter().flat_map(i32::to_le_bytes).collect();
        let mut with = |kind, number| {
            let message = Message {
                op: SUM,
                of: INT,
                shape: Shape::run(0, 8),
                data: &data,
                ..Message::plain(kind, 0, number)
            };
            // SAFETY: the memory has both elements.
            unsafe { carry_out(&message, of, memory.as_mut_ptr().cast()) }.expect("a valid operation")
        };
        assert!(with(Kind::Accumulate, 0).is_empty() && with(Kind::Accumulate, 7).is_empty());
        let former: Vec<u8> = [21_i32, 42].into_iter().flat_map(i32::to_le_bytes).collect();
        assert_eq!(with(Kind::Fetch, 7), former);
        assert_eq!(memory, [31, 62]);
    }
}
