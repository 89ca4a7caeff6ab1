//! libibverbs' types and constants under their own names, and the loader that finds its functions at run time.
//!
//! Everything here is raw; the other modules of the crate make it safe. C's enumerations are `u32`, since a newer
//! library may return values that this one does not know.

mod constants;
mod layout;
mod loader;
mod mirror;

pub use constants::*;
pub use layout::layout_table;
pub use loader::{LoadError, REQUIRED_SYMBOLS, Symbols};
pub use mirror::*;
