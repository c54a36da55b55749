//! Checkpoints of T5, flan-T5, mT5, ByT5, LongT5 and MrT5 as Hugging Face stores them, as safetensors or pickles.
//! `generation_config.json` and `task_specific_params.summarization` become defaults of requests. Tensors keep their names,
//! except that a LongT5 encoder's attention is named `SelfAttention`; copies of the embedding are checked and dropped.

use crate::{
    checkpoint::{
        CONFIG_FILE, Config, INDEX_FILE, PICKLE_FILE, PICKLE_INDEX_FILE, VocabularyConfig, WEIGHTS_FILE, Weights,
        files::{parse, read_limited},
        hugging_face::{GENERATION_FILE, completed},
        require,
        weights::{
            EXPECTED_HEAD, FilesDigest, HEAD, PICKLES, Shard, UnusedTensors, none_missing, read_weights_with,
            shapes_in, shards_of, warn_of_unused,
        },
    },
    contract::{EarlyStopping, GenerationDefaults},
    convert::{
        added_tokens::{self, ADDED_FILE, SETTINGS_FILE, SPECIAL_FILE, read_optional, token_json},
        bpe::{self, MERGES_FILE, VOCABULARY_FILE},
        converted::{self, Converted, check_copy, read_config, rename_key},
        sentencepiece::{
            self, Algorithm, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, bpe, mark, metaspace, normalizer, unigram,
        },
        torch::{TorchFile, TorchTensors},
    },
    family::{TensorSpec, families::blueprint, parts::GENERATION_BOUNDS},
    text::{
        AddedToken, MAX_SYMBOLS, SubwordTokenizer, TextNormaliser,
        pieces::UNUSED_SCORE,
        subwords::{MAX_TOKENIZER_BYTES, TOKENIZER_FILE, USER_DEFINED_KEY},
    },
};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};
use weir_kernels::error::{Error, QUOTED, Result, clip};

pub(super) const T5_TYPES: &[&str] = &["t5", "mt5", "longt5"];
pub(super) const MRT5_TYPES: &[&str] = &["mrt5"];

/// Reads a folder of one of the `types`. Fails if arguments, tensors, tokenizer or copies of the embedding do not fit.
pub(super) fn read(dir: &Path, types: &[&str], progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    let folder = T5Folder::open(dir, types)?;
    let tensors = folder.read(progress)?.tensors;
    // a stored copy of the embedding is not written again
    let head_is_copy = check_copy(&tensors, HEAD, folder.embedding(), "", &folder.file).is_ok();
    let config = folder.config(head_is_copy)?;
    let weights = folder.collect(&config, tensors)?;
    Ok(Converted { config, weights })
}

pub(super) fn config_in_place(dir: &Path, types: &[&str]) -> Result<Config> {
    let folder = T5Folder::open(dir, types)?;
    folder.config(folder.is_tied())
}

/// Reads the weights that [`config_in_place`] asks for, under weir's names, and their SHA-256.
pub(super) fn weights_in_place(
    dir: &Path,
    types: &[&str],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Weights, String)> {
    let folder = T5Folder::open(dir, types)?;
    let ReadWeights { tensors, sha256 } = folder.read(progress)?;
    let config = folder.config(folder.is_tied())?;
    Ok((folder.collect(&config, tensors)?, sha256))
}

/// A folder in Hugging Face's layout, without the data of its tensors.
struct T5Folder<'a> {
    file: PathBuf,
    arguments: Arguments,
    source: SourceWeights<'a>,
    vocabulary: VocabularyConfig,
    subwords: Option<Arc<SubwordTokenizer>>,
    generation: GenerationDefaults,
}

impl<'a> T5Folder<'a> {
    fn open(dir: &'a Path, types: &[&str]) -> Result<Self> {
        let file = dir.join(CONFIG_FILE);
        let json: Json = parse(completed(&read_config(&file)?, &file)?.get().as_bytes(), &file, "")?;
        let arguments = Arguments::read(&json, types, &file)?;
        let source = SourceWeights::open(dir)?;
        let (vocabulary, subwords) = read_tokenizer(dir, &json, &arguments)?;
        let mut generation = read_generation(dir, &json)?;
        if matches!(vocabulary, VocabularyConfig::Pieces(_, None)) {
            // without a tokenizer the model takes ids only
            generation.prefix.clear();
        }
        let folder = Self { file, arguments, source, vocabulary, subwords, generation };
        if !folder.arguments.tie_word_embeddings && !folder.has_head() {
            return Err(Error::checkpoint(folder.source.listing(), HEAD, EXPECTED_HEAD, "none"));
        }
        Ok(folder)
    }

    /// Returns true if the file has a head next to the embedding.
    fn has_head(&self) -> bool {
        self.source.names.contains(HEAD) && self.embedding() != HEAD
    }

    /// Returns true if the head is the embedding, by the names of the tensors and the keys of the configuration.
    fn is_tied(&self) -> bool {
        !self.has_head() || self.arguments.is_tied()
    }

