//! The playground's tabs, settings, history and errors.

use super::{Browser, DONE, END, ESCAPE, HOME, OVERFLOW, RIGHT, START, two_models, url};
use crate::{
    process::Server,
    support::{converted, hnet_converted},
};
use serde_json::json;

/// Starts both models' run of `characters` and waits for its end.
fn compare(browser: &Browser, characters: u32) {
    browser.until("document.getElementById('model-a').options.length == 2");
    browser.evaluate("document.getElementById('model-a').value = 'whitespaces'");
    browser.evaluate("document.getElementById('model-b').value = 'vanilla'");
    browser.evaluate(&format!("document.getElementById('max').value = {characters}"));
    browser.click("#go");
    browser.until(DONE);
}

#[test]
fn the_playground_generates_and_shows_details() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&url(&server));
    compare(&browser, 300);
    // Both models show the prompt and 300 characters, and a dot for each observed gap.
    for panel in [1, 2] {
        let panel_element =
            |what: &str| browser.evaluate(&format!("document.querySelector('#panels > :nth-child({panel}) {what}"));
        assert_eq!(panel_element(".text').textContent.length"), 319);
        let plotted = panel_element("svg').querySelectorAll('circle, rect').length").as_u64().unwrap();
        let together = panel_element("dl').lastElementChild.lastElementChild.textContent");
        assert_eq!(plotted + together.as_str().unwrap().parse::<u64>().unwrap(), 299);
    }
    // Both plots have one scale, and words say which model is faster.
    let scales = browser.evaluate(
        "[...document.querySelectorAll('#panels svg')].map(svg => [...svg.querySelectorAll('text')].map(text => text.textContent).join())",
    );
    assert_eq!(scales[0], scales[1]);
    let words = browser.text("#verdict .words");
    assert!(words.contains("as many characters a second"), "{words}");
    let facts = browser.text("#facts-a");
    assert!(facts.starts_with("whitespaces: ") && facts.contains(" parameters · f32 · up to "), "{facts}");
    // Segments of the pooled model end with spaces, where the colour changes.
    let ends = browser
        .evaluate("[...document.querySelectorAll('.panel:first-child .ends')].map(end => end.textContent).join('')");
    assert!(ends.as_str().unwrap().chars().all(|end| end == ' ') && !ends.as_str().unwrap().is_empty(), "{ends}");
    let colours = browser.evaluate(
        "[...document.querySelectorAll('.panel:first-child .text span')].slice(3, 5).map(element => element.className[1])",
    );
    assert_eq!(colours, json!(["0", "1"]));
    assert_eq!(browser.evaluate("document.querySelectorAll('#panels > :nth-child(2) .ends').length"), 0);
    // The keyboard selects the second character.
    browser.click(".text");
    browser.keys(".text", HOME);
    browser.keys(".text", RIGHT);
    let about = browser.text("#panels .about");
    assert!(about.starts_with("\"h\" · log-probability -") && about.contains("within a segment"), "{about}");
    browser.picture("playground-light.png");
    // A long text scrolls to the character that the keyboard selects.
    browser.evaluate("document.querySelector('.text').style.maxHeight = '3rem'");
    for key in [END, HOME] {
        browser.keys(".text", key);
        let seen = browser.evaluate(
            "[document.querySelector('.text'), document.querySelector('.here')].map(element => element.getBoundingClientRect())
                .reduce((box, here) => here.top >= box.top - 1 && here.bottom <= box.bottom + 1)",
        );
        assert_eq!(seen, true);
    }
    browser.set_width(420);
    assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than the page");
    browser.picture("playground-narrow.png");
}

