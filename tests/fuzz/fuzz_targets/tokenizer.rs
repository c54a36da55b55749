//! `.ci/fuzz 60 tokenizer`
#![no_main]

// A panic of the tokenizers library becomes an error, so the hook must not end the process. Any other panic does, as it leaves the
// entry.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))),
    |data: &[u8]| weir_fuzz::tokenizer(data)
);
