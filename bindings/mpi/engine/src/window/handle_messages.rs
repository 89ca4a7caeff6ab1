//! Handling of messages for windows at the target. It runs under the lock of the messages, in the thread that polls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::locks::Wish;
use super::wire::{Kind, Message};
use super::{Operation, WINDOWS, Window};
use crate::constants::LOCK_EXCLUSIVE;
use crate::datatype::{self, Type};
use crate::error::{Class, Fail};
use crate::net::{self, Net};
use crate::numbers;
use crate::op;

/// Windows by number.
static KNOWN: Mutex<Option<HashMap<u32, Arc<Window>>>> = Mutex::new(None);
/// Operations that wait for an answer, by number.
static AWAITED: Mutex<Option<HashMap<u64, Arc<Operation>>>> = Mutex::new(None);
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn with<K, V, T>(map: &Mutex<Option<HashMap<K, V>>>, call: impl FnOnce(&mut HashMap<K, V>) -> T) -> T {
    call(map.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(HashMap::new))
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
            Some(data) => answer(net, from, message.number, &data),
            None if message.number != 0 => refuse(net, from, message.number),
            None => drop(window.locks().refused.insert(rank)),
        },
    }
}

/// Reads or writes this rank's memory. Returns the answer; `None` if the memory is not part of the window.
fn access(window: &Window, message: &Message<'_>) -> Option<Vec<u8>> {
    let of = datatype::builtin(message.of)?;
    let mut answer = Vec::new();
    let mut data = message.data;
    for (offset, count) in &message.cells {
        let count = usize::try_from(*count).ok()?;
        // No elements may have any address, even one that is not part of the window.
        if count == 0 {
            continue;
        }
        let span = count.checked_mul(of.extent as usize)?;
        if !window.holds(*offset, span.saturating_sub(of.extent as usize - of.true_extent as usize)) {
            return None;
        }
        let at = window.base.wrapping_add(*offset as usize) as *mut u8;
        let bytes = count * of.size();
        let now = data.get(..bytes.min(data.len()))?;
        // SAFETY: `holds` has checked that the elements lie in memory that the program has lent to the window until it frees the window.
        unsafe {
            if message.number != 0 && message.kind != Kind::Put {
                of.pack(at, count, &mut answer);
            }
            match message.kind {
                Kind::Put => of.unpack(now, at, count),
                Kind::Accumulate => accumulate(message, now, at, count, of)?,
                // The message has the value to compare with first, then the new value.
                Kind::Swap => {
                    let (compare, new) = message.data.split_at_checked(of.size())?;
                    if answer == compare {
                        of.unpack(new, at, 1);
                    }
                }
                _ => {}
            }
        }
        if message.kind != Kind::Swap {
            data = data.get(bytes.min(data.len())..)?;
        }
    }
    Some(answer)
}

unsafe fn accumulate(
    message: &Message<'_>,
    data: &[u8],
    at: *mut u8,
    count: usize,
    of: &Arc<Type>,
) -> Option<()> {
    let op = op::builtin(message.op)?;
    if op == op::Builtin::NoOp || count == 0 {
        return Some(());
    }
    if data.len() < count * of.size() {
        return None;
    }
    // The memory is aligned for numbers of 16 bytes.
    let mut elements = vec![0_u128; (count * of.extent as usize).div_ceil(16)];
    let elements = elements.as_mut_ptr().cast::<u8>();
    // SAFETY: `elements` has room for `count` elements; the caller's promise holds for the target.
    unsafe {
        of.unpack(data, elements, count);
        numbers::apply(op, elements, at, count, of).ok()
    }
}
