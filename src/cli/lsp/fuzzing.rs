//! Entry point of the fuzz target for the language server: accepts any bytes, and must not panic. Compiled for tests and fuzz
//! targets only.

use crate::cli::lsp::diagnostics::{CheckOptions, Checks};
use crate::cli::lsp::documents::{DocumentLimits, Documents};
use crate::cli::lsp::protocol::{self, Frame, Input};
use crate::cli::lsp::server::LanguageServer;
use crate::cli::lsp::sessions::{CompletionOptions, Sessions};
use tokio::{runtime::Builder, sync::mpsc};
use weir_client::connection::Client;
use weir_proto::v1::Until;
use weir_server::Listener;

/// The first byte of an input that has frames. Other inputs have a body in each line.
const FRAMES: u8 = b'F';

/// Maximum bytes before the cursor that the model reads.
const CONTEXT_BYTES: usize = 16;

/// Serves a client that sends `data`, without a model. What the server sends must be frames that a client can read.
pub fn language_server(data: &[u8]) {
    let Some((&kind, mut rest)) = data.split_first() else { return };
    let Ok(runtime) = Builder::new_current_thread().build() else { return };
    let _entered = runtime.enter();
    let options = CompletionOptions { model: None, count: 1, until: Until::Word, max_chars: 8 };
    let client = Client::of_channel(Listener::in_process().1, "this process");
    let sessions = Sessions::new(client.clone(), options, CONTEXT_BYTES, mpsc::channel(1).0);
    let options = CheckOptions { model: None, threshold: None, alternatives: 1, piece_bytes: CONTEXT_BYTES };
    let checks = Checks::new(client, options, mpsc::channel(1).0);
    let mut server = LanguageServer::new(Documents::new(DocumentLimits::default()), sessions, Some(checks));
    if kind == FRAMES {
        while let Some(input) = protocol::read_next(&mut rest)
            && serve(&mut server, input)
        {}
    } else {
        rest.split(|byte| *byte == b'\n').map(protocol::parse).all(|input| serve(&mut server, input));
    }
}

/// Takes an input. Returns false if the server exits.
fn serve(server: &mut LanguageServer, input: Input) -> bool {
    let Some(messages) = server.answers(input) else { return false };
    for message in messages {
        let body = message.to_string().into_bytes();
        let mut written = Vec::new();
        assert!(protocol::write_frame(&mut written, &body).is_ok());
        assert!(matches!(protocol::read_frame(&mut &written[..]), Ok(Some(Frame::Body(read))) if read == body));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Runs the kept corpus, and the beginnings of each input.
    #[test]
    fn the_corpus_of_editors_passes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/lsp");
        let inputs: Vec<_> =
            folder.read_dir().unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(inputs.len() > 5, "only {} inputs in {}", inputs.len(), folder.display());
        for input in inputs {
            language_server(&input);
            (0..input.len().min(256)).for_each(|end| language_server(&input[..end]));
        }
    }
}
