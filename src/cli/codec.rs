//! `weir compress` and `weir decompress`: files to compressed files and back, with the engine that the server uses.
//!
//! The blocks of all files run as rows of one batch. Results are collected in order.

use crate::cli::document::DASH;
use crate::cli::model::{ModelArgs, count, isa, unreadable};
use crate::cli::output::{self, Progress};
use crate::cli::score::parse_windows;
use crate::cli::signals::{EndSignals, exit};
use serde_json::json;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use weir_engine::codec::{
    BlockStream, Coded, CompressOptions, Compressor, DEFAULT_BLOCK, Decompressor, MAX_BLOCK, Totals, default_windows,
};
use weir_engine::options::WindowOptions;
use weir_engine::score::max_fed_symbols;
use weir_engine::{Counters, Event, Events, Handle, Job, Limits};
use weir_kernels::Isa;
use weir_kernels::error::{Error, Result, printable};
use weir_models::{contract::Model, load::MAX_SYMBOLS};

/// Runs `weir compress`. Fails if the model cannot compress, a text is outside of its vocabulary, or a file cannot be read or written.
pub fn run_compress(args: CompressArgs) -> Result<()> {
    let pairs = compressed_pairs(&args.codec.paths)?;
    if pairs.iter().any(FilePair::is_piped) && io::stdout().is_terminal() {
        return Err(Error::Setting(format!("{FILE}: expected a file or a pipe to write, found a terminal")));
    }
    let model = args.model.load(args.codec.isa)?;
    let card = model.card();
    let windows = args.windowed.unwrap_or_else(|| default_windows(card));
    let open = |bytes: Option<u64>| -> Result<Stream<'_>> {
        let text_bytes = bytes.filter(|_| !args.normalise);
        let options = CompressOptions { block: args.block, windows, normalise: args.normalise, text_bytes };
        Ok(Box::new(Compressor::new(card, options)?))
    };
    run(start(&model, &args.codec)?, &args.codec, &pairs, open)
}

/// Runs `weir decompress`. Fails if the data are damaged or of another model, or if a file cannot be read or written.
pub fn run_decompress(args: DecompressArgs) -> Result<()> {
    let pairs = decompressed_pairs(&args.codec.paths)?;
    let model = args.model.load(args.codec.isa)?;
    let card = model.card();
    let open = |_| -> Result<Stream<'_>> { Ok(Box::new(Decompressor::new(card)?)) };
    run(start(&model, &args.codec)?, &args.codec, &pairs, open)
}

/// Starts an engine without limits of time and work: a file takes as long as it takes.
fn start(model: &Arc<dyn Model>, args: &CodecArgs) -> Result<Handle> {
    let defaults = Limits::default();
    let limits = Limits {
        rows: args.rows,
        queue: max_blocks(args.rows),
        queued_symbols: usize::MAX,
        request_time: Duration::ZERO,
        request_work: usize::MAX,
        chunk: args.chunk,
        step: Duration::ZERO,
        ..defaults
    };
    Handle::start(model.clone(), limits)
}

fn run<'a>(
    engine: Handle,
    args: &CodecArgs,
    pairs: &[FilePair],
    open: impl Fn(Option<u64>) -> Result<Stream<'a>>,
) -> Result<()> {
    pairs.iter().try_for_each(|pair| pair.bytes().and_then(|_| pair.check_output(args.force)))?;
    if args.json && pairs.iter().any(FilePair::is_piped) {
        return Err(Error::Setting(
            "--json: expected no value next to the output -, which is standard output, found one".into(),
        ));
    }
    let began = Instant::now();
    // Of pipes it is unknown.
    let bytes = pairs.iter().map(|pair| pair.bytes().map(Option::unwrap_or_default)).sum::<Result<u64>>()?;
    let mut pipeline = Pipeline::new(engine, args.rows, bytes, args.force)?;
    let totals = pairs
        .iter()
        .try_for_each(|pair| pipeline.run_file(pair, open(pair.bytes()?)?))
        .and_then(|()| pipeline.collect())
        .inspect_err(|_| pipeline.abandon())?;
    let seconds = began.elapsed().as_secs_f64();
    print(args, pairs, &totals, seconds)
}

