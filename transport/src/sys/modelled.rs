//! Shared memory and futexes for the models. Loom's atomics are objects, not words of memory, so each address gets an
//! object.

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
    /// Objects for the words of one execution. All threads of a model run on one thread of the system.
    static WORDS: RefCell<HashMap<usize, Box<dyn Any>>> = RefCell::default();
    static PAYLOADS: RefCell<HashMap<usize, Payload>> = RefCell::default();
    static BEDS: RefCell<HashMap<usize, Rc<Bed>>> = RefCell::default();
}

/// Queues of the threads that wait on a word, by the bits with which they are woken.
struct Bed {
    lock: Mutex<()>,
    woken: RefCell<HashMap<u32, Rc<Condvar>>>,
}

/// Runs a model in every order of events. Memory is initially zero.
pub(crate) fn model(body: impl Fn() + Sync + Send + 'static) {
    loom::model(move || {
        // Objects of the previous execution are invalid in this one.
        WORDS.take();
        PAYLOADS.take();
        BEDS.take();
        body();
    });
}

macro_rules! by_address {
    ($($integer:ident: $value:ty),*) => {$(
        // SAFETY: `at` returns the same object for the same address until the execution ends; loom's atomics permit
        // mutation.
        unsafe impl Atomic for $integer {
            const BYTES: usize = size_of::<$value>();

            unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                WORDS.with_borrow_mut(|words| {
                    let word = words.entry(address.addr()).or_insert_with(|| Box::new(Self::new(0)));
                    let word: *const Self = word.downcast_ref().expect("a word has one length");
                    // SAFETY: the object is boxed, and kept for the whole execution.
                    unsafe { &*word }
                })
            }
        }
    )*};
}

by_address!(AtomicU32: u32, AtomicU64: u64);

/// Non-atomic memory that both sides touch. An access during a write fails the model.
#[derive(Clone)]
pub(crate) struct Payload(Rc<UnsafeCell<u64>>);

impl Payload {
    /// Returns the first word of the payload at an address.
    pub(crate) fn at(address: *const u8) -> Self {
        let new = || Self(Rc::new(UnsafeCell::new(0)));
        PAYLOADS.with_borrow_mut(|payloads| payloads.entry(address.addr()).or_insert_with(new).clone())
    }

    pub(crate) fn write(&self, value: u64) {
        // SAFETY: loom has checked that no other thread accesses the word.
        self.0.with_mut(|word| unsafe { *word = value });
    }

    pub(crate) fn read(&self) -> u64 {
        // SAFETY: loom has checked that no thread writes the word.
        self.0.with(|word| unsafe { *word })
    }
}

fn bed(word: &AtomicU32) -> Rc<Bed> {
    let at = std::ptr::from_ref(word).addr();
    let new = || Rc::new(Bed { lock: Mutex::new(()), woken: RefCell::default() });
    BEDS.with_borrow_mut(|beds| Rc::clone(beds.entry(at).or_insert_with(new)))
}

/// Sleeps as the futex version does, but without a time-out: a lost wake-up is a deadlock, which loom reports.
///
/// # Errors
/// Never.
pub fn wait_word(word: &AtomicU32, value: u32, timeout: Duration) -> io::Result<()> {
    wait_word_for(word, value, NonZeroU32::MAX, timeout)
}

/// Sleeps as the futex version does, also without a time-out.
///
/// # Errors
/// Never.
pub fn wait_word_for(word: &AtomicU32, value: u32, bits: NonZeroU32, _: Duration) -> io::Result<()> {
    let bed = bed(word);
    let woken =
        Rc::clone(bed.woken.borrow_mut().entry(bits.get()).or_insert_with(|| Rc::new(Condvar::new())));
    let guard = bed.lock.lock().expect("no panic");
    // The kernel too compares under a lock.
    if word.load(Ordering::SeqCst) == value {
        drop(woken.wait(guard).expect("no panic"));
    }
    Ok(())
}

/// Does not sleep, as on a kernel without the call.
///
/// # Errors
/// Always.
pub fn wait_words(_: &[(&AtomicU32, u32)], _: Duration) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Wakes as the futex version does.
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, NonZeroU32::MAX);
}

/// Wakes as the futex version does.
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
