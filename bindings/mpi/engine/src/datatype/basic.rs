//! Predefined datatypes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use super::layout::Part;
use super::{Blocks, Made, Type};
use crate::attributes::Attributes;
use crate::constants::{COMBINER_NAMED, DATATYPE_NULL};

/// Kind of a number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Basic {
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    /// C's `long`, which has four bytes in external32.
    LongInt,
    /// C's `unsigned long`, likewise.
    UnsignedLong,
    F16,
    Bf16,
    F32,
    F64,
    /// C's `long double`: on x86-64 the x87's 80 bits in 16 bytes.
    Long,
    /// Quad precision, for Fortran.
    Quad,
    C16,
    C32,
    C64,
    CLong,
    CQuad,
    /// C's `bool`.
    Bool,
    /// Fortran's `LOGICAL`, with its bytes.
    Logical(u8),
    Char,
    Wide,
    Byte,
    Packed,
}

/// The kind of a number, which says which operators are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Domain {
    Integer,
    Float,
    Complex,
    Logical,
    Bytes,
    None,
}

impl Basic {
    /// Returns the kind of number.
    #[must_use]
    pub const fn domain(self) -> Domain {
        match self {
            // The standard has no reductions of characters. Other libraries reduce them as numbers, and programs rely on that.
            Self::Char
            | Self::I8
            | Self::I16
            | Self::I32
            | Self::I64
            | Self::I128
            | Self::U8
            | Self::U16
            | Self::U32
            | Self::U64
            | Self::LongInt
            | Self::UnsignedLong => Domain::Integer,
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::Long | Self::Quad => Domain::Float,
            Self::C16 | Self::C32 | Self::C64 | Self::CLong | Self::CQuad => Domain::Complex,
            Self::Bool | Self::Logical(_) => Domain::Logical,
            Self::Byte => Domain::Bytes,
            Self::Wide | Self::Packed => Domain::None,
        }
    }

    /// Returns whether this is a floating-point or a complex number.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.domain(), Domain::Float | Domain::Complex)
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool | Self::Char | Self::Byte | Self::Packed => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 | Self::C16 | Self::Wide => 4,
            Self::I64 | Self::U64 | Self::LongInt | Self::UnsignedLong | Self::F64 | Self::C32 => 8,
            Self::I128 | Self::Long | Self::Quad | Self::C64 => 16,
            Self::CLong | Self::CQuad => 32,
            Self::Logical(bytes) => bytes as usize,
        }
    }

    /// Returns the alignment in C structures.
    #[must_use]
    pub const fn align(self) -> i64 {
        match self {
            Self::C16 => 2,
            Self::C32 => 4,
            Self::C64 => 8,
            Self::CLong | Self::CQuad => 16,
            _ => self.size() as i64,
        }
    }
}

macro_rules! singles {
    ($($handle:literal = $name:literal, $basic:expr;)+) => {
        const SINGLES: &[(u32, &str, Basic)] = &[$(($handle, $name, $basic),)+];
    };
}

