//! The official `config.json` in weir's terms.

use crate::{
    error::{Error, Result},
    family::{
        checkpoint::{Config, VocabularyConfig},
        hnet::parse_layers,
    },
    nn::window::MAX_LENGTH,
    text::{TextMarks, TextNormaliser},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Unexpected, Visitor, value::SeqAccessDeserializer},
};
use serde_json::{Value, json};
use std::{fmt, path::Path};

/// The official training window in bytes.
const TRAINING_LENGTH: usize = 8192;
/// The official inner widths of feed-forwards are rounded up to a multiple of this.
const FEED_FORWARD_UNIT: usize = 128;
/// Marks of the official tokenizer.
const MARKS: TextMarks = TextMarks { start: 254, end: 255 };
const NORM_EPS: f64 = 1e-5;
/// Maximum keys of a window, one more than the largest `window_size`.
const MAX_WINDOW: i64 = MAX_LENGTH as i64;
/// Maximum nesting of `arch_layout`, far above the stages that the family accepts.
const MAX_DEPTH: usize = 64;

/// The keys of `config.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    arch_layout: Value,
    d_model: Vec<usize>,
    d_intermediate: Vec<usize>,
    pub(super) vocab_size: usize,
    ssm_cfg: SsmArguments,
    attn_cfg: AttentionArguments,
    tie_embeddings: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SsmArguments {
    /// Only blocks the official kernel's scan; results do not depend on it.
    #[serde(rename = "chunk_size")]
    _chunk_size: Option<PerStage>,
    d_conv: PerStage,
    d_state: PerStage,
    expand: PerStage,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttentionArguments {
    num_heads: Vec<usize>,
    rotary_emb_dim: Vec<usize>,
    window_size: Vec<i64>,
}

/// One number for all stages, or one for each.
#[derive(Debug)]
enum PerStage {
    All(usize),
    Each(Vec<usize>),
}

impl<'de> Deserialize<'de> for PerStage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(PerStageVisitor)
    }
}

struct PerStageVisitor;

impl<'de> Visitor<'de> for PerStageVisitor {
    type Value = PerStage;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number of at least 0, or a list with one for each stage")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<PerStage, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        usize::try_from(number).map(PerStage::All).map_err(too_large)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, numbers: A) -> std::result::Result<PerStage, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(numbers)).map(PerStage::Each)
    }
}

/// The layers of one stage: encoder and decoder, or the main stack's.
enum StageLayers<'a> {
    Outer(&'a str, &'a str),
    Innermost(&'a str),
}

impl Arguments {
    /// Returns weir's `architecture`. Fails if the layout is malformed, or a list's length is not the number of stages.
    pub(super) fn architecture(&self, file: &Path) -> Result<Value> {
        let layouts = layouts(&self.arch_layout, file)?;
        let stages = layouts.len();
        let check = |key: &str, len: usize| match len == stages {
            true => Ok(()),
            false => {
                let expected = format!("{stages} numbers, one for each stage of arch_layout");
                Err(Error::checkpoint(file, key, expected, format!("{len} numbers")))
            }
        };
        check("d_model", self.d_model.len())?;
        check("d_intermediate", self.d_intermediate.len())?;
        check("attn_cfg.num_heads", self.attn_cfg.num_heads.len())?;
        check("attn_cfg.rotary_emb_dim", self.attn_cfg.rotary_emb_dim.len())?;
        check("attn_cfg.window_size", self.attn_cfg.window_size.len())?;
        let per_stage = |key: &str, value: &PerStage, stage: usize| match value {
            PerStage::All(value) => Ok(*value),
            PerStage::Each(values) => {
                check(key, values.len())?;
                Ok(values[stage])
            }
        };
        let mut list = Vec::new();
        for (stage, layout) in layouts.iter().enumerate() {
            let window = match self.attn_cfg.window_size[stage] {
                -1 => json!("full"),
                window @ 0..MAX_WINDOW => json!({ "sliding": { "keys": window + 1 } }),
                other => {
                    let key = format!("attn_cfg.window_size[{stage}]");
                    let expected = format!("-1 for no window, or 0 to {}", MAX_WINDOW - 1);
                    return Err(Error::checkpoint(file, key, expected, other.to_string()));
                }
            };
            let feed_forward = self.d_intermediate[stage];
            let mut object = json!({
                "dim": self.d_model[stage],
                "feed_forward": feed_forward.checked_next_multiple_of(FEED_FORWARD_UNIT).unwrap_or(feed_forward),
                "heads": self.attn_cfg.num_heads[stage],
                "rotary_dim": self.attn_cfg.rotary_emb_dim[stage],
                "window": window,
                "state_dim": per_stage("ssm_cfg.d_state", &self.ssm_cfg.d_state, stage)?,
                "conv_width": per_stage("ssm_cfg.d_conv", &self.ssm_cfg.d_conv, stage)?,
                "expand": per_stage("ssm_cfg.expand", &self.ssm_cfg.expand, stage)?,
            });
            match layout {
                StageLayers::Outer(encoder, decoder) => {
                    object["encoder"] = json!(encoder);
                    object["decoder"] = json!(decoder);
                }
                StageLayers::Innermost(main) => object["main"] = json!(main),
            }
            list.push(object);
        }
        Ok(json!({ "stages": list, "norm_eps": NORM_EPS, "tied": self.tie_embeddings }))
    }

