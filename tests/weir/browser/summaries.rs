//! The tab that summarizes documents.

use super::{super::summaries::write_random_model, Browser, ESCAPE, OVERFLOW, RIGHT, START, url};
use crate::{process::Server, support::converted};
use serde_json::{Value, json};

/// Replaces the page's requests: `send` sends an event of a response, and stopping the request breaks it.
const STREAM: &str = "window.asks = window.asks || window.fetch, window.fetch = async (_, { signal }) => new Response(new ReadableStream({
    start(stream) {
        window.send = event => stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`));
        signal.addEventListener('abort', () => stream.error(signal.reason));
    },
})), null";

/// Script that returns what the page shows of a document: its parts with their texts, the bar's parts with their shares in percent, the
/// names of the parts with their swatches, and the bar's accessible properties.
const SHOWN: &str = "({
    text: [...document.querySelectorAll('#read > .cut, #read > span > *')].filter(part => part.textContent)
        .map(part => [part.className, part.textContent]),
    bar: [...document.querySelectorAll('#bar rect')].map(part => [part.getAttribute('class').slice('part-'.length),
        Number(part.getAttribute('width')) / 10]),
    shares: [...document.querySelectorAll('#shares li')].map(share => share.textContent),
    role: document.getElementById('bar').role,
    label: document.getElementById('bar').ariaLabel,
    value: document.getElementById('bar').ariaValueNow,
    words: document.getElementById('bar').ariaValueText,
})";

/// Starts a summary of a text whose response the test sends.
fn start(browser: &Browser, text: &str) {
    browser.evaluate(&format!("document.getElementById('document').value = {}", json!(text)));
    browser.evaluate("delete window.send, null");
    browser.evaluate(STREAM);
    browser.keys("#document", START);
    browser.until("window.send !== undefined");
}

/// Sends an event, waits until the status begins with `status`, and returns what the page then shows.
fn sent(browser: &Browser, event: &Value, status: &str) -> Value {
    browser.evaluate(&format!("window.send({event}), null"));
    shown(browser, status)
}

/// Waits until the status begins with `status`, and returns what the page shows once it has drawn all changes.
fn shown(browser: &Browser, status: &str) -> Value {
    let status = json!(status);
    browser.until(&format!("document.getElementById('summary-status').textContent.startsWith({status})"));
    browser.evaluate(&format!(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({SHOWN}))))"
    ))
}

fn progress(encoded: u32, total: Option<u32>, document_bytes: u32, cut: bool) -> Value {
    let stage = if Some(encoded) == total { "done" } else { "layer" };
    json!({ "progress": { "stage": stage, "layer": 0, "tokens_read": document_bytes, "blocks_encoded": encoded, "blocks_total": total,
        "document_bytes": document_bytes, "cut": cut } })
}

#[test]
fn the_playground_summarizes() {
    let Some(browser) = Browser::start(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let reader = write_random_model(folder.path());
    let writer = converted("whitespaces").to_string_lossy().into_owned();
    let flags = ["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &reader, "--model", &writer];
    let server = Server::start(&flags);
    browser.open(&url(&server));
    browser.until("document.getElementById('summary-model').options.length == 1");
    // Each tab lists only its kind of models.
    assert_eq!(browser.evaluate("document.getElementById('model-a').options.length"), 1);
    // The keyboard switches to the other tab.
    browser.keys("#tab-generate", RIGHT);
    browser.until("document.getElementById('generating').hidden && !document.getElementById('summarizing').hidden");
    assert_eq!(browser.evaluate("document.activeElement.id"), "tab-summarize");
    // The server refuses an empty document, after its first event. The page shows the reason at the document, and no empty result.
    browser.click("#summary-go");
    browser.until("document.querySelector('#summary-status.error') !== null");
    assert_eq!(browser.text("#summary-status"), "Document: enter a text, or choose a file.");
    assert_eq!(browser.evaluate("document.querySelector('[aria-invalid]').id"), "document");
    assert_eq!(browser.evaluate("document.getElementById('results').hidden"), true);
    // The document comes from a file.
    let file = folder.path().join("document.txt");
    let text = "the café is pooling, the rest is going.";
    std::fs::write(&file, text).unwrap();
    browser.keys("#file", file.to_str().unwrap());
    browser.until("document.getElementById('document').value.length > 0");
    browser.click("#summary-options summary");
    browser.evaluate("document.getElementById('min-tokens').value = 5");
    browser.evaluate("document.getElementById('max-tokens').value = 9");
    browser.click("#summary-go");
    let done = "document.getElementById('summary-status').textContent == 'Done.'";
    browser.until(done);
    assert_eq!(browser.text("#read"), text, "the whole document is shown, whatever was kept of it");
    assert!(!browser.text("#summary").is_empty());
    let shares = browser.text("#shares");
    assert!(!shares.contains("not read"), "{shares}");
    assert_eq!(browser.evaluate("document.getElementById('bar').role"), "img");
    // Each pooling keeps a part of the spans that the previous pooling kept.
    let kept = "[...document.querySelectorAll('#read mark')].map(mark => mark.textContent).join('').length";
    let layers = browser.evaluate("document.querySelectorAll('#layers input').length").as_u64().unwrap();
    assert!(layers >= 1);
    let mut before = u64::MAX;
    for layer in 1..=layers {
        browser.click(&format!("#layers label:nth-of-type({layer}) input"));
        // the page draws in its next frame, before this one's callback
        browser.evaluate("(window.drawn = false, requestAnimationFrame(() => { window.drawn = true; }))");
        browser.until("window.drawn");
        let now = browser.evaluate(kept).as_u64().unwrap();
        assert!(now > 0 && now <= before, "layer {layer} keeps {now} of {before}");
        before = now;
    }
    browser.picture("playground-summary-light.png");
    // A document of a hundred times the limit: the page shows that nearly nothing was read.
    browser.evaluate("document.getElementById('document').value = 'the rest is '.repeat(600)");
    browser.keys("#document", START);
    browser.until(&format!("{done} && document.querySelector('.cut').textContent != ''"));
    assert_eq!(browser.evaluate("document.getElementById('read').textContent.length"), 7200);
    let cut = browser.evaluate("document.querySelector('.cut').textContent.length").as_f64().unwrap();
    // A part of less than half a percent is "under 1 %", and counts as nothing.
    let shares = browser.text("#shares").replace("under 1 %", "0 %");
    let shares: Vec<f64> = shares.split(" %").filter_map(|part| part.rsplit(' ').next()?.parse().ok()).collect();
    assert_eq!(shares.iter().sum::<f64>(), 100.0, "{shares:?}");
    assert!((shares[shares.len() - 1] - cut / 72.0).abs() < 1.0, "{cut} of {shares:?}");
    assert!(cut > 7000.0 && cut < 7200.0, "{cut}");
    let drawn = browser.evaluate("Number(document.querySelector('#bar .part-cut').getAttribute('width'))");
    assert!((drawn.as_f64().unwrap() - cut / 7.2).abs() < 0.01, "{drawn}");
    browser.set_width(420);
    assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than the page");
    browser.picture("playground-summary-narrow.png");
    // An invalid option shows an error.
    browser.evaluate("document.getElementById('max-tokens').value = 1000000");
    browser.keys("#document", START);
    browser.until("document.getElementById('summary-status').textContent.startsWith('Maximum tokens: enter a whole number from 1 to ')");
    let log_errors = browser.severe_log_entries();
    assert!(log_errors.iter().all(|entry| entry["message"].as_str().unwrap().contains("400")), "{log_errors:?}");
}

/// Opens the tab of a page whose server has one model.
fn open_tab(browser: &Browser, server: &Server) {
    browser.open(&url(server));
    browser.until("document.getElementById('summary-model').options.length == 1");
    browser.click("#tab-summarize");
}

/// Returns the summed texts of the parts of a kind, and their share of the bar in percent.
fn part(shown: &Value, kind: &str) -> (String, f64) {
    let of_kind = |list: &str| -> Vec<Value> {
        let all = shown[list].as_array().unwrap().iter();
        all.filter(|part| part[0] == kind).map(|part| part[1].clone()).collect()
    };
    let text = of_kind("text").iter().map(|text| text.as_str().unwrap()).collect();
    (text, of_kind("bar").iter().map(|share| share.as_f64().unwrap()).sum())
}

/// Checks that the bar is as long as the document, and that its accessible properties have the same parts.
fn assert_consistent(shown: &Value) {
    let bar = shown["bar"].as_array().unwrap().iter();
    let whole: f64 = bar.map(|part| part[1].as_f64().unwrap()).sum();
    assert!((whole - 100.0).abs() < 1e-6, "{shown}");
    let shares: Vec<&str> = shown["shares"].as_array().unwrap().iter().map(|share| share.as_str().unwrap()).collect();
    let words = shares.join(", ");
    if shown["role"] == "progressbar" {
        assert_eq!(shown["words"], words.as_str());
        let value: f64 = shown["value"].as_str().unwrap().parse().unwrap();
        assert!((value - part(shown, "read").1).abs() < 0.01, "{shown}");
    } else {
        assert_eq!((&shown["role"], &shown["value"], &shown["words"]), (&json!("img"), &Value::Null, &Value::Null));
        assert!(shown["label"].as_str().unwrap().ends_with(&words), "{shown}");
    }
}

#[test]
fn the_page_marks_what_was_read_so_far() {
    let Some(browser) = Browser::start(false) else { return };
    let folder = tempfile::tempdir().unwrap();
    let reader = write_random_model(folder.path());
    let server = Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &reader]);
    open_tab(&browser, &server);
    // 300 bytes, of which the model reads half
    let text = "aé".repeat(100);
    for end in ["stop", "error"] {
        start(&browser, &text);
        let none = shown(&browser, "Sending the document");
        assert_eq!(none["text"], json!([["ahead", text]]), "nothing is read");
        assert_consistent(&none);
        // the number of blocks, and the cut, are not known yet
        let early = sent(&browser, &progress(1, None, 90, false), "90 tokens received, 1 block encoded");
        assert_eq!((part(&early, "ahead"), &early["value"]), ((text.clone(), 100.0), &json!("0")));
        // 37 of 150 bytes: whole characters are marked
        let quarter = sent(&browser, &progress(1, Some(4), 150, true), "150 tokens received, 1 of 4 blocks");
        assert_consistent(&quarter);
        assert_eq!(part(&quarter, "read").0, "aé".repeat(12) + "a");
        assert!((part(&quarter, "read").1 - 37.0 / 3.0).abs() < 1e-6, "{quarter}");
        assert_eq!(part(&quarter, "cut"), ("aé".repeat(50), 50.0));
        assert_eq!(part(&quarter, "ahead").0, "é".to_owned() + &"aé".repeat(37));
        assert_eq!(quarter["shares"], json!(["read: 12 %", "not read yet: 38 %", "cut off, not read: 50 %"]));
        if end == "stop" {
            browser.picture("playground-summary-reading.png");
        }
        let half = sent(&browser, &progress(2, Some(4), 150, true), "150 tokens received, 2 of 4 blocks");
        assert_consistent(&half);
        assert_eq!(part(&half, "read"), ("aé".repeat(25), 25.0));
        let ended = if end == "stop" {
            browser.keys("#document", ESCAPE);
            shown(&browser, "Stopped.")
        } else {
            let error = json!({ "error": { "message": "m", "type": "server_error" } });
            sent(&browser, &error, "The server ended the text early: m.")
        };
        assert_consistent(&ended);
        assert_eq!(
            ended["text"],
            json!([["read", "aé".repeat(25)], ["unread", "aé".repeat(25)], ["cut", "aé".repeat(50)]])
        );
        assert_eq!(ended["shares"], json!(["read: 25 %", "not read: 25 %", "cut off, not read: 50 %"]));
        let lead = if end == "stop" { "Stopped" } else { "The request failed" };
        let outcome = format!("{lead} after the model had read 25 % of the document. It did not read the rest.");
        assert_eq!(browser.text("#outcome"), outcome);
        assert_eq!(browser.evaluate("document.getElementById('results').hidden"), false);
    }
    // A run that is stopped at once has read nothing.
    start(&browser, &text);
    browser.keys("#document", ESCAPE);
    assert_eq!(shown(&browser, "Stopped.")["text"], json!([["unread", text]]));
    assert_eq!(browser.text("#outcome"), "Stopped before the model had read any of the document.");
    assert_eq!(browser.severe_log_entries(), Vec::<Value>::new());
}

#[test]
fn read_cut_and_dropped_parts_look_different() {
    for dark in [false, true] {
        let Some(browser) = Browser::start(dark) else { return };
        let folder = tempfile::tempdir().unwrap();
        let reader = write_random_model(folder.path());
        let server = Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &reader]);
        open_tab(&browser, &server);
        let text = "0123456789".repeat(100);
        start(&browser, &text);
        sent(&browser, &progress(1, Some(4), 10, true), "10 tokens received, 1 of 4 blocks");
        // A pooling has compared all that the model reads, and keeps two characters of it.
        let spans = [2, 7].map(|start| json!({ "byte_start": start, "byte_end": start + 1, "score": 1.0 }));
        let selected = json!({ "selected": { "layer": 0, "tokens": 2, "spans": spans } });
        let kept = sent(&browser, &selected, "10 tokens received");
        assert_consistent(&kept);
        let parts = [["dropped", "01"], ["kept", "2"], ["dropped", "3456"], ["kept", "7"], ["dropped", "89"]];
        assert_eq!(kept["text"].as_array().unwrap()[..5], parts.map(|part| json!(part)));
        assert_eq!(part(&kept, "cut"), (text[10..].to_owned(), 99.0));
        let shares = ["kept at layer 0: under 1 %", "read, not kept: 1 %", "cut off, not read: 99 %"];
        assert_eq!(kept["shares"], json!(shares));
        let colours = browser.evaluate(
            "['mark', '.dropped', '.cut'].map(part => getComputedStyle(document.querySelector(`#read ${part}`)).backgroundColor)",
        );
        let colours = colours.as_array().unwrap();
        assert!(colours[0] != colours[1] && colours[1] != colours[2] && colours[2] != colours[0], "{colours:?}");
        let usage = json!({ "document_tokens": 11, "cut": true, "document_bytes": 10 });
        let finished = json!({ "finished": { "reason": "end_of_text", "usage": usage, "timing": {} } });
        browser.evaluate(&format!("window.send({finished}), null"));
        browser.until("document.getElementById('summary-figures').children.length > 0");
        assert_eq!(browser.evaluate(SHOWN)["bar"], kept["bar"], "the end changes nothing");
        browser.set_width(1280);
        browser.picture(if dark { "playground-summary-cut-dark.png" } else { "playground-summary-cut-light.png" });
        browser.set_width(420);
        assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than the page");
        browser.picture(if dark {
            "playground-summary-cut-dark-narrow.png"
        } else {
            "playground-summary-cut-narrow.png"
        });
    }
}
