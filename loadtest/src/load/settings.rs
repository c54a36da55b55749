//! The settings of generation that requests are made with: what is sent, and what is left to the server.

use crate::client::models::ModelInfo;
use std::collections::BTreeMap;

/// Settings by the API's names, and in words what each is.
pub type SentSettings = BTreeMap<String, String>;

/// Of what is not sent and the server does not tell.
const LEFT: &str = "server's default";
/// Of what is not sent and comes with a model.
const LEFT_TO_MODEL: &str = "model's default";

fn all<const N: usize>(settings: [(&str, String); N]) -> SentSettings {
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Of requests that continue texts.
pub(super) fn of_texts(temperature: Option<f32>) -> SentSettings {
    all([
        ("temperature", temperature.map_or(LEFT.into(), |warmth| warmth.to_string())),
        ("top_k", LEFT.into()),
        ("top_p", LEFT.into()),
        ("min_p", LEFT.into()),
        ("repetition_penalty", LEFT.into()),
        ("seed", "sent, another one with each request".into()),
        ("max_chars", "sent, as many as asked for".into()),
        ("min_chars", "sent, the same".into()),
        ("ignore_eos", "true".into()),
    ])
}

/// Of requests for summaries, which are searched and not drawn.
pub(super) fn of_summaries(beam: Option<u32>) -> SentSettings {
    all([
        ("beam_size", beam.map_or(LEFT_TO_MODEL.into(), |beam| beam.to_string())),
        ("length_penalty", LEFT_TO_MODEL.into()),
        ("no_repeat_ngram", LEFT_TO_MODEL.into()),
        ("max_tokens", "sent, as many as asked for".into()),
        ("min_tokens", "sent, the same".into()),
        ("sampling", "none: summaries are searched".into()),
        ("cut", "true".into()),
    ])
}

/// Puts the models' own word where settings are left to them, as far as all of them have the same.
pub fn tell(settings: &mut SentSettings, models: &[&ModelInfo]) {
    for (name, value) in settings.iter_mut().filter(|(_, value)| *value == LEFT_TO_MODEL) {
        let mut told = models.iter().map(|model| model.documents.as_ref()?.default_of(name));
        let first = told.next().flatten();
        if let Some(first) = first.filter(|first| told.all(|other| other.as_ref() == Some(first))) {
            *value = format!("{first} ({LEFT_TO_MODEL}, by the server's word)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::models::DocumentInfo;

    #[test]
    fn what_is_left_to_models_is_told_where_they_agree() {
        let of = |beam_size, length_penalty| ModelInfo {
            documents: Some(DocumentInfo { beam_size, length_penalty, ..Default::default() }),
            ..Default::default()
        };
        let (a, b) = (of(2, 1.0), of(2, 0.8));
        let mut settings = of_summaries(None);
        tell(&mut settings, &[&a, &b]);
        assert_eq!(settings["beam_size"], "2 (model's default, by the server's word)");
        assert_eq!(settings["length_penalty"], LEFT_TO_MODEL);
        let mut settings = of_summaries(Some(3));
        tell(&mut settings, &[&a]);
        assert_eq!((settings["beam_size"].as_str(), settings["sampling"].starts_with("none")), ("3", true));
        // a server that does not tell
        let mut settings = of_summaries(None);
        tell(&mut settings, &[&ModelInfo::default()]);
        assert_eq!(settings["beam_size"], LEFT_TO_MODEL);
        let texts = of_texts(Some(0.7));
        assert_eq!((texts["temperature"].as_str(), texts["top_p"].as_str()), ("0.7", LEFT));
    }
}
