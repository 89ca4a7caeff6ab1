//! All fuzz targets in one program, so that linking is done once. KOLO_FUZZ_TARGET names the target to run.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("KOLO_FUZZ_TARGET").unwrap_or_default();
    let mut all = kolo::fuzzing::TARGETS.iter().chain(&kolo_transport::fuzzing::TARGETS);
    let found = all.find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("KOLO_FUZZ_TARGET={wanted} is no target; see corpus/")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
