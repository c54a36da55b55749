//! Checkpoints of the official code of Trainable Representation Pooling (applicaai/pyramidions at commit fa9dddc, a fork of
//! fairseq): a training checkpoint, or a folder with the arguments in `config.json` and the tensors in `model.safetensors`; with
//! a dictionary, `dict.txt`, and a SentencePiece model. Copies of the embedding, version numbers and scorers of layers without
//! pooling are checked and dropped.

use crate::checkpoint::files::{parse, read_limited};
use crate::checkpoint::weights::shapes_in;
use crate::checkpoint::{CONFIG_FILE, Config, VocabularyConfig, Weights, read_weights_with_progress, require};
use crate::contract::GenerationDefaults;
use crate::convert::converted::{Converted, check_copy, only_file, read_config, rename_key};
use crate::convert::sentencepiece::{self, Algorithm, SentencePiece, bpe, mark, metaspace, normalizer, unigram};
use crate::convert::torch::{TorchFile, TorchTensors, items, plain};
use crate::family::TensorSpec;
use crate::family::families::blueprint;
use crate::text::subwords::TOKENIZER_FILE;
use crate::text::{BLANK, SubwordTokenizer, TextNormaliser};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_kernels::error::{Error, Result};

/// Names of training checkpoints, in order of preference.
const TRAINING_FILES: [&str; 2] = ["checkpoint_best.pt", "checkpoint_last.pt"];

const EMBEDDING: &str = "encoder.embed_tokens.weight";

/// Copies of the embedding.
const COPIES: [&str; 2] = ["decoder.embed_tokens.weight", "decoder.output_projection.weight"];

/// Tensors of one number without meaning.
const IGNORED: [&str; 4] =
    ["encoder.version", "decoder.version", "encoder.embed_positions._float_tensor", DECODER_POSITIONS];

/// Present if the decoder adds position embeddings.
const DECODER_POSITIONS: &str = "decoder.embed_positions._float_tensor";

pub(super) fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    if !from.is_dir() {
        return read_training_file(from, from.parent().unwrap_or(Path::new(".")), progress);
    }
    match (from.join(CONFIG_FILE).exists(), training_file(from)?) {
        (true, None) => read_folder(from, progress),
        (false, Some(file)) => read_training_file(&file, from, progress),
        (both, _) => {
            let expected = format!("either {CONFIG_FILE} or a checkpoint of training, .pt");
            Err(Error::checkpoint(from, "the folder", expected, if both { "both" } else { "neither" }))
        }
    }
}

fn training_file(dir: &Path) -> Result<Option<PathBuf>> {
    match TRAINING_FILES.iter().map(|name| dir.join(name)).find(|file| file.exists()) {
        None => only_file(dir, "pt", "one .pt file, checkpoint_best.pt or checkpoint_last.pt"),
        preferred => Ok(preferred),
    }
}

fn read_folder(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let file = dir.join(CONFIG_FILE);
    let arguments: Arguments = parse(&read_config(&file)?, &file, "")?;
    let names: BTreeSet<_> = shapes_in(dir)?.into_keys().collect();
    let source = OfficialCheckpoint { arguments: &arguments, names: &names, file: &file, dir };
    source.convert(&mut |specs| Ok(read_weights_with_progress(dir, &specs, progress)?.0))
}

fn read_training_file(file: &Path, dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let mut torch = TorchFile::open(file)?;
    let tensors = TorchTensors::find(&torch, "model", file)?;
    let arguments = training_arguments(&torch, &tensors, file)?;
    let names = tensors.all.keys().cloned().collect();
    let source = OfficialCheckpoint { arguments: &arguments, names: &names, file, dir };
    source.convert(&mut |specs| tensors.read(&mut torch, specs, progress))
}

