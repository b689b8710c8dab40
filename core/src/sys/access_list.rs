//! Access lists of files: users who may write to one besides its owner.

use super::{call, user_map, Result};
use std::ffi::CStr;

const VERSION: u32 = 2;
const READ: u16 = 4;
const WRITE: u16 = 2;
/// The kinds of entries, in the order in which the kernel wants them.
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
/// An entry that is about no particular user.
const NOBODY: u32 = u32::MAX;

/// Lets only the owner of a file read and write to it, and lets those users write to it that have a number in this user
/// namespace. The kernel could let in no others.
///
/// # Errors
///
/// EOPNOTSUPP if files have no access lists there.
pub(crate) fn let_write(path: &CStr, users: &[u32]) -> Result<()> {
    let list = encode(&user_map::mapped(users));
    let name = c"system.posix_acl_access".as_ptr() as usize;
    call!(setxattr, path.as_ptr() as usize, name, list.as_ptr() as usize, list.len(), 0).map(drop)
}

fn encode(users: &[u32]) -> Vec<u8> {
    let mut list = VERSION.to_le_bytes().to_vec();
    let mut add = |whom: u16, may: u16, user: u32| {
        list.extend(whom.to_le_bytes());
        list.extend(may.to_le_bytes());
        list.extend(user.to_le_bytes());
    };
    add(OWNER, READ | WRITE, NOBODY);
    users.iter().for_each(|user| add(USER, WRITE, *user));
    add(GROUP, 0, NOBODY);
    add(MASK, WRITE, NOBODY);
    add(OTHERS, 0, NOBODY);
    list
}
