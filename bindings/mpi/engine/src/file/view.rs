//! The part of a file that a rank sees: the bytes of a filetype, repeated from a displacement on.

use std::sync::Arc;

use crate::datatype::Type;
use crate::error::{Class, Outcome, fail};

/// A view.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) displacement: i64,
    pub(crate) etype: Arc<Type>,
    pub(crate) filetype: Arc<Type>,
    pub(crate) representation: String,
    /// Pieces of one filetype: each with its offset in the filetype's data, its offset in the file, and its length.
    pieces: Vec<(usize, i64, usize)>,
    size: usize,
    extent: i64,
}

impl View {
    /// Makes a view from a displacement on.
    ///
    /// # Errors
    /// The standard's error for a filetype that does not consist of whole etypes, or whose pieces are not in ascending order.
    pub(crate) fn new(
        displacement: i64,
        etype: Arc<Type>,
        filetype: Arc<Type>,
        representation: String,
    ) -> Outcome<Self> {
        if displacement < 0 {
            return fail(Class::Arg, format!("the displacement is {displacement} bytes"));
        }
        let (unit, size) = (etype.size(), filetype.size());
        if unit == 0 || !size.is_multiple_of(unit) {
            let text = format!("a filetype of {size} bytes for etypes of {unit}: it must hold whole ones");
            return fail(Class::Type, text);
        }
        let (mut pieces, mut data, mut end) = (Vec::new(), 0, 0);
        for run in filetype.runs()?.iter().filter(|run| run.len > 0) {
            if run.offset < end {
                let text = "the pieces of a filetype must not overlap, go backwards or begin below zero";
                return fail(Class::Type, text);
            }
            end = run.offset + run.len as i64;
            pieces.push((data, run.offset, run.len));
            data += run.len;
        }
        let extent = filetype.extent;
        // The pieces of a filetype may lie between those of the next ones, as the columns of a matrix do.
        if !pieces.is_empty() && extent <= 0 {
            return fail(Class::Type, format!("a filetype of extent {extent} cannot be repeated"));
        }
        Ok(Self { displacement, etype, filetype, representation, pieces, size, extent })
    }

    /// Returns the bytes of an etype.
    pub(crate) fn unit(&self) -> usize {
        self.etype.size()
    }

    /// Returns whether the rank sees nothing of the file.
    pub(crate) const fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Returns whether filetypes have no gaps, so that every access is one piece of the file.
    fn is_dense(&self) -> bool {
        self.pieces.len() == 1 && self.extent == self.size as i64
    }

    /// Returns the offset in a filetype of a byte of its data, and the number of bytes from there to the end of its piece.
    fn within(&self, byte: usize) -> (i64, usize) {
        let at = self.pieces.partition_point(|(data, ..)| *data <= byte) - 1;
        let (data, offset, len) = self.pieces[at];
        (offset + (byte - data) as i64, len - (byte - data))
    }

    /// Returns the position in the file of a byte of the view, which is not empty, and the number of bytes from there to the end of its
    /// piece.
    fn locate(&self, byte: u64) -> Outcome<(u64, usize)> {
        let (offset, room) = self.within((byte % self.size as u64) as usize);
        let place = i128::from(byte / self.size as u64) * i128::from(self.extent)
            + i128::from(self.displacement)
            + i128::from(offset);
        match u64::try_from(place).ok().filter(|place| i64::try_from(*place).is_ok()) {
            Some(place) => Ok((place, room)),
            None => fail(Class::Arg, format!("byte {byte} of the view lies beyond any file")),
        }
    }

    /// Calls `call` with each piece of the file that the `len` bytes occupy, until one call ends short: with the position in the file, and
    /// the range of the bytes. Returns how many bytes the calls have handled; none of an empty view.
    ///
    /// # Errors
    /// Errors of the call, or if the bytes lie beyond the largest possible file.
    pub(crate) fn each(
        &self,
        from: u64,
        len: usize,
        mut call: impl FnMut(u64, std::ops::Range<usize>) -> Outcome<usize>,
    ) -> Outcome<usize> {
        let mut done = 0;
        while done < len && !self.is_empty() {
            let (place, room) = self.locate(from + done as u64)?;
            let now = if self.is_dense() { len - done } else { room.min(len - done) };
            let moved = call(place, done..done + now)?;
            done += moved;
            if moved < now {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the byte of the file at which an etype begins.
    ///
    /// # Errors
    /// If it lies beyond the largest possible file.
    pub(crate) fn byte_of(&self, etypes: i64) -> Outcome<i64> {
        let byte = self.bytes_of(etypes)?;
        if self.is_empty() { Ok(self.displacement) } else { Ok(self.locate(byte)?.0 as i64) }
    }

    /// Returns the bytes of the view before an etype.
    ///
    /// # Errors
    /// For an etype before the first, or beyond the largest possible file.
    pub(crate) fn bytes_of(&self, etypes: i64) -> Outcome<u64> {
        match u64::try_from(etypes).ok().and_then(|etypes| etypes.checked_mul(self.unit() as u64)) {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(bytes),
            _ => fail(Class::Arg, format!("the offset is {etypes} etypes of {} bytes", self.unit())),
        }
    }

    /// Returns the first etype of the view that begins behind the end of a file of `file` bytes.
    pub(crate) fn end_of(&self, file: u64) -> i64 {
        if self.is_empty() {
            return 0;
        }
        let behind = i64::try_from(file).unwrap_or(i64::MAX) - self.displacement;
        // The etypes of one filetype begin in ascending order, but may lie between those of the next.
        let begin = |etype: usize| self.within(etype * self.unit()).0;
        let (all, mut first) = (self.size / self.unit(), 0);
        let filetypes =
            u64::try_from(behind.saturating_sub(begin(all - 1))).unwrap_or(0).div_ceil(self.extent as u64);
        let behind = i128::from(behind) - i128::from(filetypes) * i128::from(self.extent);
        let mut last = all - 1;
        while first < last {
            let middle = usize::midpoint(first, last);
            if i128::from(begin(middle)) < behind { first = middle + 1 } else { last = middle }
        }
        i64::try_from(i128::from(filetypes) * all as i128 + first as i128).unwrap_or(i64::MAX)
    }
}
