//! Converts a completion request to calls of `Summarize`, for a model that summarizes its prompts.

use super::summaries::{call_messages, long_documents};
use crate::{
    error::{Error, Result, quoted},
    serve::completion_request::{CompletionRequest, Prompt, check_choices, speculate::Speculate},
};
use weir_proto::v1::{self, SummarizeRequest};

impl CompletionRequest {
    /// Returns the requests of `Summarize`, one for each prompt. Fails if an option is unsupported; `Summarize` checks the others.
    pub(crate) fn summarize_requests(&self, model: &str) -> Result<Vec<Vec<SummarizeRequest>>> {
        self.reject_unsupported()?;
        self.reject_unsummarized()?;
        let n = self.choices_per_prompt();
        let prompts = self.prompt.list()?;
        check_choices(n, prompts.len())?;
        if let Some(best_of) = self.best_of.filter(|best_of| *best_of < n) {
            return Err(Error::bad_option("best_of", best_of.to_string(), format!("at least {n} (the value of n)")));
        }
        let width = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let options = v1::SummarizeOptions {
            model: Some(model.to_owned()),
            beam_size: self.best_of.map(width),
            length_penalty: self.length_penalty,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens,
            no_repeat_ngram: self.no_repeat_ngram,
            hypotheses: Some(width(n)),
            sampling: self.summary_sampling()?,
            cut: self.cut,
            document_id: None,
            priority: self.priority,
            hard_topk: None,
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            long_documents: self.long_documents.map(long_documents),
        };
        let messages = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => Ok(call_messages(options.clone(), text)),
            Prompt::Ids(_) => Err(Error::bad_option("prompt", "token ids", "a text (this model summarizes texts)")),
        };
        prompts.iter().map(messages).collect()
    }

    /// Returns the options of sampling, if the request has a temperature above 0. Beams are searched otherwise, and options of
    /// sampling that would change a text are refused.
    fn summary_sampling(&self) -> Result<Option<v1::Sampling>> {
        let top_k = self.top_k()?;
        if self.temperature.is_none_or(|temperature| temperature == 0.0) {
            let biases = self.logit_bias.0.len();
            for (field, found) in [
                ("logit_bias", (biases > 0).then(|| format!("{biases} biases"))),
                ("top_p", self.top_p.filter(|p| *p != 1.0).map(|p| p.to_string())),
                ("top_k", top_k.filter(|k| *k != 0).map(|k| k.to_string())),
                ("min_p", self.min_p.filter(|p| *p != 0.0).map(|p| p.to_string())),
            ] {
                if let Some(found) = found {
                    return Err(Error::bad_option(field, found, "no value without a temperature above 0"));
                }
            }
            return Ok(None);
        }
        Ok(Some(v1::Sampling {
            temperature: self.temperature,
            top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: None,
            seed: self.seed.map(|seed| seed.0),
            logit_bias: self.logit_biases(),
        }))
    }

    /// Fails if an option is set that summaries do not have.
    fn reject_unsummarized(&self) -> Result<()> {
        let is_true = |flag: Option<bool>| flag.filter(|flag| *flag).map(|flag| flag.to_string());
        for (field, found) in [
            ("echo", is_true(self.echo)),
            ("ignore_eos", is_true(self.ignore_eos)),
            ("boundaries", is_true(self.boundaries)),
            ("boundary_mode", self.boundary_mode.as_deref().map(quoted)),
            ("logprobs", self.logprobs.map(|count| count.to_string())),
            ("max_segments", self.max_segments.map(|count| count.to_string())),
            ("stop", self.stop.0.first().map(|stop| quoted(stop))),
            ("speculate", self.speculate.as_ref().map(|Speculate(setting)| quoted(setting))),
            ("resume_text", self.resume_text.as_deref().filter(|text| !text.is_empty()).map(quoted)),
        ] {
            if let Some(found) = found {
                return Err(Error::bad_option(field, found, "no value (this model summarizes the prompt)"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::summarize_request::Part;

    /// Returns the options and the text of each call.
    fn calls(body: &str) -> Result<Vec<(v1::SummarizeOptions, String)>> {
        let request = CompletionRequest::parse(body.as_bytes(), "the body")?;
        let call = |messages: Vec<SummarizeRequest>| {
            let mut options = None;
            let mut text = String::new();
            for message in messages {
                match message.part.unwrap() {
                    Part::Options(own) => options = Some(own),
                    Part::Chunk(chunk) => text.push_str(&chunk.text),
                }
            }
            (options.unwrap(), text)
        };
        Ok(request.summarize_requests("flan")?.into_iter().map(call).collect())
    }

    #[test]
    fn a_prompt_is_a_document() {
        let all = calls(r#"{"prompt": ["a", "b"], "n": 2, "max_tokens": 9, "temperature": 0, "seed": 3}"#).unwrap();
        let [(options, first), (_, second)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("a", "b"));
        assert_eq!((options.model.as_deref(), options.beam_size, options.hypotheses), (Some("flan"), None, Some(2)));
        assert_eq!((options.max_tokens, &options.sampling), (Some(9), &None));
        let (options, _) = &calls(r#"{"prompt": "a", "best_of": 6, "early_stopping": "never"}"#).unwrap()[0];
        assert_eq!((options.beam_size, options.hypotheses, options.max_tokens), (Some(6), Some(1), None));
        assert_eq!(options.early_stopping.as_deref(), Some("never"));
        let (options, _) = &calls(r#"{"prompt": "a", "temperature": 0.7, "repetition_penalty": 2}"#).unwrap()[0];
        assert_eq!(options.sampling.as_ref().unwrap().temperature, Some(0.7));
        assert_eq!((options.beam_size, options.repetition_penalty), (None, Some(2.0)));
    }

    #[test]
    fn long_prompts_are_refused_cut_or_summarized_in_parts() {
        let chosen = |name: &str| {
            let all = calls(&format!(r#"{{"prompt": "a", "long_documents": "{name}"}}"#));
            all.map(|all| all[0].0.long_documents())
        };
        assert_eq!(chosen("refuse").unwrap(), v1::LongDocuments::Refuse);
        assert_eq!(chosen("cut").unwrap(), v1::LongDocuments::Cut);
        assert_eq!(chosen("chunk").unwrap(), v1::LongDocuments::Chunk);
        assert!(chosen("all").is_err());
    }

    #[test]
    fn options_without_meaning_are_refused() {
        for (body, field) in [
            ("{}", "prompt"),
            (r#"{"prompt": [3, 4]}"#, "prompt"),
            (r#"{"prompt": "a", "echo": true}"#, "echo"),
            (r#"{"prompt": "a", "logprobs": 1}"#, "logprobs"),
            (r#"{"prompt": "a", "stop": "."}"#, "stop"),
            (r#"{"prompt": "a", "n": 3, "best_of": 2}"#, "best_of"),
            (r#"{"prompt": "a", "n": 65}"#, "n"),
            (r#"{"prompt": "a", "logit_bias": {"5": 1}}"#, "logit_bias"),
            (r#"{"prompt": "a", "suffix": "b"}"#, "suffix"),
            (r#"{"prompt": "a", "top_p": 0.9}"#, "top_p"),
            (r#"{"prompt": "a", "top_k": 5}"#, "top_k"),
            (r#"{"prompt": "a", "top_k": -5}"#, "top_k"),
            (r#"{"prompt": "a", "boundary_mode": "given"}"#, "boundary_mode"),
            (r#"{"prompt": "a", "resume_text": "b"}"#, "resume_text"),
        ] {
            match calls(body) {
                Err(Error::BadOption { field: found, .. }) => assert_eq!(found, field, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert!(calls(r#"{"prompt": "a", "early_stopping": "sometimes"}"#).is_err());
    }
}
