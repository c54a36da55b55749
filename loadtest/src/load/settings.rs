//! Generation settings of the requests, for the report: which are sent, and which are left to the server's defaults.

use super::typing::TypingSpec;
use crate::{client::models::ModelInfo, units};
use std::collections::BTreeMap;

/// Settings by their API names, each with a description of its value.
pub(crate) type SentSettings = BTreeMap<String, String>;

/// Value of a setting that is not sent and that the server does not report.
const SERVER_DEFAULT: &str = "server's default";
/// Value of a setting that is not sent and that comes from the model.
const MODEL_DEFAULT: &str = "model's default";

fn all<const N: usize>(settings: [(&str, String); N]) -> SentSettings {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn generation(temperature: Option<f32>) -> SentSettings {
    all([
        ("temperature", temperature.map_or(SERVER_DEFAULT.into(), |temperature| temperature.to_string())),
        ("top_k", SERVER_DEFAULT.into()),
        ("top_p", SERVER_DEFAULT.into()),
        ("min_p", SERVER_DEFAULT.into()),
        ("repetition_penalty", SERVER_DEFAULT.into()),
        ("seed", "sent, different in each request".into()),
        ("max_chars", "sent, as many as requested".into()),
        ("min_chars", "sent, the same".into()),
        ("ignore_eos", "true".into()),
    ])
}

/// Returns the settings of summarization requests, which use beam search instead of sampling.
pub(super) fn summarization(beam: Option<u32>) -> SentSettings {
    all([
        ("beam_size", beam.map_or(MODEL_DEFAULT.into(), |beam| beam.to_string())),
        ("length_penalty", MODEL_DEFAULT.into()),
        ("no_repeat_ngram", MODEL_DEFAULT.into()),
        ("max_tokens", "sent, as many as requested".into()),
        ("min_tokens", "sent, the same".into()),
        ("sampling", "none: beam search".into()),
        ("cut", "true".into()),
    ])
}

/// Returns the settings of sessions that edit documents.
pub(super) fn editing(typing: &TypingSpec) -> SentSettings {
    all([
        ("count", format!("sent, {}", typing.count)),
        ("until", format!("sent, {}", typing.end_name())),
        ("max_chars", SERVER_DEFAULT.into()),
        ("rate", format!("{} keystrokes/s, log-normal gaps", units::digits(typing.rate))),
        ("pause", units::time(typing.pause.as_nanos() as f64)),
    ])
}

/// Replaces settings left to the model by the default that the server reports, where all models have the same.
pub(crate) fn fill_model_defaults(settings: &mut SentSettings, models: &[&ModelInfo]) {
    for (name, value) in settings.iter_mut().filter(|(_, value)| *value == MODEL_DEFAULT) {
        let mut defaults = models.iter().map(|model| model.documents.as_ref()?.default_of(name));
        let first = defaults.next().flatten();
        if let Some(first) = first.filter(|first| defaults.all(|other| other.as_ref() == Some(first))) {
            *value = format!("{first} ({MODEL_DEFAULT}, reported by the server)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::models::DocumentInfo;

    #[test]
    fn model_defaults_are_filled_in_where_the_models_agree() {
        let model = |beam_size, length_penalty| ModelInfo {
            documents: Some(DocumentInfo { beam_size, length_penalty, ..Default::default() }),
            ..Default::default()
        };
        let mut settings = summarization(None);
        fill_model_defaults(&mut settings, &[&model(2, 1.0), &model(2, 0.8)]);
        assert_eq!(settings["beam_size"], "2 (model's default, reported by the server)");
        assert_eq!(settings["length_penalty"], MODEL_DEFAULT);
        let mut settings = summarization(Some(3));
        fill_model_defaults(&mut settings, &[&model(2, 1.0)]);
        assert_eq!((settings["beam_size"].as_str(), settings["sampling"].starts_with("none")), ("3", true));
        // the server does not report defaults
        let mut settings = summarization(None);
        fill_model_defaults(&mut settings, &[&ModelInfo::default()]);
        assert_eq!(settings["beam_size"], MODEL_DEFAULT);
        let texts = generation(Some(0.7));
        assert_eq!((texts["temperature"].as_str(), texts["top_p"].as_str()), ("0.7", SERVER_DEFAULT));
    }
}
