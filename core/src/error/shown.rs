//! Texts of clients and files as messages show them.

/// Makes a text safe to print: replaces each control character, and each character not allowed in XML, with U+FFFD. Names come
/// from folders and files, so they may contain either.
pub fn printable(text: &str) -> String {
    let harmful = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Maximum bytes of a client's text that [`quoted`] repeats.
pub const QUOTED_BYTES: usize = 64;

/// Quotes a client's text for an error message, truncated to [`QUOTED_BYTES`].
pub fn quoted(text: &str) -> String {
    format!("{:?}", clip(text, QUOTED_BYTES))
}

/// Truncates a text to at most `limit` bytes: messages quote input, which may be megabytes.
pub fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (beginning, _) = text.split_at(end);
    format!("{beginning}…")
}

/// Returns true for the name of a field, such as `stopping.stop`, and false for that of a method or a command.
pub fn is_field_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "_.".contains(c))
}

/// The names that one surface, such as the command line, has for what errors mention.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// A prefix of fields that the surface's names lack.
    pub dropped: &'static str,
    /// Fields of the gRPC API, dotted as on the wire, and the surface's names of those that differ.
    pub fields: &'static [&'static [(&'static str, &'static str)]],
    /// Methods of the gRPC API, and what the surface has in their place.
    pub methods: &'static [(&'static str, &'static str)],
}

impl Names {
    /// Returns the name of a field, or of the list for an element of a list.
    pub fn field<'a>(&self, field: &'a str) -> &'a str {
        let field = field.strip_prefix(self.dropped).unwrap_or(field);
        let list = field.split_once('[').map_or(field, |(list, _)| list);
        self.fields().find(|(name, _)| *name == list).map_or(field, |(_, own)| own)
    }

    /// Returns the name of a field or of a method.
    pub fn name<'a>(&self, name: &'a str) -> &'a str {
        self.method(name).unwrap_or_else(|| self.field(name))
    }

    /// Returns the surface's message of an error whose message `text` begins with `field`.
    pub fn message(&self, field: Option<&str>, text: &str) -> String {
        match field.and_then(|field| Some((field, text.strip_prefix(field)?))) {
            Some((field, rest)) => format!("{}{}", self.field(field), self.text(rest)),
            None => self.text(text),
        }
    }

    /// Replaces names in parentheses: the method that was called or that should be, and the option on which a limit depends.
    pub fn text(&self, text: &str) -> String {
        let mut parts = text.split('(');
        let mut named = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let own = ["for ", "use ", "the value of "].iter().find_map(|start| {
                let (name, rest) = part.strip_prefix(start)?.split_once(')')?;
                let option = || self.fields().find(|(field, _)| field.rsplit('.').next() == Some(name));
                let own = self.method(name).or_else(|| option().map(|(_, own)| own))?;
                Some(format!("{start}{own}){rest}"))
            });
            named.push('(');
            named.push_str(own.as_deref().unwrap_or(part));
        }
        named
    }

    fn fields(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.fields.iter().flat_map(|table| *table).copied()
    }

    fn method(&self, name: &str) -> Option<&'static str> {
        self.methods.iter().find(|(method, _)| *method == name).map(|(_, own)| *own)
    }
}

/// Returns the message about a call or an option that a model does not support.
pub(super) fn wrong_kind(call: &str, model: &str, wanted: &str, found: &str) -> String {
    if is_field_name(call) {
        return format!("{call}: expected a model that {wanted}, found {model:?}, {found}");
    }
    format!("model: expected one that {wanted} (for {call}), found {model:?}, {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_model_is_named_with_the_call_or_the_option() {
        let shown = |call| wrong_kind(call, "m", "pools", "a model that does not");
        assert_eq!(
            shown("Segment"),
            "model: expected one that pools (for Segment), found \"m\", a model that does not"
        );
        assert_eq!(shown("a.b_c"), "a.b_c: expected a model that pools, found \"m\", a model that does not");
    }

    #[test]
    fn a_surface_has_its_own_names() {
        let names = Names {
            dropped: "options.",
            fields: &[&[("a.max_chars", "--max")], &[("stop", "--stop")]],
            methods: &[("Generate", "weir generate")],
        };
        assert_eq!(
            ["a.max_chars", "stop[3]", "options.beam", "x[1]"].map(|name| names.field(name)),
            ["--max", "--stop", "beam", "x[1]"]
        );
        let message = |field, text| names.message(Some(field), text);
        assert_eq!(message("b", "b: 0 to 3 (the value of max_chars)"), "b: 0 to 3 (the value of --max)");
        assert_eq!(message("a.max_chars", "a.max_chars: 0 (x) (for Score)"), "--max: 0 (x) (for Score)");
        assert_eq!(
            message("m", "no field (use Generate): x (for Generate)"),
            "no field (use weir generate): x (for weir generate)"
        );
        assert_eq!(names.text("((for Generate"), "((for Generate");
    }

    #[test]
    fn control_characters_are_replaced_one_by_one() {
        assert_eq!(printable("a name: größe <&> 模型"), "a name: größe <&> 模型");
        assert_eq!(printable("\0\t\n\u{1b}[2J\u{7f}\u{9b}\u{fffe}\u{ffff}x"), "���\u{fffd}[2J����x");
    }
}
