//! Fuzzing entry points: each accepts any bytes, must not panic, and must not allocate more than its input justifies.
//!
//! The fuzz targets use this library, and a property test of the main crate includes this file.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
};
use weir::{
    engine::{
        codec::{BlockStream, Code, Coded, CompressOptions, Compressor, Decompressor, format::Header},
        constraint::{Constraint, ConstraintCompiler},
        options::WindowOptions,
        session::Session,
    },
    kernels::Isa,
    models::{
        checkpoint::{Config, read_from, weights::Weights},
        contract::{Model, SequenceRow, advance},
        convert::pickle::Pickle,
        family::{Blueprint, Parts},
        load::{Settings, blueprint},
        ngrams::{HEADER_BYTES, MIN_SLOTS, NgramCounter, NgramTable},
        text::{SubwordTokenizer, TextNormaliser, Vocabulary},
    },
    server::config::file::{ValueKind, parse},
};

/// Configuration of a model so small that a mutated weight file often passes the checks of shapes.
pub const SMALL_CONFIG: &str = r#"{"format": "weir/1", "family": "hourglass", "vocabulary": {"symbols": ["a", " "]},
    "normaliser": "none", "training_length": 8, "architecture": {"layers": {"pre": 1}, "dim": 2, "heads": 1,
    "head_dim": 2, "feed_forward": 2, "activation": "relu", "layer_norm_eps": 1e-5, "position": "transformer-xl",
    "boundaries": {"kind": "none"}}}"#;

/// Parses a `config.json` and its architecture.
pub fn config(data: &[u8]) {
    let file = Path::new("config.json");
    if let Ok(config) = Config::parse(data, file)
        && let Ok(blueprint) = blueprint(&config, file)
    {
        blueprint.shape();
        config.to_json().map(|text| Config::parse(text.as_bytes(), file).map(|_| ())).ok();
    }
}

/// Reads a `model.safetensors` for [`SMALL_CONFIG`].
pub fn weights(data: &[u8]) {
    if let Some(blueprint) = small() {
        read_from(data, data.len() as u64, Path::new("model.safetensors"), &blueprint.tensors()).map(|_| ()).ok();
    }
}

/// Reads a pickle.
pub fn pickle(data: &[u8]) {
    if let Ok(pickle) = Pickle::read(data) {
        pickle.describe(&pickle.root);
        pickle.item(&pickle.root, "model_state");
    }
}

/// Text for tokenizers: words, an accent, an emoji, a special token spelt out, invalid combinations.
const TEXT: &str = "A naïve test,  of 12 words\n\n👩‍👩‍👧 </s> a\u{301}\u{301} ﷺ x";

/// Reads a `tokenizer.json`, and encodes and decodes a text with it.
pub fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = SubwordTokenizer::parse(data)
        && let Ok(subwords) = tokenizer.encode(TEXT)
    {
        assert!(subwords.iter().all(|subword| subword.start <= subword.end && subword.end <= TEXT.len()));
        tokenizer.decode(&subwords.iter().map(|subword| subword.id).collect::<Vec<_>>());
    }
}

/// Reads a settings file.
pub fn settings(data: &[u8]) {
    let kind = |key: &str| match key {
        "listen" => Some(ValueKind::Text),
        "rows" => Some(ValueKind::Number),
        "kv-memory" => Some(ValueKind::Size),
        "late-headers" => Some(ValueKind::Switch),
        "model" => Some(ValueKind::List),
        _ => None,
    };
    if let Ok(text) = std::str::from_utf8(data) {
        let (settings, problems) = parse("weir.toml", text, kind);
        assert!(settings.iter().all(|setting| kind(&setting.key).is_some()));
        assert!(problems.iter().all(|problem| problem.starts_with("weir.toml, line ")), "{problems:?}");
    }
}

/// Symbols of the vocabulary of a table that [`ngrams`] reads.
const NGRAM_SYMBOLS: u32 = 5;