fn print(args: &CodecArgs, pairs: &[FilePair], totals: &[Totals], seconds: f64) -> Result<()> {
    let symbols: u64 = totals.iter().map(|totals| totals.symbols).sum();
    let rate = symbols as f64 / seconds;
    if args.json {
        let file = |(pair, totals): (&FilePair, &Totals)| {
            json!({
                "file": pair.input,
                "output": pair.output,
                "text_bytes": totals.text_bytes,
                "chars": totals.symbols,
                "blocks": totals.blocks,
                "compressed_bytes": totals.compressed_bytes,
                "bits_per_char": totals.bits_per_symbol(),
            })
        };
        let files: Vec<_> = pairs.iter().zip(totals).map(file).collect();
        return output::json(&json!({ "files": files, "seconds": seconds, "chars_per_second": rate }));
    }
    // The data are there.
    if pairs.iter().any(FilePair::is_piped) {
        return Ok(());
    }
    let mut out = String::new();
    for (pair, totals) in pairs.iter().zip(totals) {
        let Totals { text_bytes, symbols, compressed_bytes, blocks } = *totals;
        let bits = output::optional(totals.bits_per_symbol());
        let plural = if blocks == 1 { "" } else { "s" };
        out += &format!(
            "{}: {text_bytes} bytes, {symbols} symbols in {blocks} block{plural}; {compressed_bytes} bytes compressed, \
             {bits} bits per symbol\n",
            pair.output.display(),
        );
    }
    output::write(&format!("{out}{rate:.0} symbols per second\n"))
}

/// Maximum rows of a batch.
const MAX_ROWS: usize = 256;

/// Compresses texts losslessly with a model.
#[derive(Debug, clap::Args)]
pub struct CompressArgs {
    /// Maximum symbols of a block. Blocks are compressed apart from each other, side by side.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_BLOCK, value_parser = count(1..=MAX_BLOCK), env = "WEIR_BLOCK")]
    block: usize,
    /// The model reads a block in windows of LENGTH symbols, each of which predicts its last STRIDE symbols. Default: twice the
    /// training length, and three quarters of that.
    #[arg(long, value_name = "LENGTH,STRIDE", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    windowed: Option<WindowOptions>,
    /// Rewrite the text like the model's training text first. `decompress` then returns the rewritten text.
    #[arg(long, env = "WEIR_NORMALISE", value_parser = clap::builder::BoolishValueParser::new())]
    normalise: bool,
    #[command(flatten)]
    codec: CodecArgs,
    #[command(flatten)]
    model: ModelArgs,
}

/// Decompresses texts with the model that compressed them.
#[derive(Debug, clap::Args)]
pub struct DecompressArgs {
    #[command(flatten)]
    codec: CodecArgs,
    #[command(flatten)]
    model: ModelArgs,
}

/// Flags of both commands.
#[derive(Debug, clap::Args)]
struct CodecArgs {
    /// Blocks that run side by side, as rows of one batch.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(1..=MAX_ROWS), env = "WEIR_ROWS")]
    rows: usize,
    /// Symbols per step of all rows together, while texts are read. It changes the time, not the result.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = count(1..=MAX_SYMBOLS), env = "WEIR_CHUNK")]
    chunk: usize,
    /// Instruction set of the kernels: amx, avx512, avx2 or portable. The first three compute the same bits, portable others. Default:
    /// the widest that the processor and the system permit.
    #[arg(long, value_name = "NAME", value_parser = isa, env = "WEIR_ISA")]
    isa: Option<Isa>,
    /// Overwrite existing files.
    #[arg(long, env = "WEIR_FORCE", value_parser = clap::builder::BoolishValueParser::new())]
    force: bool,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    /// One or more files, then the file to write; - for standard input and output. If the last is a folder, each file gets a name in it:
    /// with `.weir` after it when it is compressed, without when it is decompressed.
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    paths: Vec<PathBuf>,
}

/// The name of the arguments that are files.
const FILE: &str = "FILE";

/// End of the names of compressed files.
const SUFFIX: &str = "weir";

/// A file to read and the file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilePair {
    input: PathBuf,
    output: PathBuf,
}

/// Returns the pairs of `weir compress`: see [`pairs`].
fn compressed_pairs(paths: &[PathBuf]) -> Result<Vec<FilePair>> {
    pairs(paths, |name| {
        let mut name = name.to_os_string();
        name.push(".");
        name.push(SUFFIX);
        Some(name)
    })
}

/// Returns the pairs of `weir decompress`: see [`pairs`]. Fails if a file has no suffix to remove.
fn decompressed_pairs(paths: &[PathBuf]) -> Result<Vec<FilePair>> {
    pairs(paths, |name| {
        let name = Path::new(name);
        name.extension().filter(|suffix| *suffix == SUFFIX)?;
        name.file_stem().map(Into::into)
    })
}

