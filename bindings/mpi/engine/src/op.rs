//! Operators of reductions.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use kolo::{DataType, ReduceOp};

use crate::args::{count, put};
use crate::collective::buffers::not_in_place;
use crate::constants::OP_NULL;
use crate::datatype::{self, Basic, Type};
use crate::error::{Class, Outcome, fail};
use crate::flavor::{self, Kind};
use crate::handle::Table;
use crate::numbers;

/// The standard's operators, by the last digit of their handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the standard's names")]
pub enum Builtin {
    Max = 1,
    Min,
    Sum,
    Prod,
    Land,
    Band,
    Lor,
    Bor,
    Lxor,
    Bxor,
    Minloc,
    Maxloc,
    Replace,
    NoOp,
}

const ALL: [Builtin; 14] = [
    Builtin::Max,
    Builtin::Min,
    Builtin::Sum,
    Builtin::Prod,
    Builtin::Land,
    Builtin::Band,
    Builtin::Lor,
    Builtin::Bor,
    Builtin::Lxor,
    Builtin::Bxor,
    Builtin::Minloc,
    Builtin::Maxloc,
    Builtin::Replace,
    Builtin::NoOp,
];

/// `void function(in, inout, length, type)`. The length and the type are passed by pointer; the length is an `int` or an `MPI_Count`.
type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut usize);

/// An operator.
#[derive(Debug)]
pub enum Op {
    /// One of the standard's operators.
    Builtin(Builtin),
    /// An operator that the program has made.
    User {
        /// The program's function.
        function: Function,
        /// Whether the operator is commutative.
        commutes: bool,
        /// Whether the length is an `MPI_Count`.
        large: bool,
    },
}

/// An operator of a call, with the handle that the call gave for the type of the elements.
#[derive(Clone, Debug)]
pub struct Reducer {
    op: Arc<Op>,
    of: c_int,
}

static OPS: Table<Arc<Op>> = Table::new(0x6);

fn builtins() -> &'static [Arc<Op>] {
    static BUILTINS: OnceLock<Vec<Arc<Op>>> = OnceLock::new();
    BUILTINS.get_or_init(|| ALL.iter().map(|op| Arc::new(Op::Builtin(*op))).collect())
}

/// Returns the standard's operator of a handle.
#[inline]
pub(crate) fn builtin(handle: c_int) -> Option<Builtin> {
    let number = (handle as u32).wrapping_sub(0x5800_0001) as usize;
    ALL.get(number).copied()
}

pub(crate) fn lookup(handle: c_int) -> Outcome<Arc<Op>> {
    if let Some(op) = builtin(handle) {
        return Ok(Arc::clone(&builtins()[op as usize - 1]));
    }
    match OPS.get(handle) {
        Some(op) => Ok(op),
        None if handle == OP_NULL => fail(Class::Op, "MPI_OP_NULL"),
        None => fail(Class::Op, format!("{handle:#x} is not an operator")),
    }
}

/// Returns the operator of a handle for a reduction of elements of a type; fails if it is not defined for the type.
pub(crate) fn reducing(handle: c_int, type_handle: c_int, of: &Type) -> Outcome<Reducer> {
    let op = lookup(handle)?;
    match &*op {
        Op::Builtin(Builtin::Replace | Builtin::NoOp) => {
            return fail(Class::Op, "MPI_REPLACE and MPI_NO_OP are for one-sided calls only");
        }
        Op::Builtin(builtin) => numbers::check(*builtin, of)?,
        Op::User { .. } => {}
    }
    Ok(Reducer { op, of: type_handle })
}

impl Reducer {
    /// Returns whether this is an operator of the program.
    #[must_use]
    pub fn is_user(&self) -> bool {
        matches!(*self.op, Op::User { .. })
    }

