//! `.ci/fuzz 60 open_inference`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::serve::fuzzing::inference_request(data));