singles! {
    0x0101 = "MPI_CHAR", Basic::Char;
    0x0102 = "MPI_UNSIGNED_CHAR", Basic::U8;
    0x0203 = "MPI_SHORT", Basic::I16;
    0x0204 = "MPI_UNSIGNED_SHORT", Basic::U16;
    0x0405 = "MPI_INT", Basic::I32;
    0x0406 = "MPI_UNSIGNED", Basic::U32;
    0x0807 = "MPI_LONG", Basic::LongInt;
    0x0808 = "MPI_UNSIGNED_LONG", Basic::UnsignedLong;
    0x0809 = "MPI_LONG_LONG_INT", Basic::I64;
    0x040a = "MPI_FLOAT", Basic::F32;
    0x080b = "MPI_DOUBLE", Basic::F64;
    0x100c = "MPI_LONG_DOUBLE", Basic::Long;
    0x010d = "MPI_BYTE", Basic::Byte;
    0x040e = "MPI_WCHAR", Basic::Wide;
    0x010f = "MPI_PACKED", Basic::Packed;
    0x0118 = "MPI_SIGNED_CHAR", Basic::I8;
    0x0819 = "MPI_UNSIGNED_LONG_LONG", Basic::U64;
    0x011a = "MPI_CHARACTER", Basic::Char;
    0x041b = "MPI_INTEGER", Basic::I32;
    0x041c = "MPI_REAL", Basic::F32;
    0x041d = "MPI_LOGICAL", Basic::Logical(4);
    0x081e = "MPI_COMPLEX", Basic::C32;
    0x081f = "MPI_DOUBLE_PRECISION", Basic::F64;
    0x1022 = "MPI_DOUBLE_COMPLEX", Basic::C64;
    0x0226 = "MPI_REAL2", Basic::F16;
    0x0427 = "MPI_REAL4", Basic::F32;
    0x0828 = "MPI_COMPLEX8", Basic::C32;
    0x0829 = "MPI_REAL8", Basic::F64;
    0x102a = "MPI_COMPLEX16", Basic::C64;
    0x102b = "MPI_REAL16", Basic::Quad;
    0x202c = "MPI_COMPLEX32", Basic::CQuad;
    0x012d = "MPI_INTEGER1", Basic::I8;
    0x042e = "MPI_COMPLEX4", Basic::C16;
    0x022f = "MPI_INTEGER2", Basic::I16;
    0x0430 = "MPI_INTEGER4", Basic::I32;
    0x0831 = "MPI_INTEGER8", Basic::I64;
    0x1032 = "MPI_INTEGER16", Basic::I128;
    0x0133 = "MPI_CXX_BOOL", Basic::Bool;
    0x0834 = "MPI_CXX_FLOAT_COMPLEX", Basic::C32;
    0x1035 = "MPI_CXX_DOUBLE_COMPLEX", Basic::C64;
    0x2036 = "MPI_CXX_LONG_DOUBLE_COMPLEX", Basic::CLong;
    0x0137 = "MPI_INT8_T", Basic::I8;
    0x0238 = "MPI_INT16_T", Basic::I16;
    0x0439 = "MPI_INT32_T", Basic::I32;
    0x083a = "MPI_INT64_T", Basic::I64;
    0x013b = "MPI_UINT8_T", Basic::U8;
    0x023c = "MPI_UINT16_T", Basic::U16;
    0x043d = "MPI_UINT32_T", Basic::U32;
    0x083e = "MPI_UINT64_T", Basic::U64;
    0x013f = "MPI_C_BOOL", Basic::Bool;
    0x0840 = "MPI_C_COMPLEX", Basic::C32;
    0x1041 = "MPI_C_DOUBLE_COMPLEX", Basic::C64;
    0x2042 = "MPI_C_LONG_DOUBLE_COMPLEX", Basic::CLong;
    0x0843 = "MPI_AINT", Basic::I64;
    0x0844 = "MPI_OFFSET", Basic::I64;
    0x0845 = "MPI_COUNT", Basic::I64;
    0x0246 = "MPIX_C_FLOAT16", Basic::F16;
    0x0147 = "MPI_LOGICAL1", Basic::Logical(1);
    0x0248 = "MPI_LOGICAL2", Basic::Logical(2);
    0x0449 = "MPI_LOGICAL4", Basic::Logical(4);
    0x084a = "MPI_LOGICAL8", Basic::Logical(8);
    0x104b = "MPI_LOGICAL16", Basic::Logical(16);
    0x024c = "MPIX_BFLOAT16", Basic::Bf16;
}

/// Pairs of a value and an index: handle, name, the types of both, and the offset of the index.
const PAIRS: &[(u32, &str, Basic, Basic, i64)] = &[
    (0x8c00_0000, "MPI_FLOAT_INT", Basic::F32, Basic::I32, 4),
    (0x8c00_0001, "MPI_DOUBLE_INT", Basic::F64, Basic::I32, 8),
    (0x8c00_0002, "MPI_LONG_INT", Basic::LongInt, Basic::I32, 8),
    (0x8c00_0003, "MPI_SHORT_INT", Basic::I16, Basic::I32, 4),
    (0x8c00_0004, "MPI_LONG_DOUBLE_INT", Basic::Long, Basic::I32, 16),
    (0x4c00_0816, "MPI_2INT", Basic::I32, Basic::I32, 4),
    (0x4c00_0820, "MPI_2INTEGER", Basic::I32, Basic::I32, 4),
    (0x4c00_0821, "MPI_2REAL", Basic::F32, Basic::F32, 4),
    (0x4c00_1023, "MPI_2DOUBLE_PRECISION", Basic::F64, Basic::F64, 8),
];

