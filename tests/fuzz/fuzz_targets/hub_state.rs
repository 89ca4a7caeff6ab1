#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kolo::fuzzing::hub_state(bytes));