/// Colours are chunks of the second level, shades those of the first.
#[test]
fn the_playground_shades_nested_chunks() {
    for dark in [false, true] {
        let Some(browser) = Browser::start(dark) else { return };
        let model = hnet_converted("two_stage").to_string_lossy().into_owned();
        let server = Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &model]);
        browser.open(&url(&server));
        browser.until("document.getElementById('model-a').options.length == 1");
        browser.evaluate("document.getElementById('max').value = 60");
        let prompt = "Chunks of été, 東京, begin where bytes differ.";
        browser.evaluate(&format!("document.getElementById('prompt').value = {}", json!(prompt)));
        browser.click("#go");
        browser.until(DONE);
        // a byte shows its character, and the text is copied as it is
        let text = "document.querySelector('#panels .text').textContent";
        assert_eq!(browser.evaluate(&format!("{text}.slice(0, {})", prompt.chars().count())), prompt);
        browser.evaluate("window.copy = async text => { window.copied = text; }, null");
        browser.click("#panels .title button");
        assert_eq!(browser.evaluate(&format!("window.copied === {text} && !{text}.includes('\\\\x')")), true);
        let words = r#"[['bytes:\\xc3', 'é'], ['bytes:\\xe2\\x80'], ['a', 'a']].map(([token, letters]) => symbolWords(token, letters))"#;
        assert_eq!(browser.evaluate(words), json!(["byte C3 of \"é\"", "bytes E2 80", "\"a\""]));
        // the depth of each character as its classes show it, with colour and shade
        let shown = browser.evaluate(
            "[...document.querySelectorAll('#panels .text span')].map(span => [
                span.classList.contains('d2') ? 2 : span.classList.contains('d1') ? 1 : 0, span.className.split(' ')[0],
                span.className.split(' ')[1], getComputedStyle(span).backgroundColor])",
        );
        let shown = shown.as_array().unwrap();
        assert!(shown.len() > 60, "{shown:?}");
        let count = |depth| shown.iter().filter(|character| character[0].as_u64().unwrap() >= depth).count();
        assert!(count(1) > count(2) && count(2) > 1, "{shown:?}");
        for pair in shown.windows(2) {
            let [before, after] = pair else { panic!() };
            assert_eq!(before[1] != after[1], after[0] == 2, "the colour changes with a chunk of level 2: {pair:?}");
            assert_eq!(before[2] != after[2], after[0].as_u64() > Some(0), "the shade with any chunk: {pair:?}");
            assert_eq!(before[3] != after[3], after[0].as_u64() > Some(0), "and so what is seen: {pair:?}");
        }
        let figures = browser.text("#panels dl");
        assert!(figures.contains(&format!("{} · {}", count(1), count(2))), "{figures}");
        let key = browser.text("#panels .levels");
        assert!(key.contains("a chunk of level 1 begins") && key.contains("a chunk of level 2 begins"), "{key}");
        browser.click(".text");
        browser.keys(".text", HOME);
        assert!(browser.text("#panels .about").contains("begins a chunk of levels 1 to 2"));
        browser.picture(if dark { "playground-chunks-dark.png" } else { "playground-chunks-light.png" });
        assert_eq!(browser.severe_log_entries(), Vec::<serde_json::Value>::new());
    }
}

#[test]
fn the_playground_keeps_settings_in_links_and_texts_in_a_history() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    let page = url(&server);
    browser.open(&page);
    browser.until("document.getElementById('model-a').options.length == 2");
    browser.click("#prompts button");
    browser.click("#sampling summary");
    browser.evaluate("document.getElementById('top-p').value = '0.5'");
    compare(&browser, 9);
    browser.evaluate("document.getElementById('stop-strings').value = 'zq\\\\n\\n&x'");
    let text = browser.text("#panels .text");
    browser.click("#link");
    browser.until("document.getElementById('status').textContent.includes('the prompt and the settings')");
    let link = browser.evaluate("location.href");
    // The link fills the same settings in another page, and the history shows the text again.
    browser.open("about:blank");
    browser.open(link.as_str().unwrap());
    browser.until("document.getElementById('model-b').value == 'vanilla'");
    let settings =
        "['prompt', 'model-a', 'max', 'top-p', 'seed', 'stop-strings'].map(id => document.getElementById(id).value)";
    assert_eq!(browser.evaluate(settings), json!(["the history of the ", "whitespaces", "9", "0.5", "1", "zq\\n\n&x"]));
    assert_eq!(browser.evaluate("stopStrings()"), json!(["zq\n", "&x"]));
    browser.click("#history summary");
    browser.click("#runs button");
    browser.until("document.querySelectorAll('#panels .text').length == 2");
    assert_eq!(browser.text("#panels .text"), text);
    // A link can name a model that is not served.
    browser.open("about:blank");
    browser.open(&format!("{page}#tab=generate&model=gone&temperature=0.2"));
    browser.until("!document.getElementById('link-problem').hidden");
    let problem = "This server does not have the model gone: the page uses whitespaces.";
    assert_eq!(browser.text("#link-problem"), problem);
    assert_eq!(
        browser.evaluate("['temperature', 'model-a'].map(id => document.getElementById(id).value)"),
        json!(["0.2", "whitespaces"])
    );
    // The history has at most 20 texts, and can be deleted.
    browser.evaluate("writeHistory(Array(30).fill(readHistory()[0])), null");
    assert_eq!(browser.evaluate("readHistory().length"), 20);
    browser.click("#history summary");
    browser.click("#forget");
    assert_eq!(browser.evaluate("[readHistory().length, document.querySelectorAll('#runs li').length]"), json!([0, 0]));
    assert_eq!(browser.severe_log_entries(), Vec::<serde_json::Value>::new());
}

