//! The playground's own words for what it or the server refuses, and what a failed run leaves.

use super::{super::summaries, Browser, OVERFLOW, two_models, url};
use crate::{process::Server, support::converted};
use serde_json::{Value, json};

/// Fills inputs, starts a run, waits for its end, and returns the status.
fn run(browser: &Browser, ids: (&str, &str), values: &[(&str, &str)]) -> String {
    let (go, status) = ids;
    for (id, value) in values {
        browser.evaluate(&format!("(document.getElementById('{id}').value = {}, null)", json!(value)));
    }
    browser.evaluate(&format!("(showFacts(), document.getElementById('{go}').click(), null)"));
    browser.until("!generation.stopping && !summary.stopping");
    browser.text(&format!("#{status}"))
}

/// Returns the id of the marked input.
fn marked(browser: &Browser) -> Value {
    browser.evaluate("[...document.querySelectorAll('[aria-invalid]')].map(input => input.id).join()")
}

#[test]
fn refused_settings_of_a_completion_have_the_pages_words() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&url(&server));
    browser.until("document.getElementById('model-a').options.length == 2");
    let limit = browser.evaluate("shown(served.get('whitespaces').max_model_len, 0)");
    let limit = limit.as_str().unwrap();
    let length = format!("Characters: enter a whole number from 0 to {limit}.");
    let above = "Top-p: enter a number above 0 and at most 1, or nothing for the model's default.";
    let seed = "Seed: enter a whole number from 0 to 18,446,744,073,709,551,615, or nothing for a random one.";
    let long_prompt = format!("Prompt: too long. The server takes at most {limit} characters");
    let usual =
        [("prompt", "the "), ("max", "5"), ("temperature", ""), ("top-p", ""), ("seed", "1"), ("stop-strings", "")];
    for (id, value, words) in [
        ("max", "", length.as_str()),
        ("max", "-1", &length),
        ("max", "1.5", &length),
        ("max", "1000000", &length),
        ("temperature", "-1", "Temperature: enter a number from 0 to 100, or nothing for the model's default."),
        ("top-p", "0", above),
        ("top-p", "1.01", above),
        ("seed", "18446744073709551616", seed),
        ("stop-strings", &"a\n".repeat(17), "Stop strings: enter at most 16 lines, not 17."),
        ("stop-strings", &"a".repeat(257), "Stop strings: enter at most 256 characters a line, not 257."),
        // What only the server knows.
        ("prompt", "", "Prompt: enter a text that the model continues."),
        ("prompt", &"a".repeat(20_000), &long_prompt),
    ] {
        let status = run(&browser, ("go", "status"), &[&usual[..], &[(id, value)]].concat());
        assert!(status.starts_with(words), "{id} {value:.20}: {status}");
        assert_eq!(marked(&browser), id);
        assert_eq!(browser.evaluate("document.activeElement.id"), id);
        assert_eq!(browser.evaluate("document.querySelectorAll('#panels > *').length"), 0, "an empty result stays");
        assert_eq!(browser.evaluate("document.getElementById('hint').hidden"), true);
    }
    let status = run(&browser, ("go", "status"), &[&usual[..], &[("seed", "18446744073709551615")]].concat());
    assert_eq!((status.as_str(), marked(&browser)), ("Done.", json!("")));
    // A length that both models have.
    browser.evaluate(
        "(document.getElementById('model-b').value = 'vanilla', served.get('vanilla').max_model_len = 7, null)",
    );
    let status = run(&browser, ("go", "status"), &[("max", "8")]);
    assert_eq!(status, "Characters: enter a whole number from 0 to 7.");
    // Rules that the page does not know.
    let words = |message: &str, code: &str, field: &str| {
        browser.evaluate(&format!("refusalWords({}, {field})", json!({ "message": message, "code": code })))
    };
    let prompt = "GENERATION_FIELDS.prompt";
    for (message, code, field, expected) in [
        (
            "prompt: expected symbols of the model's vocabulary, found 'é' at character 5",
            "unknown_symbol",
            prompt,
            "Prompt: the model has no symbol for 'é' (character 6).",
        ),
        (
            "max_tokens: expected 0 to 4096, found 9000",
            "bad_option",
            prompt,
            "Prompt: the server takes 0 to 4,096, not 9,000.",
        ),
        (
            "logprobs: expected 0 to 2, found 3",
            "bad_option",
            "undefined",
            "The server refused the request: logprobs: expected 0 to 2, found 3.",
        ),
    ] {
        assert_eq!(words(message, code, field), expected);
    }
}

