//! `.ci/fuzz 60 lsp`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::cli::lsp::fuzzing::language_server(data));
