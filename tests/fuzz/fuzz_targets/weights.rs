//! `.ci/fuzz 60 weights`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::weights(data));
