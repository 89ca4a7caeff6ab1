//! Packing: in the native format, and in "external32", which is big endian and has fixed sizes.

use std::ffi::{c_char, c_int, c_void};

use super::{Basic, Type, committed};
use crate::args::{count, put, text};
use crate::error::{Class, Outcome, fail};

unsafe fn room(position: *const i64, size: i64, needed: usize) -> Outcome<usize> {
    if position.is_null() {
        return fail(Class::Arg, "the position is NULL");
    }
    // SAFETY: the caller's promise.
    let at = count(unsafe { *position })?;
    match at.checked_add(needed).is_some_and(|end| end as i64 <= size) {
        true => Ok(at),
        false => fail(
            Class::Truncate,
            format!("{needed} bytes from position {at} on do not fit in a buffer of {size} bytes"),
        ),
    }
}

/// Fails if elements, or the place of their packed form, are NULL.
fn given(of: &Type, (at, n): (*const c_void, usize), packed: *const c_void) -> Outcome {
    if packed.is_null() && n > 0 && of.size() > 0 {
        return fail(Class::Buffer, "the buffer of packed data is NULL");
    }
    of.check_address(at, n)
}

pub unsafe fn pack(
    from: *const c_void,
    n: i64,
    handle: c_int,
    into: *mut c_void,
    size: i64,
    position: *mut i64,
    comm: c_int,
) -> Outcome {
    crate::comm::lookup(comm)?;
    let of = committed(handle)?;
    let n = count(n)?;
    let len = n * of.size();
    // SAFETY: the caller's promise: `n` elements at `from`, and `size` bytes at `into`, which `room` checks.
    unsafe {
        let at = room(position, size, len)?;
        given(&of, (from, n), into)?;
        of.pack_to(from.cast(), n, into.cast::<u8>().wrapping_add(at));
        *position += len as i64;
    }
    Ok(())
}

pub unsafe fn unpack(
    from: *const c_void,
    size: i64,
    position: *mut i64,
    into: *mut c_void,
    n: i64,
    handle: c_int,
    comm: c_int,
) -> Outcome {
    crate::comm::lookup(comm)?;
    let of = committed(handle)?;
    let n = count(n)?;
    let len = n * of.size();
    // SAFETY: the caller's promise.
    unsafe {
        let at = room(position, size, len)?;
        given(&of, (into, n), from)?;
        if len > 0 {
            let bytes = std::slice::from_raw_parts(from.cast::<u8>().wrapping_add(at), len);
            of.unpack(bytes, into.cast(), n);
        }
        *position += len as i64;
    }
    Ok(())
}

pub unsafe fn pack_size(n: i64, handle: c_int, comm: c_int, size: *mut i64) -> Outcome {
    crate::comm::lookup(comm)?;
    // SAFETY: the caller's promise.
    unsafe { put(size, (count(n)? * committed(handle)?.size()) as i64) }
}

/// Returns the bytes of a basic element in external32.
const fn external(basic: Basic) -> usize {
    match basic {
        Basic::LongInt | Basic::UnsignedLong => 4,
        Basic::Wide => 2,
        _ => basic.size(),
    }
}

fn external_size(of: &Type) -> Outcome<usize> {
    Ok(of.parts()?.iter().map(|part| part.count * external(part.basic)).sum())
}

/// Returns how many numbers a basic type consists of: a complex one of two.
const fn numbers(basic: Basic) -> usize {
    match basic {
        Basic::C16 | Basic::C32 | Basic::C64 | Basic::CLong | Basic::CQuad => 2,
        _ => 1,
    }
}

/// Converts the 80 bits of the x87 to the quad precision of external32, which has the same exponent.
fn quad_of(long: [u8; 16]) -> [u8; 16] {
    let bits = u128::from_le_bytes(long);
    let (head, mantissa) = ((bits >> 64) as u16, bits as u64);
    // Quad precision does not store the leading one of the mantissa.
    let quad = u128::from(head) << 112 | u128::from(mantissa << 1) << 48;
    quad.to_be_bytes()
}

fn long_of(quad: [u8; 16]) -> [u8; 16] {
    let bits = u128::from_be_bytes(quad);
    let head = (bits >> 112) as u16;
    let fraction = (bits >> 49) as u64 & (u64::MAX >> 1);
    let leading = u64::from(head & 0x7fff != 0) << 63;
    (u128::from(head) << 64 | u128::from(leading | fraction)).to_le_bytes()
}

