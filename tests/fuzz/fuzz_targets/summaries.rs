//! `.ci/fuzz 60 summaries`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::summary_request(data));