/// Reads the arguments in a training checkpoint. The embedding has the size of the vocabulary.
fn training_arguments(torch: &TorchFile, tensors: &TorchTensors, file: &Path) -> Result<Arguments> {
    let pickle = &torch.pickle;
    let mut all = Map::new();
    let model = pickle.item(&pickle.root, "cfg").and_then(|settings| pickle.item(settings, "model"));
    for arguments in [pickle.item(&pickle.root, "args"), model].into_iter().flatten() {
        all.extend(items(pickle, arguments).into_iter().flat_map(|items| plain(pickle, items)));
    }
    require(!all.is_empty(), file, "args", "the arguments of training, here or in cfg.model", "none")?;
    let rows = tensors.all.get(EMBEDDING).and_then(|tensor| tensor.shape.first());
    let rows = rows.ok_or_else(|| Error::checkpoint(file, EMBEDDING, "a tensor", "none"))?;
    all.insert("vocab_size".into(), (*rows).into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}

/// The parts of an official checkpoint that both kinds of source have.
struct OfficialCheckpoint<'a> {
    arguments: &'a Arguments,
    names: &'a BTreeSet<String>,
    file: &'a Path,
    /// Folder of the vocabulary.
    dir: &'a Path,
}

impl OfficialCheckpoint<'_> {
    fn convert(self, read: &mut dyn FnMut(Vec<TensorSpec>) -> Result<Weights>) -> Result<Converted> {
        let Self { arguments, names, file, dir } = self;
        let subwords = read_dictionary(dir, arguments.vocab_size)?;
        let config = arguments.config(file, subwords, names.contains(DECODER_POSITIONS))?;
        let specs = blueprint(&config, file).map_err(in_official_terms)?.tensors();
        let embedding = specs.iter().find(|spec| spec.name == EMBEDDING).map_or(vec![], |spec| spec.shape.clone());
        let own: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let extra = names.iter().filter(|name| !own.contains(name.as_str())).filter_map(|name| {
            let shape = match name.as_str() {
                name if COPIES.contains(&name) => embedding.clone(),
                name if IGNORED.contains(&name) => vec![1],
                // The scorer of a layer without pooling.
                name if name.starts_with("encoder.pooler.scorer.") && name.ends_with(".bias") => vec![1],
                name if name.starts_with("encoder.pooler.scorer.") => vec![1, *embedding.last()?],
                _ => return None,
            };
            Some(TensorSpec::zeros(name, shape))
        });
        let mut official = read(specs.iter().cloned().chain(extra).collect())?;
        let why = ", since official models share all embeddings";
        COPIES.iter().try_for_each(|copy| check_copy(&official, copy, EMBEDDING, why, file))?;
        Ok(Converted { config, weights: Weights::collect(specs, |spec| official.take(&spec.name))? })
    }
}

/// fairseq's value.
const LAYER_NORM_EPS: f64 = 1e-5;

/// Official arguments that affect the model's computation, under fairseq's names or short ones.
#[derive(Debug, Deserialize)]
struct Arguments {
    #[serde(alias = "encoder_embed_dim")]
    d_model: usize,
    #[serde(alias = "encoder_ffn_embed_dim")]
    ffn_dim: usize,
    #[serde(alias = "encoder_attention_heads")]
    heads: usize,
    encoder_layers: usize,
    decoder_layers: usize,
    decoder_embed_dim: Option<usize>,
    decoder_ffn_embed_dim: Option<usize>,
    decoder_attention_heads: Option<usize>,
    vocab_size: usize,
    max_source_positions: usize,
    max_target_positions: usize,
    encoder_pooling: String,
    encoder_pooling_arch: Option<String>,
    chunk_size: usize,
    /// A dict such as `{0: 2048, 1: 512}`, as Python writes it or as JSON: the length after a layer.
    enc_layers_and_token_width: Json,
    /// The official parser's defaults: 1 and 0.
    flip_right: Option<Flag>,
    sort_back: Option<Flag>,
    use_sparse_attn: String,
    activation_fn: Option<String>,
    decoder_positional_embeddings: Option<Flag>,
    no_token_positional_embeddings: Option<Flag>,
    no_scale_embedding: Option<Flag>,
    cross_self_attention: Option<Flag>,
    no_cross_attention: Option<Flag>,
    layernorm_embedding: Option<Flag>,
    encoder_learned_pos: Option<Flag>,
    decoder_learned_pos: Option<Flag>,
    #[serde(alias = "encoder_normalize_before")]
    normalize_before: Option<Flag>,
    decoder_normalize_before: Option<Flag>,
    layer_norm_eps: Option<f64>,
    generation: Option<Json>,
}

/// True or false, or 1 or 0.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Number(i64),
}

impl Flag {
    fn is_set(self) -> bool {
        match self {
            Self::Bool(set) => set,
            Self::Number(number) => number != 0,
        }
    }
}

