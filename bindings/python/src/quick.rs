//! The fast path of the usual calls, without a Python frame.
//!
//! `kolo.communicator` implements every operation in Python, for all kinds of memory. [`quicken`] puts a compiled method in front of each
//! method in [`OPERATIONS`]. The compiled method serves calls on contiguous buffers of Kolo's types, with plain numbers and operators by
//! name. It leaves all other calls, wrong ones too, to the Python method before anything is sent. So the rules and the texts have one
//! place, and results do not depend on the path of a call: `test_array_quick.py` compares them.
//!
//! # Rules
//! 1. Python calls methods with the interpreter's lock held, and with as many arguments as it announces.
//! 2. Nothing unwinds into Python.
//! 3. Buffers stay lent until the call returns, or until the operation is over.

use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use kolo_rs::{Collective, DataType, RawCall, ReduceOp};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::base::Base;
use crate::buffer::{Held, Lent};
use crate::calls::{Addresses, Message};
use crate::handle::Handle;

/// An operation by the name of its method.
#[derive(Clone, Copy)]
struct Operation {
    name: &'static str,
    kind: Kind,
    started: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Input and output of the same length, the same memory if no output is given.
    Vector(Collective),
    /// Input or output, or both, have a block per rank.
    Blocks(Collective),
    Barrier,
    Send,
    Receive,
    Exchange,
}

macro_rules! operations {
    ($($name:ident $started:ident = $kind:expr;)*) => {
        [$(
            Operation { name: stringify!($name), kind: $kind, started: false },
            Operation { name: stringify!($started), kind: $kind, started: true },
        )*
            Operation { name: "send_recv", kind: Kind::Exchange, started: false },
        ]
    };
}

const OPERATIONS: [Operation; 27] = operations! {
    all_reduce all_reduce_start = Kind::Vector(Collective::AllReduce);
    reduce reduce_start = Kind::Vector(Collective::Reduce);
    broadcast broadcast_start = Kind::Vector(Collective::Broadcast);
    scan scan_start = Kind::Vector(Collective::Scan);
    exscan exscan_start = Kind::Vector(Collective::ExScan);
    all_gather all_gather_start = Kind::Blocks(Collective::AllGather);
    reduce_scatter reduce_scatter_start = Kind::Blocks(Collective::ReduceScatter);
    all_to_all all_to_all_start = Kind::Blocks(Collective::AllToAll);
    gather gather_start = Kind::Blocks(Collective::Gather);
    scatter scatter_start = Kind::Blocks(Collective::Scatter);
    barrier barrier_start = Kind::Barrier;
    send send_start = Kind::Send;
    recv recv_start = Kind::Receive;
};

/// The place of the argument of each name.
const PLACES: [(&str, usize); 11] = [
    ("buffer", INPUT),
    ("input", INPUT),
    ("send", INPUT),
    ("out", OUTPUT),
    ("recv", OUTPUT),
    ("op", OP),
    ("root", ROOT),
    ("to", TO),
    ("source", SOURCE),
    ("tag", TAG),
    ("factor", FACTOR),
];
const INPUT: usize = 0;
const OUTPUT: usize = 1;
const OP: usize = 2;
const ROOT: usize = 3;
const TO: usize = 4;
const SOURCE: usize = 5;
const TAG: usize = 6;
const FACTOR: usize = 7;

/// An operation's method, as found when the package is loaded.
struct Method {
    /// The Python method.
    general: Py<PyAny>,
    /// Its parameters after `self`, in order, and their places.
    parameters: Vec<(Py<PyString>, usize)>,
    /// How many of them may be given by position.
    positional: usize,
}

struct Known {
    methods: Vec<Method>,
    /// Names of operators, in the order of their numbers. They are interned, so names in a program's text are the same objects.
    operators: Vec<Py<PyString>>,
}

static KNOWN: PyOnceLock<Known> = PyOnceLock::new();

