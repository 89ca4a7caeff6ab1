//! Shared memory and futexes as loom sees them. Loom's atomics are objects, not words of memory, so each address has its own.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};

use super::atomic::{Atomic, AtomicU32, AtomicU64};

thread_local! {
    /// Stand-ins for the words of one execution. All threads of a model run on one thread of the system.
    static WORDS: RefCell<HashMap<usize, Box<dyn Any>>> = RefCell::default();
    static PAYLOADS: RefCell<HashMap<usize, Payload>> = RefCell::default();
    static BEDS: RefCell<HashMap<usize, Rc<Bed>>> = RefCell::default();
}

/// Where threads sleep that wait on a word, by the bits with which they are woken.
struct Bed {
    lock: Mutex<()>,
    woken: RefCell<HashMap<u32, Rc<Condvar>>>,
}

/// Runs a model under every order of events. Memory is zero at first.
pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
    loom::model(move || {
        // Words made for the execution before mean nothing in this one.
        WORDS.take();
        PAYLOADS.take();
        BEDS.take();
        body();
    });
}

macro_rules! by_address {
    ($($integer:ident: $value:ty),*) => {$(
        // SAFETY: the same object for the same address, until the execution ends; loom's atomics permit mutation.
        unsafe impl Atomic for $integer {
            const BYTES: usize = size_of::<$value>();

            unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                WORDS.with_borrow_mut(|words| {
                    let word = words.entry(address.addr()).or_insert_with(|| Box::new(Self::new(0)));
                    let word: *const Self = word.downcast_ref().expect("a word has one length");
                    // SAFETY: boxed, and kept for the whole execution.
                    unsafe { &*word }
                })
            }
        }
    )*};
}

by_address!(AtomicU32: u32, AtomicU64: u64);

/// Memory that both sides touch and that is no atomic: an access at the same time as a write ends the model.
#[derive(Clone)]
pub(crate) struct Payload(Rc<UnsafeCell<u64>>);

impl Payload {
    /// The first word of the payload at an address.
    pub(crate) fn at(address: *const u8) -> Self {
        let new = || Self(Rc::new(UnsafeCell::new(0)));
        PAYLOADS.with_borrow_mut(|payloads| payloads.entry(address.addr()).or_insert_with(new).clone())
    }

    pub(crate) fn write(&self, value: u64) {
        // SAFETY: loom has seen that nobody else is here.
        self.0.with_mut(|word| unsafe { *word = value });
    }

    pub(crate) fn read(&self) -> u64 {
        // SAFETY: loom has seen that nobody writes.
        self.0.with(|word| unsafe { *word })
    }
}

fn bed(word: &AtomicU32) -> Rc<Bed> {
    let at = std::ptr::from_ref(word).addr();
    let new = || Rc::new(Bed { lock: Mutex::new(()), woken: RefCell::default() });
    BEDS.with_borrow_mut(|beds| Rc::clone(beds.entry(at).or_insert_with(new)))
}

/// As the futex's. Without a time-out: a wake-up that is lost is a deadlock, which loom reports.
///
/// # Errors
/// Never.
pub fn wait_word(word: &AtomicU32, value: u32, timeout: Duration) -> io::Result<()> {
    wait_word_for(word, value, NonZeroU32::MAX, timeout)
}

/// As the futex's, also without a time-out.
///
/// # Errors
/// Never.
pub fn wait_word_for(word: &AtomicU32, value: u32, bits: NonZeroU32, _: Duration) -> io::Result<()> {
    let bed = bed(word);
    let woken =
        Rc::clone(bed.woken.borrow_mut().entry(bits.get()).or_insert_with(|| Rc::new(Condvar::new())));
    let guard = bed.lock.lock().expect("no panic");
    // The kernel compares under a lock of its own.
    if word.load(Ordering::SeqCst) == value {
        drop(woken.wait(guard).expect("no panic"));
    }
    Ok(())
}

/// As the futex's.
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, NonZeroU32::MAX);
}

/// As the futex's.
pub(crate) fn wake(word: &AtomicU32, bits: NonZeroU32) {
    let bed = bed(word);
    let guard = bed.lock.lock().expect("no panic");
    let sleepers: Vec<Rc<Condvar>> = {
        let woken = bed.woken.borrow();
        woken
            .iter()
            .filter(|(of, _)| *of & bits.get() != 0)
            .map(|(_, sleepers)| Rc::clone(sleepers))
            .collect()
    };
    sleepers.iter().for_each(|sleepers| sleepers.notify_all());
    drop(guard);
}