impl Arguments {
    /// Returns the configuration of these arguments; errors name `file`. The decoder has positions if the arguments say so, or
    /// else if `positions` is true. Fails if an argument is missing, out of bounds, or asks for what the official code cannot
    /// do.
    fn config(&self, file: &Path, subwords: Option<Arc<SubwordTokenizer>>, positions: bool) -> Result<Config> {
        self.check(file)?;
        let (block, pooling) = self.reduction(file)?;
        let positions = self.decoder_positional_embeddings.map_or(positions, Flag::is_set);
        let architecture = json!({
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "dim": self.d_model,
            "heads": self.heads,
            "feed_forward": self.ffn_dim,
            "activation": self.activation_fn.as_deref().unwrap_or("relu"),
            "layer_norm_eps": self.layer_norm_eps.unwrap_or(LAYER_NORM_EPS),
            "pre_norm": self.normalize_before.is_some_and(Flag::is_set),
            "source_length": self.max_source_positions,
            "target_length": self.max_target_positions,
            "block": block,
            "pooling": pooling,
            "decoder_positions": positions,
            "scale_embedding": !self.no_scale_embedding.is_some_and(Flag::is_set),
        });
        let tokenizer = subwords.as_ref().map(|_| TOKENIZER_FILE.to_owned());
        let vocabulary = VocabularyConfig::Pieces(self.vocab_size, tokenizer);
        let length = self.max_source_positions;
        let config = Config::new("pyramidion", vocabulary, TextNormaliser::None, length, &architecture, file);
        Ok(config.map_err(in_official_terms)?.with(subwords, self.generation()))
    }

    fn check(&self, file: &Path) -> Result<()> {
        let wrong = |key: &str, expected: String, found: String| Err(Error::checkpoint(file, key, expected, found));
        let same = [
            ("decoder_embed_dim", self.decoder_embed_dim, self.d_model),
            ("decoder_ffn_embed_dim", self.decoder_ffn_embed_dim, self.ffn_dim),
            ("decoder_attention_heads", self.decoder_attention_heads, self.heads),
        ];
        let differs = |&(_, own, encoder): &(&str, Option<usize>, usize)| own.is_some_and(|own| own != encoder);
        if let Some((key, Some(found), encoder)) = same.into_iter().find(differs) {
            return wrong(key, format!("{encoder}, as in the encoder"), found.to_string());
        }
        let before = self.normalize_before.is_some_and(Flag::is_set);
        if self.decoder_normalize_before.is_some_and(|flag| flag.is_set() != before) {
            return wrong("decoder_normalize_before", format!("{before}, as in the encoder"), (!before).to_string());
        }
        let unsupported = [
            ("no_token_positional_embeddings", self.no_token_positional_embeddings, "an encoder has positions"),
            ("cross_self_attention", self.cross_self_attention, "a decoder attends to both apart"),
            ("no_cross_attention", self.no_cross_attention, "a decoder attends to the document"),
            ("layernorm_embedding", self.layernorm_embedding, "embeddings have no norm"),
            ("encoder_learned_pos", self.encoder_learned_pos, "positions are sinusoids"),
            ("decoder_learned_pos", self.decoder_learned_pos, "positions are sinusoids"),
        ];
        if let Some((key, _, why)) = unsupported.into_iter().find(|(_, flag, _)| flag.is_some_and(Flag::is_set)) {
            return wrong(key, format!("false: {why}"), "true".into());
        }
        match self.encoder_pooling_arch.as_deref() {
            None | Some("linear") => Ok(()),
            Some(found) => {
                let expected = "linear: the official code builds no other scorer";
                wrong("encoder_pooling_arch", expected.into(), format!("{found:?}"))
            }
        }
    }

