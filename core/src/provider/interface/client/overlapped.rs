//! The base of objects with asynchronous operations (N4).

use super::super::abi::OverlappedTable as Functions;
use super::super::error::{Error, ProviderResult};
use super::super::types::Reported;
use super::owned::Owned;
use std::os::fd::RawFd;

/// What a completion queue, a connector and a listener have in common.
pub trait Overlapped: sealed::Object {
    /// Readable (poll, epoll) while [`next_result`](Self::next_result) has something. It belongs
    /// to the object: never close or read it.
    fn descriptor(&self) -> RawFd {
        // SAFETY: a live handle of the table's own.
        unsafe { (self.functions().descriptor)(self.owned().handle()) }
    }

    /// The result of an operation that was pending, if one has ended. Never blocks.
    fn next_result(&self) -> Option<Reported> {
        let (mut request, mut status) = (0, 0);
        let next = self.functions().next_result;
        // SAFETY: as above; both places are valid.
        if unsafe { next(self.owned().handle(), &mut request, &mut status) } != 1 {
            return None;
        }
        let result: ProviderResult<()> = match status {
            0 => Ok(()),
            status => Err(Error::from_code(status.wrapping_neg())),
        };
        Some(Reported { request, result })
    }

    /// Withdraws every pending operation of this object; each is still reported, as
    /// [`Error::Cancelled`] or as it ended before.
    fn cancel(&self) {
        // SAFETY: as above.
        unsafe { (self.functions().cancel)(self.owned().handle()) }
    }
}

pub(super) mod sealed {
    use super::{Functions, Owned};

    /// Access that only the client's objects give.
    pub trait Object {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "sealed")]
        fn owned(&self) -> &Owned;
        #[doc(hidden)]
        fn functions(&self) -> &Functions;
    }
}

/// Makes an object with asynchronous operations of `$name`.
macro_rules! overlapped {
    ($name:ident, $functions:ident) => {
        impl super::overlapped::sealed::Object for $name {
            #[allow(private_interfaces, reason = "sealed")]
            fn owned(&self) -> &super::owned::Owned {
                &self.object
            }
            fn functions(&self) -> &super::super::abi::OverlappedTable {
                &self.object.table().$functions
            }
        }
        impl super::Overlapped for $name {}
    };
}
pub(super) use overlapped;
