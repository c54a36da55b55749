//! Tests of reading, writing and rejecting a configuration.

use super::*;

const GOOD: &str = r#"{"format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": [" ", "é", "\""]},
    "normaliser": "none", "training_length": 512, "architecture": {"layers": {"pre": 2}, "dim": 4, "x": "\u0001"}}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestArchitecture {
    #[expect(dead_code, reason = "parsed, not used")]
    layers: Layers,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    #[expect(dead_code, reason = "parsed, not used")]
    pre: usize,
}

fn parse(text: &str) -> Result<Config> {
    Config::parse(text.as_bytes(), Path::new("config.json"))
}

fn message(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn a_written_configuration_reads_back() {
    let config = parse(GOOD).unwrap();
    let again = parse(&config.to_json().unwrap()).unwrap();
    assert_eq!(config.vocabulary, again.vocabulary);
    let value = |config: &Config| serde_json::from_str::<serde_json::Value>(config.architecture()).unwrap();
    assert_eq!(value(&config), value(&again));
    assert_eq!(again.to_json().unwrap(), config.to_json().unwrap());
}

#[test]
fn bytes_may_have_an_end_or_two_marks() {
    let of = |vocabulary: &str| parse(&GOOD.replace(r#"{"symbols": [" ", "é", "\""]}"#, vocabulary));
    for (text, ends) in [
        (r#"{"bytes": true}"#, vec![]),
        (r#"{"bytes": true, "end": 3}"#, vec![3]),
        (r#"{"bytes": true, "start": 254, "end": 255}"#, vec![255]),
    ] {
        let config = of(text).unwrap();
        let vocabulary = config.vocabulary(Path::new("c")).unwrap();
        assert_eq!(vocabulary.end_marks().collect::<Vec<_>>(), ends, "{text}");
        assert_eq!(parse(&config.to_json().unwrap()).unwrap().vocabulary, config.vocabulary, "{text}");
    }
    for (text, expected) in [
        (r#"{"bytes": true, "end": 10}"#, "config.json: vocabulary.end: expected 0 to 8, 14 to 31, or 127"),
        (
            r#"{"bytes": true, "start": 3}"#,
            "config.json: vocabulary: expected both `start` and `end`, found `start` without `end`",
        ),
        (
            r#"{"symbols": ["a"], "end": 3}"#,
            "config.json: vocabulary: expected `bytes` true next to `start` and `end`, found `start` or `end` without `bytes` true",
        ),
        (
            r#"{"bytes": true, "first_byte": 1, "end": 3}"#,
            "config.json: vocabulary: expected only `bytes` next to `start` and `end`, found `start` or `end` next to other keys",
        ),
    ] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn errors_name_the_key() {
    let cases = [
        (
            r#""format": "weir/1", "#,
            "",
            "config.json: format: expected \"weir/1\", or model_type in a Hugging Face folder (`weir convert --help` \
             lists other projects whose checkpoints weir can convert), found neither",
        ),
        ("weir/1", "weir/2", r#"config.json: format: expected "weir/1", found "weir/2""#),
        (r#""family": "hourglass", "#, "", "config.json: family: expected a value, found nothing"),
        ("512", "\"512\"", "config.json: training_length: expected a whole number of at least 0, found \"512\""),
        ("512", "0", "config.json: training_length: expected 1 to 1073741824, found 0"),
        ("512", "-1", "config.json: training_length: expected a whole number of at least 0, found -1"),
        ("\"none\"", "\"text9\"", "config.json: normaliser: expected `none` or `text8`, found \"text9\""),
        (r#"["#, r#"["ab", "#, "config.json: vocabulary.symbols[0]: expected exactly one character, found \"ab\""),
        (r#"["#, r#"[7, "#, "config.json: vocabulary.symbols[0]: expected a string, found 7"),
        (
            r#"{"symbols": [" ", "é", "\""]}"#,
            r#"{"bytes": false}"#,
            "config.json: vocabulary.bytes: expected true, found false",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(message(from, to), expected);
    }
    let unknown = message(r#""family""#, r#""generations": 1, "family""#);
    assert!(unknown.starts_with("config.json: generations: expected one of `format`"), "{unknown}");
    assert!(unknown.ends_with("found an unknown key"), "{unknown}");
    let twice = message("{", r#"{"family": "x", "#);
    assert_eq!(twice, "config.json: family: expected one value, found two");
    let both = message(r#"{"symbols""#, r#"{"bytes": true, "symbols""#);
    assert_eq!(both, "config.json: vocabulary: expected either `symbols` or `bytes`, found both");
    let neither = message(r#"{"symbols": [" ", "é", "\""]}"#, "{}");
    assert_eq!(neither, "config.json: vocabulary: expected either `symbols` or `bytes`, found neither");
    assert!(parse(&GOOD[..GOOD.len() - 1]).unwrap_err().to_string().contains("EOF"));
    assert!(parse(&format!("{GOOD}x")).unwrap_err().to_string().contains("trailing"));
    assert!(parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn errors_in_the_architecture_have_full_paths() {
    let config = parse(GOOD).unwrap();
    let message = architecture::<TestArchitecture>(&config, Path::new("c")).unwrap_err().to_string();
    assert_eq!(message, "c: architecture.dim: expected `layers`, found an unknown key");
    let config = parse(&GOOD.replace(r#"{"pre": 2}"#, r#"{"pre": 2.5}"#)).unwrap();
    let message = architecture::<TestArchitecture>(&config, Path::new("c")).unwrap_err().to_string();
    assert_eq!(message, "c: architecture.layers.pre: expected a whole number of at least 0, found 2.5");
    let config = parse(&GOOD.replace(r#"{"pre": 2}"#, "{}")).unwrap();
    let message = architecture::<TestArchitecture>(&config, Path::new("c")).unwrap_err().to_string();
    assert_eq!(message, "c: architecture.layers.pre: expected a value, found nothing");
    let config = parse(&GOOD.replace(r#"{"pre": 2}"#, "7")).unwrap();
    let message = architecture::<TestArchitecture>(&config, Path::new("c")).unwrap_err().to_string();
    assert_eq!(message, "c: architecture.layers: expected an object, found 7");
}