    /// Returns `block` and `pooling` of the configuration.
    fn reduction(&self, file: &Path) -> Result<(Option<usize>, Json)> {
        let wrong = |key: &str, expected: &str, found: String| Err(Error::checkpoint(file, key, expected, found));
        match self.encoder_pooling.as_str() {
            // Without pooling there are no blocks: other arguments are ignored.
            "lambda" => return Ok((None, json!({ "kind": "none" }))),
            "topk" => {}
            found => return wrong("encoder_pooling", "topk or lambda", format!("{found:?}")),
        }
        let block = match self.use_sparse_attn.as_str() {
            "pooler" | "only_blockwise" => Some(self.chunk_size),
            "pooler_no_block" => None,
            found => {
                return wrong("use_sparse_attn", "pooler, only_blockwise or pooler_no_block", format!("{found:?}"));
            }
        };
        let Some(plan) = lengths(&self.enc_layers_and_token_width) else {
            let found = self.enc_layers_and_token_width.to_string();
            return wrong("enc_layers_and_token_width", "lengths after layers, like {0: 2048, 1: 512}", found);
        };
        let mut lengths = serde_json::Map::new();
        let mut current = self.max_source_positions;
        for (layer, kept) in plan {
            if kept != current {
                lengths.insert(layer.to_string(), kept.into());
                current = kept;
            }
        }
        if lengths.is_empty() {
            if block.is_some() {
                return Ok((block, json!({ "kind": "none" })));
            }
            let expected = "a decreasing length, since full attention over padding is not supported without pooling";
            return wrong("enc_layers_and_token_width", expected, self.enc_layers_and_token_width.to_string());
        }
        let flip_right = self.flip_right.is_none_or(Flag::is_set);
        let sort_back = self.sort_back.is_some_and(Flag::is_set);
        let kind = "successive-halving";
        Ok((block, json!({ "kind": kind, "lengths": lengths, "flip_right": flip_right, "sort_back": sort_back })))
    }

    /// Returns the generation options, if there are any; of several, those with the largest beam.
    fn generation(&self) -> Option<GenerationDefaults> {
        #[derive(Deserialize)]
        struct GenerationArguments {
            beam: usize,
            max_len_b: usize,
            min_len: Option<usize>,
            lenpen: Option<f32>,
            #[serde(default)]
            no_repeat_ngram_size: usize,
        }
        let read = |json: &Json| serde_json::from_value::<GenerationArguments>(json.clone()).ok();
        let json = self.generation.as_ref()?;
        let named = || json.as_object().into_iter().flat_map(|all| all.values()).filter_map(read);
        let settings = read(json).or_else(|| named().max_by_key(|settings| settings.beam))?;
        Some(GenerationDefaults {
            beam: settings.beam,
            length_penalty: settings.lenpen.unwrap_or(1.0),
            min_tokens: settings.min_len.unwrap_or(1),
            max_tokens: settings.max_len_b.min(self.max_target_positions.saturating_sub(1)),
            no_repeat_ngram: settings.no_repeat_ngram_size,
            ..GenerationDefaults::fairseq(0)
        })
    }
}

/// Lengths after layers, as Python writes a dict or as JSON.
fn lengths(value: &Json) -> Option<BTreeMap<usize, usize>> {
    match value {
        Json::String(text) => plan(text),
        Json::Object(_) => serde_json::from_value(value.clone()).ok(),
        _ => None,
    }
}

/// A Python dict of numbers.
fn plan(text: &str) -> Option<BTreeMap<usize, usize>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim().trim_end_matches(',');
    let entry = |entry: &str| {
        let (layer, kept) = entry.split_once(':')?;
        Some((layer.trim().parse().ok()?, kept.trim().parse().ok()?))
    };
    if inner.is_empty() { Some(BTreeMap::new()) } else { inner.split(',').map(entry).collect() }
}

fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.dim", "d_model"),
        ("architecture.feed_forward", "ffn_dim"),
        ("architecture.heads", "heads"),
        ("architecture.encoder_layers", "encoder_layers"),
        ("architecture.decoder_layers", "decoder_layers"),
        ("architecture.activation", "activation_fn"),
        ("architecture.source_length", "max_source_positions"),
        ("architecture.target_length", "max_target_positions"),
        ("architecture.block", "chunk_size"),
        ("architecture.layer_norm_eps", "layer_norm_eps"),
        ("vocabulary.size", "vocab_size"),
        ("training_length", "max_source_positions"),
    ];
    rename_key(error, KEYS, |key| match key.strip_prefix("architecture.pooling.lengths") {
        Some(layer) => format!("enc_layers_and_token_width{layer}"),
        None => key.to_owned(),
    })
}

