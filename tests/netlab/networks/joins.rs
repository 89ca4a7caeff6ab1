//! Joining on networks that make it hard.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