/// Puts compiled methods in front of those of the class `kolo.Communicator`, which are kept for all unusual calls.
#[pyfunction]
pub(crate) fn quicken(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let mut methods = Vec::with_capacity(OPERATIONS.len());
    for (operation, entry) in OPERATIONS.iter().zip(ENTRIES) {
        let general = class.getattr(operation.name)?;
        let method = Method::of(&general)?;
        let text = format!("{}{}\n--\n\n{}", operation.name, signature(&general)?, doc(&general)?);
        let text = CString::new(text)?.into_raw();
        let definition = Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: CString::new(operation.name)?.into_raw(),
            // SAFETY: Python calls the function as the flags say. The limited API of 3.9 supports the flags, but has no name for the type.
            ml_meth: unsafe { std::mem::transmute::<Entry, ffi::PyMethodDefPointer>(entry) },
            ml_flags: METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: text,
        }));
        // SAFETY: the first argument is a class, and the definition is never freed.
        let descriptor = unsafe {
            let made = ffi::PyDescr_NewMethod(class.as_type_ptr(), ptr::from_mut(definition));
            Bound::from_owned_ptr_or_err(py, made)?
        };
        methods.push(method);
        class.setattr(operation.name, descriptor)?;
    }
    let operators = Vec::from(ReduceOp::ALL.map(|op| PyString::intern(py, op.name()).unbind()));
    let _ = KNOWN.set(py, Known { methods, operators });
    Ok(())
}

/// A flag of `methodobject.h`: arguments come as an array. It is stable since 3.10, and was the same before.
const METH_FASTCALL: c_int = 0x80;

impl Method {
    fn of(general: &Bound<'_, PyAny>) -> PyResult<Self> {
        let code = general.getattr("__code__")?;
        let count = |name: &str| code.getattr(name)?.extract::<usize>();
        let (positional, by_name) = (count("co_argcount")?, count("co_kwonlyargcount")?);
        let names: Vec<String> = code.getattr("co_varnames")?.extract()?;
        let place = |name: &String| {
            let found = PLACES.iter().find(|(known, _)| known == name);
            let place = found.ok_or_else(|| PyRuntimeError::new_err(format!("no place for '{name}'")))?.1;
            Ok((PyString::intern(general.py(), name).unbind(), place))
        };
        let parameters =
            names.iter().take(positional + by_name).skip(1).map(place).collect::<PyResult<_>>()?;
        Ok(Self { general: general.clone().unbind(), parameters, positional: positional - 1 })
    }

    /// Puts the arguments into their slots; returns `None` if they are unusual.
    #[inline]
    fn place(&self, given: &Given<'_>) -> Option<Slots> {
        let mut slots = Slots([ptr::null_mut(); PLACES.len()]);
        if given.positional.len() > self.positional {
            return None;
        }
        for (argument, (_, place)) in given.positional.iter().zip(&self.parameters) {
            slots.0[*place] = *argument;
        }
        for (at, argument) in given.by_name.iter().enumerate() {
            // SAFETY: `names` is a tuple with a name for each argument.
            let name = unsafe { ffi::PyTuple_GetItem(given.names, at as Py_ssize_t) };
            let (_, place) = self.parameters.iter().find(|(known, _)| known.as_ptr() == name)?;
            let slot = &mut slots.0[*place];
            if !slot.is_null() {
                return None;
            }
            *slot = *argument;
        }
        Some(slots)
    }

    #[cold]
    fn general<'py>(&self, this: &Bound<'py, Base>, given: &Given<'_>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        // SAFETY: arguments and names live as long as the call that gave them.
        let object = |argument: &*mut PyObject| unsafe { Bound::from_borrowed_ptr(py, *argument) };
        let arguments = std::iter::once(this.clone().into_any()).chain(given.positional.iter().map(object));
        let arguments = PyTuple::new(py, arguments.collect::<Vec<_>>())?;
        let by_name = PyDict::new(py);
        for (at, argument) in given.by_name.iter().enumerate() {
            // SAFETY: `names` is a tuple with a name for each argument.
            let name =
                unsafe { Bound::from_borrowed_ptr(py, ffi::PyTuple_GetItem(given.names, at as Py_ssize_t)) };
            by_name.set_item(name, object(argument))?;
        }
        self.general.bind(py).call(arguments, Some(&by_name))
    }
}