// The vocabulary becomes a tokenizer, with the ids of the dictionary (four special symbols, then its lines) or else of
// SentencePiece. A dictionary of single characters needs no SentencePiece model.

const DICTIONARY_FILE: &str = "dict.txt";
const MAX_BYTES: u64 = 64 << 20;

/// fairseq's special symbols, which have the first ids.
const MARKS: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];

const UNKNOWN: usize = 3;

/// Score of a piece that only the dictionary contains, below the score of the model's rarest piece.
const MISSING_PENALTY: f32 = 1e6;

/// Reads the tokenizer of `size` ids from the files in `dir`, if any. Fails if a file is malformed or of another model.
fn read_dictionary(dir: &Path, size: usize) -> Result<Option<Arc<SubwordTokenizer>>> {
    let dictionary = dir.join(DICTIONARY_FILE);
    let model = only_file(dir, "model", "one .model of SentencePiece")?;
    let has_dictionary = dictionary.exists();
    let lines = if has_dictionary { Some(lines(&read_limited(&dictionary, MAX_BYTES)?, &dictionary)?) } else { None };
    // fairseq fills dictionaries up with made-up words
    let is_character = |line: &String| line.chars().count() == 1 || line.starts_with("madeupword");
    let json = match (lines, model) {
        (lines, Some(file)) => {
            let model = sentencepiece::read(&read_limited(&file, MAX_BYTES)?, &file)?;
            if model.byte_fallback {
                // the dictionary has no ids for the bytes
                return Err(Error::checkpoint(file, "trainer_spec.byte_fallback", "false", "true"));
            }
            let lines = lines.unwrap_or_else(|| model.all.clone());
            pieces(&lines, &model, &file)?
        }
        (Some(lines), None) if lines.iter().all(is_character) => characters(&lines),
        // A dictionary of pieces does not define how text is split into them.
        _ => return Ok(None),
    };
    let named = if has_dictionary { dictionary } else { dir.to_path_buf() };
    let subwords = SubwordTokenizer::parse(json.to_string().as_bytes()).map_err(|error| error.in_file(&named))?;
    let marks = MARKS.len();
    let pieces = size.saturating_sub(marks);
    let expected =
        format!("at most {pieces} pieces, since the model has {size} ids and {marks} of them are special symbols");
    require(subwords.len() <= size, &named, "the file", expected, subwords.len().saturating_sub(marks))?;
    Ok(Some(Arc::new(subwords)))
}

/// Parses a dictionary: lines of a symbol, a space and a count.
fn lines(bytes: &[u8], file: &Path) -> Result<Vec<String>> {
    let wrong = |key: String, expected: &str, found: String| Error::checkpoint(file, key, expected, found);
    let text = std::str::from_utf8(bytes).map_err(|error| wrong("the file".into(), "UTF-8", error.to_string()))?;
    let mut seen = HashMap::new();
    let mut symbols = Vec::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        let key = || format!("line {number}");
        let line = line.strip_suffix(" #fairseq:overwrite").unwrap_or(line);
        let symbol = match line.rsplit_once(' ') {
            Some((symbol, count)) if !symbol.is_empty() && count.parse::<u64>().is_ok() => symbol.to_owned(),
            _ => return Err(wrong(key(), "a symbol, a space and its count", format!("{line:?}"))),
        };
        if let Some(first) = seen.insert(symbol.clone(), number) {
            let found = format!("{symbol:?}, as in line {first}");
            return Err(wrong(key(), "a symbol that is not yet in the list", found));
        }
        symbols.push(symbol);
    }
    Ok(symbols)
}

fn tokenizer(normalizer: Json, pre_tokenizer: Json, decoder: Json, model: Json) -> Json {
    let marks = MARKS.iter().enumerate().map(|(id, content)| mark(id, content)).collect();
    sentencepiece::tokenizer(marks, [normalizer, pre_tokenizer, decoder], model)
}

