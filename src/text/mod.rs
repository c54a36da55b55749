//! Converts between text and symbols. This room does not depend on any model.
//!
//! [`Vocabulary`] maps text to symbol ids and back, after its [`TextNormaliser`] has made the text look like the training
//! text. [`SubwordTokenizer`] is the tokenizer of a vocabulary whose symbols are longer than a character.
//! [`StreamTokenizer`] encodes a text that arrives in chunks. [`StreamDetokenizer`] decodes one symbol at a time and never
//! splits a code point.

pub mod detokenizer;
pub mod error;
pub mod normaliser;
pub mod specials;
pub mod stream_tokenizer;
pub mod subwords;
mod tokenizer_check;
pub mod vocabulary;

pub use detokenizer::StreamDetokenizer;
pub use error::VocabularyError;
pub use normaliser::TextNormaliser;
pub use specials::SpecialSymbols;
pub use stream_tokenizer::{LimitStatus, StreamTokenizer, TokenSpan};
pub use subwords::{Subword, SubwordTokenizer};
pub use tokenizer_check::BLANK;
pub use vocabulary::Vocabulary;