    /// Returns the configuration with that architecture. Fails unless the vocabulary is that of bytes.
    pub(super) fn config(&self, architecture: &Value, file: &Path) -> Result<Config> {
        if self.vocab_size != 256 {
            return Err(Error::checkpoint(file, "vocab_size", "256, the byte values", self.vocab_size.to_string()));
        }
        let vocabulary = VocabularyConfig::DelimitedBytes(MARKS);
        Config::new("hnet", vocabulary, TextNormaliser::None, TRAINING_LENGTH, architecture, file)
    }
}

/// Returns each stage's layers, outermost first. Fails if the layout is not nested as the official code nests it.
fn layouts<'a>(layout: &'a Value, file: &Path) -> Result<Vec<StageLayers<'a>>> {
    let mut stages = Vec::new();
    let mut key = "arch_layout".to_owned();
    let mut rest = layout;
    loop {
        let expected = "[encoder, [inner stage], decoder], or [main] in the innermost stage";
        let wrong =
            |found: &Value| Err(Error::checkpoint(file, &*key, expected, crate::error::clip(&found.to_string(), 60)));
        let layers = |index: usize, text: &'a Value| match text.as_str() {
            Some(layers) => match parse_layers(layers) {
                Ok(_) => Ok(layers),
                Err(found) => {
                    let expected = "letters of mMtT with counts, at most 1024 layers";
                    Err(Error::checkpoint(file, format!("{key}[{index}]"), expected, found))
                }
            },
            None => Err(Error::checkpoint(file, format!("{key}[{index}]"), "a string", text.to_string())),
        };
        match rest.as_array().map(Vec::as_slice) {
            Some([main]) => {
                stages.push(StageLayers::Innermost(layers(0, main)?));
                return Ok(stages);
            }
            Some([encoder, inner @ Value::Array(_), decoder]) if stages.len() < MAX_DEPTH => {
                stages.push(StageLayers::Outer(layers(0, encoder)?, layers(2, decoder)?));
                key += "[1]";
                rest = inner;
            }
            _ => return wrong(rest),
        }
    }
}

/// Replaces keys of weir's configuration in an error by the source's.
pub(super) fn in_official_terms(error: Error) -> Error {
    const KEYS: &[(&str, &str)] = &[
        ("dim", "d_model"),
        ("feed_forward", "d_intermediate"),
        ("heads", "attn_cfg.num_heads"),
        ("rotary_dim", "attn_cfg.rotary_emb_dim"),
        ("state_dim", "ssm_cfg.d_state"),
        ("conv_width", "ssm_cfg.d_conv"),
        ("expand", "ssm_cfg.expand"),
    ];
    let error = match error {
        Error::Checkpoint { file, key, expected, found } => {
            let expected = expected.replace("of dim,", "of d_model,").replace("· dim ", "· d_model ");
            Error::Checkpoint { file, key, expected, found }
        }
        other => other,
    };
    super::super::converted::rename_key(error, &[("architecture.stages", "arch_layout")], |key| {
        let in_stage = key.strip_prefix("architecture.stages").and_then(|rest| rest.split_once('.'));
        let found = in_stage.and_then(|(stage, name)| Some((stage, super::super::converted::source_name(KEYS, name)?)));
        found.map_or_else(|| key.to_owned(), |(stage, name)| format!("{name}{stage}"))
    })
}