    /// The source's name of the embedding, which may be the name of a tied head.
    fn embedding(&self) -> &'static str {
        let head = Some(HEAD).filter(|_| self.arguments.is_tied());
        EMBEDDINGS.into_iter().chain(head).find(|name| self.source.names.contains(*name)).unwrap_or(EMBEDDING)
    }

    /// Returns the source's name of a tensor.
    fn official(&self, name: &str) -> String {
        if name == EMBEDDING { self.embedding().to_owned() } else { self.arguments.official_name(name) }
    }

    fn config(&self, tied_head: bool) -> Result<Config> {
        let config = self.arguments.config(self.vocabulary.clone(), tied_head, &self.file);
        let config = config.map_err(in_official_terms)?.with(self.subwords.clone(), Some(self.generation.clone()));
        blueprint(&config, &self.file).map_err(in_official_terms)?;
        Ok(config)
    }

    /// Reads all tensors under the source's names. Fails if copies of the embedding differ.
    fn read(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ReadWeights> {
        let separate = self.config(!self.has_head())?;
        let specs = blueprint(&separate, &self.file)?.tensors();
        let official: Vec<String> = specs.iter().map(|spec| self.official(&spec.name)).collect();
        let read = self.source.read(&specs, &official, progress)?;
        let tensors = &read.tensors;
        let listing = self.source.listing();
        let embedding = self.embedding();
        for copy in EMBEDDINGS.into_iter().filter(|name| *name != embedding) {
            check_copy(tensors, copy, embedding, " (both sides share the embedding)", &listing)?;
        }
        if self.arguments.is_tied() {
            let why = " (tie_word_embeddings of config.json is true, its default)";
            check_copy(tensors, HEAD, embedding, why, &listing)?;
        }
        Ok(read)
    }

    /// Returns the tensors that a configuration asks for, under weir's names.
    fn collect(&self, config: &Config, mut tensors: Weights) -> Result<Weights> {
        let mut weights = Weights::default();
        for spec in blueprint(config, &self.file)?.tensors() {
            let tensor = tensors.take_tensor(&self.official(&spec.name))?;
            weights.insert(spec.name, tensor);
        }
        Ok(weights)
    }
}

/// Gives a key of weir's configuration its name in `config.json`.
fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.encoder_layers", "num_layers"),
        ("architecture.decoder_layers", "num_decoder_layers"),
        ("architecture.dim", "d_model"),
        ("architecture.heads", "num_heads"),
        ("architecture.head_dim", "d_kv"),
        ("architecture.feed_forward", "d_ff"),
        ("architecture.norm_eps", "layer_norm_epsilon"),
        ("architecture.buckets", "relative_attention_num_buckets"),
        ("architecture.max_distance", "relative_attention_max_distance"),
        ("architecture.attention.radius", "local_radius"),
        ("architecture.attention.group", "global_block_size"),
        ("architecture.deletion.layer", "delete_gate_layer"),
        ("architecture.deletion.threshold", "deletion_threshold"),
        ("architecture.deletion.function.scaled-sigmoid.scale", "sigmoid_mask_scale"),
        ("generation.prefix", "prefix"),
        ("vocabulary.size", "vocab_size"),
        ("vocabulary.first_byte", "id 3"),
        ("training_length", "n_positions"),
    ];
    rename_key(error, KEYS, str::to_owned)
}

/// Maximum tokens of a document, and maximum symbols of a text: distances beyond the last bucket share it, so the model itself has
/// no limit. `config.json` may state others.
const SOURCE_LENGTH: usize = 16_384;

const TARGET_LENGTH: usize = 4096;

/// Training window of a model that does not state it.
const TRAINING_LENGTH: usize = 512;

/// The keys that matter for inference.
#[derive(Debug, Deserialize)]
struct Arguments {
    model_type: String,
    vocab_size: usize,
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    num_layers: usize,
    num_decoder_layers: Option<usize>,
    num_heads: usize,
    relative_attention_num_buckets: usize,
    relative_attention_max_distance: usize,
    feed_forward_proj: String,
    /// Overrides the nonlinearity of `feed_forward_proj`.
    dense_act_fn: Option<String>,
    /// Overrides whether `feed_forward_proj` has a gate.
    is_gated_act: Option<bool>,
    layer_norm_epsilon: f64,
    tie_word_embeddings: bool,
    scale_decoder_outputs: Option<bool>,
    transformers_version: Option<String>,
    n_positions: Option<usize>,
    encoder_attention_type: String,
    local_radius: usize,
    global_block_size: usize,
    deletion_type: Option<String>,
    sigmoid_mask_scale: f64,
    deletion_threshold: Option<f64>,
    delete_gate_layer: usize,
    gate_layer_norm: bool,
    use_softmax1: bool,
    /// Id of the end mark.
    #[serde(skip)]
    end: u32,
    /// The file that states it, if one does.
    #[serde(skip)]
    end_file: Option<PathBuf>,
}

