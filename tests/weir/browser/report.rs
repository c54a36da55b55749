//! The documented latency report as a browser shows and prints it.

use super::{Browser, OVERFLOW};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Maximum pages of the printed report.
const MAX_PAGES: usize = 8;

#[test]
fn the_latency_report_is_readable_and_prints_on_few_pages() {
    let Some(browser) = Browser::start(false) else { return };
    browser.open(concat!("file://", env!("CARGO_MANIFEST_DIR"), "/docs/latency-report.html"));
    let printed = browser.page_command("POST", "/print", &json!({ "page": { "width": 21.0, "height": 29.7 } }));
    let printed = STANDARD.decode(printed.as_str().unwrap()).unwrap();
    let pages = String::from_utf8_lossy(&printed).matches("/Type /Page\n").count();
    assert!((2..=MAX_PAGES).contains(&pages), "{pages} pages");
    for width in [420, 1280] {
        browser.set_width(width);
        assert_eq!(browser.evaluate(OVERFLOW), 0, "something is wider than {width} pixels");
        browser.picture(&format!("latency-report-{width}.png"));
    }
    let wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length";
    assert_eq!(browser.evaluate(wide), 0, "a table is wider than the page");
    assert_eq!(browser.severe_log_entries(), Vec::<Value>::new());
}
