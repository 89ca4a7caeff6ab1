//! Groups: the ranks as a grid, with a communicator for each row and each column.
//!
//! ```text
//! groups --ranks 6
//! kolo run -n 6 -- groups
//! ```

use std::process::ExitCode;

use kolo::{Communicator, ReduceOp};
use kolo_examples::{Result, cluster};

fn main() -> ExitCode {
    cluster::main("Arranges the ranks as a grid, and sums along its rows and columns", groups)
}

/// The work of each rank.
fn groups(ranks: &Communicator) -> Result<()> {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    let width = width(world_size);
    let (row, column) = (rank / width, rank % width);

    // The same color means the same group; the key orders a group's ranks.
    let along_row = ranks.split(Some(row), column)?.ok_or("a rank with a color has a group")?;
    let along_column = ranks.split(Some(column), row)?.ok_or("a rank with a color has a group")?;
    let (row_sum, column_sum) = (sum(&along_row, rank)?, sum(&along_column, rank)?);
    println!(
        "rank {rank} at row {row}, column {column}: the row's sum is {row_sum}, the column's {column_sum}"
    );

    // The total: sums along the rows, then sums of those along the columns.
    let total = sum(&along_column, row_sum)?;
    let expected = world_size * (world_size - 1) / 2;
    if total != expected {
        return Err(format!("rank {rank}: the sum of all is {total} instead of {expected}").into());
    }

    // A group can also be made from a list of ranks, without a split: only the listed ranks call.
    if column == 0 {
        let first_column: Vec<u32> = (0..world_size).step_by(width as usize).collect();
        let group = ranks.group(&first_column)?;
        println!("rank {rank} is rank {} of the first column's {}", group.rank(), group.world_size());
    }
    Ok(())
}

fn sum(group: &Communicator, value: u32) -> Result<u32> {
    let mut sum = [value];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// Returns the columns of the grid that is closest to a square and at least as wide as high.
fn width(world_size: u32) -> u32 {
    (1..=world_size)
        .find(|&width| world_size.is_multiple_of(width) && width * width >= world_size)
        .unwrap_or(1)
}