/// Pairs all paths but the last with the last one, or with files in it if it is a folder. Fails if several files have no folder, or
/// would be written to one file.
fn pairs(paths: &[PathBuf], rename: impl Fn(&OsStr) -> Option<OsString>) -> Result<Vec<FilePair>> {
    let Some((last, inputs)) = paths.split_last() else {
        return Err(Error::Setting("files: expected a file to read and one to write".into()));
    };
    if !last.is_dir() {
        let [input] = inputs else {
            let last = printable(&last.display().to_string());
            return Err(Error::Setting(format!("{last}: several files are written to a folder, and this is none")));
        };
        return Ok(vec![FilePair { input: input.clone(), output: last.clone() }]);
    }
    let mut taken = HashSet::new();
    let pair = |input: &PathBuf| {
        let shown = || printable(&input.display().to_string());
        let name = input.file_name().and_then(&rename);
        let name =
            name.ok_or_else(|| Error::Setting(format!("{}: expected a name that ends with .{SUFFIX}", shown())))?;
        let output = last.join(name);
        if !taken.insert(output.clone()) {
            return Err(Error::Setting(format!("{}: two files would be written to {}", shown(), output.display())));
        }
        Ok(FilePair { input: input.clone(), output })
    };
    inputs.iter().map(pair).collect()
}

impl FilePair {
    /// Returns the bytes of the file to read; `None` for a pipe. Fails if the file is missing.
    fn bytes(&self) -> Result<Option<u64>> {
        if self.input.as_os_str() == DASH {
            return Ok(None);
        }
        let metadata = fs::metadata(&self.input).map_err(unreadable(FILE, &self.input))?;
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    /// Opens the file to read. Fails if the operating system does.
    fn open(&self) -> Result<Box<dyn Read>> {
        if self.input.as_os_str() == DASH {
            return Ok(Box::new(io::stdin()));
        }
        Ok(Box::new(File::open(&self.input).map_err(unreadable(FILE, &self.input))?))
    }

    /// Returns true if the output is standard output.
    fn is_piped(&self) -> bool {
        self.output.as_os_str() == DASH
    }

    /// Returns the error of writing the output.
    fn unwritable(&self, error: &io::Error) -> Error {
        if self.is_piped() && error.kind() == ErrorKind::BrokenPipe {
            return Error::io("stdout")(io::Error::from(ErrorKind::BrokenPipe));
        }
        Error::Setting(format!("{FILE}: cannot write {}: {error}", printable(&self.output.display().to_string())))
    }

    /// Fails if the file to write exists and must not be overwritten, or is a link or no file.
    fn check_output(&self, force: bool) -> Result<()> {
        if self.is_piped() {
            return Ok(());
        }
        // of a link itself, which may lead nowhere
        let Ok(existing) = fs::symlink_metadata(&self.output) else { return Ok(()) };
        let why = match (force, existing.is_file()) {
            (true, true) => return Ok(()),
            (false, true) => "the file exists; --force overwrites it",
            (_, false) => "this is not a regular file, and is not replaced",
        };
        Err(Error::Setting(format!("{}: {why}", printable(&self.output.display().to_string()))))
    }
}

/// Bytes that a disk must have room for before a file is coded.
const ROOM: usize = 4096;

/// Partial files of one output that killed processes may have left.
const MAX_LEFT: usize = 100;

/// A file that is being written under another name. Dropping it removes it.
struct OutputFile {
    /// `None` once it has its name, and for standard output.
    file: Option<File>,
    partial: PathBuf,
    pair: FilePair,
    /// True if an existing file is replaced.
    overwrite: bool,
    files: PartialFiles,
}

impl OutputFile {
    /// Creates the file of a pair and lists it in `files`. Fails if the operating system does.
    fn create(pair: &FilePair, overwrite: bool, files: &PartialFiles) -> Result<Self> {
        if pair.is_piped() {
            let files = files.clone();
            return Ok(Self { file: None, partial: PathBuf::new(), pair: pair.clone(), overwrite, files });
        }
        // Another process with the same number may have left such a file: in a container, each command is process 1.
        let mut tried = 0;
        let (file, partial) = loop {
            let mut partial = pair.output.as_os_str().to_owned();
            partial.push(format!(".partial-{}-{tried}", std::process::id()));
            let partial = PathBuf::from(partial);
            match files.create(&partial) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tried < MAX_LEFT => tried += 1,
                created => break (created.map_err(|error| pair.unwritable(&error))?, partial),
            }
        };
        let mut output = Self { file: Some(file), partial, pair: pair.clone(), overwrite, files: files.clone() };
        // The first block may take minutes: a full disk is reported before.
        output.write(&[0; ROOM])?;
        let emptied = output.file.as_mut().map_or(Ok(()), |file| file.set_len(0).and_then(|()| file.rewind()));
        emptied.map_err(|error| pair.unwritable(&error))?;
        Ok(output)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => io::stdout().write_all(bytes),
        };
        written.map_err(|error| self.pair.unwritable(&error))
    }

    /// Gives the file its name. Fails if another file has got it meanwhile and must be kept.
    fn commit(mut self) -> Result<()> {
        if self.pair.is_piped() {
            return io::stdout().flush().map_err(|error| self.pair.unwritable(&error));
        }
        self.pair.check_output(self.overwrite)?;
        if let Some(file) = &self.file {
            file.sync_all().map_err(|error| self.pair.unwritable(&error))?;
        }
        self.file = None;
        self.files.complete(&self.partial, &self.pair.output).map_err(|error| self.pair.unwritable(&error))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.files.remove(&self.partial);
        }
    }
}

