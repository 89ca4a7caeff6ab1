//! Kolo as a C library.
