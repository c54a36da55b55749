//! Continues several prompts at once and prints their texts as they arrive. The engine runs all of them in the same steps.
//!
//! ```sh
//! cargo run --release --example stream -- "the river " "the castle " "a new law "
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{error::Error, sync::Arc};
use tokio::task::JoinSet;
use weir::engine::options::Generate;
use weir::engine::{Event, Handle, Job, Limits};
use weir::models::checkpoint::CheckpointSource;
use weir::models::load::{Settings, load_as};
use weir::models::text::{StreamDetokenizer, Vocabulary};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut prompts: Vec<_> = std::env::args().skip(1).collect();
    if prompts.is_empty() {
        prompts = ["the river ", "the castle ", "a new law "].map(str::to_owned).into();
    }
    let source = CheckpointSource::default();
    let model = load_as(&source, &source.name(), &Settings::default())?;
    let engine = Handle::start(Arc::clone(&model), Limits { rows: prompts.len(), ..Limits::default() })?;
    let mut streams = JoinSet::new();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let mut request = Generate::from_text(&prompt, model.card())?;
        request.sampling.seed = index as u64;
        request.stopping.max_chars = 60;
        let vocabulary = Arc::clone(&model.card().vocabulary);
        streams.spawn(print(index, prompt, engine.clone(), request, vocabulary));
    }
    while let Some(ended) = streams.join_next().await {
        ended??;
    }
    Ok(())
}

/// Prints each word of a text once it is complete.
async fn print(
    index: usize,
    prompt: String,
    engine: Handle,
    request: Generate,
    vocabulary: Arc<Vocabulary>,
) -> weir::error::Result<()> {
    // Dropping the receiver cancels the request.
    let mut events = engine.submit(Job::Generate(request), None)?;
    let mut stream = StreamDetokenizer::new(vocabulary);
    let mut line = prompt;
    while let Some(event) = events.recv().await {
        match event? {
            Event::Characters(characters) => {
                for character in characters {
                    line += stream.push_symbol(character.symbol, character.cut);
                }
                if let Some((words, rest)) = line.rsplit_once(' ') {
                    println!("{index}: {words}");
                    line = rest.to_owned();
                }
            }
            Event::Finished { .. } => println!("{index}: {line}{}", stream.finish()),
            _ => {}
        }
    }
    Ok(())
}
