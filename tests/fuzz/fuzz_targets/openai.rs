//! `.ci/fuzz 60 openai`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::completion_request(data));
