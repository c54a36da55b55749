use super::*;
use crate::text::{Normaliser, Subwords, TextStream};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small tokenizer of the kind that SentencePiece's models become, of pieces that begin a word or not.
fn tokenizer(normalizer: &Value, bytes: bool) -> Vocabulary {
    let marks = ["<s>", "<pad>", "</s>", "<unk>"];
    let pieces = ["▁", "▁the", "▁a", "er", "ab", "abc", "▁ab", "▁abab", "é", "ing", "▁▁", "th", "\n", "3", "fi"];
    let letters = ('a'..='z').chain(['.', ',', '!']).map(String::from);
    let mut vocab: Vec<Value> = marks.iter().map(|mark| json!([mark, 0.0])).collect();
    vocab.extend(pieces.iter().enumerate().map(|(at, piece)| json!([piece, -2.0 - at as f64 * 0.1])));
    vocab.extend(letters.map(|letter| json!([letter, -7.0])));
    if bytes {
        vocab.extend((0..=255).map(|byte| json!([format!("<0x{byte:02X}>"), -9.0])));
    }
    let added: Vec<Value> = marks.iter().enumerate().map(|(id, mark)| {
        json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    }).collect();
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let decoder = match bytes {
        false => metaspace.clone(),
        true => json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]}),
    };
    let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": metaspace, "post_processor": null, "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": bytes}});
    let subwords = Arc::new(Subwords::parse(file.to_string().as_bytes()).unwrap());
    Vocabulary::of_pieces(subwords.len(), Some(subwords), Normaliser::None).unwrap()
}

