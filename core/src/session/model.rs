//! Model check of the lock-free parts: the source files themselves, with loom's atomics in place of the real ones, in
//! every interleaving and every value that the memory model allows.
//!
//! Loom takes a SeqCst store or read-modify-write for an acquire-release one, and models only SeqCst fences in full. So
//! the models publish an event with a fence behind it, where the real caller uses one SeqCst operation. They check no
//! less than what the caller relies on.

#![allow(unreachable_pub, dead_code, clippy::duplicate_mod)]

use super::{error, header};

#[path = "agreement.rs"]
mod agreement;
#[path = "direction.rs"]
mod direction;
#[path = "end_word.rs"]
mod end_word;
#[path = "flow.rs"]
mod flow;
#[path = "select_counter.rs"]
mod select_counter;
#[path = "token.rs"]
mod token;
#[path = "turn.rs"]
mod turn;
#[path = "way_back.rs"]
mod way_back;
#[path = "way_in.rs"]
mod way_in;
#[path = "way_out.rs"]
mod way_out;

mod of_agreement;
mod of_credits;
mod of_direction;
mod of_end_word;
mod of_select_counters;
mod of_tokens;
mod of_turn;

/// Loom's atomics with a `const` constructor: the loom object is made at its first use.
mod sync {
    pub(super) use loom::sync::atomic::{fence, Ordering};
    use std::sync::OnceLock;

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub(super) struct $name($value, OnceLock<loom::sync::atomic::$name>);

            impl $name {
                pub(super) const fn new(value: $value) -> Self {
                    $name(value, OnceLock::new())
                }
                fn inner(&self) -> &loom::sync::atomic::$name {
                    self.1.get_or_init(|| loom::sync::atomic::$name::new(self.0))
                }
                pub(super) fn load(&self, order: Ordering) -> $value {
                    self.inner().load(order)
                }
                pub(super) fn store(&self, value: $value, order: Ordering) {
                    self.inner().store(value, order);
                }
                pub(super) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_add(value, order)
                }
                pub(super) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_or(value, order)
                }
                pub(super) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    self.inner().fetch_and(value, order)
                }
                pub(super) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.inner().compare_exchange(current, new, success, failure)
                }
                pub(super) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.inner().compare_exchange_weak(current, new, success, failure)
                }
            }
        };
    }
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}

/// Every schedule with up to `preemptions`: all of them take minutes and show no more.
fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Loom's search goes on from a first run in the order of the thread numbers, and not every
/// path is found from every start: each model below proves that it reached what it is about.
#[derive(Default)]
struct Reached(std::sync::Mutex<std::collections::BTreeSet<(u32, u32)>>);

impl Reached {
    fn note(&self, state: (u32, u32)) {
        self.0.lock().unwrap().insert(state);
    }

    fn states(&self) -> Vec<(u32, u32)> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}