/// Returns a method's signature in the form that `help` and `inspect.signature` read.
fn signature(general: &Bound<'_, PyAny>) -> PyResult<String> {
    let code = general.getattr("__code__")?;
    let positional: usize = code.getattr("co_argcount")?.extract()?;
    let by_name: usize = code.getattr("co_kwonlyargcount")?.extract()?;
    let names: Vec<String> = code.getattr("co_varnames")?.extract()?;
    let defaults: Option<Vec<Bound<'_, PyAny>>> = general.getattr("__defaults__")?.extract()?;
    let defaults = defaults.unwrap_or_default();
    let keyword_defaults = general.getattr("__kwdefaults__")?;
    let mut parts = Vec::new();
    for (at, name) in names.iter().take(positional + by_name).enumerate() {
        if at == positional {
            parts.push("*".to_owned());
        }
        let default = match at {
            _ if at >= positional => Some(keyword_defaults.get_item(name)?),
            _ => (at + defaults.len()).checked_sub(positional).map(|of| defaults[of].clone()),
        };
        parts.push(match default {
            Some(default) => format!("{name}={}", default.repr()?),
            None if at == 0 => format!("${name}"),
            None => name.clone(),
        });
    }
    Ok(format!("({})", parts.join(", ")))
}

fn doc(general: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(general.getattr("__doc__")?.extract::<Option<String>>()?.unwrap_or_default())
}

/// Arguments as Python passes them.
struct Given<'a> {
    positional: &'a [*mut PyObject],
    by_name: &'a [*mut PyObject],
    /// A tuple with the names of `by_name`, or null.
    names: *mut PyObject,
}

type Entry =
    unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, Py_ssize_t, *mut PyObject) -> *mut PyObject;

macro_rules! entries {
    ($($at:literal)*) => { [$(entry::<$at> as Entry),*] };
}

static ENTRIES: [Entry; OPERATIONS.len()] =
    entries!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26);

/// # Safety
/// Python calls it as a method of [`Base`] with an array of arguments.
unsafe extern "C" fn entry<const AT: usize>(
    this: *mut PyObject,
    arguments: *const *mut PyObject,
    positional: Py_ssize_t,
    names: *mut PyObject,
) -> *mut PyObject {
    let run = || {
        // SAFETY: rule 1; `this` is an object of the method's class, which derives from `Base`; behind the positional arguments there are
        // as many values as names.
        unsafe {
            let py = Python::assume_attached();
            let this = Borrowed::from_ptr(py, this).cast_unchecked::<Base>();
            let by_name = if names.is_null() { 0 } else { ffi::PyTuple_Size(names) as usize };
            // Without arguments, the pointer may be invalid.
            let all = match positional as usize + by_name {
                0 => &[][..],
                count => slice::from_raw_parts(arguments, count),
            };
            let (positional, by_name) = all.split_at(positional as usize);
            let given = Given { positional, by_name, names };
            match serve(&this, AT, &given) {
                Ok(object) => object.into_ptr(),
                Err(error) => {
                    error.restore(py);
                    ptr::null_mut()
                }
            }
        }
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        // SAFETY: rule 1.
        let py = unsafe { Python::assume_attached() };
        PyRuntimeError::new_err("Kolo panicked; see stderr for the message").restore(py);
        ptr::null_mut()
    })
}