/// Reads an `ngrams.bin`, and looks up what follows contexts. The bytes are also read as the slots of a table.
pub fn ngrams(data: &[u8]) {
    let mut table = NgramCounter::new(MIN_SLOTS, NGRAM_SYMBOLS as usize).finish().to_bytes();
    for (slot, byte) in table.iter_mut().skip(HEADER_BYTES).zip(data) {
        *slot = *byte;
    }
    for bytes in [data, &table] {
        let Ok(table) = NgramTable::from_bytes(bytes, NGRAM_SYMBOLS as usize) else { continue };
        assert_eq!(table.to_bytes(), bytes, "another table comes back");
        assert!(table.used() <= table.slots());
        let text: Vec<u32> = data.iter().take(256).map(|byte| u32::from(*byte) % NGRAM_SYMBOLS).collect();
        for end in 0..=text.len() {
            let successor = table.successor(text[..end].iter().rev().copied());
            assert!(successor.is_none_or(|successor| successor.symbol < NGRAM_SYMBOLS), "{successor:?}");
        }
    }
}

/// Block and windows of a text that [`codec`] compresses: several of each.
const CODED: CompressOptions =
    CompressOptions { block: 16, windows: WindowOptions { length: 8, stride: 5 }, normalise: false, text_bytes: None };

/// Maximum symbols of a block that the model computes, so that no input takes long.
const MAX_CODED: usize = 64;

/// Maximum blocks of an input.
const MAX_BLOCKS: usize = 8;

/// Decompresses data, or compresses a text. The first byte selects which, and in pieces of how many bytes the rest arrives. A text
/// that comes out of damaged data is compressed, and must come back.
pub fn codec(data: &[u8]) {
    let (Some(model), Some((&first, rest))) = (&*CODEC_MODEL, data.split_first()) else { return };
    let model = &**model;
    let piece = usize::from(first / 3) + 1;
    let text = match first % 3 {
        0 => decompress(model, rest, piece),
        1 => header(model).and_then(|header| decompress(model, &[&header, rest].concat(), piece)),
        _ => Some(rest[..rest.len().min(MAX_CODED)].to_vec()),
    };
    let compressor = Compressor::new(model.card(), CODED);
    if let (Some(text), Ok(mut compressor)) = (text, compressor)
        && let Some(data) = transcode(model, &mut compressor, &text, piece)
    {
        assert_eq!(decompress(model, &data, piece).as_deref(), Some(&text[..]), "another text comes back");
    }
}

/// A model of [`SMALL_CONFIG`] whose kernels are portable, so that kept inputs reach the same code on every x86-64 processor.
static CODEC_MODEL: LazyLock<Option<Arc<dyn Model>>> = LazyLock::new(|| {
    let settings = Settings { threads: 1, memory_bytes: 1 << 20, isa: Isa::portable(), ..Settings::default() };
    let config = Config::parse(SMALL_CONFIG.as_bytes(), Path::new("config.json")).ok()?;
    let blueprint = small()?;
    let number = |index: usize| (index * 37 % 101) as f32 / 50.0 - 1.0;
    let weights = Weights::collect(blueprint.tensors(), |spec| Ok((0..spec.numbers()).map(number).collect())).ok()?;
    let sha256 = "5a".repeat(32);
    blueprint
        .build(Parts {
            config,
            name: "small".into(),
            scope: String::new(),
            weights,
            sha256,
            entropy_models: Vec::new(),
            ngrams: None,
            settings,
        })
        .ok()
});

/// Returns the header of data that the model compresses.
fn header(model: &dyn Model) -> Option<Vec<u8>> {
    let mut header = Vec::new();
    Header::new(model.card(), CODED.block, CODED.windows, None).ok()?.write(&mut header);
    Some(header)
}

fn decompress(model: &dyn Model, data: &[u8], piece: usize) -> Option<Vec<u8>> {
    transcode(model, &mut Decompressor::new(model.card()).ok()?, data, piece)
}

/// Runs a stream from its input to its output. Returns `None` if the input is refused.
fn transcode(model: &dyn Model, stream: &mut dyn BlockStream, input: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut blocks = 0;
    for piece in input.chunks(piece).map(Some).chain([None]) {
        match piece {
            Some(piece) => stream.push(piece).ok()?,
            None => stream.finish().ok()?,
        }
        while let Some(block) = stream.next_block().ok()? {
            blocks += 1;
            if block.symbols() > MAX_CODED || blocks > MAX_BLOCKS {
                return None;
            }
            stream.accept(code(model, block)?, &mut out).ok()?;
        }
    }
    stream.end(&mut out).ok()?;
    Some(out)
}