impl Arguments {
    /// Reads the keys of `config.json`. Fails for other types, special ids or positions than the `types` have.
    fn read(config: &Json, types: &[&str], file: &Path) -> Result<Self> {
        let wrong_in = |file: &Path, key: &str, expected: String, found: &Json| {
            let found = if found.is_null() { "nothing".into() } else { found.to_string() };
            Err(Error::checkpoint(file, key, expected, found))
        };
        let wrong = |key: &str, expected: String, found: &Json| wrong_in(file, key, expected, found);
        let found = &config["model_type"];
        if !found.as_str().is_some_and(|own| types.contains(&own)) {
            let hint =
                if types.contains(&"mrt5") { "--from t5 reads t5, mt5 and longt5" } else { "--from mrt5 reads mrt5" };
            return wrong("model_type", format!("one of {} ({hint})", types.join(", ")), found);
        }
        let generation = read_optional(file.parent().unwrap_or(Path::new(".")), GENERATION_FILE)?;
        let mut ids = [0; 3];
        let mut end_file = None;
        let known = [("pad_token_id", &[0, 1][..]), ("eos_token_id", &[1, 2]), ("decoder_start_token_id", &[0])];
        for (id, (key, known)) in ids.iter_mut().zip(known) {
            *id = known[0];
            for (file, found) in [(file, &config[key]), (&file.with_file_name(GENERATION_FILE), &generation[key])] {
                let list = found.as_array().filter(|all| all.len() == 1).map(|all| &all[0]);
                match known.iter().find(|id| *list.unwrap_or(found) == json!(id)) {
                    Some(own) => {
                        *id = *own;
                        end_file = if key == "eos_token_id" { Some(file.to_owned()) } else { end_file };
                    }
                    None if found.is_null() => {}
                    None => {
                        let known: Vec<_> = known.iter().map(u32::to_string).collect();
                        let expected = format!("{} (weir supports no other)", known.join(" or "));
                        return wrong_in(file, key, expected, found);
                    }
                }
            }
        }
        if config["has_absolute_position_embeddings"] == json!(true) {
            let expected = "false: absolute positions are not supported".into();
            return wrong("has_absolute_position_embeddings", expected, &json!(true));
        }
        let [_, end, _] = ids;
        Ok(Self { end, end_file, ..parse(config.to_string().as_bytes(), file, "")? })
    }

    /// Fails unless the model in `dir` has the end mark `end` of its tokenizer, which errors call `tokenizer`.
    fn check_end(&self, end: u32, dir: &Path, tokenizer: &str) -> Result<()> {
        if self.end == end {
            return Ok(());
        }
        let place = self.end_file.clone().unwrap_or_else(|| dir.join(CONFIG_FILE));
        let found = self.end_file.as_ref().map_or("nothing".into(), |_| self.end.to_string());
        Err(Error::checkpoint(place, "eos_token_id", format!("{end}, the id of \"</s>\" in {tokenizer}"), found))
    }

    /// Returns true if the head must be the embedding.
    fn is_tied(&self) -> bool {
        // Version 5 writes `tie_word_embeddings` for every model, and `scale_decoder_outputs` for all types but mT5. It reads the head
        // of the file.
        let version = self.transformers_version.as_deref().and_then(|version| version.split('.').next()?.parse().ok());
        let own_head = self.model_type == "mt5" && version >= Some(5_u32);
        self.tie_word_embeddings && self.scale_decoder_outputs.is_none() && !own_head
    }

    fn official_name(&self, name: &str) -> String {
        let attention = match (self.model_type.as_str(), self.encoder_attention_type.as_str()) {
            ("longt5", "transient-global") => ".TransientGlobalSelfAttention.",
            ("longt5", _) => ".LocalSelfAttention.",
            _ => return name.to_owned(),
        };
        if name.starts_with("encoder.") { name.replace(".SelfAttention.", attention) } else { name.to_owned() }
    }

    /// Returns the configuration in weir's terms. Fails if a key is out of bounds.
    fn config(&self, vocabulary: VocabularyConfig, tied_head: bool, file: &Path) -> Result<Config> {
        let (gated, activation) = self.activation(file)?;
        let scale_head = match self.scale_decoder_outputs {
            _ if self.model_type == "mt5" => false,
            Some(scaled) => scaled,
            None => self.tie_word_embeddings,
        };
        let mut architecture = json!({
            "encoder_layers": self.num_layers,
            "decoder_layers": self.num_decoder_layers.unwrap_or(self.num_layers),
            "dim": self.d_model,
            "heads": self.num_heads,
            "head_dim": self.d_kv,
            "feed_forward": self.d_ff,
            "activation": activation,
            "gated": gated,
            "norm_eps": self.layer_norm_epsilon,
            "buckets": self.relative_attention_num_buckets,
            "max_distance": self.relative_attention_max_distance,
            "tied_head": tied_head,
            "scale_head": scale_head,
            "source_length": SOURCE_LENGTH,
            "target_length": TARGET_LENGTH,
        });
        if let Some(keys) = architecture.as_object_mut() {
            if self.end != USUAL_END {
                keys.insert("end".into(), self.end.into());
            }
            match self.model_type.as_str() {
                "longt5" => {
                    keys.insert("attention".into(), self.attention(file)?);
                }
                "mrt5" => self.deletion(keys, file)?,
                _ => {}
            }
        }
        let training_length = self.n_positions.unwrap_or(TRAINING_LENGTH).max(1);
        Config::new("t5", vocabulary, TextNormaliser::None, training_length, &architecture, file)
    }