#[inline(never)]
fn serve<'py>(this: &Bound<'py, Base>, at: usize, given: &Given<'_>) -> PyResult<Bound<'py, PyAny>> {
    let Some(known) = KNOWN.get(this.py()) else {
        return Err(PyRuntimeError::new_err("the package is not loaded"));
    };
    let method = &known.methods[at];
    let Operation { kind, started, .. } = OPERATIONS[at];
    let usual = method.place(given).and_then(|slots| match kind {
        Kind::Vector(collective) => slots.vector(this, known, collective),
        Kind::Blocks(collective) => slots.blocks(this, known, collective),
        Kind::Barrier => Some(Ready::barrier(this)),
        Kind::Send => slots.send(this),
        Kind::Receive => slots.receive(this),
        Kind::Exchange => slots.exchange(this),
    });
    match usual {
        Some(ready) if started => ready.start(this),
        Some(ready) => ready.run(this),
        None => method.general(this, given),
    }
}

/// Arguments at their places; null for those that were not given.
struct Slots([*mut PyObject; PLACES.len()]);

impl Slots {
    /// Returns an argument; `None` if it is not given, or is Python's `None`.
    #[inline]
    fn object<'py>(&self, py: Python<'py>, place: usize) -> Option<Bound<'py, PyAny>> {
        let object = self.0[place];
        // SAFETY: the object is null or an argument, which lives as long as the call; `Py_None` may be called at any time.
        unsafe { if object == ffi::Py_None() { None } else { Bound::from_borrowed_ptr_or_opt(py, object) } }
    }

    /// Returns a number from 0 to 2^32 - 1; `default` if it is not given, and `None` if it is anything else.
    #[inline]
    fn number(&self, place: usize, default: u32) -> Option<u32> {
        let object = self.0[place];
        if object.is_null() {
            return Some(default);
        }
        // SAFETY: the object is an argument; the interpreter's lock is held (rule 1).
        unsafe {
            if ffi::PyLong_CheckExact(object) == 0 {
                return None;
            }
            let number = ffi::PyLong_AsLongLong(object);
            if number == -1 {
                // The number is out of range in any case, and an exception may be set.
                ffi::PyErr_Clear();
            }
            u32::try_from(number).ok()
        }
    }

    #[inline]
    fn op(&self, known: &Known) -> Option<ReduceOp> {
        let name = self.0[OP];
        let op = match name.is_null() {
            true => ReduceOp::Sum,
            false => ReduceOp::ALL[known.operators.iter().position(|known| known.as_ptr() == name)?],
        };
        let factor = self.0[FACTOR];
        Some(match op {
            // SAFETY: the object is an argument; a float's value may always be read.
            ReduceOp::PremulSum(_) if !factor.is_null() => unsafe {
                if ffi::PyFloat_CheckExact(factor) == 0 {
                    return None;
                }
                ReduceOp::PremulSum(ffi::PyFloat_AsDouble(factor))
            },
            ReduceOp::PremulSum(_) => ReduceOp::PremulSum(1.0),
            op if factor.is_null() => op,
            _ => return None,
        })
    }

    #[inline]
    fn vector<'py>(
        &self,
        this: &Bound<'py, Base>,
        known: &Known,
        collective: Collective,
    ) -> Option<Ready<'py>> {
        let py = this.py();
        let buffer = self.object(py, INPUT)?;
        let (op, root) = (self.op(known)?, self.number(ROOT, 0)?);
        let apart = self.object(py, OUTPUT).filter(|out| !out.is(&buffer));
        let input = Lent::of(&buffer, apart.is_none())?;
        let data_type = input.data_type()?;
        let (output, result) = match apart {
            None => (None, buffer),
            Some(out) => {
                let output = Lent::of(&out, true)?;
                if output.data_type() != Some(data_type) || output.bytes() != input.bytes() {
                    return None;
                }
                (Some(output), out)
            }
        };
        let to = output.as_ref().unwrap_or(&input).address();
        let count = input.bytes() / data_type.size();
        let call = raw(collective, (input.address(), to), count, data_type, op, root);
        Some(Ready { what: What::Collective(call), lent: [Some(input), output], result })
    }

    #[inline]
    fn blocks<'py>(
        &self,
        this: &Bound<'py, Base>,
        known: &Known,
        collective: Collective,
    ) -> Option<Ready<'py>> {
        let py = this.py();
        let (op, root) = (self.op(known)?, self.number(ROOT, 0)?);
        let comm = this.get().comm();
        let ranks = comm.world_size() as usize;
        let is_root = comm.rank() == root;
        let reads = collective != Collective::Scatter || is_root;
        let writes = collective != Collective::Gather || is_root;
        let from = if reads { Some(self.object(py, INPUT)?) } else { None };
        let input = from.as_ref().map(|from| Lent::of(from, false));
        let input = if reads { Some(input??) } else { None };
        let to = match (writes, self.object(py, OUTPUT)) {
            (false, _) => None,
            (true, Some(out)) => Some(out),
            (true, None) => Some(room(from.as_ref()?, collective, ranks)?),
        };
        let output = to.as_ref().map(|to| Lent::of(to, true));
        let output = if writes { Some(output??) } else { None };
        let sides = (input.as_ref(), output.as_ref());
        let data_type = sides.0.or(sides.1)?.data_type()?;
        if let (Some(_), Some(other)) = sides
            && other.data_type() != Some(data_type)
        {
            return None;
        }
        // The number of blocks in the input and in the output; then the bytes and blocks of the buffer that gives a block's length.
        let (sent, received) = match collective {
            Collective::AllGather | Collective::Gather => (1, ranks),
            Collective::ReduceScatter | Collective::Scatter => (ranks, 1),
            _ => (ranks, ranks),
        };
        let (whole, parts) = match sides {
            (Some(input), _) if sent == 1 || received == ranks => (input.bytes(), sent),
            (_, Some(output)) => (output.bytes(), received),
            _ => return None,
        };
        let block = whole / parts;
        let fits = |side: Option<&Lent<'_>>, blocks: usize| {
            side.is_none_or(|side| block.checked_mul(blocks) == Some(side.bytes()))
        };
        if !fits(sides.0, sent) || !fits(sides.1, received) || !block.is_multiple_of(data_type.size()) {
            return None;
        }
        let address = |side: Option<&Lent<'_>>| side.map_or(0, Lent::address);
        let places = (address(sides.0), address(sides.1));
        let call = raw(collective, places, block / data_type.size(), data_type, op, root);
        let result = to.unwrap_or_else(|| py.None().into_bound(py));
        Some(Ready { what: What::Collective(call), lent: [input, output], result })
    }

    fn message<'py>(
        &self,
        this: &Bound<'py, Base>,
        place: usize,
        peer: Option<u32>,
    ) -> Option<(Message, Lent<'py>, Bound<'py, PyAny>)> {
        let send = place == INPUT && !self.0[TO].is_null();
        let buffer = self.object(this.py(), place)?;
        let lent = Lent::of(&buffer, !send)?;
        let data_type = lent.data_type()?;
        let message =
            Message::of(send, peer, (lent.address(), lent.bytes()), data_type, self.number(TAG, 0)?);
        Some((message, lent, buffer))
    }

    fn send<'py>(&self, this: &Bound<'py, Base>) -> Option<Ready<'py>> {
        self.object(this.py(), TO)?;
        let (message, lent, result) = self.message(this, INPUT, Some(self.number(TO, 0)?))?;
        Some(Ready { what: What::Messages(message, None), lent: [Some(lent), None], result })
    }

    fn receive<'py>(&self, this: &Bound<'py, Base>) -> Option<Ready<'py>> {
        let source = match self.object(this.py(), SOURCE) {
            Some(_) => Some(self.number(SOURCE, 0)?),
            None => None,
        };
        let (message, lent, result) = self.message(this, INPUT, source)?;
        Some(Ready { what: What::Messages(message, None), lent: [Some(lent), None], result })
    }

    fn exchange<'py>(&self, this: &Bound<'py, Base>) -> Option<Ready<'py>> {
        self.object(this.py(), TO).and(self.object(this.py(), SOURCE))?;
        let (sent, from, _) = self.message(this, INPUT, Some(self.number(TO, 0)?))?;
        let (received, to, result) = self.message(this, OUTPUT, Some(self.number(SOURCE, 0)?))?;
        Some(Ready { what: What::Messages(sent, Some(received)), lent: [Some(from), Some(to)], result })
    }
}