/// Returns a tokenizer of the dictionary's pieces that splits text as the model does.
fn pieces(lines: &[String], model: &SentencePiece, file: &Path) -> Result<Json> {
    let known: HashMap<&str, f32> = model.pieces.iter().map(|(piece, score)| (piece.as_str(), *score)).collect();
    let fits = lines.iter().any(|line| known.contains_key(line.as_str()));
    require(fits, file, "the file", "the pieces of the dictionary next to it", "others")?;
    let normalizer = normalizer(model);
    let metaspace = metaspace("always");
    let model = match model.algorithm {
        Algorithm::Unigram => scored(lines, &known),
        Algorithm::Bpe => {
            check_listed(lines, model, file)?;
            bpe(vocabulary(lines), &model.pieces, MARKS[UNKNOWN], false)
        }
    };
    Ok(tokenizer(normalizer, metaspace.clone(), metaspace, model))
}

/// Returns a unigram model with the log-probabilities of `known`.
fn scored(lines: &[String], known: &HashMap<&str, f32>) -> Json {
    let rarest = known.values().copied().fold(0.0, f32::min);
    let score = |line: &String| known.get(line.as_str()).copied().unwrap_or(rarest - MISSING_PENALTY);
    let mut vocab: Vec<Json> = MARKS.iter().map(|mark| json!([mark, 0.0])).collect();
    vocab.extend(lines.iter().map(|line| json!([line, score(line)])));
    unigram(vocab, UNKNOWN, false)
}

/// Fails unless the dictionary has all pieces.
fn check_listed(lines: &[String], model: &SentencePiece, file: &Path) -> Result<()> {
    let listed: HashSet<&str> = lines.iter().map(String::as_str).collect();
    let Some((piece, _)) = model.pieces.iter().find(|(piece, _)| !listed.contains(piece.as_str())) else {
        return Ok(());
    };
    let expected = "pieces that are all in the dictionary next to it: a BPE model needs each on the way to longer ones";
    Err(Error::checkpoint(file, "the file", expected, format!("{piece:?}")))
}

fn vocabulary(lines: &[String]) -> serde_json::Map<String, Json> {
    let all = MARKS.iter().copied().chain(lines.iter().map(String::as_str));
    all.zip(0..).map(|(symbol, id): (&str, usize)| (symbol.to_owned(), id.into())).collect()
}