/// Exit code of a process that a signal ends, minus the signal's number: the convention of shells.
const SIGNALLED: i32 = 128;

/// Files that are not complete yet. The task that waits for signals shares the list.
#[derive(Debug, Clone, Default)]
struct PartialFiles {
    paths: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl PartialFiles {
    /// Creates an empty list. When SIGINT or SIGTERM arrives, a task on `runtime` removes the listed files and ends the process. Fails
    /// if the operating system refuses the handlers.
    fn watched(runtime: &Runtime) -> Result<Self> {
        let files = Self::default();
        let _context = runtime.enter();
        let mut signals =
            EndSignals::new().map_err(|error| Error::Internal(format!("cannot wait for signals: {error}")))?;
        let listed = files.clone();
        runtime.spawn(async move {
            let number = signals.next().await;
            // held until the process ends, so that no file is created after the others are removed
            let paths = listed.lock();
            for path in &*paths {
                // a file that cannot be removed is visibly partial
                let _ = fs::remove_file(path);
            }
            exit(SIGNALLED + number)
        });
        Ok(files)
    }

    /// Creates a file. Fails if it exists.
    fn create(&self, path: &Path) -> io::Result<File> {
        let mut paths = self.lock();
        let file = File::create_new(path)?;
        paths.insert(path.to_owned());
        Ok(file)
    }

    /// Renames a file that is complete. It is removed if that fails.
    fn complete(&self, path: &Path, name: &Path) -> io::Result<()> {
        let mut paths = self.lock();
        paths.remove(path);
        fs::rename(path, name).inspect_err(|_| {
            let _ = fs::remove_file(path);
        })
    }

    fn remove(&self, path: &Path) {
        self.lock().remove(path);
        let _ = fs::remove_file(path);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of one read.
const PIECE: usize = 1 << 16;

/// Time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(200);

/// A file's stream.
type Stream<'a> = Box<dyn BlockStream + 'a>;

/// Returns the number of blocks that are submitted at once: enough that a row never waits for the next one.
fn max_blocks(rows: usize) -> usize {
    2 * rows
}

/// The blocks in the engine, and the files that they belong to.
struct Pipeline<'a> {
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
    fn new(engine: Handle, rows: usize, bytes: u64, overwrite: bool) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|source| Error::NoThread { work: "the files", source })?;
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
    fn run_file(&mut self, pair: &FilePair, stream: Stream<'a>) -> Result<()> {
        let mut file = pair.open()?;
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
    fn collect(&mut self) -> Result<Vec<Totals>> {
        while !self.submitted.is_empty() {
            self.collect_one()?;
        }
        Ok(std::mem::take(&mut self.totals))
    }

    /// Removes the partial files after an error, and leaves the engine to the end of the process: dropping it would wait for its step.
    fn abandon(&mut self) {
        self.files.clear();
        std::mem::forget(self.engine.clone());
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
        let Counters { prefill_chars, generated_chars, .. } = self.engine.counters();
        let share = ((prefill_chars + generated_chars) as f64 / self.work.max(1) as f64).min(1.0);
        let rate = share * self.symbols as f64 / self.began.elapsed().as_secs_f64();
        self.progress.update((share * self.bytes_read as f64) as u64, self.bytes);
        self.progress.note(format!("{rate:.0} symbols/s"));
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
                    Event::Started { .. }
                    | Event::Characters(_)
                    | Event::Coding(_)
                    | Event::Document(_)
                    | Event::Next(_) => {}
                },
                Ok(None) => return Err(Error::Internal("the engine ended before a block".into())),
            }
        }
    }
}

/// Names the file in an error about a text or its data.
fn in_file(path: &Path) -> impl Fn(Error) -> Error + Copy {
    move |error| {
        let why = format!("{}: {}", printable(&path.display().to_string()), crate::cli::flag_names::message(error));
        Error::Unreadable { field: None, why }
    }
}

fn no_file() -> Error {
    Error::Internal("a block belongs to no file".into())
}
