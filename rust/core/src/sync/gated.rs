//! Atomics that pass a gate before each access. The gate belongs to whatever explores schedules.

#[cfg(loom)]
use {super::announced::Gate, loom::sync::atomic};
#[cfg(not(loom))]
use {super::crash_stop::Gate, std::sync::atomic};

use atomic::Ordering;

macro_rules! gated {
    ($name:ident, $word:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            gate: Gate,
            word: atomic::$name,
        }

        #[allow(dead_code, reason = "both widths offer the same operations")]
        impl $name {
            pub(crate) fn new(value: $word) -> Self {
                Self {
                    gate: Gate::new(),
                    word: atomic::$name::new(value),
                }
            }

            fn passed(&self) -> &atomic::$name {
                self.gate.pass();
                &self.word
            }

            pub(crate) fn load(&self, order: Ordering) -> $word {
                self.passed().load(order)
            }

            pub(crate) fn store(&self, value: $word, order: Ordering) {
                self.passed().store(value, order);
            }

            pub(crate) fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                self.passed().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $word, order: Ordering) -> $word {
                self.passed().fetch_sub(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                self.passed()
                    .compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                let word = self.passed();
                if self.gate.fails_spuriously() {
                    return Err(word.load(failure));
                }
                word.compare_exchange_weak(current, new, success, failure)
            }
        }
    };
}

gated!(AtomicU32, u32);
gated!(AtomicU64, u64);
