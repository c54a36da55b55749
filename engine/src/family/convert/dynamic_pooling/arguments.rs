//! The official arguments, and weir's configuration from them.

use crate::{
    error::{Error, Result, clip},
    family::{
        checkpoint::{Config, VocabularyConfig},
        convert::converted::rename_key,
    },
    text::TextNormaliser,
};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeSet, path::Path};

/// The official code's default evaluation and training window.
const TRAINING_LENGTH: usize = 2048;
/// torch's default.
const LAYER_NORM_EPS: f64 = 1e-5;
const THRESHOLD: f64 = 0.5;

/// The arguments that shape the model; the others (dropout, schedules, paths …) do not change its outputs.
#[derive(Debug, Deserialize)]
pub(super) struct Arguments {
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
    pub(super) fn config(&self, file: &Path) -> Result<Config> {
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
            (Some(parsed), layers) if layers.is_none_or(|layers| layers == parsed) => Ok(parsed),
            (Some(parsed), layers) => {
                Err(Error::checkpoint(file, "layers", format!("{parsed:?}, as in model_config"), format!("{layers:?}")))
            }
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
pub(super) fn in_official_terms(error: Error) -> Error {
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
    use super::layer_counts;

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
