//! Feeds the blocks of all files to the engine, in order, and collects the results in the same order.

use super::{
    files::{FILE, FilePair},
    output_file::OutputFile,
    partial_files::PartialFiles,
};
use crate::{
    cli::{flag_names, input_files::unreadable, progress::Progress},
    decode::{
        codec::{BlockStream, Coded, Totals},
        evaluate::max_fed_symbols,
    },
    engine::{Counters, Event, Events, Handle, Job},
    error::{Error, Result, printable},
};
use std::{
    collections::VecDeque,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

/// Bytes of one read.
const PIECE: usize = 1 << 16;
/// Time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(200);

/// A file's stream.
pub(super) type Stream<'a> = Box<dyn BlockStream + 'a>;

/// Returns the number of blocks that are submitted at once: enough that a row never waits for the next one.
pub(super) fn max_blocks(rows: usize) -> usize {
    2 * rows
}

/// The blocks in the engine, and the files that they belong to.
pub(super) struct Pipeline<'a> {
    engine: Handle,
    max_blocks: usize,
    /// Blocks in the engine, and `None` for the end of a file.
    submitted: VecDeque<Option<Events>>,
    /// The files of these, in the same order.
    files: VecDeque<OpenFile<'a>>,
    /// Totals of the files that are complete.
    totals: Vec<Totals>,
    /// Runs timers, and the task that waits for signals.
    runtime: Runtime,
    partial_files: PartialFiles,
    /// True if existing files are replaced.
    overwrite: bool,
    progress: Progress,
    /// Bytes of all files to read.
    bytes: u64,
    bytes_read: u64,
    /// Symbols of all submitted blocks.
    symbols: usize,
    /// Symbols that these feed to the model, with the context that windows repeat.
    work: usize,
    began: Instant,
}

struct OpenFile<'a> {
    /// The path of the file to read.
    input: PathBuf,
    stream: Stream<'a>,
    output: OutputFile,
}

impl<'a> Pipeline<'a> {
    /// Creates a pipeline for files of `bytes` bytes. It replaces existing files if `overwrite` is true. Fails if the operating system
    /// refuses a thread or a handler of signals.
    pub(super) fn new(engine: Handle, rows: usize, bytes: u64, overwrite: bool) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        let partial_files = PartialFiles::watched(&runtime)?;
        Ok(Self {
            engine,
            max_blocks: max_blocks(rows),
            submitted: VecDeque::new(),
            files: VecDeque::new(),
            totals: Vec::new(),
            runtime,
            partial_files,
            overwrite,
            progress: Progress::texts(),
            bytes,
            bytes_read: 0,
            symbols: 0,
            work: 0,
            began: Instant::now(),
        })
    }

    /// Reads a file to its end and submits its blocks. Errors name the file that they concern.
    pub(super) fn run_file(&mut self, pair: &FilePair, stream: Stream<'a>) -> Result<()> {
        let mut file = File::open(&pair.input).map_err(unreadable(FILE, &pair.input))?;
        let output = OutputFile::create(pair, self.overwrite, &self.partial_files)?;
        self.files.push_back(OpenFile { input: pair.input.clone(), stream, output });
        let mut piece = vec![0; PIECE];
        loop {
            let read = file.read(&mut piece).map_err(unreadable(FILE, &pair.input))?;
            let in_file = in_file(&pair.input);
            let stream = self.last()?;
            match read {
                0 => stream.finish().map_err(in_file)?,
                _ => stream.push(&piece[..read]).map_err(in_file)?,
            }
            self.bytes_read += read as u64;
            while let Some(block) = self.last()?.next_block().map_err(in_file)? {
                self.symbols += block.symbols();
                self.work += max_fed_symbols(block.symbols(), block.windows);
                let events = self.engine.submit(Job::Code(block), None).map_err(in_file)?;
                self.submit(Some(events))?;
            }
            if read == 0 {
                return self.submit(None);
            }
        }
    }

    /// Collects all results. Returns the totals of each file.
    pub(super) fn finish(mut self) -> Result<Vec<Totals>> {
        while !self.submitted.is_empty() {
            self.collect_one()?;
        }
        Ok(self.totals)
    }

    /// Returns the stream of the file that is being read.
    fn last(&mut self) -> Result<&mut Stream<'a>> {
        self.files.back_mut().map(|file| &mut file.stream).ok_or_else(no_file)
    }

    fn submit(&mut self, block: Option<Events>) -> Result<()> {
        self.submitted.push_back(block);
        while self.submitted.len() >= self.max_blocks {
            self.collect_one()?;
        }
        Ok(())
    }

    /// Waits for the oldest block and writes its output.
    fn collect_one(&mut self) -> Result<()> {
        let Some(block) = self.submitted.pop_front() else { return Ok(()) };
        let mut out = Vec::new();
        let Some(events) = block else {
            let Some(mut file) = self.files.pop_front() else { return Err(no_file()) };
            file.stream.end(&mut out).map_err(in_file(&file.input))?;
            file.output.write(&out)?;
            self.totals.push(file.stream.totals());
            return file.output.commit();
        };
        let coded = self.wait(events);
        let file = self.files.front_mut().ok_or_else(no_file)?;
        file.stream.accept(coded.map_err(in_file(&file.input))?, &mut out)?;
        file.output.write(&out)
    }

    fn show_progress(&mut self) {
        let share = share(&self.engine, self.work);
        let rate = share * self.symbols as f64 / self.began.elapsed().as_secs_f64();
        self.progress.update((share * self.bytes_read as f64) as u64, self.bytes);
        self.progress.note(format!("{rate:.0} characters/s"));
    }

    fn wait(&mut self, mut events: Events) -> Result<Coded> {
        let mut result = None;
        loop {
            match self.runtime.block_on(async { timeout(TICK, events.recv()).await }) {
                Err(_) => self.show_progress(),
                Ok(Some(event)) => match event? {
                    Event::Coded(coded) => result = Some(coded),
                    Event::Finished { .. } => {
                        return result.ok_or_else(|| Error::Internal("a block has no result".into()));
                    }
                    Event::Started { .. } | Event::Characters(_) | Event::Document(_) | Event::Next(_) => {}
                },
                Ok(None) => return Err(Error::Internal("the engine ended before a block".into())),
            }
        }
    }
}

/// The share of the submitted work that is done, from 0 to 1.
fn share(engine: &Handle, work: usize) -> f64 {
    let Counters { prefill_chars, generated_chars, .. } = engine.counters();
    ((prefill_chars + generated_chars) as f64 / work.max(1) as f64).min(1.0)
}

/// Names the file in an error about a text or its data.
fn in_file(path: &Path) -> impl Fn(Error) -> Error + Copy {
    move |error| {
        let why = format!("{}: {}", printable(&path.display().to_string()), flag_names::message(error));
        Error::Unreadable { field: None, why }
    }
}

fn no_file() -> Error {
    Error::Internal("a block belongs to no file".into())
}
