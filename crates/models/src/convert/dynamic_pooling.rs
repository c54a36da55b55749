//! Checkpoints of the official Dynamic Token Pooling code (PiotrNawrot/dynamic-pooling at commit 1e6f360): the `.pt` that its
//! training writes, or a folder with the arguments in `config.json` and the tensors in `model.safetensors`.

use crate::checkpoint::files::parse;
use crate::checkpoint::{CONFIG_FILE, Config, VocabularyConfig, Weights, read_weights_with_progress};
use crate::convert::converted::{Converted, read_config, rename_key, source_name};
use crate::convert::pickle::{Pickle, PickleValue};
use crate::convert::torch::{SourceForm, TorchFile, TorchTensors, items, plain, text};
use crate::family::TensorSpec;
use crate::family::families::blueprint;
use crate::text::TextNormaliser;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::{collections::BTreeSet, path::Path};
use weir_kernels::error::{Error, Result, clip};

/// Complete names.
const MODEL: &[(&str, &str)] = &[
    ("embedding.weight", "word_emb.weight"),
    ("position.inverse_frequency", "pos_emb.inv_freq"),
    ("position.content_bias", "r_w_bias"),
    ("position.distance_bias", "r_r_bias"),
    (NULL_GROUP, "null_group"),
    ("pool_norm.weight", "down_ln.weight"),
    ("pool_norm.bias", "down_ln.bias"),
    ("boundary.hidden.weight", "boundary_predictor.boundary_predictor.0.weight"),
    ("boundary.hidden.bias", "boundary_predictor.boundary_predictor.0.bias"),
    ("boundary.output.weight", "boundary_predictor.boundary_predictor.2.weight"),
    ("boundary.output.bias", "boundary_predictor.boundary_predictor.2.bias"),
    ("head.weight", "final_cast.weight"),
    ("head.bias", "final_cast.bias"),
];

/// Names within a layer, without `.weight` or `.bias`.
const LAYER: &[(&str, &str)] = &[
    ("attention.qkv", "dec_attn.qkv_net"),
    ("attention.distance", "dec_attn.r_net"),
    ("attention.output", "dec_attn.o_net"),
    ("attention.norm", "dec_attn.layer_norm"),
    ("feed_forward.up", "pos_ff.CoreNet.0"),
    ("feed_forward.down", "pos_ff.CoreNet.3"),
    ("feed_forward.norm", "pos_ff.layer_norm"),
];

const NULL_GROUP: &str = "null_group";
const DISTANCE: &str = "attention.distance.weight";

/// Bias of each [`DISTANCE`], which is dropped: it shifts all scores of a query equally, which the softmax cancels.
const DISTANCE_BIAS: &str = "dec_attn.r_net.bias";

const STACKS: &[(&str, &str)] = &[("pre", "layers.0"), ("middle", "layers.1"), ("post", "layers.2")];