fn write(bytes: &[u8], basic: Basic, external: usize, out: &mut Vec<u8>) {
    for number in bytes.chunks_exact(bytes.len() / numbers(basic)) {
        match (basic, <[u8; 16]>::try_from(number)) {
            (Basic::Long | Basic::CLong, Ok(long)) if cfg!(target_arch = "x86_64") => {
                out.extend(quad_of(long))
            }
            _ => out.extend(number[..number.len().min(external)].iter().rev()),
        }
    }
}

fn read(bytes: &[u8], basic: Basic, out: &mut [u8]) {
    let n = numbers(basic);
    let (from, into) = (bytes.len() / n, out.len() / n);
    for (number, place) in bytes.chunks_exact(from).zip(out.chunks_exact_mut(into)) {
        match (basic, <[u8; 16]>::try_from(number)) {
            (Basic::Long | Basic::CLong, Ok(quad)) if cfg!(target_arch = "x86_64") => {
                place.copy_from_slice(&long_of(quad))
            }
            _ => {
                // A shorter number is sign-extended.
                let negative = basic == Basic::LongInt && number[0] & 0x80 != 0;
                place.fill(if negative { 0xff } else { 0 });
                place.iter_mut().zip(number.iter().rev()).for_each(|(to, from)| *to = *from);
            }
        }
    }
}

unsafe fn check(representation: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { text(representation) }?.as_str() {
        "external32" => Ok(()),
        other => fail(Class::UnsupportedDatarep, format!("'{other}'; only external32 is known")),
    }
}

pub unsafe fn pack_external(
    representation: *const c_char,
    from: *const c_void,
    n: i64,
    handle: c_int,
    into: *mut c_void,
    size: i64,
    position: *mut i64,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { check(representation)? };
    let of = committed(handle)?;
    let n = count(n)?;
    let mut bytes = Vec::with_capacity(n * external_size(&of)?);
    // SAFETY: the caller's promise: `n` elements at `from`, and `size` bytes at `into`, which `room` checks.
    unsafe {
        let at = room(position, size, n * external_size(&of)?)?;
        given(&of, (from, n), into)?;
        for element in 0..n {
            let base = from.cast::<u8>().wrapping_offset((element as i64 * of.extent) as isize);
            for part in of.parts()?.iter() {
                for number in 0..part.count {
                    let offset = part.offset + (number * part.basic.size()) as i64;
                    let place =
                        std::slice::from_raw_parts(base.wrapping_offset(offset as isize), part.basic.size());
                    write(place, part.basic, external(part.basic), &mut bytes);
                }
            }
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast::<u8>().wrapping_add(at), bytes.len());
        *position += bytes.len() as i64;
    }
    Ok(())
}

pub unsafe fn unpack_external(
    representation: *const c_char,
    from: *const c_void,
    size: i64,
    position: *mut i64,
    into: *mut c_void,
    n: i64,
    handle: c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { check(representation)? };
    let of = committed(handle)?;
    let n = count(n)?;
    let len = n * external_size(&of)?;
    // SAFETY: the caller's promise: `n` elements at `into`, and `size` bytes at `from`, which `room` checks.
    unsafe {
        let at = room(position, size, len)?;
        given(&of, (into, n), from)?;
        let mut next = from.cast::<u8>().wrapping_add(at);
        for element in 0..n {
            let base = into.cast::<u8>().wrapping_offset((element as i64 * of.extent) as isize);
            for part in of.parts()?.iter() {
                let width = external(part.basic);
                for number in 0..part.count {
                    let offset = part.offset + (number * part.basic.size()) as i64;
                    let place = std::slice::from_raw_parts_mut(
                        base.wrapping_offset(offset as isize),
                        part.basic.size(),
                    );
                    read(std::slice::from_raw_parts(next, width), part.basic, place);
                    next = next.wrapping_add(width);
                }
            }
        }
        *position += len as i64;
    }
    Ok(())
}

pub unsafe fn pack_external_size(
    representation: *const c_char,
    n: i64,
    handle: c_int,
    size: *mut i64,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        check(representation)?;
        put(size, (count(n)? * external_size(&*committed(handle)?)?) as i64)
    }
}