    /// Returns whether the feed-forward has a gate, and its nonlinearity in weir's terms.
    fn activation(&self, file: &Path) -> Result<(bool, &'static str)> {
        let projection = self.feed_forward_proj.as_str();
        let (gate, last) = match projection.split_once('-') {
            Some((gate, _)) => (gate, projection.rsplit('-').next()),
            None => ("", Some(projection)),
        };
        // only this exact name means the approximation by tanh
        let derived = if projection == "gated-gelu" { Some("gelu_new") } else { last };
        if let Some(function) = self.dense_act_fn.as_deref().or(derived).and_then(converted::activation) {
            return Ok((self.is_gated_act.unwrap_or(gate == "gated"), function));
        }
        let names = "relu, gelu, gelu_new, gelu_pytorch_tanh, silu or swish";
        let (key, expected, found) = match &self.dense_act_fn {
            Some(name) => ("dense_act_fn", names.to_owned(), name.as_str()),
            None => ("feed_forward_proj", format!("{names}, alone or after `gated-`"), projection),
        };
        Err(Error::checkpoint(file, key, expected, format!("{found:?}")))
    }

    fn attention(&self, file: &Path) -> Result<Json> {
        let radius = self.local_radius;
        match self.encoder_attention_type.as_str() {
            "local" => Ok(json!({ "kind": "local", "radius": radius })),
            "transient-global" => {
                Ok(json!({ "kind": "transient-global", "radius": radius, "group": self.global_block_size }))
            }
            other => {
                let found = format!("{other:?}");
                Err(Error::checkpoint(file, "encoder_attention_type", "local or transient-global", found))
            }
        }
    }

    fn deletion(&self, keys: &mut Map<String, Json>, file: &Path) -> Result<()> {
        let kind = self.deletion_type.as_deref();
        let function = match kind {
            Some("scaled_sigmoid") => json!({ "scaled-sigmoid": { "scale": self.sigmoid_mask_scale } }),
            Some("log_sigmoid") => json!("log-sigmoid"),
            other => {
                let found = other.map_or("nothing".into(), |other| format!("{other:?}"));
                let expected = "scaled_sigmoid or log_sigmoid: others were baselines in training";
                return Err(Error::checkpoint(file, "deletion_type", expected, found));
            }
        };
        let Some(threshold) = self.deletion_threshold else {
            return Err(Error::checkpoint(file, "deletion_threshold", "a number", "nothing"));
        };
        let layer = self.delete_gate_layer;
        let deletion =
            json!({ "layer": layer, "function": function, "threshold": threshold, "norm": self.gate_layer_norm });
        keys.insert("deletion".into(), deletion);
        keys.insert("softmax1".into(), self.use_softmax1.into());
        Ok(())
    }
}

// Generation settings of a Hugging Face folder, as defaults of requests: `generation_config.json`, and the summarization task of
// `config.json`, which wins.

/// Settings in the names of transformers.
#[derive(Deserialize)]
struct GenerationSettings {
    num_beams: Option<usize>,
    length_penalty: Option<f32>,
    /// Lengths with the start symbol.
    min_length: Option<usize>,
    max_length: Option<usize>,
    /// Lengths without it.
    min_new_tokens: Option<usize>,
    max_new_tokens: Option<usize>,
    no_repeat_ngram_size: Option<usize>,
    early_stopping: Option<EarlyStopping>,
    repetition_penalty: Option<f32>,
    prefix: Option<String>,
    forced_bos_token_id: Option<Json>,
    forced_eos_token_id: Option<Json>,
}

