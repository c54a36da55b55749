//! Generation settings of a Hugging Face folder, as defaults of requests: `generation_config.json`, and the summarization task of
//! `config.json`, which wins.

use crate::{
    decode::{document::GenerationDefaults, search_rules::EarlyStopping},
    error::{Error, Result},
    family::{
        checkpoint::{CONFIG_FILE, json::parse},
        convert::converted::read_config,
    },
};
use serde::Deserialize;
use serde_json::Value as Json;
use std::path::Path;

const GENERATION_FILE: &str = "generation_config.json";

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

/// Returns the settings in `generation_config.json`; null if there is no such file.
pub(super) fn config(dir: &Path) -> Result<Json> {
    let file = dir.join(GENERATION_FILE);
    if file.exists() { parse(&read_config(&file)?, &file, "") } else { Ok(Json::Null) }
}

/// Returns the defaults of requests. Fails if a setting has a wrong type, or forces a token.
pub(super) fn read(dir: &Path, model: &Json) -> Result<GenerationDefaults> {
    let file = dir.join(CONFIG_FILE);
    let task = &model["task_specific_params"]["summarization"];
    let mut defaults = GenerationDefaults::transformers();
    // the first are older versions' settings, next to the architecture
    let sources = [
        (model.clone(), file.clone(), ""),
        (config(dir)?, dir.join(GENERATION_FILE), ""),
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
            if !is_neutral {
                let expected = neutral.map_or("nothing".into(), |number| format!("{number} or nothing"));
                return Err(Error::checkpoint(
                    &file,
                    key,
                    format!("{expected} (weir has no such setting)"),
                    found.to_string(),
                ));
            }
        }
        let settings: GenerationSettings = parse(json.to_string().as_bytes(), &file, within)?;
        let forced = [
            ("forced_bos_token_id", &settings.forced_bos_token_id),
            ("forced_eos_token_id", &settings.forced_eos_token_id),
        ];
        if let Some((key, Some(found))) = forced.into_iter().find(|(_, id)| id.is_some()) {
            return Err(Error::checkpoint(&file, key, "nothing: tokens are not forced", found.to_string()));
        }
        settings.apply(&mut defaults);
    }
    // One source may state the minimum, and another the maximum.
    defaults.min_tokens = defaults.min_tokens.min(defaults.max_tokens);
    Ok(defaults)
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
