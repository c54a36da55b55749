//! `.ci/fuzz 60 pickle`
#![no_main]

#[expect(dead_code, reason = "each target uses one entry")]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::pickle(data));
