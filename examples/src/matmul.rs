//! Multiplication of matrices of `f32`: blocked, packed, and vectorised by the compiler.
//!
//! The order in which an element of a product is summed depends on the inner dimension only, and there is no fused
//! multiply-add. A row of a product therefore depends neither on the number of other rows nor on the processor:
//! splitting a batch over ranks changes nothing but sums over the batch.

/// Rows and columns of the block that is kept in registers: it takes 12 of the 16 vectors of AVX2, 8 elements each.
const BLOCK_ROWS: usize = 6;
const BLOCK_COLUMNS: usize = 16;
/// Terms summed at a time: a packed panel of columns, 16 KiB, stays in the first-level cache.
const BLOCK_TERMS: usize = 256;
/// Rows packed at a time: 96 x 256 x 4 = 96 KiB stay in the second-level cache.
const PACKED_ROWS: usize = 96;

/// A matrix in borrowed memory, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Makes a matrix that is stored row by row.
    ///
    /// # Panics
    /// If the data is not `rows * columns` long.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "a matrix of {rows} x {columns}");
        Self { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Returns the transpose, in the same memory.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Returns some of its rows, as a matrix.
    ///
    /// # Panics
    /// If the matrix does not have these rows.
    #[must_use]
    pub fn rows(self, rows: std::ops::Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        Self { data: &self.data[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.row_stride + column * self.column_stride]
    }
}

/// Computes `product = a · b`, stored row by row.
///
/// # Panics
/// If the shapes do not fit.
pub fn multiply(a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32]) {
    assert_eq!(a.columns, b.rows, "inner dimensions");
    assert_eq!(product.len(), a.rows * b.columns, "size of the product");
    product.fill(0.0);
    let mut packed_a = vec![0.0; PACKED_ROWS * BLOCK_TERMS];
    let mut packed_b = vec![0.0; b.columns.next_multiple_of(BLOCK_COLUMNS) * BLOCK_TERMS];
    for first_term in (0..a.columns).step_by(BLOCK_TERMS) {
        let terms = BLOCK_TERMS.min(a.columns - first_term);
        pack::<BLOCK_COLUMNS>(&mut packed_b, b.transposed(), 0..b.columns, first_term, terms);
        for first_row in (0..a.rows).step_by(PACKED_ROWS) {
            let rows = first_row..a.rows.min(first_row + PACKED_ROWS);
            pack::<BLOCK_ROWS>(&mut packed_a, a, rows.clone(), first_term, terms);
            let panels_a = packed_a.chunks_exact(terms * BLOCK_ROWS);
            for (row, panel_a) in rows.step_by(BLOCK_ROWS).zip(panels_a) {
                let panels_b = packed_b.chunks_exact(terms * BLOCK_COLUMNS);
                for (column, panel_b) in (0..b.columns).step_by(BLOCK_COLUMNS).zip(panels_b) {
                    let block = multiply_panels(panel_a, panel_b);
                    add_block(product, b.columns, row, column, &block);
                }
            }
        }
    }
}

/// Copies `rows` of a matrix into panels of `WIDTH` rows, so that the elements of a term are adjacent. Missing rows of
/// the last panel are 0.
fn pack<const WIDTH: usize>(
    packed: &mut [f32],
    from: Matrix<'_>,
    rows: std::ops::Range<usize>,
    first_term: usize,
    terms: usize,
) {
    let panels = packed.chunks_exact_mut(terms * WIDTH);
    for (first_row, panel) in rows.clone().step_by(WIDTH).zip(panels) {
        let width = WIDTH.min(rows.end - first_row);
        for (term, slots) in panel.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            for (i, slot) in slots.iter_mut().enumerate() {
                *slot = if i < width { from.at(first_row + i, first_term + term) } else { 0.0 };
            }
        }
    }
}

type Block = [[f32; BLOCK_COLUMNS]; BLOCK_ROWS];

fn add_block(product: &mut [f32], columns: usize, row: usize, column: usize, block: &Block) {
    let width = BLOCK_COLUMNS.min(columns - column);
    for (line, sums) in product.chunks_exact_mut(columns).skip(row).zip(block) {
        for (element, sum) in line[column..column + width].iter_mut().zip(sums) {
            *element += sum;
        }
    }
}

#[inline(always)]
fn multiply_panels_generic(a: &[f32], b: &[f32]) -> Block {
    let mut block = [[0.0; BLOCK_COLUMNS]; BLOCK_ROWS];
    for (a, b) in a.as_chunks::<BLOCK_ROWS>().0.iter().zip(b.as_chunks::<BLOCK_COLUMNS>().0) {
        for row in 0..BLOCK_ROWS {
            for column in 0..BLOCK_COLUMNS {
                block[row][column] += a[row] * b[column];
            }
        }
    }
    block
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_panels_avx2(a: &[f32], b: &[f32]) -> Block {
    multiply_panels_generic(a, b)
}

fn multiply_panels(a: &[f32], b: &[f32]) -> Block {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has just been asked for AVX2. Test: `products_are_right`.
        return unsafe { multiply_panels_avx2(a, b) };
    }
    multiply_panels_generic(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * step) % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn products_are_right() {
        for (m, n, k) in
            [(1, 1, 1), (5, 7, 3), (6, 16, 256), (97, 33, 257), (12, 10, 600), (0, 3, 2), (3, 4, 0)]
        {
            let (a, b) = (numbers(m * k, 5), numbers(k * n, 7));
            let mut product = vec![f32::NAN; m * n];
            multiply(Matrix::new(&a, m, k), Matrix::new(&b, k, n), &mut product);
            // The stored transposes.
            let a_t: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
            let b_t: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
            let mut other = vec![f32::NAN; m * n];
            multiply(Matrix::new(&a_t, k, m).transposed(), Matrix::new(&b_t, n, k).transposed(), &mut other);
            for row in 0..m {
                for column in 0..n {
                    // The values are whole numbers, so the sum is exact.
                    let want: f32 = (0..k).map(|term| a[row * k + term] * b[term * n + column]).sum();
                    assert_eq!(product[row * n + column], want, "{m} x {n} x {k} at {row}, {column}");
                    assert_eq!(other[row * n + column], want, "{m} x {n} x {k} transposed");
                }
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_each_other() {
        let (a, b): (Vec<f32>, Vec<f32>) = (
            (0..40 * 300).map(|i| (i as f32).sin()).collect(),
            (0..300 * 20).map(|i| (i as f32).cos()).collect(),
        );
        let b = Matrix::new(&b, 300, 20);
        let mut all = vec![0.0; 40 * 20];
        multiply(Matrix::new(&a, 40, 300), b, &mut all);
        let mut part = vec![0.0; 7 * 20];
        multiply(Matrix::new(&a[11 * 300..18 * 300], 7, 300), b, &mut part);
        assert_eq!(part, all[11 * 20..18 * 20]);
        multiply(Matrix::new(&a, 40, 300).rows(11..18), b, &mut part);
        assert_eq!(part, all[11 * 20..18 * 20]);
        let a_t: Vec<f32> = (0..300 * 40).map(|i| a[i % 40 * 300 + i / 40]).collect();
        multiply(Matrix::new(&a_t, 300, 40).transposed().rows(11..18), b, &mut part);
        assert_eq!(part, all[11 * 20..18 * 20]);
    }
}
