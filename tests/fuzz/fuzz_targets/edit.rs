//! `.ci/fuzz 60 edit`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::server::fuzzing::edit_messages(data));
