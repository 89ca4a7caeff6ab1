//! Cables that are cut.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
