//! The one error type of the interface, the same on both sides of the C table.

/// Result of an operation of the interface.
pub type ProviderResult<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $errno:ident, $text:literal;)*) => {
        /// Why an operation failed. The number is what crosses the C table, negated.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[repr(i32)]
        pub enum Error { $($(#[$doc])* #[error($text)] $name = $code,)* }

        impl Error {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Error] = &[$(Error::$name),*];

            /// The errno that TCP gives for the same situation.
            pub fn errno(self) -> i32 {
                match self { $(Error::$name => libc::$errno,)* }
            }

            /// From a status of the C table. A number nobody defined is [`Error::Internal`].
            pub fn from_code(code: i32) -> Error {
                match code { $($code => Error::$name,)* _ => Error::Internal }
            }
        }
    };
}

errors! {
    /// An argument outside its range, or an object used in a state that does not allow it.
    InvalidParameter = 1, EINVAL, "an argument or the object's state does not allow this";
    /// Memory, queue entries or pinned pages ran out (S6).
    InsufficientResources = 2, ENOBUFS, "out of memory, queue entries or pinned pages";
    /// The device or this provider cannot do it.
    NotSupported = 3, EOPNOTSUPP, "the device or provider cannot do this";
    /// The local address is in use.
    AddressInUse = 4, EADDRINUSE, "the local address is in use";
    /// This provider does not serve the local address.
    AddressNotAvailable = 5, EADDRNOTAVAIL, "the provider does not serve this address";
    /// Nobody listens there, or the listener rejected the request.
    ConnectionRefused = 6, ECONNREFUSED, "nobody listens there, or the request was rejected";
    /// The peer ended the connection or died.
    ConnectionReset = 7, ECONNRESET, "the peer ended the connection";
    /// No route to the peer.
    HostUnreachable = 8, EHOSTUNREACH, "the peer cannot be reached";
    /// The peer did not answer in time: retries exceeded.
    TimedOut = 9, ETIMEDOUT, "the peer did not answer in time";
    /// Withdrawn by its own side: cancelled, flushed, or the object was closed.
    Cancelled = 10, ECANCELED, "cancelled";
    /// The queue pair is not connected.
    NotConnected = 11, ENOTCONN, "not connected";
    /// Local memory outside its registration, or without the right (M3).
    LocalAccess = 12, EFAULT, "local memory is not registered for this";
    /// Remote memory outside its descriptor, without the right, or no longer reachable (M2, M3).
    RemoteAccess = 13, ECONNRESET, "the peer's memory is not reachable for this";
    /// A message larger than the buffer posted for it.
    BufferOverflow = 14, EMSGSIZE, "the message is larger than the buffer posted for it";
    /// The device was removed or its port went down for good.
    DeviceRemoved = 15, ENETDOWN, "the device is gone";
    /// Not permitted, for example memory that must not be pinned (RLIMIT_MEMLOCK).
    AccessDenied = 16, EACCES, "not permitted";
    /// The provider failed in a way it has no other word for.
    Internal = 17, EIO, "the provider failed";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_survives_the_c_table() {
        for (i, &error) in Error::ALL.iter().enumerate() {
            assert_eq!(error as i32, i as i32 + 1);
            assert_eq!(Error::from_code(error as i32), error);
        }
        assert_eq!(Error::from_code(12345), Error::Internal);
    }
}
