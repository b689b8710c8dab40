//! How much the segments of this process, and the registered buffers of links, may take of what limits the process:
//! memory, addresses, mappings and descriptors. Beyond that, connections stay on TCP or go back, and buffers do not grow. So the program's own calls
//! find what they would find without the library.
//!
//! Segments have a [share](SHARES) of each limit at most: a program finds all that it asks for if it leaves as much
//! where there are no segments. Segments also leave a [reserve](LEAST_RESERVED) free, and as much again as they take.
//! The library counts down what they may take, and counts anew at each [look](refresh) at the limits, once a second at
//! most. So several processes of one cgroup share what it has, and segments give up what the program takes. Where
//! nothing limits a process, the library counts nothing down.

use super::Geometry;
use crate::sys::limits::{self, Room};
use crate::sys::{file, hidden, process, time, Errno, Fd, Result, PAGE};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// Between two looks (ns).
const PERIOD: u64 = 1_000_000_000;
/// As much longer than counting the mappings took it is until they are counted again.
const RARELY: u64 = 200;
/// How long (ns) at least between looks where most descriptors are free.
const SELDOM: u64 = 10_000_000_000;

/// Segments have no more of the memory, of the addresses, of the mappings, and of the descriptors, than the limit divided by this.
const SHARES: [u64; 4] = [4, 5, 2, 2];
/// How much segments leave free beyond what they take: the limit divided by this,
const RESERVED: [u64; 4] = [8, 8, 8, 4];
/// and so much at least: bytes of memory, bytes of addresses, mappings, descriptors.
const LEAST_RESERVED: [u64; 4] = [8 << 20, 512 << 20, 4096, 32];
/// Other processes take memory at the same time. From one look to the next segments take no more than the limit divided
/// by this.
const AT_ONCE: u64 = 32;

/// An amount of each of the four resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes that may be touched, for the first time, by this process.
    pub(super) memory: u64,
    /// Bytes of addresses.
    pub(super) addresses: u64,
    pub(super) mappings: u64,
    /// Descriptors of files.
    pub(super) descriptors: u64,
}

impl Cost {
    /// What one end of a connection takes with a segment of this geometry, as long as nothing grows. It touches its own
    /// send buffer only; with strict overcommit it has both.
    pub(super) fn of(geometry: Geometry) -> Cost {
        let small = geometry.large_offsets()[0] as u64;
        let peers = if file::is_overcommit_strict() { 0 } else { geometry.send_buffer.into() };
        Cost {
            memory: small - peers,
            addresses: (geometry.total() + PAGE) as u64,
            // The segment, and the endpoint.
            mappings: 2,
            // The bells.
            descriptors: 2,
        }
    }

    /// What a buffer takes that grows.
    pub(super) fn of_growth(memory: usize) -> Cost {
        Cost { memory: memory as u64, addresses: 0, mappings: 0, descriptors: 0 }
    }

    /// What registered buffers of so many bytes take: no mappings that would count.
    pub(crate) fn of_buffers(bytes: usize) -> Cost {
        Cost { memory: bytes as u64, addresses: bytes as u64, mappings: 0, descriptors: 0 }
    }

    fn each(self) -> [u64; 4] {
        [self.memory, self.addresses, self.mappings, self.descriptors]
    }
}

struct Resource {
    taken: AtomicU64,
    /// What segments may take until the next look; [`ENDLESS`] without a limit.
    left: AtomicU64,
    /// What segments may take in all, as the last look found; [`ENDLESS`] without a limit.
    most: AtomicU64,
}

const ENDLESS: u64 = u64::MAX;
const MEMORY: usize = 0;
const ADDRESSES: usize = 1;
const MAPPINGS: usize = 2;
const DESCRIPTORS: usize = 3;

static RESOURCES: [Resource; 4] = [const { Resource::without_limit() }; 4];
/// The part of the taken memory that belongs to buffers that grew.
static GROWN: AtomicU64 = AtomicU64::new(0);
/// Clock (ns) of the next look, and of the next at the mappings.
static NEXT: AtomicU64 = AtomicU64::new(0);
static NEXT_OF_MAPPINGS: AtomicU64 = AtomicU64::new(0);
/// The number of a descriptor of the program's at which the next look is due.
#[link_section = "sanshim_words"]
static NEXT_NUMBER: AtomicI32 = AtomicI32::new(Fd::MAX);

/// No look is due as long as segments have none.
const AT_THE_FIRST: Fd = Fd::MAX - 1;
/// So often it is looked at descriptors while the program takes those of the reserve.
const LOOKS_OF_RESERVE: u64 = 16;

/// Takes so much.
///
/// # Errors
/// ENOMEM: nothing is taken, for there is not as much left.
pub(crate) fn take(cost: Cost) -> Result<()> {
    for (at, (resource, amount)) in RESOURCES.iter().zip(cost.each()).enumerate() {
        if !resource.take(amount) {
            for (resource, amount) in RESOURCES.iter().zip(cost.each()).take(at) {
                resource.give_back(amount);
            }
            return Err(Errno(libc::ENOMEM));
        }
    }
    if NEXT_NUMBER.load(Relaxed) == AT_THE_FIRST && cost.descriptors > 0 {
        NEXT_NUMBER.store(0, Relaxed);
    }
    Ok(())
}