#[test]
fn the_playground_can_be_stopped_and_shows_errors() {
    let Some(browser) = Browser::start(false) else { return };
    let mut server = two_models();
    browser.open(&url(&server));
    browser.until("document.getElementById('model-a').options.length == 2");
    // The keyboard alone can start and stop a run.
    browser.evaluate("document.getElementById('max').value = 1900");
    browser.keys("#prompt", START);
    browser.until("document.querySelectorAll('.text span').length > 30");
    browser.keys("#prompt", ESCAPE);
    browser.until("['Stopped.', 'Done.'].includes(document.getElementById('status').textContent)");
    // A second request during a run is ignored, and the run can be stopped.
    browser.evaluate(
        "window.calls = 0, window.asks = window.fetch, window.fetch = (_, { signal }) => new Promise((_, refuse) => {
            window.calls += 1;
            signal.addEventListener('abort', () => refuse(signal.reason));
        }), null",
    );
    browser.keys("#prompt", START);
    browser.keys("#prompt", START);
    assert_eq!(browser.evaluate("window.calls"), 1);
    browser.keys("#prompt", ESCAPE);
    browser.until("document.getElementById('status').textContent == 'Stopped.'");
    browser.answer_no_more();
    // An invalid option shows an error, and its input is marked.
    browser.evaluate("document.getElementById('max').value = 1000000000");
    browser.click("#go");
    browser.until(
        "document.getElementById('status').textContent.startsWith('Characters: enter a whole number from 0 to ')",
    );
    assert_eq!(browser.evaluate("document.querySelector('[aria-invalid]').id"), "max");
    browser.evaluate("document.getElementById('max').value = 300");
    // The log contains only the server's refusal.
    let log_errors = browser.severe_log_entries();
    assert!(log_errors.iter().all(|entry| entry["message"].as_str().unwrap().contains("400")), "{log_errors:?}");
    // Other failures have words of the page.
    let refusal = |status: u32, rest: &str| {
        format!("new Response('{{\"error\": {{\"message\": \"m\"}}}}', {{ status: {status}, {rest} }})")
    };
    let lists = r#"{"tokens": ["a", "<img src=x>"], "text_offset": [0, 1], "token_logprobs": [], "boundaries": [], "boundary_probabilities": [], "top_logprobs": []}"#;
    let failing = r#"new Response('data: {"error": {"message": "m", "type": "server_error"}}\n\n')"#.to_owned();
    let cut = format!(r#"new Response('data: {{"choices": [{{"text": "a<img src=x>", "logprobs": {lists}}}]}}\n\n')"#);
    for (response, words) in [
        (
            refusal(429, "headers: { 'retry-after': '2' }"),
            "The server is busy and takes no more requests now. Try again in 2 seconds.",
        ),
        (refusal(503, ""), "The server takes no requests now: it is starting, stopping or full. Try again later."),
        (refusal(500, ""), "The server failed: m."),
        ("new Response('<html>', { status: 502 })".into(), "The server answered with status 502 and no reason."),
        (failing, "The server ended the text early: m."),
        (cut, "The connection to the server broke. The text is incomplete."),
    ] {
        browser.answer_with(&response);
        browser.keys("#prompt", START);
        browser.until(&format!("document.getElementById('status').textContent == {}", json!(words)));
    }
    // Whatever a model writes is text.
    assert_eq!(browser.text("#panels .text"), "a<img src=x>");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    browser.answer_no_more();
    server.program.signal("KILL");
    server.program.wait();
    browser.keys("#prompt", START);
    browser.until("document.getElementById('status').textContent.startsWith('No server answers at 127.0.0.1')");
}

#[test]
fn the_playground_asks_for_a_key_and_has_a_dark_theme() {
    let Some(browser) = Browser::start(true) else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alice:a-key-that-alice-has\n").unwrap();
    let model = converted("whitespaces").to_string_lossy().into_owned();
    let keys = keys.to_string_lossy().into_owned();
    let server =
        Server::start(&["--http-listen", "127.0.0.1:0", "--threads", "1", "--model", &model, "--api-keys", &keys]);
    browser.open(&url(&server));
    browser.until("document.getElementById('status').textContent.startsWith('This server needs an API key')");
    browser.keys("#key", "another\t");
    browser
        .until("document.getElementById('status').textContent.startsWith('The server does not accept this API key')");
    browser.evaluate("document.getElementById('key').value = ''");
    browser.keys("#key", "a-key-that-alice-has\t");
    browser.until("document.getElementById('model-a').options.length == 1");
    browser.click("#go");
    browser.until(DONE);
    browser.click("#link");
    let stored = browser.evaluate("JSON.stringify(localStorage) + location.href");
    assert!(!stored.as_str().unwrap().contains("alice"), "{stored}");
    let dark = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    assert_eq!(dark, "rgb(22, 24, 27)");
    browser.picture("playground-dark.png");
    // The other tab shows that no model fits it.
    browser.click("#tab-summarize");
    assert_eq!(browser.evaluate("document.getElementById('no-readers').hidden"), false);
    browser.picture("playground-summary-dark.png");
}