/// The handles of `MPI_LB` and `MPI_UB`, which MPI-3 removed: members of structures that set the bounds of the structure.
pub(super) const LOWER_MARK: c_int = 0x4c00_0010;
pub(super) const UPPER_MARK: c_int = 0x4c00_0011;

const SINGLE: u32 = 0x4c00_0000;
const PAIR: u32 = 0x8c00_0000;

/// Returns the predefined types by the lowest byte of their handles: single values, and pairs.
fn builtins() -> &'static [Option<Arc<Type>>; 256] {
    static BUILTINS: OnceLock<Box<[Option<Arc<Type>>; 256]>> = OnceLock::new();
    BUILTINS.get_or_init(|| {
        let mut all = Box::new([const { None }; 256]);
        for (handle, name, basic) in SINGLES {
            let part = Part { offset: 0, basic: *basic, count: 1 };
            let handle = SINGLE | handle;
            all[(handle & 0xff) as usize] =
                Some(Arc::new(predefined(handle, name, vec![part], basic.size() as i64)));
        }
        for (handle, name) in [(LOWER_MARK, "MPI_LB"), (UPPER_MARK, "MPI_UB")] {
            all[place(handle as u32)] = Some(Arc::new(predefined(handle as u32, name, Vec::new(), 0)));
        }
        for (handle, name, value, index, at) in PAIRS {
            let (first, second) =
                (Part { offset: 0, basic: *value, count: 1 }, Part { offset: *at, basic: *index, count: 1 });
            let align = value.align().max(index.align());
            let extent = (at + index.size() as i64 + align - 1) / align * align;
            let of = predefined(*handle, name, vec![first, second], extent);
            all[place(*handle)] = Some(Arc::new(of));
        }
        all
    })
}

const fn place(handle: u32) -> usize {
    (if handle & 0xffff_ff00 == PAIR { 0x80 | handle & 0x7f } else { handle & 0xff }) as usize
}

fn predefined(handle: u32, name: &str, parts: Vec<Part>, extent: i64) -> Type {
    let size: usize = parts.iter().map(|part| part.basic.size()).sum();
    let elements = parts.iter().map(|part| part.count as i64).sum();
    let align = parts.iter().map(|part| part.basic.align()).max().unwrap_or(1);
    let end = parts.iter().map(|part| part.offset + part.basic.size() as i64).max().unwrap_or(0);
    let made = Made {
        combiner: COMBINER_NAMED,
        integers: Vec::new(),
        addresses: Vec::new(),
        counts: Vec::new(),
        types: Vec::new(),
        blocks: Blocks::Basic(parts),
    };
    Type {
        size,
        elements,
        lower: 0,
        extent,
        true_lower: 0,
        true_extent: end,
        align,
        bounded: [false; 2],
        dense: size as i64 == extent,
        builtin: handle as c_int,
        handles: AtomicUsize::new(0),
        made,
        parts: OnceLock::new(),
        runs: OnceLock::new(),
        loops: OnceLock::new(),
        committed: AtomicBool::new(true),
        name: Mutex::new(name.to_owned()),
        attributes: Attributes::default(),
    }
}

/// Makes a type of Fortran's with the layout of a predefined type. By the standard, it is committed, and operators are defined for it.
pub(super) fn fortran(like: &Type, combiner: c_int, integers: Vec<c_int>) -> Type {
    let parts = match &like.made.blocks {
        Blocks::Basic(parts) => parts.clone(),
        _ => Vec::new(),
    };
    let mut of = predefined(0, "", parts, like.extent);
    (of.builtin, of.made.combiner, of.made.integers) = (DATATYPE_NULL, combiner, integers);
    of
}

/// Returns the predefined type of a handle.
#[inline]
pub fn builtin(handle: c_int) -> Option<&'static Arc<Type>> {
    let handle = handle as u32;
    if handle & 0xffff_0000 != SINGLE && handle & 0xffff_ff80 != PAIR {
        return None;
    }
    builtins()[place(handle)].as_ref().filter(|of| of.builtin as u32 == handle)
}
