//! `.ci/fuzz 60 config`
#![no_main]

#[expect(dead_code, reason = "each target uses one entry")]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::config(data));
