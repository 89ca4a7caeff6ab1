//! The structs and numbers of `kolo.h`. `tests/header.rs` includes this file and compares it with the layout that the C compiler gives
//! the header.

use std::ffi::{c_char, c_int, c_void};

/// The beginning of every struct that may grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versioned {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
}

/// `koloConfig_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) head: Versioned,
    pub(crate) transport: *const c_char,
    pub(crate) algorithms: *const c_char,
    pub(crate) host_id: *const c_char,
    pub(crate) socket_interfaces: *const c_char,
    pub(crate) socket_congestion: *const c_char,
    pub(crate) timeout_ms: i64,
    pub(crate) join_timeout_ms: i64,
    pub(crate) segment_bytes: i64,
    pub(crate) window: i64,
    pub(crate) exchange_bytes: i64,
    pub(crate) spin_us: i64,
    pub(crate) determinism: c_int,
    pub(crate) port_range: *const c_char,
}

impl Config {
    pub(crate) const HEAD: Versioned = Versioned { size: size_of::<Self>(), magic: 0x6b63_6667, version: 1 };
}

/// `koloCall_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) head: Versioned,
    pub(crate) collective: c_int,
    pub(crate) data_type: c_int,
    pub(crate) op: c_int,
    pub(crate) root: c_int,
    pub(crate) input: *const c_void,
    pub(crate) output: *mut c_void,
    pub(crate) count: usize,
    pub(crate) factor: f64,
}

impl Call {
    pub(crate) const HEAD: Versioned = Versioned { size: size_of::<Self>(), magic: 0x6b63_616c, version: 1 };
}

/// `koloTransfer_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) kind: c_int,
    pub(crate) peer: c_int,
    pub(crate) buffer: *mut c_void,
    pub(crate) count: usize,
    pub(crate) data_type: c_int,
}

/// `koloMessage_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) source: c_int,
    pub(crate) tag: u32,
    pub(crate) bytes: usize,
    pub(crate) data_type: c_int,
}

/// `koloUniqueId`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UniqueId {
    pub(crate) bytes: [u8; UNIQUE_ID_BYTES],
}

/// `koloPart_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) name: *const c_char,
    pub(crate) memory: *mut c_void,
    pub(crate) bytes: usize,
}

/// `koloChange_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) epoch: u64,
    pub(crate) left: *const c_int,
    pub(crate) left_count: usize,
    pub(crate) came: *const c_int,
    pub(crate) came_count: usize,
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

/// `KOLO_UNIQUE_ID_BYTES`
pub(crate) const UNIQUE_ID_BYTES: usize = 128;

/// `KOLO_UNSET`, `KOLO_NO_COLOR`
pub(crate) const UNSET: i64 = -1;

/// `KOLO_ANY_SOURCE`
pub(crate) const ANY_SOURCE: c_int = -1;

/// `KOLO_NEWCOMER`
pub(crate) const NEWCOMER: c_int = -1;

/// `koloResult_t`
pub(crate) mod result {
    use std::ffi::c_int;

    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const USAGE: c_int = 1;
    pub(crate) const CONFIGURATION: c_int = 2;
    pub(crate) const JOIN: c_int = 3;
    pub(crate) const MISMATCH: c_int = 4;
    pub(crate) const PEER_LOST: c_int = 5;
    pub(crate) const TIMEOUT: c_int = 6;
    pub(crate) const ABORTED: c_int = 7;
    pub(crate) const UNSUPPORTED: c_int = 8;
    pub(crate) const TRANSPORT: c_int = 9;
    pub(crate) const SYSTEM: c_int = 10;
    pub(crate) const INTERNAL: c_int = 11;
    pub(crate) const REVOKED: c_int = 12;
    pub(crate) const FENCED: c_int = 13;
    pub(crate) const MINORITY: c_int = 14;

    /// Whether it stands for an error after which the communicator cannot be used: those of `Error::is_fatal`, and the
    /// causes of `Aborted` that have codes of their own.
    pub(crate) const fn is_fatal(code: c_int) -> bool {
        matches!(code, MISMATCH | PEER_LOST | TIMEOUT | ABORTED | TRANSPORT | REVOKED | FENCED | MINORITY)
    }
}
