//! `.ci/fuzz 60 ngrams`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::ngrams(data));