/// The same for a buffer that grows.
pub(super) fn take_growth(memory: usize) -> Result<()> {
    take(Cost::of_growth(memory))?;
    GROWN.fetch_add(memory as u64, Relaxed);
    Ok(())
}

/// Gives back what was taken.
pub(crate) fn give_back(cost: Cost) {
    for (resource, amount) in RESOURCES.iter().zip(cost.each()) {
        resource.give_back(amount);
    }
}

impl Resource {
    fn take(&self, amount: u64) -> bool {
        let rest = |left: u64| if left == ENDLESS { Some(left) } else { left.checked_sub(amount) };
        let may = self.left.fetch_update(Relaxed, Relaxed, rest).is_ok();
        if may {
            self.taken.fetch_add(amount, Relaxed);
        }
        may
    }

    fn give_back(&self, amount: u64) {
        let less = |taken: u64| Some(taken.saturating_sub(amount));
        let _ = self.taken.fetch_update(Relaxed, Relaxed, less);
        let more = |left: u64| (left != ENDLESS).then(|| left.saturating_add(amount));
        let _ = self.left.fetch_update(Relaxed, Relaxed, more);
    }

    const fn without_limit() -> Self {
        Resource {
            taken: AtomicU64::new(0),
            left: AtomicU64::new(ENDLESS),
            most: AtomicU64::new(ENDLESS),
        }
    }

    /// Sets what segments may take from now on of the resource with this number, which has so much room. Gives the
    /// amount by which they take too much.
    fn set(&self, at: usize, room: Room) -> u64 {
        if room.limit == ENDLESS {
            self.most.store(ENDLESS, Relaxed);
            self.left.store(ENDLESS, Relaxed);
            return 0;
        }
        let taken = self.taken.load(Relaxed);
        let reserve = reserve(at, room.limit);
        let (free, share) = (room.free.saturating_sub(reserve), room.limit / SHARES[at]);
        let (more, over) = match at {
            // As the program takes them it is looked how many are left.
            DESCRIPTORS => (free, reserve.saturating_sub(room.free).min(taken)),
            _ => (free.saturating_sub(taken) / 2, taken.saturating_sub(free) / 2),
        };
        let more = more.min(share.saturating_sub(taken));
        let at_once = if at == MEMORY { room.limit / AT_ONCE } else { more };
        self.most.store(taken.saturating_add(more), Relaxed);
        self.left.store((more / room.sharers).min(at_once), Relaxed);
        over.max(taken.saturating_sub(share))
    }
}

/// How much of such a limit segments leave free at least.
fn reserve(at: usize, limit: u64) -> u64 {
    (limit / RESERVED[at]).max(LEAST_RESERVED[at])
}

/// Claims the look that is due at that time. False if none is due, or another thread has claimed it.
#[inline]
pub(crate) fn claim_look(now: u64) -> bool {
    let next = NEXT.load(Relaxed);
    now >= next && NEXT.compare_exchange(next, now + PERIOD, Relaxed, Relaxed).is_ok()
}

/// Looks at the limits, and gives what segments are to give back in all. `grown`: the memory of buffers that grew. The
/// caller holds no lock.
#[cold]
pub(crate) fn refresh(grown: u64) -> Cost {
    let before = GROWN.swap(grown, Relaxed);
    let anew = |taken: u64| Some((taken + grown).saturating_sub(before));
    let _ = RESOURCES[MEMORY].taken.fetch_update(Relaxed, Relaxed, anew);
    Cost {
        memory: RESOURCES[MEMORY].set(MEMORY, limits::memory()),
        addresses: RESOURCES[ADDRESSES].set(ADDRESSES, limits::addresses()),
        mappings: count_mappings(),
        descriptors: count_descriptors(),
    }
}

fn count_mappings() -> u64 {
    let start = time::now();
    if start < NEXT_OF_MAPPINGS.load(Relaxed) {
        return 0;
    }
    let room = limits::mappings();
    let took = time::now() - start;
    let least = if room.free > room.limit / 2 { SELDOM } else { 0 };
    NEXT_OF_MAPPINGS.store(start + (took * RARELY).max(least), Relaxed);
    RESOURCES[MAPPINGS].set(MAPPINGS, room)
}

fn count_descriptors() -> u64 {
    let room = limits::descriptors();
    let taken = RESOURCES[DESCRIPTORS].taken.load(Relaxed);
    let over = RESOURCES[DESCRIPTORS].set(DESCRIPTORS, room);
    // A connection gives memory back once the peer has heard of it, and after one look more.
    let reserve = reserve(DESCRIPTORS, room.limit);
    let soon = room.free.saturating_sub(reserve).max(reserve / LOOKS_OF_RESERVE);
    let next = (room.limit - room.free).saturating_sub(taken).saturating_add(soon);
    let next = match taken {
        _ if hidden::aside().is_some() => Fd::MAX,
        0 => AT_THE_FIRST,
        _ => next.try_into().unwrap_or(Fd::MAX),
    };
    NEXT_NUMBER.store(next, Relaxed);
    over
}

