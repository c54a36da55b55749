//! Prompts of token ids, and the requests of lm-eval's `local-completions`.

use super::{Server, fake_model::SYMBOLS, http::Both, long, reason};
use serde_json::{Value, json};
use weir_proto::v1::GenerateRequest;

/// Returns the ids of a text in the fake model's vocabulary.
fn ids(text: &str) -> Vec<u32> {
    let id = |character: char| SYMBOLS.iter().position(|symbol| symbol.starts_with(character)).unwrap();
    text.chars().map(|character| id(character) as u32).collect()
}

#[tokio::test]
async fn a_prompt_of_ids_equals_its_text() {
    let server = Server::new().await;
    let expected = server.answer(long("ab é", 40)).await.unwrap();
    let answer = server.answer(GenerateRequest { prompt_ids: ids("ab é"), ..long("", 40) }).await.unwrap();
    assert_eq!(answer.text(), expected.text());
    assert_eq!((answer.started.prompt_chars, answer.started.prompt_text_chars()), (4, 4));
    let both = GenerateRequest { prompt_ids: ids("a"), ..long("a", 40) };
    assert_eq!(reason(&server.answer(both).await.unwrap_err()), "EXCLUSIVE_OPTIONS");
    server.at_rest().await;
}

/// The body that lm-eval 0.4.11 sends for two requests of a batch: contexts with their continuations, as ids.
fn loglikelihoods() -> Value {
    json!({
        "model": "fake", "prompt": [ids("ab c"), ids("d ea")], "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": true,
    })
}

#[tokio::test]
async fn lm_eval_reads_loglikelihoods() {
    let server = Both::new().await;
    let answer = server.post(&loglikelihoods()).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (choice, (text, context)) in choices.iter().zip([("ab c", 2), ("d ea", 3)]) {
        // As `LocalCompletionsAPI.parse_logprobs`: the last entry is the generated token.
        let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
        let end = list("token_logprobs").len() - 1;
        assert_eq!((end, list("top_logprobs").len() - 1), (4, 4));
        let continuation = &list("token_logprobs")[context..end];
        let sum: f64 = continuation.iter().map(|logprob| logprob.as_f64().unwrap()).sum();
        let best = list("top_logprobs");
        let is_greedy = continuation.iter().zip(&best[context..end]).all(|(logprob, top)| {
            let likeliest = top.as_object().unwrap().values().map(|top| top.as_f64().unwrap()).fold(f64::MIN, f64::max);
            logprob.as_f64() == Some(likeliest)
        });
        // The same from a request with the text instead of the ids.
        let body = json!({ "prompt": text, "max_tokens": 0, "echo": true, "logprobs": 1 });
        let alone = server.post(&body).await.json()["choices"][0]["logprobs"].clone();
        let expected = alone["token_logprobs"].as_array().unwrap()[context..].iter();
        assert_eq!(sum, expected.map(|logprob| logprob.as_f64().unwrap()).sum::<f64>());
        // The generated token is listed next to the likeliest one, unless it is that.
        let likeliest = (context..end).all(|place| alone["top_logprobs"][place].as_object().unwrap().len() == 1);
        assert_eq!(is_greedy, likeliest);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn lm_eval_generates_until_a_stop_string() {
    let server = Both::new().await;
    let body = json!({
        "model": "fake", "prompt": [ids("ab c")], "max_tokens": 30, "temperature": 0.0, "seed": 1234,
        "stop": ["\n\n", "Question:", "</s>"],
    });
    let answer = server.post(&body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    let by_text = json!({ "prompt": "ab c", "max_tokens": 30, "temperature": 0 });
    assert_eq!(answer["choices"][0]["text"], server.post(&by_text).await.json()["choices"][0]["text"]);
    assert_eq!(answer["usage"]["normalized_chars"], 0);
    server.at_rest().await;
}
