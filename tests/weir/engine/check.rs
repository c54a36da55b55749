//! Checks of texts by the shipped model: which words they return, and where.

use super::*;
use weir::{
    engine::check::{CheckRules, CheckTask, Checked},
    models::{checkpoint::CheckpointSource, load::load_as},
};

fn check(engine: &Handle, text: &str, rules: CheckRules) -> Result<Checked> {
    let task = CheckTask::new(engine.clone(), Terms::default(), text, rules)?;
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(task.run())
}

fn shipped() -> Handle {
    let source = CheckpointSource::default();
    let model = load_as(&source, &source.name(), &settings()).unwrap();
    Handle::start(model, Limits { cache_bytes: 1 << 26, ..Limits::default() }).unwrap()
}

const TEXT: &str = "\u{1f600} The goverment of the United States did not recieve the Presidnet in the year 1999. \
                    His adminstration of the cuontry was knwon in London, Paris and Rome";

#[test]
fn misspelt_words_have_the_right_ones_as_alternatives() {
    let engine = shipped();
    let checked = check(&engine, TEXT, CheckRules::default()).unwrap();
    let found: Vec<_> =
        checked.words.iter().map(|word| (&TEXT[word.bytes.clone()], word.alternatives[0].text.as_str())).collect();
    let expected = [
        ("goverment", "government"),
        ("recieve", "receive"),
        ("Presidnet", "President"),
        ("adminstration", "administration"),
        ("cuontry", "country"),
        ("knwon", "known"),
    ];
    assert_eq!(found, expected);
    assert!(!checked.is_cut && checked.compared >= expected.len());
    assert_eq!(checked.usage.prompt_chars, TEXT.len() + "\n ".len());
    for word in &checked.words {
        assert!(word.alternatives.is_sorted_by(|a, b| a.logprob >= b.logprob) && word.alternatives.len() <= 3);
        assert!(word.alternatives.iter().all(|other| other.logprob > word.logprob));
    }
    // the logarithms are those of the whole text with the spelling in the word's place
    let word = &checked.words[1];
    let sum = |spelling: &str| {
        let before = &TEXT[..word.bytes.start];
        let text = format!("\n{before}{spelling} ");
        let score = Score::from_text(&text, engine.card()).unwrap();
        let characters = read(engine.submit(Job::Score(score), None).unwrap()).unwrap().characters;
        let own = &characters[before.len() + 1..];
        own.iter().map(|character| f64::from(character.logprob.unwrap())).sum::<f64>()
    };
    for (spelling, logprob) in [("recieve", word.logprob), ("receive", word.alternatives[0].logprob)] {
        assert!((sum(spelling) - logprob).abs() < 1e-4, "{spelling}: {} {logprob}", sum(spelling));
    }
    assert_eq!(check(&engine, TEXT, CheckRules::default()).unwrap().words, checked.words, "with a warm cache");
}

#[test]
fn limits_of_a_check_are_kept() {
    let engine = shipped();
    let rules = CheckRules { words: 2, alternatives: 1, ..CheckRules::default() };
    let checked = check(&engine, TEXT, rules).unwrap();
    assert!(checked.is_cut && checked.words.len() == 2, "{checked:?}");
    assert!(checked.words.iter().all(|word| word.alternatives.len() == 1));
    let strict = CheckRules { threshold: 1000.0, ..CheckRules::default() };
    let none = check(&engine, TEXT, strict).unwrap();
    assert_eq!((none.words.len(), none.compared, none.is_cut), (0, 0, false));
    // at the beginning of a text even the best continuations of a wrong beginning are improbable
    let beginning = check(&engine, "Teh goverment did not recieve it.", CheckRules::default()).unwrap();
    assert_eq!((beginning.words.len(), beginning.words[0].alternatives[0].text.as_str()), (3, "The"));
    let correct = "The government of the United States did not receive the President in the year 1999.";
    assert_eq!(check(&engine, correct, CheckRules::default()).unwrap().words, []);
    for text in ["\n", "a", "1999", "'", "x_y \u{301}\u{301} \u{ffff}"] {
        assert!(!check(&engine, text, CheckRules { threshold: 0.0, ..rules }).unwrap().is_cut, "{text:?}");
    }
}

/// Models of all kinds that continue text check it, whatever their symbols; those of tokens refuse.
#[test]
fn every_model_of_characters_checks() {
    for (name, model, _) in models() {
        let engine = Handle::start(model, Limits { cache_bytes: 1 << 24, ..Limits::default() }).unwrap();
        let rules = CheckRules { threshold: 0.0, ..CheckRules::default() };
        let text = "the abc bad cab fade";
        match check(&engine, text, rules) {
            Ok(checked) => {
                for word in checked.words {
                    let typed = &text[word.bytes];
                    assert!(word.alternatives.iter().all(|other| other.text != typed), "{name}: {typed}");
                }
            }
            Err(error) => assert_eq!(error.code(), Code::InvalidArgument, "{name}: {error}"),
        }
    }
    let uncached = Handle::start(fixture("whitespaces"), Limits::default()).unwrap();
    let error = check(&uncached, "a", CheckRules::default()).unwrap_err();
    assert!(error.to_string().ends_with("served without one (--cache-memory 0)"), "{error}");
}
