//! `libmpi_abi.so.1`: the ABI of the MPI-5 standard. Its handles are addresses, and most of its numbers differ from the engine's.

#![allow(
    non_snake_case,
    unreachable_pub,
    clippy::missing_safety_doc,
    reason = "the standard's names; its text says what callers promise"
)]

mod handles;
mod numbers;
mod own;
mod statuses;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::args::Counts;
use engine::constants::UNDEFINED;
use engine::error::{Class, Outcome, fail};
use engine::flavor::Kind;
use engine::{How, Scope};

use handles::*;
use numbers::*;
use statuses::{AbiStatus, Place};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    unused_variables,
    unreachable_pub,
    reason = "made by the build script"
)]
mod functions {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
}

/// Runs a call; turns a panic into an error.
fn guard(name: &str, call: impl FnOnce() -> Outcome) -> Outcome {
    own::prepare();
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| fail(Class::Intern, format!("{name} panicked")))
}

/// Converts an error code of the engine to the standard's.
fn code_out(code: c_int) -> c_int {
    err_out(code)
}

#[cold]
fn null(what: &str, scope: Scope, name: &str) -> c_int {
    code_out(engine::finish(engine::calls::null(what, scope), scope, name))
}

#[cold]
fn missing(name: &str, scope: Scope) -> c_int {
    code_out(engine::finish(engine::calls::missing(name, scope), scope, name))
}