/// Settings of transformers that would change the output, and that the search does not have, with the number that has no effect.
const UNSUPPORTED: [(&str, Option<f64>); 9] = [
    ("bad_words_ids", None),
    ("suppress_tokens", None),
    ("begin_suppress_tokens", None),
    ("sequence_bias", None),
    ("encoder_no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("exponential_decay_length_penalty", None),
    ("num_beam_groups", Some(1.0)),
    ("diversity_penalty", Some(0.0)),
];

/// Returns the defaults of requests. Fails if a setting has a wrong type, or forces a token.
fn read_generation(dir: &Path, model: &Json) -> Result<GenerationDefaults> {
    let file = dir.join(CONFIG_FILE);
    let task = &model["task_specific_params"]["summarization"];
    let mut defaults = GenerationDefaults::transformers();
    // the first are older versions' settings, next to the architecture
    let sources = [
        (model.clone(), file.clone(), ""),
        (read_optional(dir, GENERATION_FILE)?, dir.join(GENERATION_FILE), ""),
        (task.clone(), file, "task_specific_params.summarization"),
    ];
    for (json, file, within) in sources {
        if json.is_null() {
            continue;
        }
        for (key, neutral) in UNSUPPORTED {
            let found = &json[key];
            let is_empty = found.is_null() || found.as_array().is_some_and(Vec::is_empty);
            let is_neutral = is_empty || found.as_f64().is_some_and(|number| Some(number) == neutral);
            let expected = neutral.map_or("nothing".into(), |number| format!("{number} or nothing"));
            require(is_neutral, &file, key, format!("{expected} (weir has no such setting)"), found)?;
        }
        let settings: GenerationSettings = parse(json.to_string().as_bytes(), &file, within)?;
        let forced = [
            ("forced_bos_token_id", &settings.forced_bos_token_id),
            ("forced_eos_token_id", &settings.forced_eos_token_id),
        ];
        if let Some((key, Some(found))) = forced.into_iter().find(|(_, id)| id.is_some()) {
            return Err(Error::checkpoint(&file, key, "nothing: tokens are not forced", found.to_string()));
        }
        check_bounds(&json, &file, within)?;
        settings.apply(&mut defaults);
    }
    // One source may state the minimum, and another the maximum.
    defaults.min_tokens = defaults.min_tokens.min(defaults.max_tokens);
    Ok(defaults)
}

/// Checks each setting as the file states it.
fn check_bounds(json: &Json, file: &Path, within: &str) -> Result<()> {
    let known = GENERATION_BOUNDS.map(|(name, min, max)| {
        let key = match name {
            "beam" => "num_beams",
            "no_repeat_ngram" => "no_repeat_ngram_size",
            other => other,
        };
        (key, min, max)
    });
    let lengths = [("max_length", 0.0, TARGET_LENGTH as f64), ("max_new_tokens", 0.0, TARGET_LENGTH as f64 - 1.0)];
    for (key, min, max) in known.into_iter().chain(lengths) {
        // An n-gram of one token would forbid every repetition.
        let from = if key == "no_repeat_ngram_size" && json[key] == 1 { 2.0 } else { min };
        if json[key].as_f64().is_some_and(|value| !(from..=max).contains(&value)) {
            let path = if within.is_empty() { key.to_owned() } else { format!("{within}.{key}") };
            let expected =
                if from == min { format!("{min} to {max}") } else { format!("0 to disable the rule, or 2 to {max}") };
            return Err(Error::checkpoint(file, path, expected, json[key].to_string()));
        }
    }
    Ok(())
}

impl GenerationSettings {
    fn apply(self, defaults: &mut GenerationDefaults) {
        fn set<T>(to: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *to = value;
            }
        }
        let without_start = |length: usize| length.saturating_sub(1);
        set(&mut defaults.beam, self.num_beams);
        set(&mut defaults.length_penalty, self.length_penalty);
        set(&mut defaults.max_tokens, self.max_new_tokens.or(self.max_length.map(without_start)).map(|max| max.max(1)));
        set(&mut defaults.min_tokens, self.min_new_tokens.or(self.min_length.map(without_start)));
        set(&mut defaults.no_repeat_ngram, self.no_repeat_ngram_size);
        set(&mut defaults.early_stopping, self.early_stopping);
        set(&mut defaults.repetition_penalty, self.repetition_penalty);
        set(&mut defaults.prefix, self.prefix);
    }
}

const SENTENCEPIECE_FILE: &str = "spiece.model";

/// All files that the tokenizer is read from.
pub(super) const TOKENIZER_FILES: [&str; 7] =
    [TOKENIZER_FILE, SENTENCEPIECE_FILE, VOCABULARY_FILE, MERGES_FILE, SETTINGS_FILE, ADDED_FILE, SPECIAL_FILE];

/// ByT5: the id of byte 0, and the usual number of ids.
const FIRST_BYTE: u32 = 3;

const BYTE_IDS: usize = 384;

/// The first ids of most vocabularies.
const SPECIALS: [&str; 3] = ["<pad>", "</s>", "<unk>"];

/// Keys of their names.
const SPECIAL_KEYS: [&str; 3] = ["pad_token", "eos_token", "unk_token"];

const USUAL_END: u32 = 1;
const UNKNOWN_ID: usize = 2;

/// Sentinels after the pieces, unless the settings state another number.
const SENTINELS: usize = 100;

/// Returns the vocabulary, and its tokenizer, if there is one. Fails if it does not match the model.
fn read_tokenizer(
    dir: &Path,
    config: &Json,
    arguments: &Arguments,
) -> Result<(VocabularyConfig, Option<Arc<SubwordTokenizer>>)> {
    let Arguments { vocab_size: size, end, .. } = *arguments;
    let settings = read_optional(dir, SETTINGS_FILE)?;
    let is_byt5 = |json: &Json| json["tokenizer_class"].as_str() == Some("ByT5Tokenizer");
    let tokenizers = [TOKENIZER_FILE, SENTENCEPIECE_FILE, VOCABULARY_FILE].map(|name| dir.join(name));
    let found = tokenizers.iter().position(|file| file.exists());
    if is_byt5(config) || is_byt5(&settings) || (found.is_none() && size == BYTE_IDS) {
        arguments.check_end(USUAL_END, dir, "the byte tokenizer")?;
        return Ok((VocabularyConfig::SparseBytes(FIRST_BYTE, size, byt5_tokens(dir, &settings, size)?), None));
    }
    let Some((index, file)) = found.map(|index| (index, &tokenizers[index])) else {
        return Ok((VocabularyConfig::Pieces(size, None), None));
    };
    let json = match index {
        0 => read_limited(file, MAX_TOKENIZER_BYTES)?,
        1 => from_sentencepiece(file, &settings, size)?,
        _ => bpe::read(dir, &settings, size)?,
    };
    let subwords = SubwordTokenizer::parse(&json).map_err(|error| error.in_file(file))?.with_special_tokens();
    require(subwords.len() <= size, file, "the file", format!("at most {size} ids (vocab_size)"), subwords.len())?;
    if let Some(own) = subwords.id_of(SPECIALS[1]) {
        let name = file.file_name().unwrap_or_default().display().to_string();
        arguments.check_end(own, dir, &name)?;
    }
    let specials: Vec<_> = match end {
        USUAL_END => (0_u32..).zip(SPECIALS).collect(),
        _ => vec![(end, SPECIALS[1])],
    };
    for (id, special) in specials {
        let found = subwords.piece(id);
        let is_special = found.as_deref() == Some(special);
        let found = found.map_or("nothing".into(), |found| format!("{found:?}"));
        require(is_special, file, format!("id {id}"), format!("{special:?}"), found)?;
    }
    Ok((VocabularyConfig::Pieces(size, Some(TOKENIZER_FILE.into())), Some(Arc::new(subwords))))
}

