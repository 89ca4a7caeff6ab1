#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kolo_transport::fuzzing::shm_hello(bytes));
