//! This process's table, as the rest of the library reaches it. The library notes here what happens to connections, and
//! sets the words of the header.
//!
//! [`writer`](super::writer) makes the table. Without a table, everything here does nothing.

use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::closed::Closed;
use super::event::Event;
use super::layout::{RegistryHeader, RegistryTable, CAPACITY, SLOT_SIZE};
use super::slot::{Identity, Slot, State};
use crate::reason::Reason;

/// The table. It has the same address in fork children, which have a file of their own there.
static TABLE: AtomicPtr<RegistryTable> = AtomicPtr::new(std::ptr::null_mut());

/// The mailbox of the helper thread. Kept here too, because the thread may start while the process gets its file.
static HELPER: AtomicU64 = AtomicU64::new(0);

#[inline]
fn table() -> Option<&'static RegistryTable> {
    // SAFETY: null, or a table that is never unmapped.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

#[inline]
fn header() -> Option<&'static RegistryHeader> {
    table().map(|table| &table.header)
}

/// This is the process's table from now on.
pub(super) fn begin(table: &'static RegistryTable) {
    TABLE.store(std::ptr::from_ref(table).cast_mut(), Ordering::Release);
}

/// How many requests `sanctl` has made to this process.
#[inline]
pub(crate) fn requests() -> u32 {
    header().map_or(0, |header| header.requests.load(Ordering::Relaxed))
}

/// Publishes with whom the process shares memory, for it and its fork children.
pub(crate) fn publish_admission(
    started_as: u32,
    users: impl Iterator<Item = u32>,
    folder: Option<&Path>,
) {
    if let Some(header) = header() {
        header.admission.set(started_as, users, folder);
    }
}

/// Publishes how much memory segments have, and may have; `None` where nothing limits them.
pub(crate) fn set_budget(taken: u64, most: Option<u64>) {
    let Some(header) = header() else { return };
    for (word, bytes) in header.budget.iter().zip([taken, most.unwrap_or(0)]) {
        word.store(bytes, Ordering::Relaxed);
    }
}

/// Counts a connection of this process that went back to TCP. A fork child begins with none.
pub fn count_return(reason: Reason) {
    let count = header().and_then(|header| header.returned.get(reason.as_u32() as usize));
    if let Some(count) = count {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// How `sanctl` reaches the helper thread, which goes on with this process's connections between hosts. A fork child
/// begins with none.
pub(crate) fn publish_helper(mailbox: u64) {
    HELPER.store(mailbox, Ordering::SeqCst);
    publish_helper_again();
}

/// The file is new, and does not have the mailbox yet.
pub(super) fn publish_helper_again() {
    if let Some(header) = header() {
        header.helper.store(HELPER.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// In a fork child, which has no helper thread.
pub(super) fn forget_helper() {
    HELPER.store(0, Ordering::Relaxed);
}

/// Notes what happened to a connection, for `sanctl why` and `sanctl trace`. Does nothing for a slot that nobody reads,
/// such as the [`spare`](super::spare) one.
#[cold]
pub(crate) fn note(slot: &Slot, event: Event) {
    let Some(table) = table() else { return };
    if let Some(index) = index_in(table, slot) {
        table.header.events.note(&table.events, index, slot.fd(), event);
    }
}

/// The index of a slot in the table; `None` if it is not in it.
pub(super) fn index_in(table: &RegistryTable, slot: &Slot) -> Option<usize> {
    let offset = std::ptr::from_ref(slot).addr().wrapping_sub(table.slots.as_ptr().addr());
    Some(offset / SLOT_SIZE).filter(|index| *index < CAPACITY)
}

/// Makes the connection visible, or replaces what was said about it. One caller at a time.
pub fn publish(slot: &Slot, identity: &Identity) {
    let (is_new, before) = (slot.is_hidden(), slot.reason());
    slot.publish(identity);
    if is_new {
        count(|closed| &closed.opened);
        reason_changed(slot, identity.reason, Event::Opened(identity.reason));
    } else if before != Some(identity.reason) {
        reason_changed(slot, identity.reason, Event::Reason(identity.reason));
    }
}

/// The connection is where it is for another reason.
fn reason_changed(slot: &Slot, reason: Reason, event: Event) {
    if reason == Reason::OnSan {
        count(|closed| &closed.moved);
    }
    note(slot, event);
}

fn count(which: impl FnOnce(&Closed) -> &AtomicU64) {
    if let Some(header) = header() {
        which(&header.closed).fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes the state only.
pub(crate) fn set_state(slot: &Slot, state: State) {
    if slot.set_state(state) {
        note(slot, Event::State(state));
    }
}

/// Changes the reason only.
pub(crate) fn set_reason(slot: &Slot, reason: Reason) {
    if slot.set_reason(reason) {
        reason_changed(slot, reason, Event::Reason(reason));
    }
}

/// Takes the connection out of sight.
pub(super) fn hide(slot: &Slot) {
    if !slot.is_hidden() {
        note(slot, Event::Closed);
        if let Some(header) = header() {
            header.closed.add(slot);
        }
    }
    slot.hide();
}