/// Returns a tokenizer of single characters, which are never merged.
fn characters(lines: &[String]) -> Json {
    let spaces = json!({ "type": "Replace", "pattern": { "String": sentencepiece::SPACE }, "content": " " });
    let decoder = json!({ "type": "Sequence", "decoders": [spaces, { "type": "Fuse" }] });
    // fairseq splits lines at whitespace; only the space has been replaced by then
    let blank = json!({ "type": "Replace", "pattern": { "Regex": BLANK }, "content": "" });
    tokenizer(blank, metaspace("never"), decoder, bpe(vocabulary(lines), &[], MARKS[UNKNOWN], false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn plans_are_python_dicts_or_objects() {
        assert_eq!(lengths(&json!({"0": 2048, "1": 512})), plan("{0: 2048, 1: 512}"));
        assert_eq!((lengths(&json!({"a": 1})), lengths(&json!([1]))), (None, None));
        let pairs = |text| plan(text).map(|plan| plan.into_iter().collect::<Vec<_>>());
        assert_eq!(pairs("{0: 2048, 1: 512}"), Some(vec![(0, 2048), (1, 512)]));
        assert_eq!(pairs(" {2:16,} "), Some(vec![(2, 16)]));
        assert_eq!(pairs("{}"), Some(vec![]));
        for wrong in ["", "[1]", "{1}", "{a: 1}", "{1: -2}", "{1: 2", "{1: 2; 3: 4}"] {
            assert_eq!(pairs(wrong), None, "{wrong}");
        }
    }

    #[track_caller]
    fn check_refused(dir: &TempDir, ids: usize, expected: &str) {
        let error = read_dictionary(dir.path(), ids).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    fn ids(subwords: &SubwordTokenizer, text: &str) -> Vec<u32> {
        subwords.encode(text).unwrap().iter().map(|piece| piece.id).collect()
    }

    #[test]
    fn characters_with_their_spaces() {
        let dir = TempDir::new().unwrap();
        assert!(read_dictionary(dir.path(), 9).unwrap().is_none());
        fs::write(dir.path().join("dict.txt"), "▁ 90\na 7\nb 5\nmadeupword0000 0\n").unwrap();
        let subwords = read_dictionary(dir.path(), 9).unwrap().unwrap();
        assert_eq!(ids(&subwords, "ab  xyb"), [5, 6, 4, 4, 3, 3, 6]);
        assert_eq!(subwords.decode(&[5, 6, 4, 4, 6, 2]), "ab  b");
        assert_eq!(ids(&subwords, "a\tb\u{a0} \r\nb\n"), [5, 6, 4, 6]);
        let places: Vec<_> = subwords.encode("a bé b").unwrap().iter().map(|piece| (piece.start, piece.end)).collect();
        assert_eq!(places, [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7)]);
        let expected = "at most 3 pieces, since the model has 7 ids and 4 of them are special symbols, found 4";
        check_refused(&dir, 7, expected);
    }

    #[test]
    fn pieces_have_the_dictionarys_ids_and_the_models_scores() {
        let dir = TempDir::new().unwrap();
        let pieces = [
            ("<unk>", 0.0, 2),
            ("<s>", 0.0, 3),
            ("</s>", 0.0, 3),
            ("▁", -3.0, 1),
            ("a", -3.0, 1),
            ("▁a", -1.0, 1),
            ("b", -3.0, 1),
        ];
        fs::write(dir.path().join("spm.model"), sentencepiece::written(&pieces, 1)).unwrap();
        // SentencePiece's piece p ≥ 3 is at p + 1
        let subwords = read_dictionary(dir.path(), 100).unwrap().unwrap();
        assert_eq!(ids(&subwords, "a  ab "), [6, 6, 7]);
        fs::write(dir.path().join("dict.txt"), "b 9\n▁a 8\na 7\n▁ 6\nmadeupword0000 0\n").unwrap();
        let subwords = read_dictionary(dir.path(), 100).unwrap().unwrap();
        assert_eq!(ids(&subwords, "a abb"), [5, 5, 4, 4]);
        assert_eq!(subwords.decode(&[5, 5, 4, 2]), "a ab");
        fs::write(dir.path().join("dict.txt"), "x 9\n").unwrap();
        check_refused(&dir, 100, "the pieces of the dictionary next to it");
        let mut falls_back = sentencepiece::written(&pieces, 1);
        falls_back.extend([0x12, 3, 0x98, 2, 1]); // trainer_spec { byte_fallback: true }
        fs::write(dir.path().join("spm.model"), falls_back).unwrap();
        check_refused(&dir, 100, "spm.model: trainer_spec.byte_fallback: expected false, found true");
        fs::write(dir.path().join("other.model"), "").unwrap();
        check_refused(&dir, 100, "one .model of SentencePiece, found 2");
    }

    #[test]
    fn bpe_cuts_as_sentencepiece_does() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/sentencepiece");
        let dir = TempDir::new().unwrap();
        fs::copy(golden.join("bpe.model"), dir.path().join("bpe.model")).unwrap();
        let subwords = read_dictionary(dir.path(), 401).unwrap().unwrap();
        let cases: Json = serde_json::from_slice(&fs::read(golden.join("bpe.json")).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let own = |id: &Json| match id.as_u64().unwrap() as u32 {
                0 => UNKNOWN as u32,
                id => id + 1,
            };
            let expected: Vec<u32> = case["ids"].as_array().unwrap().iter().map(own).collect();
            assert_eq!(ids(&subwords, text), expected, "{text}");
        }
        fs::write(dir.path().join("dict.txt"), "▁t 9\nt 8\n").unwrap();
        check_refused(&dir, 401, "pieces that are all in the dictionary next to it");
    }

    #[test]
    fn files_that_are_no_vocabulary_are_rejected() {
        for (file, contents, expected) in [
            ("dict.txt", b"a".to_vec(), "line 1: expected a symbol, a space and its count, found \"a\""),
            ("dict.txt", b"a 1\nb x".to_vec(), "line 2: expected"),
            (
                "dict.txt",
                b"a 1\na 2".to_vec(),
                "line 2: expected a symbol that is not yet in the list, found \"a\", as in line 1",
            ),
            ("m.model", vec![0xff; 9], "a SentencePiece model"),
            (
                "m.model",
                sentencepiece::written(&[("a", 0.0, 1)], 3),
                "a unigram or BPE model of SentencePiece, found model_type 3",
            ),
        ] {
            let dir = TempDir::new().unwrap();
            fs::write(dir.path().join(file), contents).unwrap();
            check_refused(&dir, 9, expected);
        }
    }
}
