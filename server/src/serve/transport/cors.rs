//! Lets the pages of listed origins read responses: the headers of cross-origin resource sharing (CORS), and preflights.
//!
//! Browsers send no credentials of their own along, such as client certificates: responses never allow them. An API key is a
//! header that the page sets.

use crate::config::CorsOrigins;
use axum::{
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
            ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
        },
    },
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// The header with the number of characters that normalising changed.
pub(crate) const NORMALIZED_CHARS: &str = "x-weir-normalized-chars";
/// The methods that pages may use.
const METHODS: &str = "GET, HEAD, OPTIONS, POST";
/// The response headers that pages may read, in addition to those that they always may.
const EXPOSED: &str = "retry-after, x-request-id, x-weir-normalized-chars";
/// Seconds for which a browser may keep the answer to a preflight.
const MAX_AGE: &str = "600";

/// The rules of one port.
#[derive(Debug, Clone)]
pub(crate) struct Cors(Arc<CorsOrigins>);

impl Cors {
    pub(crate) fn new(origins: &Arc<CorsOrigins>) -> Self {
        Self(Arc::clone(origins))
    }

    /// Returns the origin of a request whose page may read the response, as the response states it.
    pub(crate) fn allows(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let is_allowed = self.0.allows(origin.to_str().ok()?);
        is_allowed.then(|| match *self.0 {
            CorsOrigins::Any => HeaderValue::from_static("*"),
            _ => origin.clone(),
        })
    }

    /// Returns the answer to a preflight, with which a browser asks whether a page may send a request.
    pub(crate) fn preflight(&self, headers: &HeaderMap, method: &Method) -> Option<Response> {
        let asks = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = self.allows(headers).filter(|_| asks)?;
        let mut answer = self.mark(StatusCode::NO_CONTENT.into_response(), Some(origin));
        let fields = answer.headers_mut();
        fields.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        // OpenAI's client sends a dozen headers of its own, and `*` would not include the API key.
        if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        fields.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        Some(answer)
    }

    /// Lets the page of this origin read the response.
    pub(crate) fn mark(&self, mut response: Response, origin: Option<HeaderValue>) -> Response {
        let fields = response.headers_mut();
        if let CorsOrigins::Listed(_) = *self.0 {
            // A cache must not show one page the response to another.
            fields.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = origin {
            fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::call::REQUEST_ID;

    fn cors(origins: CorsOrigins) -> Cors {
        Cors::new(&Arc::new(origins))
    }

    fn listed() -> Cors {
        cors(CorsOrigins::Listed(vec!["https://app.example.com".into()]))
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_response_names_a_listed_origin_only() {
        let origin = |cors: &Cors, origin| cors.allows(&headers(&[("origin", origin)]));
        assert_eq!(origin(&listed(), "https://app.example.com").unwrap(), "https://app.example.com");
        assert_eq!(origin(&listed(), "https://evil.example.com"), None);
        assert_eq!(listed().allows(&headers(&[])), None);
        assert_eq!(origin(&cors(CorsOrigins::Any), "https://evil.example.com").unwrap(), "*");
        assert_eq!(origin(&cors(CorsOrigins::None), "https://app.example.com"), None);
    }

    #[test]
    fn pages_may_read_the_headers_of_weir() {
        let origin = Some(HeaderValue::from_static("https://app.example.com"));
        let marked = listed().mark(().into_response(), origin);
        let exposed: Vec<_> = marked.headers()[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap().split(", ").collect();
        assert_eq!(exposed, ["retry-after", REQUEST_ID, NORMALIZED_CHARS]);
    }

    #[test]
    fn responses_differ_by_origin() {
        let marked = listed().mark(().into_response(), None);
        assert_eq!(marked.headers()[VARY], "origin");
        assert!(!marked.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
        assert!(cors(CorsOrigins::None).mark(().into_response(), None).headers().is_empty());
    }

    #[test]
    fn a_preflight_is_an_options_request_of_a_listed_origin() {
        let asks = [
            ("origin", "https://app.example.com"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-os"),
        ];
        let answer = listed().preflight(&headers(&asks), &Method::OPTIONS).unwrap();
        assert_eq!(answer.status(), 204);
        let fields = answer.headers();
        assert_eq!(fields[ACCESS_CONTROL_ALLOW_HEADERS], "authorization,x-stainless-os");
        assert_eq!(fields[ACCESS_CONTROL_ALLOW_METHODS], METHODS);
        assert_eq!(fields.get_all(VARY).iter().count(), 2);
        assert!(!fields.contains_key("access-control-allow-credentials"));
        assert!(listed().preflight(&headers(&asks), &Method::POST).is_none());
        assert!(listed().preflight(&headers(&asks[..1]), &Method::OPTIONS).is_none());
        assert!(listed().preflight(&headers(&asks[1..]), &Method::OPTIONS).is_none());
    }
}