fn raw(
    collective: Collective,
    (input, output): (usize, usize),
    count: usize,
    data_type: DataType,
    op: ReduceOp,
    root: u32,
) -> RawCall {
    let (input, output) = (input as *const u8, output as *mut u8);
    RawCall { collective, input, output, count, data_type, op, root }
}

/// Makes a NumPy array for the output of a call; returns `None` if the input is not a NumPy array.
fn room<'py>(input: &Bound<'py, PyAny>, collective: Collective, ranks: usize) -> Option<Bound<'py, PyAny>> {
    static NUMPY: PyOnceLock<(Py<PyType>, Py<PyAny>)> = PyOnceLock::new();
    if !matches!(collective, Collective::AllGather | Collective::Gather | Collective::AllToAll) {
        return None;
    }
    let py = input.py();
    let make = || -> PyResult<_> {
        let numpy = py.import("numpy")?;
        Ok((numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind(), numpy.getattr("empty")?.unbind()))
    };
    // The first call goes to the Python method, which imports NumPy or says what is missing.
    if NUMPY.get(py).is_none() && input.get_type().name().is_ok_and(|name| name != "ndarray") {
        return None;
    }
    let (array, empty) = NUMPY.get_or_try_init(py, make).ok()?;
    if !input.get_type().is(array) {
        return None;
    }
    let shape = input.getattr(pyo3::intern!(py, "shape")).ok()?.cast_into::<PyTuple>().ok()?;
    let shape = match collective {
        Collective::AllToAll => shape,
        _ => {
            let ranks = ranks.into_pyobject(py).ok()?.into_any();
            PyTuple::new(py, std::iter::once(ranks).chain(shape.iter()).collect::<Vec<_>>()).ok()?
        }
    };
    empty.bind(py).call1((shape, input.getattr(pyo3::intern!(py, "dtype")).ok()?)).ok()
}

