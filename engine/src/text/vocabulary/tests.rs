//! Tests of encoding, decoding and rejected vocabularies.

use super::*;
use proptest::prelude::*;

fn small(normaliser: TextNormaliser) -> Vocabulary {
    Vocabulary::from_symbols(&[" ", "e", "é", "\n", "n", "o"], normaliser).unwrap()
}

#[test]
fn symbols_are_numbered_in_order() {
    let vocabulary = small(TextNormaliser::None);
    assert_eq!(vocabulary.encode("prompt", "é e\n", usize::MAX).unwrap(), [2, 0, 1, 3]);
    assert_eq!(vocabulary.decode(&[2, 0, 1, 3, 9]), "é e\n\u{fffd}");
    assert_eq!(vocabulary.id_of('é'), Some(2));
    assert_eq!(vocabulary.id_of('x'), None);
    assert_eq!(vocabulary.printable(3), "'\\n'");
    assert_eq!(vocabulary.printable(6), "id 6");
}

#[test]
fn the_error_names_the_unknown_symbol_and_its_offset_in_characters() {
    let message = small(TextNormaliser::None).encode("prompt", "éé x", usize::MAX).unwrap_err().to_string();
    assert_eq!(message, "prompt: expected symbols of the model's vocabulary, found 'x' at character 3");
    let message = small(TextNormaliser::Text8).encode("prompt", "1 E²", usize::MAX).unwrap_err().to_string();
    assert_eq!(
        message,
        "prompt: expected symbols of the model's vocabulary, found '²' (normalised to 't') at character 3"
    );
    let message = small(TextNormaliser::None).check_ids("--ids", &[0, 5, 6]).unwrap_err().to_string();
    assert_eq!(
        message,
        "--ids: expected symbols of the model's vocabulary, found id 6 (the vocabulary has 6 symbols) at index 2"
    );
}

#[test]
fn encoding_stops_at_the_first_symbol_above_the_limit() {
    let letters = |normaliser| Vocabulary::from_symbols(&[" ", "e", "n", "o", "é"], normaliser).unwrap();
    let message = |vocabulary: &Vocabulary, text: &str| vocabulary.encode("prompt", text, 4).unwrap_err().to_string();
    let plain = letters(TextNormaliser::None);
    let folded = letters(TextNormaliser::Text8);
    let bytes = Vocabulary::byte_level(TextNormaliser::None);
    assert_eq!(plain.encode("prompt", "éneo", 4).unwrap().len(), 4);
    assert_eq!(folded.encode("prompt", "É  N,", 4).unwrap(), [1, 0, 2, 0]);
    assert_eq!(message(&plain, "éneo éx"), "prompt: expected at most 4 characters, found 7");
    assert_eq!(message(&bytes, "ééé"), "prompt: expected at most 4 characters, found 6");
    assert_eq!(message(&folded, "oo 1"), "prompt: expected at most 4 characters, found more");
    assert_eq!(
        message(&folded, "oo 7"),
        "prompt: expected symbols of the model's vocabulary, found '7' (normalised to 's') at character 3"
    );
    // normalising all of it would produce ten million symbols, which takes longer in every attempt
    let digits = "1".repeat(2 << 20);
    let is_quick = (0..20).any(|_| {
        let start = std::time::Instant::now();
        assert!(folded.encode("prompt", &digits, 1000).is_err());
        start.elapsed() < std::time::Duration::from_millis(20)
    });
    assert!(is_quick);
}

#[test]
fn the_error_names_the_invalid_symbol() {
    let error = |symbols: &[&str]| Vocabulary::from_symbols(symbols, TextNormaliser::None).unwrap_err();
    assert_eq!(error(&[]).key, "vocabulary.symbols");
    assert_eq!(error(&["a", "bc"]).key, "vocabulary.symbols[1]");
    assert_eq!(error(&["a", ""]).found, "\"\"");
    assert_eq!(error(&["a", "b", "a"]).found, "'a', which is already symbol 0");
    assert!(error(&["x".repeat(1 << 20).as_str()]).found.len() < 100);
    let many = vec!["a"; MAX_SYMBOLS + 1];
    assert_eq!(error(&many).found, "1114113 symbols");
}

#[test]
fn ids_of_bytes_are_their_values() {
    let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
    assert_eq!(vocabulary.encode("prompt", "aé", usize::MAX).unwrap(), [0x61, 0xc3, 0xa9]);
    assert_eq!(vocabulary.decode(&[0x61, 0xc3, 0xa9, 0xff, 0xc3]), "aé\u{fffd}\u{fffd}");
    assert_eq!((vocabulary.id_of('\n'), vocabulary.id_of('é')), (Some(10), None));
    assert_eq!(vocabulary.printable(10), "byte 0x0a");
    assert_eq!(vocabulary.printable(97), "'a'");
    assert!(vocabulary.check_ids("prompt", &[256]).is_err());
}

const SPECIALS: SpecialSymbols = SpecialSymbols { start: 1, end: 3, segment_start: 0, segment_end: 5, unknown: 6 };

#[test]
fn special_symbols_have_no_text() {
    let vocabulary = Vocabulary::from_symbols_with_specials(
        &["<bos>", "<BoS>", "a", "<eos>", "b", "<nxt>", "<oov>"],
        SPECIALS,
        TextNormaliser::None,
    );
    let vocabulary = vocabulary.unwrap();
    assert_eq!(vocabulary.encode("prompt", "axb<", usize::MAX).unwrap(), [2, 6, 4, 6]);
    assert_eq!(vocabulary.decode(&[1, 0, 2, 6, 5, 4, 3]), "a\u{fffd}b");
    assert_eq!((vocabulary.printable(5), vocabulary.id_of('x')), ("<nxt>".into(), None));
    assert!(vocabulary.encode_exactly("stop", "x").is_err() && vocabulary.check_text("--ids", &[2, 6]).is_ok());
    let message = vocabulary.check_text("--ids", &[2, 5]).unwrap_err().to_string();
    assert_eq!(message, "--ids: expected symbols of a text, found <nxt> at index 1");
    let twice = Vocabulary::from_symbols_with_specials(&["a", "b"], SPECIALS, TextNormaliser::None).unwrap_err();
    assert_eq!(twice.key, "vocabulary.specials.end");
}

#[test]
fn byte_ids_may_follow_special_symbols() {
    let specials = SpecialSymbols { start: 0, end: 1, segment_start: 2, segment_end: 259, unknown: 260 };
    let vocabulary = Vocabulary::byte_level_with_specials(3, specials, TextNormaliser::None).unwrap();
    assert_eq!(vocabulary.len(), 261);
    let ids = vocabulary.encode("prompt", "é語", usize::MAX).unwrap();
    assert_eq!(ids[..2], [0xc3 + 3, 0xa9 + 3]);
    assert_eq!(vocabulary.decode(&[&ids[..], &[1]].concat()), "é語");
    assert_eq!((vocabulary.printable(3 + 97), vocabulary.printable(260)), ("'a'".into(), "<oov>".into()));
    assert!(Vocabulary::byte_level_with_specials(2, specials, TextNormaliser::None).is_err());
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(text in "[ eé\\nno]*") {
        let vocabulary = small(TextNormaliser::None);
        prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
    }

    #[test]
    fn bytes_round_trip_any_text(text in any::<String>()) {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
    }

    #[test]
    fn ids_outside_the_vocabulary_are_replaced(ids in prop::collection::vec(any::<u32>(), 0..40)) {
        Vocabulary::byte_level(TextNormaliser::None).decode(&ids);
        prop_assert_eq!(small(TextNormaliser::None).decode(&ids).chars().count(), ids.len());
    }
}
