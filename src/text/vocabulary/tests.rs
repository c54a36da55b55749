//! What a vocabulary takes, gives and refuses.

use super::*;
use proptest::prelude::*;

fn small(normaliser: Normaliser) -> Vocabulary {
    Vocabulary::of_symbols(&[" ", "e", "é", "\n", "n", "o"], normaliser).unwrap()
}

#[test]
fn symbols_are_numbered_in_order() {
    let vocabulary = small(Normaliser::None);
    assert_eq!(vocabulary.encode("prompt", "é e\n", usize::MAX).unwrap(), [2, 0, 1, 3]);
    assert_eq!(vocabulary.decode(&[2, 0, 1, 3, 9]), "é e\n\u{fffd}");
    assert_eq!(vocabulary.id_of('é'), Some(2));
    assert_eq!(vocabulary.id_of('x'), None);
    assert_eq!(vocabulary.printable(3), "'\\n'");
    assert_eq!(vocabulary.printable(6), "id 6");
}

#[test]
fn an_unknown_symbol_is_named_with_its_offset_in_characters() {
    let message = small(Normaliser::None).encode("prompt", "éé x", usize::MAX).unwrap_err().to_string();
    assert_eq!(message, "prompt: 'x' at character 3 is not in the model's vocabulary");
    let message = small(Normaliser::Text8).encode("prompt", "1 E²", usize::MAX).unwrap_err().to_string();
    assert_eq!(message, "prompt: '²', normalised to 't', at character 3 is not in the model's vocabulary");
    let message = small(Normaliser::None).check_ids("--ids", &[0, 5, 6]).unwrap_err().to_string();
    assert_eq!(message, "--ids: id 6 (the vocabulary has 6 symbols) at character 2 is not in the model's vocabulary");
}

#[test]
fn encoding_ends_with_the_first_symbol_too_many() {
    let letters = |normaliser| Vocabulary::of_symbols(&[" ", "e", "n", "o", "é"], normaliser).unwrap();
    let message = |vocabulary: &Vocabulary, text: &str| vocabulary.encode("prompt", text, 4).unwrap_err().to_string();
    let (plain, folded, bytes) =
        (letters(Normaliser::None), letters(Normaliser::Text8), Vocabulary::of_bytes(Normaliser::None));
    assert_eq!(plain.encode("prompt", "éneo", 4).unwrap().len(), 4);
    assert_eq!(folded.encode("prompt", "É  N,", 4).unwrap(), [1, 0, 2, 0]);
    assert_eq!(message(&plain, "éneo éx"), "prompt: 7 characters is more than the limit of 4");
    assert_eq!(message(&bytes, "ééé"), "prompt: 6 characters is more than the limit of 4");
    assert_eq!(message(&folded, "oo 1"), "prompt: more than 4 characters, which is the limit");
    assert_eq!(
        message(&folded, "oo 7"),
        "prompt: '7', normalised to 's', at character 3 is not in the model's vocabulary"
    );
    // Ten million symbols, were they looked at.
    let began = std::time::Instant::now();
    assert!(folded.encode("prompt", &"1".repeat(2 << 20), 1000).is_err());
    assert!(began.elapsed() < std::time::Duration::from_millis(20), "{:?}", began.elapsed());
}

#[test]
fn what_cannot_be_a_vocabulary_is_named() {
    let error = |symbols: &[&str]| Vocabulary::of_symbols(symbols, Normaliser::None).unwrap_err();
    assert_eq!(error(&[]).key, "vocabulary.symbols");
    assert_eq!(error(&["a", "bc"]).key, "vocabulary.symbols[1]");
    assert_eq!(error(&["a", ""]).found, "\"\"");
    assert_eq!(error(&["a", "b", "a"]).found, "'a', which is symbol 0 already");
    assert!(error(&["x".repeat(1 << 20).as_str()]).found.len() < 100);
    let many = vec!["a"; MAX_SYMBOLS + 1];
    assert_eq!(error(&many).found, "1114113 symbols");
}

#[test]
fn bytes_are_their_own_ids() {
    let vocabulary = Vocabulary::of_bytes(Normaliser::None);
    assert_eq!(vocabulary.encode("prompt", "aé", usize::MAX).unwrap(), [0x61, 0xc3, 0xa9]);
    assert_eq!(vocabulary.decode(&[0x61, 0xc3, 0xa9, 0xff, 0xc3]), "aé\u{fffd}\u{fffd}");
    assert_eq!((vocabulary.id_of('\n'), vocabulary.id_of('é')), (Some(10), None));
    assert_eq!(vocabulary.printable(10), "byte 0x0a");
    assert_eq!(vocabulary.printable(97), "'a'");
    assert!(vocabulary.check_ids("prompt", &[256]).is_err());
}

const MARKS: Specials = Specials { start: 1, end: 3, segment_start: 0, segment_end: 5, unknown: 6 };

#[test]
fn marks_are_no_text() {
    let vocabulary =
        Vocabulary::of_marked(&["<bos>", "<BoS>", "a", "<eos>", "b", "<nxt>", "<oov>"], MARKS, Normaliser::None);
    let vocabulary = vocabulary.unwrap();
    assert_eq!(vocabulary.encode("prompt", "axb<", usize::MAX).unwrap(), [2, 6, 4, 6]);
    assert_eq!(vocabulary.decode(&[1, 0, 2, 6, 5, 4, 3]), "a\u{fffd}b");
    assert_eq!((vocabulary.printable(5), vocabulary.id_of('x')), ("<nxt>".into(), None));
    assert!(vocabulary.encode_exactly("stop", "x").is_err() && vocabulary.check_text("--ids", &[2, 6]).is_ok());
    let message = vocabulary.check_text("--ids", &[2, 5]).unwrap_err().to_string();
    assert!(message.starts_with("--ids: <nxt>, which is no character, at character 1"), "{message}");
    let twice = Vocabulary::of_marked(&["a", "b"], MARKS, Normaliser::None).unwrap_err();
    assert_eq!(twice.key, "vocabulary.specials.end");
}

#[test]
fn bytes_may_stand_behind_marks() {
    let marks = Specials { start: 0, end: 1, segment_start: 2, segment_end: 259, unknown: 260 };
    let vocabulary = Vocabulary::of_marked_bytes(3, marks, Normaliser::None).unwrap();
    assert_eq!(vocabulary.len(), 261);
    let ids = vocabulary.encode("prompt", "é語", usize::MAX).unwrap();
    assert_eq!(ids[..2], [0xc3 + 3, 0xa9 + 3]);
    assert_eq!(vocabulary.decode(&[&ids[..], &[1]].concat()), "é語");
    assert_eq!((vocabulary.printable(3 + 97), vocabulary.printable(260)), ("'a'".into(), "<oov>".into()));
    assert!(Vocabulary::of_marked_bytes(2, marks, Normaliser::None).is_err());
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(text in "[ eé\\nno]*") {
        let vocabulary = small(Normaliser::None);
        prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
    }

    #[test]
    fn bytes_hold_any_text(text in any::<String>()) {
        let vocabulary = Vocabulary::of_bytes(Normaliser::None);
        prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
    }

    #[test]
    fn ids_that_are_no_symbols_are_replaced(ids in prop::collection::vec(any::<u32>(), 0..40)) {
        Vocabulary::of_bytes(Normaliser::None).decode(&ids);
        prop_assert_eq!(small(Normaliser::None).decode(&ids).chars().count(), ids.len());
    }
}