#[test]
fn refused_settings_of_a_summary_have_the_pages_words() {
    let Some(browser) = Browser::start(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let reader = summaries::write_random_model(folder.path());
    let server = Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &reader]);
    browser.open(&url(&server));
    browser.until("document.getElementById('summary-model').options.length == 1");
    browser.evaluate("(document.getElementById('cut').checked = false, null)");
    let longest = browser.evaluate("String([...served.values()][0].documents.max_summary_tokens)");
    let most = browser.evaluate("[...served.values()][0].documents.max_tokens");
    let longest = longest.as_str().unwrap();
    let facts = browser.text("#facts-summary");
    assert!(facts.contains(&format!("documents of up to {most} tokens, plus the end token")), "{facts}");
    let usual = [("document", "the rest is"), ("beam", ""), ("min-tokens", ""), ("max-tokens", "3")];
    let minimum =
        format!("Minimum tokens: enter a whole number from 0 to {longest}, or nothing for the model's default.");
    let long = format!("Document: too long. The server takes at most {most} tokens");
    for (id, value, words) in [
        ("beam", "0", "Beam: enter a whole number of at least 1, or nothing for the model's default."),
        ("beam", "1000", "Beam: the server takes 1 to "),
        ("min-tokens", "1000", &minimum),
        ("min-tokens", "4", "Minimum tokens: the server takes 0 to 3, not 4."),
        ("document", &"the rest is ".repeat(600), &long),
    ] {
        let status = run(&browser, ("summary-go", "summary-status"), &[&usual[..], &[(id, value)]].concat());
        assert!(status.starts_with(words), "{id} {value:.20}: {status}");
        assert_eq!(
            (marked(&browser), browser.evaluate("document.getElementById('results').hidden")),
            (json!(id), json!(true))
        );
    }
    // A document that is read to the limit: the figure is the one that the model's facts state.
    browser.evaluate("(document.getElementById('cut').checked = true, null)");
    let text = "the rest is ".repeat(600);
    let whole = [&usual[..], &[("document", text.as_str())]].concat();
    assert_eq!(run(&browser, ("summary-go", "summary-status"), &whole), "Done.");
    let figures = browser.text("#summary-figures");
    assert!(figures.contains(&format!("document tokens read{most}, the model's limit")), "{figures}");
    let percents = "[[4, 497, 499], [995, 5, 0], [1, 1, 1], [0, 9, 0], [29, 35, 37]].map(wholePercents)";
    let expected = json!([
        ["under 1 %", "50 %", "50 %"],
        ["over 99 %", "under 1 %", "0 %"],
        ["34 %", "33 %", "33 %"],
        ["0 %", "100 %", "0 %"],
        ["29 %", "35 %", "36 %"]
    ]);
    assert_eq!(browser.evaluate(percents), expected);
}

#[test]
fn changed_characters_of_a_prompt_are_counted() {
    let Some(browser) = Browser::start(false) else { return };
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/models/compared/hourglass-whitespace-english");
    let plain = converted("whitespaces").to_string_lossy().into_owned();
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", model, "--model", &plain];
    let server = Server::start(&flags);
    browser.open(&url(&server));
    browser.until("document.getElementById('model-a').options.length == 2");
    let usual =
        [("model-a", "hourglass-whitespace-english"), ("model-b", "hourglass-whitespace-english"), ("max", "300")];
    let prompt = |text| [&usual[..], &[("prompt", text)]].concat();
    assert_eq!(run(&browser, ("go", "status"), &prompt("The Old City ")), "Done.");
    let notes = "[...document.querySelectorAll('#panels .changed')].map(note => note.textContent)";
    let three = "3 characters of the prompt were replaced or dropped to fit the model's alphabet.";
    assert_eq!(browser.evaluate(notes), json!([three, three]));
    assert!(browser.text("#panels .text").starts_with("the old city "));
    // The edges of segments at the ends of lines are within the text.
    for width in [420, 700, 1280] {
        browser.set_width(width);
        assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than {width} pixels");
        let bar = "[...document.querySelectorAll('#panels .text')].map(text => text.offsetHeight - text.clientHeight)";
        assert_eq!(browser.evaluate(bar), json!([2, 2]), "a horizontal scrollbar at {width} pixels");
    }
    run(&browser, ("go", "status"), &prompt("The old "));
    let one = "1 character of the prompt was replaced or dropped to fit the model's alphabet.";
    assert_eq!(browser.evaluate(notes), json!([one, one]));
    run(&browser, ("go", "status"), &prompt("the old "));
    assert_eq!(browser.evaluate(notes), json!(["", ""]));
    assert_eq!(browser.severe_log_entries(), Vec::<Value>::new());
}
