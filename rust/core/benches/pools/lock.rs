//! Two locks for the lists.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

/// A value that one thread uses at a time.
pub trait Lock<T>: Send + Sync {
    fn new(value: T) -> Self;

    fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R;
}

impl<T: Send> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }

    fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        call(&mut self.lock().expect("no call panics"))
    }
}

/// One atomic word. A waiting thread reads it until it is free, and lets others run now and then,
/// without which a holder that lost its core would stay away for whole time slices.
#[derive(Debug)]
pub struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached in `with`, by the thread that set `held`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T: Send> Lock<T> for SpinLock<T> {
    fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// A call that panics leaves the lock held: nobody goes on with half a change.
    fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        const READS_PER_YIELD: u32 = 64;
        while self.held.swap(true, Ordering::Acquire) {
            let mut reads = 0;
            while self.held.load(Ordering::Relaxed) {
                reads += 1;
                if reads % READS_PER_YIELD == 0 {
                    yield_now();
                } else {
                    spin_loop();
                }
            }
        }
        // SAFETY: the swap from false made this thread the only one, until the store below.
        let result = call(unsafe { &mut *self.value.get() });
        self.held.store(false, Ordering::Release);
        result
    }
}
