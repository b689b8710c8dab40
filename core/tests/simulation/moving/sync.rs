//! The atomics of the session, each of whose operations is a step of the schedule: before it another thread may run, or the
//! end die. Of the memory model they show nothing: that is for the loom models.

use super::schedule;
pub(super) use std::sync::atomic::{fence, Ordering};

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub(super) struct $name(std::sync::atomic::$name);

        impl $name {
            pub(super) const fn new(value: $value) -> Self {
                $name(std::sync::atomic::$name::new(value))
            }
            fn inner(&self) -> &std::sync::atomic::$name {
                schedule::step();
                &self.0
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
                if schedule::chance(5) {
                    return Err(self.load(failure));
                }
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