/// Returns the tokens of ByT5 that are not as usual: added ones, and marks without white space around them.
fn byt5_tokens(dir: &Path, settings: &Json, size: usize) -> Result<Vec<AddedToken>> {
    let mut tokens = added_tokens::read(dir, settings, size)?;
    for ((id, usual), key) in (0_u32..).zip(SPECIALS).zip(SPECIAL_KEYS) {
        let token = AddedToken { id, ..added_tokens::named(dir, settings, key, usual, true)? };
        if token.text != usual || !(token.lstrip && token.rstrip) {
            tokens.entry(id as usize).or_insert(token);
        }
    }
    Ok(tokens.into_values().collect())
}

/// Returns the number of sentinels. Fails if it exceeds `size`, the ids of the model, or the ids that any model may have.
fn sentinels(settings: &Json, size: usize, dir: &Path) -> Result<usize> {
    let stated = &settings["extra_ids"];
    if stated.is_null() {
        return Ok(SENTINELS);
    }
    let limit = size.min(MAX_SYMBOLS);
    let count = stated.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= limit);
    count.ok_or_else(|| {
        let expected = format!("0 to {limit}, the number of the model's ids");
        Error::checkpoint(dir.join(SETTINGS_FILE), "extra_ids", expected, clip(&stated.to_string(), QUOTED))
    })
}

/// Returns a `tokenizer.json` with the ids of a SentencePiece model: its pieces by their kinds, sentinels after them in reverse order,
/// and added tokens.
fn from_sentencepiece(file: &Path, settings: &Json, size: usize) -> Result<Vec<u8>> {
    let dir = file.parent().unwrap_or(Path::new("."));
    let model = sentencepiece::read(&read_limited(file, MAX_TOKENIZER_BYTES)?, file)?;
    let normal = model.by_id.iter().filter(|(.., kind)| *kind == NORMAL).map(|(_, score, _)| *score);
    // at least zero, so that user-defined pieces are found before others
    let highest = normal.fold(0.0, f32::max);
    let mut vocab = Vec::new();
    let mut marks = BTreeMap::new();
    for (id, (piece, score, kind)) in model.by_id.iter().enumerate() {
        let score = match *kind {
            NORMAL => f64::from(*score),
            USER_DEFINED => {
                let mut token = mark(id, piece);
                token["special"] = false.into();
                token[USER_DEFINED_KEY] = true.into();
                marks.insert(id, token);
                // as in SentencePiece's search for the best pieces
                piece.len() as f64 * f64::from(highest) - 0.1
            }
            CONTROL | UNKNOWN => {
                marks.insert(id, mark(id, piece));
                UNUSED_SCORE
            }
            _ => UNUSED_SCORE,
        };
        vocab.push(json!([piece, score]));
    }
    let unknown = model.by_id.iter().position(|(.., kind)| *kind == UNKNOWN).unwrap_or(UNKNOWN_ID);
    let mut added = BTreeMap::new();
    for (key, usual) in SPECIAL_KEYS.into_iter().zip(SPECIALS) {
        let token = added_tokens::named(dir, settings, key, usual, false)?;
        if let Some(id) = model.by_id.iter().position(|(piece, ..)| *piece == token.text) {
            added.insert(id, AddedToken { id: id as u32, ..token });
        }
    }
    let pieces = vocab.len();
    for (number, id) in (0..sentinels(settings, size, dir)?).rev().zip(pieces..) {
        let text = format!("<extra_id_{number}>");
        let strips = AddedToken { lstrip: true, rstrip: true, ..AddedToken::default() };
        added.insert(id, AddedToken { id: id as u32, text, special: true, ..strips });
    }
    added.extend(added_tokens::read(dir, settings, size)?);
    // With `legacy` false, no word begins after an added token.
    let legacy = settings["legacy"].as_bool();
    for (id, token) in added {
        // an id without a token has no text
        for gap in vocab.len()..id {
            let content = format!("\u{10fffd}{gap}");
            marks.insert(gap, mark(gap, &content));
            vocab.push(json!([content, UNUSED_SCORE]));
        }
        match vocab.get(id) {
            None => vocab.push(json!([token.text, UNUSED_SCORE])),
            Some(known) if known[0] != token.text => vocab[id] = json!([token.text, UNUSED_SCORE]),
            Some(_) => {}
        }
        let begins_word = match legacy {
            Some(legacy) => legacy,
            None => token.special,
        };
        marks.insert(id, token_json(&AddedToken { begins_word, ..token }));
    }
    let decoder = match model.byte_fallback {
        true => json!({ "type": "Sequence", "decoders": [{ "type": "ByteFallback" }, metaspace("first")] }),
        false => metaspace("first"),
    };
    let is_plain = legacy == Some(false) && settings["add_prefix_space"] == json!(false);
    let pre_tokenizer = metaspace(if is_plain { "never" } else { "first" });
    let mut normalizer = normalizer(&model);
    if let Some(steps) = normalizer["normalizers"].as_array_mut().filter(|_| legacy == Some(false)) {
        let mark = json!({ "String": sentencepiece::SPACE });
        steps.insert(0, json!({ "type": "Replace", "pattern": mark, "content": " " }));
    }
    let steps = [normalizer, pre_tokenizer, decoder];
    let marks = marks.into_values().collect();
    let model = match model.algorithm {
        Algorithm::Unigram => unigram(vocab, unknown, model.byte_fallback),
        Algorithm::Bpe => {
            let unknown =
                vocab.get(unknown).and_then(|piece| piece[0].as_str()).unwrap_or(SPECIALS[UNKNOWN_ID]).to_owned();
            let ids = (0_u32..).zip(vocab).filter_map(|(id, piece)| Some((piece[0].as_str()?.to_owned(), id.into())));
            bpe(ids.collect(), &model.pieces, &unknown, model.byte_fallback)
        }
    };
    let json = sentencepiece::tokenizer(marks, steps, model);
    Ok(json.to_string().into_bytes())
}

