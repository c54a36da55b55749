//! `.ci/fuzz 60 settings`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::settings(data));
