//! `.ci/fuzz 60 codec`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::codec(data));
