//! `.ci/fuzz 60 framing`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::serve::fuzzing::message_framing(data));
