//! Text on one side, symbols on the other.
//!
//! [`Vocabulary`] turns one into the other, after its [`Normaliser`] has made the text look like the text the model was
//! trained on. [`Subwords`] is the tokenizer of a vocabulary whose symbols are longer than a character. [`TextStream`] turns symbols into text one at a time and never splits a code point;
//! [`Reading`] turns a text that arrives in chunks into symbols. This room knows no model.

pub mod normalise;
pub mod reading;
pub mod specials;
pub mod stream;
pub mod subwords;
pub mod vocabulary;
mod words;

pub use normalise::Normaliser;
pub use reading::{Reading, Room, Token};
pub use specials::Specials;
pub use stream::TextStream;
pub use subwords::{Subword, Subwords};
pub use vocabulary::{Vocabulary, VocabularyError};
