//! The official arguments, and weir's configuration from them.

use crate::{
    decode::document::GenerationDefaults,
    error::{Error, Result},
    family::{
        checkpoint::{Config, VocabularyConfig},
        convert::converted::rename_key,
    },
    text::{SubwordTokenizer, TextNormaliser, subwords::TOKENIZER_FILE},
};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// fairseq's value.
const LAYER_NORM_EPS: f64 = 1e-5;

/// Official arguments that affect the model's computation, under fairseq's names or short ones. Others (dropout, schedules,
/// paths …) are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Arguments {
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
    pub(super) vocab_size: usize,
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
    /// else if `positions` is true. Fails if an argument is missing, out of bounds, contradicts another, or asks for something
    /// that the official code cannot do.
    pub(super) fn config(
        &self,
        file: &Path,
        subwords: Option<Arc<SubwordTokenizer>>,
        positions: bool,
    ) -> Result<Config> {
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
            #[serde(default = "one")]
            min_len: usize,
            #[serde(default = "one_f32")]
            lenpen: f32,
            #[serde(default)]
            no_repeat_ngram_size: usize,
        }
        fn one() -> usize {
            1
        }
        fn one_f32() -> f32 {
            1.0
        }
        let read = |json: &Json| serde_json::from_value::<GenerationArguments>(json.clone()).ok();
        let json = self.generation.as_ref()?;
        let named = || json.as_object().into_iter().flat_map(|all| all.values()).filter_map(read);
        let settings = read(json).or_else(|| named().max_by_key(|settings| settings.beam))?;
        Some(GenerationDefaults {
            beam: settings.beam,
            length_penalty: settings.lenpen,
            min_tokens: settings.min_len,
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

/// Replaces a key of weir's configuration in an error by the argument that it came from.
pub(super) fn in_official_terms(error: Error) -> Error {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
