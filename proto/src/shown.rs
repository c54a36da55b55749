//! Values in messages.

/// Maximum characters of a value that a message quotes.
const QUOTED: usize = 64;

/// Returns a text in quotation marks, clipped to 64 characters.
pub fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(QUOTED).collect();
    if cut.len() < text.len() { format!("{:?}", format!("{cut}…")) } else { format!("{text:?}") }
}
