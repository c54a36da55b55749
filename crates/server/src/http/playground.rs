//! The playground: one HTML page that loads nothing from other servers, which its content policy also forbids.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const PAGE: &str = concat!(
    include_str!("playground/head.html"),
    "<style>\n",
    include_str!("playground/style.css"),
    "</style>\n",
    include_str!("playground/body.html"),
    "<script>\n",
    include_str!("playground/common.js"),
    include_str!("playground/fields.js"),
    include_str!("playground/chart.js"),
    include_str!("playground/settings.js"),
    include_str!("playground/examples.js"),
    include_str!("playground/completion_view.js"),
    include_str!("playground/race.js"),
    include_str!("playground/document_view.js"),
    include_str!("playground/summarize.js"),
    include_str!("playground/edit_text.js"),
    include_str!("playground/edit_socket.js"),
    include_str!("playground/surprises.js"),
    include_str!("playground/editor.js"),
    include_str!("playground/compress.js"),
    include_str!("playground/page.js"),
    "</script>\n</body>\n</html>\n",
);

/// The page's content security policy: its own script and style, and requests to this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash_of("script"),
        hash_of("style"),
    )
});

pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// Returns the policy source of the page's only element of this name: the hash of its content.
fn hash_of(element: &str) -> String {
    let content =
        PAGE.split_once(&format!("<{element}>")).and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    content.map_or_else(|| "'none'".into(), |(text, _)| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files share one scope, in which a second function would silently replace the first.
    #[test]
    fn each_name_of_the_script_is_declared_once() {
        let declared = PAGE.lines().filter_map(|line| {
            let line = line.strip_prefix("async ").unwrap_or(line);
            let rest = ["function ", "class ", "const ", "let "].iter().find_map(|word| line.strip_prefix(word))?;
            rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
        });
        let mut names: Vec<_> = declared.filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count > 100, "{count}");
    }

    #[test]
    fn the_page_loads_nothing_else() {
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
            assert!(hash_of(element).starts_with("'sha256-"), "{element}");
        }
        // A browser would fetch these, or the policy forbids them.
        for reference in [" src=", " href=", "url(", "@import", " style=", " onclick="] {
            assert!(!PAGE.contains(reference), "{reference}");
        }
        assert!(PAGE.replace("http://www.w3.org/2000/svg", "").find("http").is_none());
    }
}