/// True if the process may have so few descriptors that it keeps them all: no more than segments leave free.
pub(crate) fn has_few_descriptors() -> bool {
    let (_, hard) = process::descriptor_limit();
    hard <= LEAST_RESERVED[DESCRIPTORS]
}

/// How many descriptors may be taken until the next look.
pub(crate) fn descriptors_left() -> u64 {
    RESOURCES[DESCRIPTORS].left.load(Relaxed)
}

/// True if the program got a descriptor of so high a number that it may be short of them.
#[inline]
pub(crate) fn is_due_at(number: Fd) -> bool {
    number >= NEXT_NUMBER.load(Relaxed)
}

/// Bytes of memory that segments have or may touch, and that they may have; `None` where nothing limits them.
pub(crate) fn of_memory() -> (u64, Option<u64>) {
    let [taken, most] =
        [&RESOURCES[MEMORY].taken, &RESOURCES[MEMORY].most].map(|one| one.load(Relaxed));
    (taken, (most != ENDLESS).then_some(most))
}

impl Cost {
    /// True if segments give nothing back.
    pub(crate) fn is_nothing(self) -> bool {
        self.each() == [0; 4]
    }

    /// What segments still have to give back after `given`.
    pub(crate) fn after(self, given: Cost) -> Cost {
        Cost {
            memory: self.memory.saturating_sub(given.memory),
            addresses: self.addresses.saturating_sub(given.addresses),
            mappings: self.mappings.saturating_sub(given.mappings),
            descriptors: self.descriptors.saturating_sub(given.descriptors),
        }
    }

    /// With so much memory more.
    pub(crate) fn and_grown(self, grown: u64) -> Cost {
        Cost { memory: self.memory + grown, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_there_is_always_more() {
        let one = Resource::without_limit();
        assert_eq!(one.set(MEMORY, Room::ENDLESS), 0);
        assert!((0..1000).all(|_| one.take(1 << 40)));
        one.give_back(999 << 40);
        assert_eq!((one.taken.load(Relaxed), one.left.load(Relaxed)), (1 << 40, ENDLESS));
    }

    const MIB: u64 = 1 << 20;
    const LIMIT: u64 = 800 * MIB;

    /// One look, and all that may be taken then; how much that is in all.
    fn look_and_take(one: &Resource, used_by_program: u64) -> u64 {
        let free = LIMIT.saturating_sub(used_by_program + one.taken.load(Relaxed));
        let over = one.set(MEMORY, Room { limit: LIMIT, free, sharers: 1 });
        assert!(over == 0 || !one.take(1));
        one.give_back(over);
        if over == 0 {
            assert!(one.left.load(Relaxed) <= LIMIT / AT_ONCE);
            while one.take(MIB) {}
        }
        one.taken.load(Relaxed)
    }

    #[test]
    fn segments_have_a_share_and_give_way_to_the_program() {
        let one = Resource::without_limit();
        let settled = |used: u64| (0..30).map(|_| look_and_take(&one, used)).last().unwrap();
        assert_eq!(settled(100 * MIB), LIMIT / 4);
        // A hundred of what the program leaves are reserved, and half of the rest stays free.
        let taken = settled(500 * MIB);
        assert!((90 * MIB..=101 * MIB).contains(&taken), "{taken}");
        let taken = settled(750 * MIB);
        assert!(taken <= 1, "{taken}");
        let taken = settled(100 * MIB);
        assert!((LIMIT / 4 - MIB..=LIMIT / 4).contains(&taken), "{taken}");
    }

    #[test]
    fn descriptors_are_given_back_as_the_program_takes_the_reserve() {
        let one = Resource::without_limit();
        let look = |used: u64| {
            let free = 1024 - used - one.taken.load(Relaxed);
            let over = one.set(DESCRIPTORS, Room { limit: 1024, free, sharers: 1 });
            one.give_back(over);
            over
        };
        assert_eq!(look(300), 0);
        while one.take(2) {}
        assert_eq!(one.taken.load(Relaxed), 468);
        assert_eq!((look(300), look(310), look(500)), (0, 10, 190));
        assert_eq!((look(756), one.taken.load(Relaxed)), (256, 12));
    }

    #[test]
    fn processes_that_look_at_the_same_time_leave_the_reserve() {
        let all: Vec<_> = (0..16).map(|_| Resource::without_limit()).collect();
        let taken = || all.iter().map(|one| one.taken.load(Relaxed)).sum::<u64>();
        for _ in 0..30 {
            let room = Room { limit: LIMIT, free: LIMIT - 300 * MIB - taken(), sharers: 16 };
            for one in &all {
                one.give_back(one.set(MEMORY, room));
            }
            for one in &all {
                while one.take(MIB / 8) {}
            }
            assert!(taken() + reserve(MEMORY, LIMIT) <= LIMIT - 300 * MIB, "{}", taken());
        }
        assert!(taken() > 200 * MIB);
    }
}
