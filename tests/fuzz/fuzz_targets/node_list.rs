#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kolo::fuzzing::node_list(bytes));
