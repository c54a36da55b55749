//! Text of tokens: streaming, marks, and defaults of the checkpoint.

use super::*;
use proptest::prelude::*;
use weir::text::StreamDetokenizer;

proptest! {
    /// Random tokens split code points and are often invalid UTF-8.
    #[test]
    fn pieces_are_never_taken_back_and_concatenate_to_the_text(ids in prop::collection::vec(0_u32..384, 0..60)) {
        static MODEL: std::sync::LazyLock<Arc<dyn Model>> = std::sync::LazyLock::new(|| model("llama"));
        let vocabulary = &MODEL.card().vocabulary;
        let mut stream = StreamDetokenizer::new(vocabulary.clone());
        let mut sent = String::new();
        for (index, &id) in ids.iter().enumerate() {
            sent.push_str(stream.push(id));
            // what was sent is a beginning of the text, whatever tokens follow
            let next = vocabulary.decode(&[&ids[..=index], &[33]].concat());
            prop_assert!(next.starts_with(&sent), "{next:?} does not start with {sent:?}");
        }
        sent.push_str(stream.finish());
        prop_assert_eq!(sent, vocabulary.decode(&ids));
    }
}

#[test]
fn marks_and_defaults_come_from_the_checkpoint() {
    let copy = copied("llama");
    let config = copy.path().join("generation_config.json");
    edit(&config, r#""eos_token_id": 0"#, r#""eos_token_id": [0, 9], "temperature": 0.6, "top_p": 0.9"#);
    let tokenizer = copy.path().join("tokenizer.json");
    edit(
        &tokenizer,
        r#""post_processor": null"#,
        r#""post_processor": {"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<eos>": {"id": "<eos>", "ids": [0], "tokens": ["<eos>"]}}}"#,
    );
    let model = load(copy.path(), &settings()).unwrap();
    let card = model.card();
    assert_eq!(card.vocabulary.end_marks().collect::<Vec<_>>(), [0, 9]);
    assert_eq!((card.sampling.temperature, card.sampling.top_p, card.sampling.top_k), (0.6, 0.9, 0));
    let ids = card.vocabulary.encode("prompt", "a<eos>", 99).unwrap();
    assert_eq!((ids[0], &*card.vocabulary.decode(&ids)), (0, "a<eos>"));
    assert!(ids[1..].iter().all(|&id| id != 0), "text that spells out a mark is no mark: {ids:?}");
    assert_eq!(card.vocabulary.encode("prompt", "", 99).unwrap(), [0]);
    assert_eq!((card.max_symbols, card.max_symbols_why), (256, Some("the checkpoint's max_position_embeddings")));
}
