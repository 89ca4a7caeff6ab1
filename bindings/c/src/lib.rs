//! The C library: exports every function of `include/kolo.h`, and nothing else.
//!
//! The header is the documentation; the comments here only explain how its promises are kept.
//!
//! # Rules
//! 1. Every entry runs inside [`guard::guard`]: a panic becomes `KOLO_INTERNAL` and never crosses into C.
//! 2. An enumeration from C arrives as an `int` and is parsed; no Rust enumeration is in a signature.
//! 3. Pointers are checked for null. The caller promises that all others are valid, as the header demands; the `SAFETY` comments call
//!    this "the header's promise".
//! 4. Handles are boxes, made and freed in one file each: `comm.rs`, `request.rs`, `memory.rs`, `newcomers.rs`. The caller that destroys
//!    one promises that no other call uses it.
//! 5. Structs that C fills begin with size, magic and version (`abi.rs`), and are read up to the size that they state.

mod abi;
mod cancel;
mod checked;
mod collectives;
mod comm;
mod config;
mod guard;
mod init;
mod irregular;
mod memory;
mod newcomers;
mod request;
mod survivors;
mod text;
mod transfers;
mod unique_id;
