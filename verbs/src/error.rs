//! rdma-core's errors in the interface's words.

use rdma_sys::{ibv_wc_status, rdma_cm_event_type};
use sanshim_core::provider::interface::{Error, ProviderResult};
use std::io;

/// The error in errno, as rdma-core left it.
pub(crate) fn last() -> Error {
    of_errno(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

pub(crate) fn of_errno(errno: i32) -> Error {
    match errno {
        libc::EINVAL => Error::InvalidParameter,
        libc::ENOMEM
        | libc::ENOSPC
        | libc::EAGAIN
        | libc::ENOBUFS
        | libc::EMFILE
        | libc::ENFILE => Error::InsufficientResources,
        libc::EOPNOTSUPP | libc::ENOSYS => Error::NotSupported,
        libc::EADDRINUSE => Error::AddressInUse,
        libc::EADDRNOTAVAIL => Error::AddressNotAvailable,
        libc::ECONNREFUSED => Error::ConnectionRefused,
        libc::EHOSTUNREACH | libc::ENETUNREACH => Error::HostUnreachable,
        libc::ETIMEDOUT => Error::TimedOut,
        libc::EFAULT => Error::LocalAccess,
        libc::ENODEV | libc::EIO | libc::ENETDOWN => Error::DeviceRemoved,
        libc::EPERM | libc::EACCES => Error::AccessDenied,
        _ => Error::Internal,
    }
}

/// The result of a call that returns an error number, which some devices' libraries make negative.
pub(crate) fn check(errno: i32) -> ProviderResult<()> {
    if errno == 0 {
        Ok(())
    } else {
        Err(of_errno(errno.abs()))
    }
}

/// The result of a call that returns -1 and sets errno.
pub(crate) fn check_last(status: i32) -> ProviderResult<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(last())
    }
}

/// How a request ended.
pub(crate) fn of_completion(status: ibv_wc_status::Type) -> ProviderResult<()> {
    use ibv_wc_status::*;
    Err(match status {
        IBV_WC_SUCCESS => return Ok(()),
        IBV_WC_LOC_LEN_ERR => Error::BufferOverflow,
        // Soft-RoCE gives the last of them for memory that is not registered.
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_LOC_QP_OP_ERR => Error::LocalAccess,
        IBV_WC_WR_FLUSH_ERR => Error::Cancelled,
        IBV_WC_MW_BIND_ERR => Error::InvalidParameter,
        IBV_WC_REM_ACCESS_ERR => Error::RemoteAccess,
        // The responder could not take it, because the message is larger than its buffer.
        IBV_WC_REM_INV_REQ_ERR => Error::BufferOverflow,
        IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR => Error::ConnectionReset,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => {
            Error::TimedOut
        }
        IBV_WC_FATAL_ERR => Error::DeviceRemoved,
        _ => Error::Internal,
    })
}

/// Why a connection could not be made.
pub(crate) fn of_connecting(event: rdma_cm_event_type::Type, status: i32) -> Error {
    use rdma_cm_event_type::*;
    match event {
        RDMA_CM_EVENT_REJECTED => Error::ConnectionRefused,
        RDMA_CM_EVENT_UNREACHABLE if status == -libc::ETIMEDOUT => Error::TimedOut,
        RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => {
            Error::HostUnreachable
        }
        RDMA_CM_EVENT_DEVICE_REMOVAL => Error::DeviceRemoved,
        _ => Error::ConnectionReset,
    }
}
