//! `.ci/fuzz 60 framing`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::message_framing(data));
