//! The engine's numbers, which are those of the MPICH ABI. The front end of another ABI translates them.

use std::ffi::{c_int, c_void};

macro_rules! numbers {
    ($($name:ident = $value:expr;)+) => {
        $(pub const $name: c_int = $value;)+
    };
}

numbers! {
    SUCCESS = 0;
    ANY_SOURCE = -2;
    ANY_TAG = -1;
    PROC_NULL = -1;
    ROOT = -3;
    UNDEFINED = -32766;
    IDENT = 0;
    CONGRUENT = 1;
    SIMILAR = 2;
    UNEQUAL = 3;
    GRAPH = 1;
    CART = 2;
    DIST_GRAPH = 3;
    THREAD_SINGLE = 0;
    THREAD_MULTIPLE = 3;
    COMM_TYPE_SHARED = 1;
    COMM_TYPE_HW_GUIDED = 2;
    COMM_TYPE_HW_UNGUIDED = 3;
    COMM_TYPE_RESOURCE_GUIDED = 4;
    BSEND_OVERHEAD = 96;
    MAX_PROCESSOR_NAME = 128;
    MAX_ERROR_STRING = 512;
    MAX_INFO_KEY = 255;
    MAX_INFO_VAL = 1024;
    MAX_OBJECT_NAME = 128;
    MAX_PSET_NAME = 256;
    ORDER_C = 56;
    ORDER_FORTRAN = 57;
    DISTRIBUTE_BLOCK = 121;
    DISTRIBUTE_CYCLIC = 122;
    DISTRIBUTE_NONE = 123;
    DISTRIBUTE_DFLT_DARG = -49767;
    LOCK_EXCLUSIVE = 234;
    LOCK_SHARED = 235;
    MODE_NOCHECK = 1024;
    MODE_CREATE = 1;
    MODE_RDONLY = 2;
    MODE_WRONLY = 4;
    MODE_RDWR = 8;
    MODE_DELETE_ON_CLOSE = 16;
    MODE_UNIQUE_OPEN = 32;
    MODE_EXCL = 64;
    MODE_APPEND = 128;
    MODE_SEQUENTIAL = 256;
    MODE_ALL = 511;
    T_INVALID = 74;
    T_NOT_SUPPORTED = 78;
    SEEK_SET = 600;
    SEEK_CUR = 602;
    SEEK_END = 604;
    WIN_FLAVOR_CREATE = 1;
    WIN_FLAVOR_ALLOCATE = 2;
    WIN_FLAVOR_DYNAMIC = 3;
    WIN_FLAVOR_SHARED = 4;
    WIN_UNIFIED = 2;
    TYPECLASS_REAL = 1;
    TYPECLASS_INTEGER = 2;
    TYPECLASS_COMPLEX = 3;
    ERR_LASTCODE = 0x3fff_ffff;

    COMM_NULL = 0x0400_0000;
    COMM_WORLD = 0x4400_0000;
    COMM_SELF = 0x4400_0001;
    GROUP_NULL = 0x0800_0000;
    GROUP_EMPTY = 0x4800_0000;
    DATATYPE_NULL = 0x0c00_0000;
    BYTE = 0x4c00_010d;
    FILE_NULL = 0;
    ERRHANDLER_NULL = 0x1400_0000;
    ERRORS_ARE_FATAL = 0x5400_0000;
    ERRORS_RETURN = 0x5400_0001;
    ERRORS_ABORT = 0x5400_0003;
    OP_NULL = 0x1800_0000;
    INFO_NULL = 0x1c00_0000;
    INFO_ENV = 0x5c00_0001;
    WIN_NULL = 0x2000_0000;
    SESSION_NULL = 0x3800_0000;
    REQUEST_NULL = 0x2c00_0000;
    MESSAGE_NO_PROC = 0x6c00_0000;
    KEYVAL_INVALID = 0x2400_0000;

    TAG_UB = 0x6440_0001;
    HOST = 0x6440_0003;
    IO = 0x6440_0005;
    WTIME_IS_GLOBAL = 0x6440_0007;
    UNIVERSE_SIZE = 0x6440_0009;
    LASTUSEDCODE = 0x6440_000b;
    APPNUM = 0x6440_000d;
    WIN_BASE = 0x6600_0001;
    WIN_SIZE = 0x6600_0003;
    WIN_DISP_UNIT = 0x6600_0005;
    WIN_CREATE_FLAVOR = 0x6600_0007;
    WIN_MODEL = 0x6600_0009;

    COMBINER_NAMED = 1;
    COMBINER_DUP = 2;
    COMBINER_CONTIGUOUS = 3;
    COMBINER_VECTOR = 4;
    COMBINER_HVECTOR = 6;
    COMBINER_INDEXED = 7;
    COMBINER_HINDEXED = 9;
    COMBINER_INDEXED_BLOCK = 10;
    COMBINER_STRUCT = 12;
    COMBINER_SUBARRAY = 13;
    COMBINER_DARRAY = 14;
    COMBINER_F90_REAL = 15;
    COMBINER_F90_COMPLEX = 16;
    COMBINER_F90_INTEGER = 17;
    COMBINER_RESIZED = 18;
    COMBINER_HINDEXED_BLOCK = 19;
    COMBINER_VALUE_INDEX = 20;
}

