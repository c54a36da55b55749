//! `.ci/fuzz 60 pickle`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::pickle(data));
