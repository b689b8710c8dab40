//! One test per requirement: both halves of a direction, their control messages passed by hand
//! through their encoding.

mod advertisements;
mod announcements;
mod deaths;
mod ends;
mod modes;

use super::*;
use crate::session::control::{Advertisement, Available, Complete, Control};
use crate::session::error::ProtocolError;
use crate::session::header::{Header, Kind};
use crate::session::mode::{Behaviour, Mode};
use ends::Ends;
use std::cell::Cell;

const BOTH: Abilities = Abilities { threshold: 2048, read: true, write: true };
const READ_ONLY: Abilities = Abilities { write: false, ..BOTH };
const WRITE_ONLY: Abilities = Abilities { read: false, ..BOTH };
const LARGE: u64 = 64 << 10;
const FIRST: u32 = 1024;
const REST: u32 = LARGE as u32 - FIRST;
