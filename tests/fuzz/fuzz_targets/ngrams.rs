//! `.ci/fuzz 60 ngrams`
#![no_main]

#[expect(dead_code, reason = "each target uses one entry")]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::ngrams(data));
