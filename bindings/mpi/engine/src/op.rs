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
use crate::handlers::State;
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

/// `void function(in, inout, length, type, state)`. A handle narrower than an address is in its lower half.
type Stateful = unsafe extern "C" fn(*mut c_void, *mut c_void, i64, usize, *mut c_void);

/// A function of the program.
#[derive(Debug)]
enum Callback {
    /// The length is an `int`.
    Short(Function),
    /// The length is an `MPI_Count`.
    Long(Function),
    Stateful(Stateful, State),
}

/// An operator.
#[derive(Debug)]
pub enum Op {
    /// One of the standard's operators.
    Builtin(Builtin),
    /// An operator that the program has made.
    User(User),
}

/// An operator that the program has made.
#[derive(Debug)]
pub struct User {
    callback: Callback,
    commutes: bool,
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
        Op::User(_) => {}
    }
    Ok(Reducer { op, of: type_handle })
}

impl Reducer {
    /// Returns whether this is an operator of the program.
    #[must_use]
    pub fn is_user(&self) -> bool {
        matches!(*self.op, Op::User(_))
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
            Op::User(user) => {
                let given =
                    of.builtin_handle().or_else(|| datatype::is_handle_of(self.of, of).then_some(self.of));
                // The program may have freed the type before a started call ends.
                let temporary = given.is_none().then(|| datatype::register(Arc::clone(of)));
                let handle = given.or(temporary).unwrap_or_default();
                user.callback.call(input, inout, count, of, flavor::to_user(Kind::Type, handle));
                if let Some(handle) = temporary {
                    datatype::unregister(handle);
                }
                Ok(())
            }
        }
    }
}

impl Callback {
    fn call(&self, input: *mut u8, inout: *mut u8, count: usize, of: &Type, mut handle: usize) {
        // An `int` may not hold the length, so such a function is called for one piece after another.
        let most = if matches!(self, Self::Short(_)) { c_int::MAX as usize } else { count };
        for from in (0..count).step_by(most) {
            let piece = most.min(count - from);
            let (mut length, mut short) = (piece as i64, piece as c_int);
            let at = (from as i64 * of.extent) as isize;
            let (input, inout) = (input.wrapping_offset(at).cast(), inout.wrapping_offset(at).cast());
            // SAFETY: calls the program's function with the arguments of its type.
            unsafe {
                match self {
                    Self::Short(function) => function(input, inout, (&raw mut short).cast(), &raw mut handle),
                    Self::Long(function) => function(input, inout, (&raw mut length).cast(), &raw mut handle),
                    Self::Stateful(function, state) => {
                        function(input, inout, length, handle, state.address());
                    }
                }
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
        Basic::I64 | Basic::LongInt => DataType::I64,
        Basic::U64 | Basic::UnsignedLong => DataType::U64,
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

unsafe fn create(
    function: *const c_void,
    commutes: c_int,
    callback: fn(Function) -> Callback,
    op: *mut c_int,
) -> Outcome {
    // SAFETY: by the standard, the program passes such a function.
    let function = unsafe { std::mem::transmute::<*const c_void, Option<Function>>(function) };
    // SAFETY: the caller's promise.
    unsafe { register(function.map(callback), commutes, op) }
}

unsafe fn register(callback: Option<Callback>, commutes: c_int, op: *mut c_int) -> Outcome {
    let Some(callback) = callback else { return fail(Class::Arg, "the function is NULL") };
    let user = User { callback, commutes: commutes != 0 };
    // SAFETY: the caller's promise.
    unsafe { put(op, OPS.insert(Arc::new(Op::User(user)))) }
}

/// Makes an operator whose function has a state.
pub unsafe fn op_create_x(
    function: *const c_void,
    destructor: *const c_void,
    commutes: c_int,
    state: *mut c_void,
    op: *mut c_int,
) -> Outcome {
    // SAFETY: by the contract of MPIX_Op_create_x, the program passes such functions, or null, which is `None`. Test: `older`.
    unsafe {
        let function = std::mem::transmute::<*const c_void, Option<Stateful>>(function);
        let callback = function.map(|function| Callback::Stateful(function, State::new(state, destructor)));
        register(callback, commutes, op)
    }
}

pub unsafe fn op_create(function: *const c_void, commutes: c_int, op: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, commutes, Callback::Short, op) }
}

pub unsafe fn op_create_c(function: *const c_void, commutes: c_int, op: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { create(function, commutes, Callback::Long, op) }
}

pub unsafe fn op_free(op: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
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
        Op::User(user) => user.commutes,
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