/// A call that is ready to run, with its lent memory.
struct Ready<'py> {
    what: What,
    lent: [Option<Lent<'py>>; 2],
    /// The return value of the call, or of its work's `wait`.
    result: Bound<'py, PyAny>,
}

enum What {
    Collective(RawCall),
    Messages(Message, Option<Message>),
}

impl<'py> Ready<'py> {
    fn barrier(this: &Bound<'py, Base>) -> Self {
        let call = raw(Collective::Barrier, (0, 0), 0, DataType::U8, ReduceOp::Sum, 0);
        let result = this.py().None().into_bound(this.py());
        Self { what: What::Collective(call), lent: [None, None], result }
    }

    #[inline]
    fn run(self, this: &Bound<'py, Base>) -> PyResult<Bound<'py, PyAny>> {
        let (py, base) = (this.py(), this.get());
        let (comm, limit) = (base.comm(), base.limit());
        match self.what {
            What::Collective(call) => comm.run_call(py, Addresses::of(call), limit)?,
            What::Messages(sent, Some(received)) => {
                drop(comm.run_messages(py, vec![sent, received], limit)?)
            }
            What::Messages(message, None) => {
                let source = comm.run_messages(py, vec![message], limit)?[0];
                return Ok(if message.send { py.None().into_bound(py) } else { source.into_pyobject(py)? });
            }
        }
        Ok(self.result)
    }

    fn start(self, this: &Bound<'py, Base>) -> PyResult<Bound<'py, PyAny>> {
        let (py, base) = (this.py(), this.get());
        let [one, other] = self.lent;
        let owner = Bound::new(py, Held::new(one, other))?.into_any().unbind();
        let work = match self.what {
            What::Collective(call) => base.comm().start_call(py, Addresses::of(call), owner)?,
            What::Messages(message, _) => base.comm().start_message(py, message, owner)?,
        };
        Ok(Bound::new(py, Handle::new(work, self.result.unbind(), base.timeout()))?.into_any())
    }
}
