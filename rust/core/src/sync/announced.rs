//! loom's atomics, made to explore every schedule.
//!
//! loom reduces the schedules to explore to those that differ in the order of dependent accesses,
//! but remembers one last access per word only: once a thread has loaded a word, its later write no
//! longer counts as racing with another thread's earlier load (tokio-rs/loom issues 166 and 392).
//! Load-then-swap loops, of which this crate is made, are just that pattern. So each access is
//! announced by an addition to a companion word. Additions all depend on each other, hence loom
//! tries them, and the accesses behind them, in every order; being relaxed, and on a word that
//! nobody reads, they order nothing themselves.

use loom::sync::atomic::{self, Ordering};

macro_rules! announced {
    ($name:ident, $word:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            announcements: atomic::AtomicU32,
            word: atomic::$name,
        }

        #[allow(dead_code, reason = "both widths offer the same operations")]
        impl $name {
            pub(crate) fn new(value: $word) -> Self {
                Self {
                    announcements: atomic::AtomicU32::new(0),
                    word: atomic::$name::new(value),
                }
            }

            fn announce(&self) -> &atomic::$name {
                self.announcements.fetch_add(1, Ordering::Relaxed);
                &self.word
            }

            pub(crate) fn load(&self, order: Ordering) -> $word {
                self.announce().load(order)
            }

            pub(crate) fn store(&self, value: $word, order: Ordering) {
                self.announce().store(value, order);
            }

            pub(crate) fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                self.announce().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $word, order: Ordering) -> $word {
                self.announce().fetch_sub(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                self.announce()
                    .compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                self.announce()
                    .compare_exchange_weak(current, new, success, failure)
            }
        }
    };
}

announced!(AtomicU32, u32);
announced!(AtomicU64, u64);
