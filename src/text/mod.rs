//! Text on one side, symbols on the other.
//!
//! [`Vocabulary`] turns one into the other, after its [`Normaliser`] has made the text look like the text the model was
//! trained on. [`TextStream`] turns symbols into text one at a time and never splits a code point. This room knows no model.

pub mod normalise;
pub mod specials;
pub mod stream;
pub mod vocabulary;

pub use normalise::Normaliser;
pub use specials::Specials;
pub use stream::TextStream;
pub use vocabulary::{Vocabulary, VocabularyError};
