//! The links of a port, by the numbers that their queue pairs carry.
//!
//! The lower half of a number is a place. The upper half counts how often that place was used before. So a late
//! completion reaches no later link of the place.

use std::sync::Arc;

struct Place<T> {
    uses: u32,
    link: Option<Arc<T>>,
}

/// See the module.
pub(super) struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { all: Vec::new(), free: Vec::new() }
    }
}

impl<T> Places<T> {
    /// A number that no queue pair has. As many as there are at a time are kept, once one was needed.
    pub(super) fn reserve(&mut self) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.all.push(Place { uses: 0, link: None });
            self.all.len() as u32 - 1
        });
        u64::from(self.all[at as usize].uses) << 32 | u64::from(at)
    }

    /// How many numbers queue pairs have.
    pub(super) fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }

    fn place(&mut self, number: u64) -> Option<&mut Place<T>> {
        let place = self.all.get_mut(number as u32 as usize)?;
        (place.uses == (number >> 32) as u32).then_some(place)
    }

    /// Its queue pair is gone: another one may have the place.
    pub(super) fn free(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            place.uses = place.uses.wrapping_add(1);
            place.link = None;
            self.free.push(number as u32);
        }
    }

    /// Gives the place to a link.
    pub(super) fn put(&mut self, number: u64, link: &Arc<T>) {
        if let Some(place) = self.place(number) {
            place.link = Some(link.clone());
        }
    }

    /// Takes the place away from its link.
    pub(super) fn take(&mut self, number: u64) -> Option<Arc<T>> {
        self.place(number)?.link.take()
    }

    /// The link that has the place.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        let place = self.all.get(number as u32 as usize)?;
        place.link.as_deref().filter(|_| place.uses == (number >> 32) as u32)
    }

    /// Every link.
    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<T>> {
        self.all.iter().filter_map(|place| place.link.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_numbers_are_not() {
        let (mut places, link) = (Places::default(), Arc::new(7));
        let first = places.reserve();
        places.put(first, &link);
        let other = places.reserve();
        assert_eq!(places.get(first), Some(&7));
        places.free(first);
        let second = places.reserve();
        assert_ne!(second, first);
        places.put(second, &link);
        assert_eq!(
            [first, second, other].map(|number| places.get(number).is_some()),
            [false, true, false]
        );
        assert!(places.take(first).is_none() && places.take(second).is_some());
        places.free(first);
        for _ in 0..1000 {
            let number = places.reserve();
            places.free(number);
        }
        assert_eq!(places.all.len(), 3);
        assert_eq!(places.get(u64::MAX), None);
    }
}