// Pickles of weights are read one at a time, and nothing in them is executed. Their tensors' names and shapes are checked before any numbers
// are read.

const EMBEDDING: &str = "shared.weight";

/// Names of the embedding, of which a file has one or several.
const EMBEDDINGS: [&str; 3] = [EMBEDDING, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];

struct SourceWeights<'a> {
    dir: &'a Path,
    names: BTreeSet<String>,
    /// The pickles, in the order of their names; none: safetensors.
    pickles: Vec<PickleFile>,
}

struct PickleFile {
    file: PathBuf,
    shapes: BTreeMap<String, Vec<usize>>,
}

/// The tensors of a folder, under the source's names.
struct ReadWeights {
    tensors: Weights,
    /// SHA-256 of the files, as if they were one file.
    sha256: String,
}

impl<'a> SourceWeights<'a> {
    /// Finds the weights; safetensors precede pickles. Fails if there are none, or an index does not agree with its files.
    fn open(dir: &'a Path) -> Result<Self> {
        let has_any = |names: [&str; 2]| names.iter().any(|name| dir.join(name).exists());
        let reads_pickles = !has_any([WEIGHTS_FILE, INDEX_FILE]) && has_any([PICKLE_FILE, PICKLE_INDEX_FILE]);
        let pickles = if reads_pickles { pickles(dir)? } else { Vec::new() };
        let names = match pickles.is_empty() {
            true => shapes_in(dir)?.into_keys().collect(),
            false => pickles.iter().flat_map(|pickle| pickle.shapes.keys().cloned()).collect(),
        };
        Ok(Self { dir, names, pickles })
    }