fn normalizers() -> [Value; 3] {
    let collapsed = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
    [
        Value::Null,
        json!({"type": "NFKC"}),
        json!({"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, strip, collapsed]}),
    ]
}

/// All that can be read at once.
fn whole(vocabulary: &Arc<Vocabulary>, text: &str) -> Result<Vec<Token>> {
    let (mut reading, mut tokens) = (Reading::new(Arc::clone(vocabulary), "text", usize::MAX), Vec::new());
    reading.push(text, &mut tokens)?;
    reading.finish(&mut tokens)?;
    Ok(tokens)
}

/// What the tokenizer itself makes of a text that nobody cut.
fn naive(vocabulary: &Vocabulary, text: &str) -> Vec<Token> {
    let placed = vocabulary.subwords().unwrap().encode(text).unwrap();
    placed.into_iter().map(|Subword { id, start, end }| Token { id, start: start as u64, end: end as u64 }).collect()
}

/// The text in chunks of so many characters each.
fn chunked(vocabulary: &Arc<Vocabulary>, text: &str, cuts: &[usize], limit: usize) -> Result<(Vec<Token>, Room)> {
    let (mut reading, mut tokens) = (Reading::new(Arc::clone(vocabulary), "text", limit), Vec::new());
    let mut characters = text.chars();
    let mut cuts = cuts.iter().copied().cycle();
    loop {
        let chunk: String = characters.by_ref().take(cuts.next().unwrap()).collect();
        if chunk.is_empty() {
            assert!(reading.bytes() == text.len() as u64 || limit < usize::MAX);
            let room = reading.finish(&mut tokens)?;
            return Ok((tokens, room));
        }
        reading.push(&chunk, &mut tokens)?;
    }
}

fn texts() -> impl Strategy<Value = String> {
    let sign = prop_oneof![
        5 => proptest::sample::select(vec!["a", "b", "c", "the", "er", " ", "  ", ". "]).prop_map(str::to_owned),
        1 => proptest::sample::select(vec![
            "\n", "\t", "é", "e\u{301}", " \u{301}", "\u{200b}", "\u{3000}", "ﬁ", "³", "😀", "</s>", "▁", "\u{feff}", "\r\n",
            "\u{a0}", "\u{d4e}", "日本", "\u{ad}",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(sign, 0..60).prop_map(|signs| signs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn cut_texts_are_whole_ones(
        text in texts(), cuts in prop::collection::vec(1_usize..9, 1..5), which in 0_usize..3, bytes in any::<bool>(),
    ) {
        let vocabulary = Arc::new(tokenizer(&normalizers()[which], bytes));
        let naive = naive(&vocabulary, &text);
        let (tokens, room) = chunked(&vocabulary, &text, &cuts, usize::MAX)?;
        prop_assert_eq!(&tokens, &naive, "{:?}", text);
        prop_assert_eq!(room, Room::Left);
        prop_assert!(tokens.iter().all(|token| token.start <= token.end && token.end <= text.len() as u64));
        prop_assert!(!tokens.iter().any(|token| token.id < 3), "a mark was read out of the text");
        // with a limit the first so many
        let limit = naive.len() / 2;
        let (first, room) = chunked(&vocabulary, &text, &cuts, limit)?;
        prop_assert_eq!(&first[..], &naive[..limit]);
        prop_assert_eq!(room, if naive.is_empty() { Room::Left } else { Room::Over });
    }

    #[test]
    fn characters_and_bytes_too(
        text in "[a-cA-Z0-9 ,é]{0,40}", cuts in prop::collection::vec(1_usize..9, 1..5), normal in any::<bool>(),
    ) {
        let normaliser = if normal { Normaliser::Text8 } else { Normaliser::None };
        let bytes = Arc::new(Vocabulary::of_bytes(normaliser));
        let ids: Vec<u32> = chunked(&bytes, &text, &cuts, usize::MAX)?.0.into_iter().map(|token| token.id).collect();
        prop_assert_eq!(ids, bytes.encode("text", &text, usize::MAX)?);
        let letters: Vec<String> = ('a'..='z').chain([' ']).map(String::from).collect();
        let letters = Arc::new(Vocabulary::of_symbols(&letters, Normaliser::Text8).unwrap());
        let (tokens, _) = chunked(&letters, &text, &cuts, usize::MAX)?;
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        prop_assert_eq!(&ids, &letters.encode("text", &text, usize::MAX)?);
        // what is a letter already stands where it is told to stand
        for token in tokens {
            let given = &text[token.start as usize..token.end as usize];
            prop_assert!(given.chars().count() == 1);
            if given.chars().all(|sign| sign.is_ascii_lowercase()) {
                prop_assert_eq!(letters.decode(&[token.id]), given);
            }
        }
    }

    #[test]
    fn streamed_pieces_are_the_decoded_whole(ids in prop::collection::vec(0_u32..305, 0..40), bytes in any::<bool>()) {
        let vocabulary = Arc::new(tokenizer(&Value::Null, bytes));
        let ids: Vec<u32> = ids.into_iter().filter(|&id| (id as usize) < vocabulary.len()).collect();
        let mut stream = TextStream::new(Arc::clone(&vocabulary));
        let mut text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
        text += stream.finish();
        prop_assert_eq!(text, vocabulary.decode(&ids));
    }
}

#[test]
fn text_is_read_and_written() {
    let vocabulary = Arc::new(tokenizer(&Value::Null, false));
    let tokens = whole(&vocabulary, "the ababc ing").unwrap();
    let spelt: Vec<_> = tokens.iter().map(|token| vocabulary.subwords().unwrap().piece(token.id).unwrap()).collect();
    assert_eq!(spelt, ["▁the", "▁ab", "abc", "▁", "ing"]);
    assert_eq!(
        tokens.iter().map(|token| (token.start, token.end)).collect::<Vec<_>>(),
        [(0, 3), (3, 6), (6, 9), (9, 10), (10, 13)]
    );
    let ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
    assert_eq!(vocabulary.decode(&ids), "the ababc ing");
    assert_eq!(vocabulary.encode("text", "the ababc ing", 5).unwrap(), ids);
    // what it has no piece for
    let unknown = whole(&vocabulary, "a 😀").unwrap();
    assert_eq!(unknown.last().map(|token| (token.id, token.start, token.end)), Some((3, 2, 6)));
}

#[test]
fn no_more_is_held_than_a_word() {
    let vocabulary = Arc::new(tokenizer(&Value::Null, false));
    let mut reading = Reading::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
    let mut tokens = Vec::new();
    for _ in 0..1000 {
        reading.push("ab the", &mut tokens).unwrap();
        assert!(reading.held.len() < 20);
    }
    let word = "a".repeat(WORD_BYTES / 4);
    let mut reading = Reading::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
    let refused = (0..5).find_map(|_| reading.push(&word, &mut tokens).err()).unwrap();
    assert!(matches!(refused, Error::LongerThan { field: "chunk.text", limit: WORD_BYTES, .. }), "{refused}");
    // or cut there, wherever chunks end; a safe point at the very end of what is allowed is one
    let long = format!("a{}", "ab".repeat(WORD_BYTES));
    let mut cut = Vec::new();
    for chunk in [1, 7, WORD_BYTES - 1, long.len()] {
        let mut reading = Reading::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX).cut(true);
        let mut tokens = Vec::new();
        let rooms: Vec<_> = long
            .as_bytes()
            .chunks(chunk)
            .map(|part| reading.push(std::str::from_utf8(part).unwrap(), &mut tokens).unwrap())
            .collect();
        assert_eq!(
            (rooms.last(), reading.finish(&mut tokens).unwrap(), reading.bytes()),
            (Some(&Room::Over), Room::Over, WORD_BYTES as u64)
        );
        cut.push(tokens);
    }
    assert!(cut.windows(2).all(|pair| pair[0] == pair[1]) && cut[0].last().unwrap().end == WORD_BYTES as u64);
    let words = format!("{} {0} {0}", "a".repeat(WORD_BYTES - 1));
    for chunk in [1000, words.len()] {
        let mut reading = Reading::new(Arc::clone(&vocabulary), "chunk.text", usize::MAX);
        for part in words.as_bytes().chunks(chunk) {
            assert_eq!(reading.push(std::str::from_utf8(part).unwrap(), &mut tokens).unwrap(), Room::Left);
        }
    }
    // a text that is too long in words ends with the limit, whatever comes
    let mut reading = Reading::new(vocabulary, "chunk.text", 100);
    tokens.clear();
    assert_eq!(reading.push(&"ab ".repeat(100_000), &mut tokens).unwrap(), Room::Over);
    assert!(tokens.len() == 100 && reading.held.len() <= WORD_BYTES);
    assert_eq!(reading.push(&word.repeat(10), &mut tokens).unwrap(), Room::Over);
    assert_eq!((tokens.len(), reading.finish(&mut tokens).unwrap()), (100, Room::Over));
    assert_eq!(reading.held.capacity(), 0);
}

#[test]
fn an_unknown_character_is_told_at_its_place() {
    let letters = Arc::new(Vocabulary::of_symbols(&["a", "b"], Normaliser::None).unwrap());
    let (mut reading, mut tokens) = (Reading::new(letters, "chunk.text", 100), Vec::new());
    reading.push("abab", &mut tokens).unwrap();
    let refused = reading.push("ab!", &mut tokens).unwrap_err();
    assert_eq!(refused.to_string(), "chunk.text: '!' at character 6 is not in the model's vocabulary");
}

#[test]
fn tokenizers_that_look_beyond_a_word_are_refused() {
    let refused = |key: &str, value: Value| {
        let good = tokenizer(&Value::Null, false);
        let mut file: Value = serde_json::from_str(good.subwords().unwrap().json()).unwrap();
        *file.pointer_mut(key).unwrap() = value;
        Subwords::parse(file.to_string().as_bytes()).unwrap_err().to_string()
    };
    let none = refused("/pre_tokenizer", Value::Null);
    assert!(none.starts_with("pre_tokenizer: expected one of Metaspace, "), "{none}");
    assert!(refused("/pre_tokenizer/split", json!(false)).starts_with("pre_tokenizer: "));
    assert!(refused("/normalizer", json!({"type": "Prepend", "prepend": "x"})).starts_with("normalizer: "));
    assert!(
        refused("/normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})).starts_with("norm")
    );
    let far = json!({"type": "Replace", "pattern": {"String": "a b"}, "content": "ab"});
    assert!(refused("/normalizer", far).starts_with("normalizer: "));
}
