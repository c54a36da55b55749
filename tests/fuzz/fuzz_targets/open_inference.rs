//! `.ci/fuzz 60 open_inference`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::inference_request(data));
