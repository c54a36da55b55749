//! `.ci/fuzz 60 weights`
#![no_main]

#[expect(dead_code, reason = "each target uses one entry")]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::weights(data));