pub(super) fn read(from: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted> {
    match SourceForm::detect(from)? {
        SourceForm::Folder(dir) => {
            let file = dir.join(CONFIG_FILE);
            let arguments = parse(&read_config(&file)?, &file, "")?;
            convert(&arguments, &file, |specs| Ok(read_weights_with_progress(&dir, &specs, progress)?.0))
        }
        SourceForm::Training(file) => {
            let mut torch = TorchFile::open(&file)?;
            let arguments = training_arguments(&torch.pickle, &file)?;
            let read = |specs| TorchTensors::find(&torch, "model_state", &file)?.read(&mut torch, specs, progress);
            convert(&arguments, &file, read)
        }
    }
}

fn convert(
    arguments: &Arguments,
    file: &Path,
    read: impl FnOnce(Vec<TensorSpec>) -> Result<Weights>,
) -> Result<Converted> {
    let config = arguments.config(file)?;
    let specs = blueprint(&config, file).map_err(in_official_terms)?.tensors();
    let mut official = read(official_tensors(&specs))?;
    Ok(Converted { config, weights: Weights::collect(specs, |spec| official.take(&official_name(&spec.name)))? })
}

/// Reads the arguments of a training checkpoint: the command line's, overridden by the model's, and the vocabulary.
fn training_arguments(pickle: &Pickle, file: &Path) -> Result<Arguments> {
    let part = |key: &str| {
        let missing = || Error::checkpoint(file, key, "a value", "nothing");
        pickle.item(&pickle.root, key).ok_or_else(missing)
    };
    let wrong = |key, expected, found: &PickleValue| Error::checkpoint(file, key, expected, pickle.describe(found));
    let args = part("args")?;
    let model = part("model_config")?;
    let vocabulary = part("vocab")?;
    let mut all = Map::new();
    all.extend(plain(pickle, items(pickle, args).ok_or_else(|| wrong("args", "a Namespace", args))?));
    all.extend(plain(pickle, pickle.items(model).ok_or_else(|| wrong("model_config", "a dict", model))?));
    let state = pickle.call(vocabulary).and_then(|call| call.state.as_ref()).unwrap_or(vocabulary);
    let symbols = pickle.item(state, "idx2sym").unwrap_or(state);
    let symbols = pickle.elements(symbols).ok_or_else(|| wrong("vocab.idx2sym", "a list", symbols))?;
    let symbols = symbols.iter().map(|symbol| text(symbol).ok_or_else(|| wrong("vocab.idx2sym", "strings", symbol)));
    all.insert("vocab".into(), symbols.collect::<Result<Vec<_>>>()?.into());
    parse(Json::Object(all).to_string().as_bytes(), file, "args")
}

/// The official name of one of weir's tensors; the name itself if there is none, so that it is reported as missing.
fn official_name(name: &str) -> String {
    let layer = || {
        let (stack, index, part) = in_layer(name)?;
        let (part, kind) = part.rsplit_once('.')?;
        Some(format!("{stack}.{index}.{}.{kind}", source_name(LAYER, part)?))
    };
    source_name(MODEL, name).map(str::to_owned).or_else(layer).unwrap_or_else(|| name.to_owned())
}

/// Returns the official stack, the layer's index, and the name within the layer.
fn in_layer(name: &str) -> Option<(&'static str, &str, &str)> {
    let (stack, rest) = name.split_once('.')?;
    let (index, part) = rest.split_once('.')?;
    Some((source_name(STACKS, stack)?, index, part))
}

/// Every tensor that an official checkpoint must hold for a model of weir's tensors.
fn official_tensors(specs: &[TensorSpec]) -> Vec<TensorSpec> {
    let mut official = Vec::with_capacity(specs.len());
    for spec in specs {
        let mut shape = spec.shape.clone();
        if spec.name == NULL_GROUP {
            shape.splice(0..0, [1, 1]);
        }
        if let Some((stack, index, DISTANCE)) = in_layer(&spec.name) {
            let name = format!("{stack}.{index}.{DISTANCE_BIAS}");
            official.push(TensorSpec::zeros(name, shape.iter().copied().take(1).collect()));
        }
        official.push(TensorSpec::zeros(official_name(&spec.name), shape));
    }
    official
}

/// The official code's default evaluation and training window.
const TRAINING_LENGTH: usize = 2048;

/// torch's default.
const LAYER_NORM_EPS: f64 = 1e-5;

const THRESHOLD: f64 = 0.5;

/// The arguments that shape the model; the others (dropout, schedules, paths …) do not change its outputs.
#[derive(Debug, Deserialize)]
struct Arguments {
    n_token: usize,
    n_head: usize,
    d_model: usize,
    d_head: usize,
    d_inner: usize,
    activation_function: String,
    boundaries_type: String,
    #[serde(default)]
    pre_lnorm: bool,
    /// A Python expression such as `[2, (8,), 2]`.
    model_config: Option<String>,
    /// The same as numbers.
    layers: Option<[usize; 3]>,
    fixed_sf: Option<usize>,
    whitespace_id: Option<usize>,
    vocab: Vec<String>,
    layer_norm_eps: Option<f64>,
    boundary_threshold: Option<f64>,
    tgt_len: Option<usize>,
}

impl Arguments {
    /// Returns the configuration; errors name `file`. Fails if an argument is missing, out of bounds, or contradicts another.
    fn config(&self, file: &Path) -> Result<Config> {
        let wrong = |key: &str, expected: &str, found: String| Err(Error::checkpoint(file, key, expected, found));
        if self.pre_lnorm {
            return wrong("pre_lnorm", "false: the official code supports nothing else", "true".into());
        }
        if self.n_token != self.vocab.len() {
            return wrong("vocab", &format!("{} symbols (n_token)", self.n_token), format!("{}", self.vocab.len()));
        }
        if let Some(id) = self.whitespace_id
            && self.vocab.get(id).is_none_or(|symbol| symbol != " ")
        {
            return wrong("whitespace_id", "the index of \" \" in vocab", id.to_string());
        }
        let [pre, middle, post] = self.layers(file)?;
        let pooled = self.boundaries_type != "none";
        if !pooled && (middle, post) != (0, 0) {
            return wrong("model_config", "[n, (0,), 0] without boundaries", format!("[{pre}, ({middle},), {post}]"));
        }
        let layers = if pooled { json!({ "pre": pre, "middle": middle, "post": post }) } else { json!({ "pre": pre }) };
        let mut architecture = json!({
            "layers": layers,
            "dim": self.d_model,
            "heads": self.n_head,
            "head_dim": self.d_head,
            "feed_forward": self.d_inner,
            "activation": self.activation_function,
            "layer_norm_eps": self.layer_norm_eps.unwrap_or(LAYER_NORM_EPS),
            "position": "transformer-xl",
        });
        if pooled {
            architecture["pooling"] = json!("mean");
        }
        architecture["boundaries"] = self.boundaries(file)?;
        let vocabulary = VocabularyConfig::Symbols(self.vocab.clone());
        let training_length = self.tgt_len.unwrap_or(TRAINING_LENGTH);
        Config::new("hourglass", vocabulary, self.normaliser(), training_length, &architecture, file)
            .map_err(in_official_terms)
    }

    fn boundaries(&self, file: &Path) -> Result<serde_json::Value> {
        match self.boundaries_type.as_str() {
            "none" => Ok(json!({ "kind": "none" })),
            "fixed" => match self.fixed_sf {
                Some(every) => Ok(json!({ "kind": "fixed", "every": every })),
                None => Err(Error::checkpoint(file, "fixed_sf", "the segments' length", "nothing")),
            },
            "whitespaces" => Ok(json!({ "kind": "whitespace", "symbol": " " })),
            "unigram" | "entropy" | "gumbel" => {
                let threshold = self.boundary_threshold.unwrap_or(THRESHOLD);
                Ok(json!({ "kind": "learned", "hidden": self.d_inner, "threshold": threshold }))
            }
            other => {
                let expected = "none, fixed, whitespaces, unigram, entropy or gumbel";
                Err(Error::checkpoint(file, "boundaries_type", expected, format!("{other:?}")))
            }
        }
    }

    /// Layers before, in and after the middle stack, from either of the two arguments.
    fn layers(&self, file: &Path) -> Result<[usize; 3]> {
        let expected = "three layer counts, such as [2, (8,), 2]";
        let Some(text) = &self.model_config else {
            return self.layers.ok_or_else(|| Error::checkpoint(file, "model_config", expected, "nothing"));
        };
        match (layer_counts(text), self.layers) {
            (Some(parsed), Some(layers)) if layers != parsed => {
                Err(Error::checkpoint(file, "layers", format!("{parsed:?}, as in model_config"), format!("{layers:?}")))
            }
            (Some(parsed), _) => Ok(parsed),
            (None, _) => Err(Error::checkpoint(file, "model_config", expected, format!("{:?}", clip(text, 60)))),
        }
    }

    /// Text8's normaliser for text8's symbols, in any order; other vocabularies' normalisers are unknown.
    fn normaliser(&self) -> TextNormaliser {
        let symbols: BTreeSet<String> = self.vocab.iter().cloned().collect();
        let text8: BTreeSet<String> = ('a'..='z').chain([' ']).map(String::from).collect();
        if symbols == text8 { TextNormaliser::Text8 } else { TextNormaliser::None }
    }
}

/// Parses the integers of `[2, (8,), 2]`. The official code evaluates it as Python; only this form is accepted here.
fn layer_counts(text: &str) -> Option<[usize; 3]> {
    let compact: String = text.chars().filter(|character| *character != ' ').collect();
    let (pre, rest) = compact.strip_prefix('[')?.strip_suffix(']')?.split_once(",(")?;
    let (middle, post) = rest.split_once("),")?;
    let count = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?;
    Some([count(pre)?, count(middle.strip_suffix(',').unwrap_or(middle))?, count(post)?])
}

/// Replaces a key of weir's configuration in an error by the argument that it came from.
fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("architecture.layers.pre", "model_config (first)"),
        ("architecture.layers.middle", "model_config (second)"),
        ("architecture.layers.post", "model_config (third)"),
        ("architecture.dim", "d_model"),
        ("architecture.heads", "n_head"),
        ("architecture.head_dim", "d_head"),
        ("architecture.feed_forward", "d_inner"),
        ("architecture.activation", "activation_function"),
        ("architecture.layer_norm_eps", "layer_norm_eps"),
        ("architecture.boundaries.every", "fixed_sf"),
        ("architecture.boundaries.symbol", "vocab"),
        ("architecture.boundaries.hidden", "d_inner"),
        ("architecture.boundaries.threshold", "boundary_threshold"),
        ("training_length", "tgt_len"),
    ];
    rename_key(error, KEYS, |key| key.replace("vocabulary.symbols", "vocab"))
}

#[cfg(test)]
mod tests {
    use crate::convert::dynamic_pooling::layer_counts;

    #[test]
    fn layer_counts_are_parsed_and_nothing_else() {
        for text in ["[2, (8,), 2]", "[2,(8,),2]", "[2, (8), 2]", " [ 2 , ( 8 , ) , 2 ] "] {
            assert_eq!(layer_counts(text), Some([2, 8, 2]), "{text}");
        }
        assert_eq!(layer_counts("[12, (0,), 0]"), Some([12, 0, 0]));
        for text in
            ["", "[2, 8, 2]", "[2, (8,), 2, 2]", "[-2, (8,), 2]", "[+2, (8,), 2]", "[2, (,), 2]", "[2, (8,), f()]"]
        {
            assert_eq!(layer_counts(text), None, "{text}");
        }
        assert_eq!(layer_counts("[99999999999999999999, (8,), 2]"), None);
    }
}
