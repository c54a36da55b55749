//! The origins whose web pages may read responses of the HTTP port (cross-origin resource sharing, CORS).

use super::{allowed_names::is_origin, checks::Checks};

/// Origins whose pages may send requests and read responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CorsOrigins {
    /// No page of another origin.
    #[default]
    None,
    /// Pages of these origins, such as `https://app.example.com`, in lower case.
    Listed(Vec<String>),
    /// Pages of all origins.
    Any,
}

impl CorsOrigins {
    /// Returns true if pages of this origin may read responses.
    pub fn allows(&self, origin: &str) -> bool {
        match self {
            Self::None => false,
            Self::Listed(origins) => origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin)),
            Self::Any => true,
        }
    }
}

impl Checks {
    /// Checks the values of `--cors-origin`.
    pub fn cors_origins(&mut self, origins: &[String]) -> CorsOrigins {
        for origin in origins.iter().filter(|origin| *origin != "*" && !is_origin(origin)) {
            self.reject("--cors-origin", origin, "* or an origin without a path, such as https://app.example.com");
        }
        if origins.iter().any(|origin| origin == "*") {
            return CorsOrigins::Any;
        }
        match origins.is_empty() {
            true => CorsOrigins::None,
            false => CorsOrigins::Listed(origins.iter().map(|origin| origin.to_ascii_lowercase()).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(origins: &[&str]) -> Result<CorsOrigins, String> {
        let origins: Vec<_> = origins.iter().map(|&origin| origin.to_owned()).collect();
        let mut checks = Checks::default();
        let parsed = checks.cors_origins(&origins);
        checks.finish().map(|()| parsed).map_err(|error| error.to_string())
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        assert!(!parse(&[]).unwrap().allows("https://app.example.com"));
        let listed = parse(&["https://App.example.com", "http://localhost:3000"]).unwrap();
        assert!(listed.allows("https://app.example.com") && listed.allows("HTTP://LOCALHOST:3000"));
        for other in ["http://app.example.com", "https://app.example.com:444", "https://x.app.example.com", "null", ""]
        {
            assert!(!listed.allows(other), "{other}");
        }
        let any = parse(&["https://app.example.com", "*"]).unwrap();
        assert!(any.allows("https://other.example.com") && any.allows("null"));
    }

    #[test]
    fn origins_have_their_form() {
        for origin in ["", "null", "app.example.com", "https://app.example.com/", "https://*/x", "**"] {
            assert!(parse(&[origin]).unwrap_err().contains("--cors-origin"), "{origin}");
        }
    }
}
