//! Datatypes for parts of multidimensional arrays.

use std::ffi::c_int;
use std::sync::Arc;

use super::construct::{made, make};
use super::{Blocks, Type};
use crate::constants::*;
use crate::error::{Class, Outcome, fail};

/// Returns the dimensions in order, beginning with the one whose elements are adjacent in memory.
fn inner_first(dims: usize, order: c_int) -> Outcome<Vec<usize>> {
    match order {
        ORDER_C => Ok((0..dims).rev().collect()),
        ORDER_FORTRAN => Ok((0..dims).collect()),
        _ => fail(Class::Arg, "the order is neither MPI_ORDER_C nor MPI_ORDER_FORTRAN"),
    }
}

fn step(blocks: Vec<(i64, i64, u32)>, of: Arc<Type>, extent: i64) -> Outcome<Arc<Type>> {
    Ok(Arc::new(make(made(COMBINER_HINDEXED, vec![of], Blocks::Listed(blocks)), Some((0, extent)))?))
}

/// Wraps the types built for the dimensions into one type whose only child is the element's type.
fn whole(combiner: c_int, built: &Arc<Type>, of: &Arc<Type>, extent: i64) -> Outcome<Type> {
    let inner = make(
        made(combiner, vec![Arc::clone(built)], Blocks::Even { count: 1, length: 1, stride: 0 }),
        Some((0, extent)),
    )?;
    // `MPI_Type_get_contents` shows the element's type as the only child.
    let mut shown = inner;
    shown.made.types = vec![Arc::clone(of)];
    shown.made.blocks = Blocks::Within(Arc::clone(built));
    Ok(shown)
}

/// Makes the type of a part of an array, from the sizes of the array, the sizes of the part, and its starts.
pub(super) fn subarray(lists: &[Vec<i64>; 3], order: c_int, of: &Arc<Type>) -> Outcome<Type> {
    let [sizes, subsizes, starts] = lists;
    let mut built = Arc::clone(of);
    let mut extent = of.extent;
    for dim in inner_first(sizes.len(), order)? {
        let (size, part, start) = (sizes[dim], subsizes[dim], starts[dim]);
        if size < 1 || part < 1 || start < 0 || part > size || start > size - part {
            return fail(
                Class::Arg,
                format!("dimension {dim}: {part} elements from {start} on do not fit in {size}"),
            );
        }
        let Some(all) = extent.checked_mul(size) else { return fail(Class::Arg, "the array is too large") };
        built = step(vec![(start * extent, part, 0)], built, all)?;
        extent = all;
    }
    whole(COMBINER_SUBARRAY, &built, of, extent)
}

/// Makes the type of one rank's part of a distributed array.
pub(super) fn darray(
    size: c_int,
    rank: c_int,
    sizes: &[i64],
    distribs: &[c_int],
    dargs: &[c_int],
    psizes: &[c_int],
    order: c_int,
    of: &Arc<Type>,
) -> Outcome<Type> {
    let processes: i64 = psizes.iter().map(|size| i64::from(*size)).product();
    if psizes.iter().any(|size| *size < 1) || processes != i64::from(size) || !(0..size).contains(&rank) {
        return fail(Class::Arg, "the grid does not have one place for each process");
    }
    // The grid of processes is in C order, whatever the array's order is.
    let mut rest = rank;
    let mut places = vec![0_i64; psizes.len()];
    for dim in (0..psizes.len()).rev() {
        places[dim] = i64::from(rest % psizes[dim]);
        rest /= psizes[dim];
    }
    let (mut built, mut extent) = (Arc::clone(of), of.extent);
    for dim in inner_first(sizes.len(), order)? {
        let (all, processes) = (sizes[dim], i64::from(psizes[dim]));
        let given = i64::from(dargs[dim]);
        let chunk = match (distribs[dim], dargs[dim]) {
            (DISTRIBUTE_NONE, _) if processes != 1 => {
                return fail(Class::Arg, "a dimension that is not distributed has several processes");
            }
            (DISTRIBUTE_NONE, _) => all,
            (DISTRIBUTE_BLOCK, DISTRIBUTE_DFLT_DARG) => (all + processes - 1) / processes,
            (DISTRIBUTE_BLOCK, _) if given < 1 || given * processes < all => {
                return fail(Class::Arg, "the blocks do not cover the array");
            }
            (DISTRIBUTE_BLOCK, _) => given,
            (DISTRIBUTE_CYCLIC, DISTRIBUTE_DFLT_DARG) => 1,
            (DISTRIBUTE_CYCLIC, _) if given >= 1 => given,
            _ => return fail(Class::Arg, "invalid distribution of a dimension"),
        };
        let mut blocks = Vec::new();
        let mut start = places[dim] * chunk;
        while start < all {
            blocks.push((start * extent, chunk.min(all - start), 0));
            start += chunk * processes;
        }
        let Some(whole) = extent.checked_mul(all) else { return fail(Class::Arg, "the array is too large") };
        built = step(blocks, built, whole)?;
        extent = whole;
    }
    whole(COMBINER_DARRAY, &built, of, extent)
}
