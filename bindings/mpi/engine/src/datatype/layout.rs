//! Flattened types: lists of parts of one basic type each, and of runs of bytes.

use std::sync::Arc;

use super::basic::Basic;
use super::construct::present;
use super::{Blocks, Type};
use crate::error::{Class, Outcome, fail};

/// Contiguous values of one basic type within an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset in bytes from the address of the element.
    pub offset: i64,
    /// Type of the values.
    pub basic: Basic,
    /// Number of values.
    pub count: usize,
}

/// Contiguous bytes within an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset in bytes from the address of the element.
    pub offset: i64,
    /// Number of bytes.
    pub len: usize,
}

/// The largest number of parts of a type; each takes 24 bytes.
const PARTS_MAX: usize = 1 << 26;

impl Part {
    pub(super) fn len(&self) -> usize {
        self.count * self.basic.size()
    }
}

fn append(parts: &mut Vec<Part>, part: Part) -> Outcome {
    if part.count == 0 {
        return Ok(());
    }
    if let Some(last) = parts.last_mut()
        && last.basic == part.basic
        && last.offset + last.len() as i64 == part.offset
    {
        last.count += part.count;
        return Ok(());
    }
    if parts.len() >= PARTS_MAX {
        return fail(Class::NoMem, "the datatype has more than 2^26 separate parts");
    }
    parts.push(part);
    Ok(())
}

fn append_elements(parts: &mut Vec<Part>, of: &Type, at: i64, count: i64) -> Outcome {
    let inner = of.parts()?;
    if let ([one], true) = (&inner[..], of.dense) {
        let part = Part { offset: at + one.offset, count: one.count * count as usize, ..*one };
        return append(parts, part);
    }
    for element in 0..count {
        for part in inner.iter() {
            append(parts, Part { offset: at + element * of.extent + part.offset, ..*part })?;
        }
    }
    Ok(())
}

impl Type {
    /// Returns the parts of an element, in the order of its definition.
    ///
    /// # Errors
    /// If there are too many.
    pub fn parts(&self) -> Outcome<Arc<[Part]>> {
        self.parts.get_or_init(|| self.flatten()).clone()
    }

    fn flatten(&self) -> Outcome<Arc<[Part]>> {
        let mut parts = Vec::new();
        match &self.made.blocks {
            Blocks::Basic(own) => parts.clone_from(own),
            Blocks::Within(whole) => return whole.parts(),
            Blocks::Even { count, length, stride } => {
                let of = &self.made.types[0];
                for block in 0..*count {
                    append_elements(&mut parts, of, block * stride, *length)?;
                }
            }
            Blocks::Listed(blocks) => {
                for (at, count, which) in blocks {
                    append_elements(&mut parts, &self.made.types[*which as usize], *at, *count)?;
                }
            }
        }
        Ok(parts.into())
    }

    /// Returns the number of basic values in `bytes` bytes of elements; `None` if the bytes end within a value. Descends only into the last
    /// element, since a list of all its parts might be too long.
    pub(crate) fn values_in(&self, bytes: i64) -> Option<i64> {
        let size = self.size as i64;
        if size == 0 {
            return (bytes == 0).then_some(0);
        }
        let (mut found, mut rest) = (bytes / size * self.elements, bytes % size);
        match &self.made.blocks {
            _ if rest == 0 => {}
            Blocks::Basic(parts) => {
                for part in parts {
                    let fits = (rest / part.basic.size() as i64).min(part.count as i64);
                    found += fits;
                    rest -= fits * part.basic.size() as i64;
                    if fits < part.count as i64 {
                        break;
                    }
                }
                return (rest == 0).then_some(found);
            }
            Blocks::Within(whole) => found += whole.values_in(rest)?,
            Blocks::Even { .. } => found += self.made.types[0].values_in(rest)?,
            Blocks::Listed(blocks) => {
                for (_, count, which) in blocks {
                    let of = &self.made.types[*which as usize];
                    let taken = rest.min(count * of.size as i64);
                    found += of.values_in(taken)?;
                    rest -= taken;
                }
            }
        }
        Some(found)
    }

    /// Returns the bytes of the first `count` basic values of elements; `None` if they do not fit into 64 bits.
    pub(crate) fn bytes_of_values(&self, count: i64) -> Option<i64> {
        if self.elements == 0 {
            return Some(0);
        }
        let mut rest = count % self.elements;
        let mut bytes = (count / self.elements).checked_mul(self.size as i64)?;
        let mut add = |more: Option<i64>| {
            bytes = bytes.checked_add(more?)?;
            Some(())
        };
        match &self.made.blocks {
            Blocks::Basic(parts) => {
                for part in parts {
                    let taken = rest.min(part.count as i64);
                    add(Some(taken * part.basic.size() as i64))?;
                    rest -= taken;
                }
            }
            Blocks::Within(whole) => add(whole.bytes_of_values(rest))?,
            Blocks::Even { .. } => add(self.made.types[0].bytes_of_values(rest))?,
            Blocks::Listed(blocks) => {
                for (_, count, which) in blocks {
                    let of = &self.made.types[*which as usize];
                    let taken = rest.min(count * of.elements);
                    add(of.bytes_of_values(taken))?;
                    rest -= taken;
                }
            }
        }
        Some(bytes)
    }

    /// Adds the basic types of an element's values to `kinds`, each once.
    pub(crate) fn add_kinds(&self, kinds: &mut Vec<Basic>) {
        if self.elements == 0 {
            return;
        }
        if let Blocks::Basic(parts) = &self.made.blocks {
            for part in parts {
                if !kinds.contains(&part.basic) {
                    kinds.push(part.basic);
                }
            }
        }
        let mut present = present(&self.made);
        present.dedup_by(|one, other| std::ptr::eq(*one, *other));
        present.into_iter().for_each(|of| of.add_kinds(kinds));
    }

    /// Calls `visit` with the predefined types of which an element at `at` consists and their places, in the order of its definition, until
    /// it returns false. Returns whether it never has, and the element is made of predefined types.
    pub(crate) fn each_predefined(&self, at: i64, visit: &mut impl FnMut(&Self, i64) -> bool) -> bool {
        if self.builtin_handle().is_some() {
            return visit(self, at);
        }
        let mut block = |place: i64, count: i64, of: &Self| {
            (0..count).all(|element| of.each_predefined(at + place + element * of.extent, visit))
        };
        match &self.made.blocks {
            Blocks::Basic(_) => false,
            Blocks::Within(whole) => block(0, 1, whole),
            Blocks::Even { count, length, stride } => {
                (0..*count).all(|nth| block(nth * stride, *length, &self.made.types[0]))
            }
            Blocks::Listed(blocks) => blocks
                .iter()
                .all(|(place, count, which)| block(*place, *count, &self.made.types[*which as usize])),
        }
    }

    /// Returns the runs of bytes of an element, in the order of its definition.
    ///
    /// # Errors
    /// If there are too many.
    pub fn runs(&self) -> Outcome<&[Run]> {
        let parts = self.parts()?;
        Ok(self.runs.get_or_init(|| {
            let mut runs: Vec<Run> = Vec::new();
            for part in parts.iter() {
                match runs.last_mut() {
                    Some(last) if last.offset + last.len as i64 == part.offset => last.len += part.len(),
                    _ => runs.push(Run { offset: part.offset, len: part.len() }),
                }
            }
            runs.into()
        }))
    }
}