/// Largest tag; a message's header has 30 bits for it.
pub const TAG_MAX: c_int = (1 << 30) - 1;

/// `MPI_DISPLACEMENT_CURRENT`: a view begins at the shared file pointer.
pub const DISPLACEMENT_CURRENT: i64 = -54_278_278;
/// Room for the name of a data representation, including its zero.
pub const MAX_DATAREP_STRING: usize = 128;

/// `MPI_IN_PLACE`.
pub const IN_PLACE: *const c_void = usize::MAX as *const c_void;
/// `MPI_BUFFER_AUTOMATIC`.
pub const BUFFER_AUTOMATIC: *const c_void = (usize::MAX - 1) as *const c_void;
/// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`.
pub const STATUS_IGNORE: *mut Status = std::ptr::without_provenance_mut(1);
/// `MPI_UNWEIGHTED`, as front ends pass it.
pub const UNWEIGHTED: *const c_int = 10 as *const c_int;
/// `MPI_WEIGHTS_EMPTY`, as front ends pass it.
pub const WEIGHTS_EMPTY: *const c_int = 11 as *const c_int;

/// `MPI_Status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Lower half of the number of bytes.
    pub count_low: c_int,
    /// Upper half of the number of bytes, times two; the lowest bit says whether the operation was cancelled.
    pub count_high: c_int,
    /// Rank in the communicator.
    pub source: c_int,
    /// Tag.
    pub tag: c_int,
    /// Error code, where a call has several statuses.
    pub error: c_int,
}

impl Status {
    /// The empty status.
    pub const EMPTY: Self =
        Self { count_low: 0, count_high: 0, source: ANY_SOURCE, tag: ANY_TAG, error: SUCCESS };

    /// Returns the bytes received.
    #[must_use]
    pub const fn bytes(&self) -> i64 {
        (((self.count_high as u32 >> 1) as u64) << 32 | self.count_low as u32 as u64) as i64
    }

    /// Sets the bytes received.
    pub const fn set_bytes(&mut self, bytes: i64) {
        self.count_low = bytes as c_int;
        self.count_high = ((bytes >> 32) as c_int) << 1 | (self.count_high & 1);
    }

    /// Returns whether the operation was cancelled.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        self.count_high & 1 == 1
    }

    /// Sets whether the operation was cancelled.
    pub const fn set_cancelled(&mut self, cancelled: bool) {
        self.count_high = (self.count_high & !1) | cancelled as c_int;
    }
}
