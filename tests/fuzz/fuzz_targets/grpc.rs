//! `.ci/fuzz 60 grpc`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::grpc_request(data));