    /// Computes `inout = input op inout` for `count` elements.
    ///
    /// # Errors
    /// If the operator is not defined for the type.
    pub fn apply(&self, input: *mut u8, inout: *mut u8, count: usize, of: &Arc<Type>) -> Outcome {
        if count == 0 {
            return Ok(());
        }
        match &*self.op {
            // SAFETY: callers own both memories, of `count` elements each.
            Op::Builtin(op) => unsafe { numbers::apply(*op, input, inout, count, of) },
            Op::User { function, large, .. } => {
                let given =
                    of.builtin_handle().or_else(|| datatype::is_handle_of(self.of, of).then_some(self.of));
                // The program may have freed the type before a started call ends.
                let temporary = given.is_none().then(|| datatype::register(Arc::clone(of)));
                let handle = given.or(temporary).unwrap_or_default();
                let mut user = flavor::to_user(Kind::Type, handle);
                // An `int` may not hold the length, so such a function is called for one piece after another.
                let most = if *large { count } else { c_int::MAX as usize };
                for from in (0..count).step_by(most) {
                    let piece = most.min(count - from);
                    let (mut length, mut short) = (piece as i64, piece as c_int);
                    let length = if *large { (&raw mut length).cast() } else { (&raw mut short).cast() };
                    let at = (from as i64 * of.extent) as isize;
                    let (input, inout) = (input.wrapping_offset(at), inout.wrapping_offset(at));
                    // SAFETY: calls the program's function with the standard's arguments.
                    unsafe { function(input.cast(), inout.cast(), length, &raw mut user) };
                }
                if let Some(handle) = temporary {
                    datatype::unregister(handle);
                }
                Ok(())
            }
        }
    }
}

/// Returns Kolo's operator and type, if Kolo has them.
#[inline]
pub(crate) fn for_kolo(op: Builtin, basic: Basic) -> Option<(ReduceOp, DataType)> {
    let data = match basic {
        Basic::I8 | Basic::Char => DataType::I8,
        Basic::U8 | Basic::Byte => DataType::U8,
        Basic::I32 => DataType::I32,
        Basic::U32 => DataType::U32,
        Basic::I64 => DataType::I64,
        Basic::U64 => DataType::U64,
        Basic::F32 => DataType::F32,
        Basic::F64 => DataType::F64,
        Basic::F16 => DataType::F16,
        Basic::Bf16 => DataType::BF16,
        _ => return None,
    };
    let op = match op {
        Builtin::Max => ReduceOp::Max,
        Builtin::Min => ReduceOp::Min,
        Builtin::Sum => ReduceOp::Sum,
        Builtin::Prod => ReduceOp::Prod,
        Builtin::Land => ReduceOp::LogicalAnd,
        Builtin::Band => ReduceOp::BitAnd,
        Builtin::Lor => ReduceOp::LogicalOr,
        Builtin::Bor => ReduceOp::BitOr,
        Builtin::Lxor => ReduceOp::LogicalXor,
        Builtin::Bxor => ReduceOp::BitXor,
        _ => return None,
    };
    Some((op, data))
}

unsafe fn create(function: *const c_void, commutes: c_int, large: bool, op: *mut c_int) -> Outcome {
    // SAFETY: by the standard, the program passes such a function.
    let function = unsafe { std::mem::transmute::<*const c_void, Option<Function>>(function) };
    let Some(function) = function else { return fail(Class::Arg, "the function is NULL") };
    let user = Op::User { function, commutes: commutes != 0, large };
    // SAFETY: the caller's promise.
    unsafe { put(op, OPS.insert(Arc::new(user))) }
}

pub unsafe fn op_create(function: *const c_void, commutes: c_int, op: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, commutes, false, op) }
}

pub unsafe fn op_create_c(function: *const c_void, commutes: c_int, op: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, commutes, true, op) }
}

pub unsafe fn op_free(op: *mut c_int) -> Outcome {
    // SAFETY: the front end has checked it.
    unsafe {
        if OPS.remove(*op).is_none() {
            return fail(Class::Op, "only user-defined operators can be freed");
        }
        *op = OP_NULL;
    }
    Ok(())
}

pub unsafe fn op_commutative(op: c_int, commutes: *mut c_int) -> Outcome {
    let answer = match &*lookup(op)? {
        Op::Builtin(builtin) => !matches!(builtin, Builtin::Replace | Builtin::NoOp),
        Op::User { commutes, .. } => *commutes,
    };
    // SAFETY: the caller's promise.
    unsafe { put(commutes, answer.into()) }
}

pub unsafe fn reduce_local(
    input: *const c_void,
    inout: *mut c_void,
    n: i64,
    handle: c_int,
    op: c_int,
) -> Outcome {
    let of = datatype::committed(handle)?;
    if n > 0 {
        not_in_place(input)?;
        not_in_place(inout)?;
        if input == inout.cast_const() && of.size() > 0 {
            return fail(Class::Buffer, "both buffers are the same: the result would overwrite the input");
        }
    }
    reducing(op, handle, &of)?.apply(input.cast_mut().cast(), inout.cast(), count(n)?, &of)
}
