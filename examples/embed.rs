//! Generates text in a program of your own, without a server.
//!
//! ```sh
//! cargo run --release --example embed -- "the history of the city"
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use weir::engine::options::Generate;
use weir::engine::{Event, Handle, Job, Limits};
use weir::models::checkpoint::CheckpointSource;
use weir::models::load::{Settings, load_as};
use weir::models::text::StreamDetokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "the history of the city".to_owned());
    // `CheckpointSource::from(path)` names a folder.
    let source = CheckpointSource::default();
    let model = load_as(&source, &source.name(), &Settings::default())?;

    let mut request = Generate::from_text(&prompt, model.card())?;
    request.sampling.temperature = 0.7;
    request.stopping.max_chars = 80;

    // The engine owns a thread that runs the model. Dropping the handle stops it.
    let mut text = StreamDetokenizer::new(model.card().vocabulary.clone());
    let engine = Handle::start(model, Limits::default())?;
    let mut events = engine.submit(Job::Generate(request), None)?;
    print!("{prompt}");
    while let Some(event) = events.blocking_recv() {
        match event? {
            Event::Characters(characters) => {
                characters.iter().for_each(|character| print!("{}", text.push_symbol(character.symbol, character.cut)));
            }
            Event::Finished { usage, timing, .. } => {
                println!("{}", text.finish());
                let milliseconds = timing.total_ns as f64 / 1e6;
                println!("{} symbols in {milliseconds:.1} ms", usage.generated_chars);
                if let Some(factor) = usage.shortening_factor() {
                    println!("{factor:.2} symbols in a segment");
                }
            }
            _ => {}
        }
    }
    Ok(())
}
