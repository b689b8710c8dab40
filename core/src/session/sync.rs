//! The atomics of the session, named in one place so that the model checker can put its own in (see `model.rs`). This
//! module holds nothing else.

pub(super) use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
