//! The playground's links, its history, and inputs that it or the server refuses.

use super::{Browser, DONE, ESCAPE, START, two_models, url};
use serde_json::json;

const SERVED: &str = "document.getElementById('model-a').options.length == 2";
const IDLE: &str = "!generation.stopping";

fn status(browser: &Browser, text: &str) {
    browser.until(&format!("document.getElementById('status').textContent == {}", json!(text)));
}

fn set(browser: &Browser, id: &str, value: &str) {
    browser.evaluate(&format!("document.getElementById('{id}').value = {value}"));
}

#[test]
fn links_are_applied_once_and_hold_whole_prompts() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    let page = url(&server);
    browser.open(&page);
    browser.until(SERVED);
    // What the user writes after copying a link stays when the page reads the models again.
    set(&browser, "prompt", "'first'");
    browser.click("#link");
    browser.until("location.hash.includes('prompt=first')");
    set(&browser, "prompt", "'later'");
    browser.evaluate("chosen().run(models), null");
    browser.until(IDLE);
    assert_eq!(browser.evaluate("document.getElementById('prompt').value"), "later");
    // A link without the whole prompt is not made.
    set(&browser, "prompt", "'a'.repeat(20001)");
    browser.click("#link");
    status(&browser, "The prompt has 20,001 characters: links hold at most 20,000.");
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("prompt=first"));
    browser.evaluate("location.hash = 'tab=generate&seed=5&prompt=' + 'b'.repeat(20002), null");
    browser.until("!document.getElementById('link-problem').hidden");
    assert_eq!(browser.text("#link-problem"), "The link's prompt has 20,002 characters: links hold at most 20,000.");
    assert_eq!(
        browser.evaluate("['prompt', 'seed'].map(id => document.getElementById(id).value.length)"),
        json!([20001, 1])
    );
    // The next link has no problem.
    browser.evaluate("location.hash = 'tab=generate&seed=7', null");
    browser.until("document.getElementById('link-problem').hidden && document.getElementById('seed').value == '7'");
}

#[test]
fn inputs_in_closed_sections_are_shown_if_they_are_refused() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&format!("{}#tab=generate&temperature=200&max_tokens=3&seed=17657090610222322651", url(&server)));
    browser.until(&format!("{SERVED} && document.getElementById('temperature').value == '200'"));
    assert_eq!(browser.evaluate("document.getElementById('sampling').open"), false);
    browser.click("#go");
    let refused = "Temperature: enter a number from 0 to 100, or nothing for the model's default.";
    status(&browser, refused);
    assert_eq!(browser.evaluate("document.getElementById('sampling').open"), true);
    let marks =
        "['aria-invalid', 'aria-describedby'].map(name => document.getElementById('temperature').getAttribute(name))";
    assert_eq!(browser.evaluate(marks), json!(["true", "status"]));
    // Half of a number is not an empty field.
    browser.evaluate("document.getElementById('temperature').value = ''");
    browser.keys("#temperature", "e");
    browser.evaluate("document.getElementById('status').textContent = ''");
    browser.click("#go");
    status(&browser, refused);
    // Seeds have 64 bits.
    browser.evaluate("document.getElementById('temperature').value = ''");
    browser.evaluate(
        "window.bodies = [], window.asks = window.fetch, window.fetch = (path, options) => {
            window.bodies.push(JSON.parse(options.body));
            return window.asks(path, options);
        }, null",
    );
    browser.click("#go");
    browser.until(DONE);
    assert_eq!(browser.evaluate("window.bodies.map(body => body.seed)"), json!(["17657090610222322651"]));
    assert_eq!(browser.evaluate(marks), json!([null, null]));
    browser.answer_no_more();
    set(&browser, "key", "'schlüssel'");
    browser.evaluate("chosen().run(models), null");
    status(&browser, "An API key has ASCII characters only. Check the field at the top.");
    set(&browser, "key", "''");
}

#[test]
fn the_history_keeps_other_runs_and_waits_for_the_running_one() {
    let Some(browser) = Browser::start(false) else { return };
    let server = two_models();
    browser.open(&url(&server));
    browser.until(SERVED);
    set(&browser, "max", "3");
    for runs in 1..=2 {
        browser.click("#go");
        browser.until(&format!("{IDLE} && readHistory().length == {runs}"));
    }
    // The prompt is stored once for each model, and not a second time with the settings.
    assert_eq!(browser.evaluate("readHistory().map(run => run.settings.includes('prompt'))"), json!([false, false]));
    // A long run leaves the others.
    let long = "remember(readSettings('tab-generate'),
        [{ model: 'm', promptTokens: 0, characters: [{ text: 'x'.repeat(60000) }], speed: () => 1 }])";
    let words = browser.evaluate(long);
    let words = words.as_str().unwrap();
    assert!(
        words.starts_with(" The history does not keep this run of 60,") && words.ends_with("limit is 50,000."),
        "{words}"
    );
    assert_eq!(browser.evaluate("readHistory().length"), 2);
    // Another tab has added a run: the button deletes its own.
    browser.evaluate(
        "localStorage.setItem(HISTORY, JSON.stringify([{ ...readHistory()[0], at: 'new' }, ...readHistory()])), null",
    );
    let kept = browser.evaluate("['new', readHistory()[2].at]");
    browser.click("#history summary");
    browser.click("#runs li button:last-child");
    assert_eq!(browser.evaluate("readHistory().map(run => run.at)"), kept);
    // A prompt that no link holds comes back.
    browser.evaluate("writeHistory(readHistory().map(run => ({ ...run, results: [{ ...run.results[0], prompt: 'y'.repeat(21000) }] }))), null");
    browser.click("#runs button");
    assert_eq!(browser.evaluate("document.getElementById('prompt').value.length"), 21000);
    // A running completion stays on the page.
    browser.evaluate(
        "window.asks = window.fetch, window.fetch = (_, { signal }) => new Promise((_, refuse) => {
            signal.addEventListener('abort', () => refuse(signal.reason));
        }), null",
    );
    browser.keys("#prompt", START);
    browser.click("#runs button");
    status(&browser, "Stop the run first.");
    browser.keys("#prompt", ESCAPE);
    status(&browser, "Stopped.");
    // Two completions, one of which came in one message.
    browser.evaluate(
        "compareSpeeds([['a', NaN], ['b', 5]].map(([model, speed]) => ({ model, speed: () => speed, textCharacters: 50 })))",
    );
    assert_eq!(
        browser.text("#verdict"),
        "No comparison: the characters of a came in one message, so their speed is unknown."
    );
    // Parts of a document that end within a character.
    let document = "(() => {
        const view = new DocumentView('\\ufeffé');
        view.layers = [{ layer: 1, spans: [{ byte_start: 0, byte_end: 4 }], tokens: 1 }];
        view.render(1);
        return document.getElementById('read').textContent;
    })()";
    assert_eq!(browser.evaluate(document), "\u{feff}é");
    assert_eq!(browser.severe_log_entries(), Vec::<serde_json::Value>::new());
}