    /// Reads the tensors of `specs` under the source's names, `official`, and all copies.
    fn read(
        &self,
        specs: &[TensorSpec],
        official: &[String],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ReadWeights> {
        let renamed = |(spec, name): (&TensorSpec, &String)| TensorSpec { name: name.clone(), ..spec.clone() };
        let mut all: Vec<TensorSpec> = specs.iter().zip(official).map(renamed).collect();
        let embedding = specs.iter().find(|spec| spec.name == EMBEDDING).map(|spec| spec.shape.clone());
        for name in EMBEDDINGS.into_iter().filter(|name| self.names.contains(*name)) {
            if let Some(shape) = embedding.clone().filter(|_| all.iter().all(|spec| spec.name != name)) {
                all.push(TensorSpec::zeros(name, shape));
            }
        }
        if self.pickles.is_empty() {
            let (tensors, sha256) = read_weights_with(self.dir, &all, UnusedTensors::Ignored, progress)?;
            return Ok(ReadWeights { tensors, sha256 });
        }
        self.read_pickles(all, progress)
    }

    /// Reads the tensors of `specs` from the pickles, after it has checked their names and shapes.
    fn read_pickles(&self, specs: Vec<TensorSpec>, progress: &mut dyn FnMut(u64, u64)) -> Result<ReadWeights> {
        let mut specs: BTreeMap<String, TensorSpec> = specs.into_iter().map(|spec| (spec.name.clone(), spec)).collect();
        none_missing(&self.listing(), specs.keys().filter(|name| !self.names.contains(*name)))?;
        warn_of_unused(self.dir, self.names.iter().filter(|name| !specs.contains_key(*name)).map(String::as_str));
        for PickleFile { file, shapes } in &self.pickles {
            for (name, found) in shapes {
                if let Some(spec) = specs.get(name).filter(|spec| spec.shape != *found) {
                    let expected = format!("shape {:?}", spec.shape);
                    return Err(Error::checkpoint(file, name.as_str(), expected, format!("shape {found:?}")));
                }
            }
        }
        let bytes = |specs: &mut dyn Iterator<Item = &TensorSpec>| {
            specs.fold(0_u64, |sum, spec| sum.saturating_add(4 * spec.numbers() as u64))
        };
        let total = bytes(&mut specs.values());
        let mut done = 0;
        let mut tensors = Weights::default();
        let mut digest = FilesDigest::default();
        for PickleFile { file, shapes } in &self.pickles {
            let own: Vec<TensorSpec> = shapes.keys().filter_map(|name| specs.remove(name)).collect();
            let own_bytes = bytes(&mut own.iter());
            let names: Vec<String> = own.iter().map(|spec| spec.name.clone()).collect();
            let (mut torch, mut saved) = open(file)?;
            saved.all.retain(|name, _| names.contains(name));
            let mut read = saved.read(&mut torch, own, &mut |part, _| progress(done + part, total))?;
            for name in names {
                let tensor = read.take_tensor(&name)?;
                tensors.insert(name, tensor);
            }
            // the file that was read, even if another has its name by now
            digest.add(torch.into_file(), file)?;
            done += own_bytes;
        }
        Ok(ReadWeights { tensors, sha256: digest.finish(self.dir)? })
    }

    /// The file that lists all tensors, for messages.
    fn listing(&self) -> PathBuf {
        match &self.pickles[..] {
            [] if self.dir.join(WEIGHTS_FILE).exists() => self.dir.join(WEIGHTS_FILE),
            [] => self.dir.join(INDEX_FILE),
            [only] if only.file.ends_with(PICKLE_FILE) => only.file.clone(),
            _ => self.dir.join(PICKLE_INDEX_FILE),
        }
    }
}

/// Returns the pickles of a folder; none if it has none. At most one is in memory at a time.
fn pickles(dir: &Path) -> Result<Vec<PickleFile>> {
    let shards = shards_of(dir, PICKLES)?;
    let checked = |shard: Shard| {
        let mut shapes = shapes(&shard.file)?;
        shapes.retain(|name, _| shard.has(name));
        if let Some(names) = &shard.names {
            none_missing(&shard.file, names.iter().filter(|name| !shapes.contains_key(*name)))?;
        }
        Ok(PickleFile { file: shard.file, shapes })
    };
    shards.into_iter().map(checked).collect()
}

fn shapes(file: &Path) -> Result<BTreeMap<String, Vec<usize>>> {
    let (_, tensors) = open(file)?;
    Ok(tensors.all.into_iter().map(|(name, tensor)| (name, tensor.shape)).collect())
}

fn open(file: &Path) -> Result<(TorchFile, TorchTensors)> {
    let torch = TorchFile::open(file)?;
    let tensors = TorchTensors::at_root(&torch, file)?;
    Ok((torch, tensors))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares ids with those that transformers 4.57 and SentencePiece return. Each folder holds the files of a small tokenizer. With
    /// `legacy` false, leading white space gets no second `▁`, as in the fast tokenizers and in version 5.
    #[test]
    fn tokenizers_agree_with_transformers() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tokenizers");
        let golden = std::env::var_os("WEIR_TOKENIZERS").map_or(golden, PathBuf::from);
        let mut wrong = String::new();
        let mut compared = 0;
        for entry in std::fs::read_dir(golden).unwrap() {
            let dir = entry.unwrap().path();
            let file = dir.join(CONFIG_FILE);
            let Ok(text) = read_config(&file) else { continue };
            let config: Json = parse(completed(&text, &file).unwrap().get().as_bytes(), &file, "").unwrap();
            let arguments = Arguments::read(&config, T5_TYPES, &file).unwrap();
            let (vocabulary, subwords) = read_tokenizer(&dir, &config, &arguments).unwrap();
            let json = json!({});
            let config = Config::new("t5", vocabulary, TextNormaliser::None, 1, &json, &file);
            let config = config.unwrap().with(subwords, None);
            let vocabulary = config.vocabulary(&file).unwrap();
            let cases: Vec<(String, Vec<u32>)> =
                serde_json::from_slice(&std::fs::read(dir.join("cases.json")).unwrap()).unwrap();
            for (text, expected) in cases {
                for size in [1, 3, 1000] {
                    let mut tokens = Vec::new();
                    let mut stream = crate::text::StreamTokenizer::new(Arc::clone(&vocabulary), "text", 1000);
                    let characters: Vec<char> = text.chars().collect();
                    for chunk in characters.chunks(size) {
                        stream.push(&chunk.iter().collect::<String>(), &mut tokens).unwrap();
                    }
                    stream.finish(&mut tokens).unwrap();
                    let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                    if !stream.is_ended(arguments.end) {
                        ids.push(arguments.end);
                    }
                    compared += 1;
                    if ids != expected {
                        wrong += &format!(
                            "{} {size} {text:?}\n   {expected:?}\n   {ids:?}\n",
                            dir.file_name().unwrap().display()
                        );
                        break;
                    }
                }
            }
        }
        assert!(wrong.is_empty() && compared > 0, "{compared} compared\n{wrong}");
    }
}
