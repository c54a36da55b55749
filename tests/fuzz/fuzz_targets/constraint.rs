//! `.ci/fuzz 60 constraint`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::constraint(data));