/// Compresses or decompresses one block.
fn code(model: &dyn Model, block: Code) -> Option<Coded> {
    let mut session = Session::code(block, model.card()).ok()?;
    let mut row = SequenceRow::new(model.begin(session.boundaries().clone()).ok()?);
    let mut scratch = model.scratch();
    loop {
        if let Some(coded) = session.take_coded() {
            return Some(coded);
        }
        session.feed(&mut row, 4);
        advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch).ok()?;
        session.absorb(&mut row).ok()?;
    }
}

/// Returns the blueprint of [`SMALL_CONFIG`].
pub fn small() -> Option<Box<dyn Blueprint>> {
    let file = Path::new("config.json");
    Config::parse(SMALL_CONFIG.as_bytes(), file).and_then(|config| blueprint(&config, file)).ok()
}

/// Symbols of a text that [`constraint`] follows, at most.
const MAX_FOLLOWED: usize = 48;

/// A tokenizer whose pieces cross the edges of JSON.
const PIECES: &str = r#"{"added_tokens": [{"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
    "normalized": false, "special": true}], "normalizer": null, "post_processor": null,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "model": {"type": "Unigram", "unk_id": 1, "byte_fallback": false, "vocab": [["</s>", 0], ["<unk>", 0], ["▁", -3],
    ["a", -3], ["b", -3], ["ab", -2], ["▁ab", -2], ["é", -3], ["1", -3], ["12", -2], ["true", -2], ["\"", -3], ["{", -3], ["}", -3],
    ["{\"", -2], ["\":▁", -2], [":", -3], [",▁", -2], ["[", -3], ["]", -3], ["\"}", -2], ["-", -3], [".", -3]]}}"#;

/// Compilers for bytes with an end, for few letters, for 27, and for pieces.
static COMPILERS: LazyLock<Vec<ConstraintCompiler>> = LazyLock::new(|| {
    let letters = |symbols: &str| {
        let symbols: Vec<String> = symbols.chars().map(String::from).collect();
        Vocabulary::from_symbols(&symbols, TextNormaliser::None).ok()
    };
    let tokenizer = SubwordTokenizer::parse(PIECES.as_bytes()).ok();
    let pieces = tokenizer.and_then(|tokenizer| {
        Vocabulary::from_tokenizer(tokenizer.len(), Some(Arc::new(tokenizer)), TextNormaliser::None).ok()
    });
    let all = [
        (Vocabulary::byte_level_with_end(3, TextNormaliser::None).ok(), None),
        (letters("abc 1\"{}:"), None),
        (letters(" abcdefghijklmnopqrstuvwxyz"), None),
        (pieces, Some(0)),
    ];
    all.map(|(vocabulary, end)| ConstraintCompiler::with_end(Arc::new(vocabulary.expect("a vocabulary")), end)).into()
});

/// Compiles a constraint, whose kind the first byte selects, for each vocabulary, and writes a text of its form. The text's bytes also
/// choose its symbols.
pub fn constraint(data: &[u8]) {
    let Some((kind, source)) = data.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let constraint = match (kind, kind % 4) {
        (&u8::MAX, _) => Constraint::JsonObject,
        (_, 0) => Constraint::Regex(source.into()),
        (_, 1) => Constraint::Choice(source.split(';').map(str::to_owned).collect()),
        (_, 2) => Constraint::JsonSchema(source.into()),
        _ => Constraint::Grammar(source.into()),
    };
    for compiler in COMPILERS.iter() {
        let Ok(compiled) = compiler.compile(&constraint) else { continue };
        let Ok(mut matcher) = compiled.matcher() else { continue };
        for step in 0..MAX_FOLLOWED {
            let allowed: Vec<u32> =
                matcher.symbols().iter().filter(|symbol| matcher.clone().agrees(&[*symbol]) == 1).collect();
            assert_eq!(allowed.is_empty(), matcher.is_complete(), "a text is stuck");
            let Some(&symbol) = allowed.get(usize::from(data[step % data.len()]) % allowed.len().max(1)) else { break };
            let forced = matcher.forced(4);
            assert_eq!(forced.first().copied(), matcher.only(), "what is forced follows: {constraint:?}");
            if matcher.consume(symbol).and_then(|()| matcher.update()).is_err() {
                break;
            }
        }
    }
}
