//! `weir compress` and `weir decompress`: compress files and restore them, by a server, which runs in this process unless `--server`
//! names another.
//!
//! Each file is a call. Calls run side by side, so that the blocks of all files are rows of one batch.

use crate::cli::document::{DASH, WAITING_PARTS, read_on_thread};
use crate::cli::flag_names::message;
use crate::cli::model::{ModelSource, ModelSourceArgs, count, isa, own_limits, unreadable, whole};
use crate::cli::output::{self, Progress};
use crate::cli::score::{parse_windows, wire_windows};
use crate::cli::signals::{EndSignals, exit};
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use weir_client::calls::{MessageStream, Upload};
use weir_client::connection::Client;
use weir_engine::Limits;
use weir_engine::codec::format::{ContainerReader, Part};
use weir_engine::codec::{DEFAULT_BLOCK, MAX_BLOCK};
use weir_engine::options::WindowOptions;
use weir_kernels::Isa;
use weir_kernels::error::{Error, Result, printable};
use weir_models::load::MAX_SYMBOLS;
use weir_proto::CodecEvent;
use weir_proto::v1::{CodecProgress, CodecSummary, CompressOptions, DecompressOptions};

/// Runs `weir compress`. Fails if the model cannot compress, a text is outside of its vocabulary, or a file cannot be read or written.
pub fn run_compress(args: CompressArgs) -> Result<()> {
    let pairs = compressed_pairs(&args.codec.paths)?;
    if pairs.iter().any(FilePair::is_piped) && io::stdout().is_terminal() {
        return Err(Error::Setting(format!("{FILE}: expected a file or a pipe to write, found a terminal")));
    }
    let options = CompressOptions {
        normalise: Some(args.normalise),
        block_chars: Some(args.block),
        windows: args.windowed.map(|size| wire_windows("--windowed", size)).transpose()?,
        progress: Some(true),
        ..CompressOptions::default()
    };
    run(&args.codec, pairs, Direction::Compress(options))
}

/// Runs `weir decompress`. Fails if the data are damaged or of another model, or if a file cannot be read or written.
pub fn run_decompress(args: DecompressArgs) -> Result<()> {
    let pairs = decompressed_pairs(&args.codec.paths)?;
    let options = DecompressOptions { progress: Some(true), ..DecompressOptions::default() };
    run(&args.codec, pairs, Direction::Decompress(options))
}

fn run(args: &CodecArgs, pairs: Vec<FilePair>, direction: Direction) -> Result<()> {
    pairs.iter().try_for_each(|pair| pair.bytes().and_then(|_| pair.check_output(args.force)))?;
    if args.json && pairs.iter().any(FilePair::is_piped) {
        return Err(Error::Setting(
            "--json: expected no value next to the output -, which is standard output, found one".into(),
        ));
    }
    let source = args.model.open_with(args.isa)?;
    let max_files = match source {
        ModelSource::Process(_) => args.rows.min(FILES),
        ModelSource::Server(_) => SERVER_FILES,
    };
    let limits = Limits { rows: args.rows, chunk: args.chunk, step: Duration::ZERO, ..own_limits() };
    let served = source.served(limits)?;
    let texts: Vec<_> = pairs.iter().map(|pair| direction.text(pair)).collect();
    let began = Instant::now();
    let coder = Coder {
        client: served.client,
        direction: direction.of_model(served.name),
        overwrite: args.force,
        partial_files: PartialFiles::watched(&served.runtime)?,
        max_files,
        blocks: args.rows.min(BLOCKS) as u64,
        max_blocks: BLOCKS_OF_A_ROW * args.rows as u64,
        progress: Mutex::new(CodingProgress { bar: Progress::texts(), done: vec![0; texts.len()], texts, began }),
    };
    // Dropping an incomplete output file removes it.
    let coded = served.runtime.block_on(Arc::new(coder).run_all(&pairs))?;
    let mut summaries = Vec::new();
    let mut failures = Vec::new();
    for result in coded {
        match result {
            Ok(summary) => summaries.push(summary),
            Err(error) => failures.push(error),
        }
    }
    let Some(last) = failures.pop() else {
        return print(args, &pairs, &summaries, began.elapsed().as_secs_f64());
    };
    if !summaries.is_empty() {
        output::note(&format!("{} of {} files are complete", summaries.len(), pairs.len()));
    }
    failures.into_iter().for_each(|error| output::to_stderr(format_args!("weir: {}", printable(&message(error)))));
    Err(last)
}

fn print(args: &CodecArgs, pairs: &[FilePair], totals: &[CodecSummary], seconds: f64) -> Result<()> {
    let rate = totals.iter().map(|totals| totals.chars as f64).sum::<f64>() / seconds;
    if args.json {
        let file = |(pair, totals): (&FilePair, &CodecSummary)| {
            let mut fields = json!(totals);
            fields["file"] = json!(pair.input);
            fields["output"] = json!(pair.output);
            fields
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
        let CodecSummary { text_bytes, chars, compressed_bytes, blocks, bits_per_char } = *totals;
        let bits = output::optional(bits_per_char);
        let plural = if blocks == 1 { "" } else { "s" };
        out += &format!(
            "{}: {text_bytes} bytes, {chars} symbols in {blocks} block{plural}; {compressed_bytes} bytes compressed, \
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
    #[arg(long, value_name = "N", default_value_t = DEFAULT_BLOCK as u32, value_parser = whole(1..=MAX_BLOCK as u32), env = "WEIR_BLOCK")]
    block: u32,
    /// The model reads a block in windows of LENGTH symbols, each of which predicts its last STRIDE symbols. Default: twice the
    /// training length, and three quarters of that.
    #[arg(long, value_name = "LENGTH,STRIDE", value_parser = parse_windows, env = "WEIR_WINDOWED")]
    windowed: Option<WindowOptions>,
    /// Rewrite the text like the model's training text first. `decompress` then returns the rewritten text.
    #[arg(long, env = "WEIR_NORMALISE", value_parser = clap::builder::BoolishValueParser::new())]
    normalise: bool,
    #[command(flatten)]
    codec: CodecArgs,
}

/// Decompresses texts with the model that compressed them.
#[derive(Debug, clap::Args)]
pub struct DecompressArgs {
    #[command(flatten)]
    codec: CodecArgs,
}

/// Flags of both commands.
#[derive(Debug, clap::Args)]
struct CodecArgs {
    /// Blocks that run side by side, as rows of one batch; at most 16 of one file.
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
    #[command(flatten)]
    model: ModelSourceArgs,
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
    fn open(&self) -> Result<Box<dyn Read + Send>> {
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
    /// Bytes written to standard output.
    piped: u64,
    /// True if an existing file is replaced.
    overwrite: bool,
    files: PartialFiles,
}

impl OutputFile {
    /// Creates the file of a pair and lists it in `files`. Fails if the operating system does.
    fn create(pair: &FilePair, overwrite: bool, files: &PartialFiles) -> Result<Self> {
        if pair.is_piped() {
            let files = files.clone();
            return Ok(Self { file: None, partial: PathBuf::new(), pair: pair.clone(), piped: 0, overwrite, files });
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
        let mut output =
            Self { file: Some(file), partial, pair: pair.clone(), piped: 0, overwrite, files: files.clone() };
        // The first block may take minutes: a full disk is reported before.
        output.write(&[0; ROOM])?;
        let emptied = output.file.as_mut().map_or(Ok(()), |file| file.set_len(0).and_then(|()| file.rewind()));
        emptied.map_err(|error| pair.unwritable(&error))?;
        Ok(output)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => io::stdout().write_all(bytes).map(|()| self.piped += bytes.len() as u64),
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

/// Bytes of one read, and of a part of the request.
const PIECE: u64 = 1 << 16;

/// Maximum blocks of a call that a server runs side by side.
const BLOCKS: usize = 16;

/// Maximum files that this process codes side by side. With one block each, they fill a batch of the default size.
const FILES: usize = 16;

/// Maximum files that another server codes side by side, because other clients need its queue.
const SERVER_FILES: usize = 4;

/// Blocks in memory for each row of a batch: enough that a row never waits for the next one.
const BLOCKS_OF_A_ROW: u64 = 2;

/// Bytes at the beginning of compressed data that hold the header.
const HEADER: u64 = 256;

/// The direction of coding, with the options of the calls.
enum Direction {
    Compress(CompressOptions),
    Decompress(DecompressOptions),
}

impl Direction {
    /// Sets the name of the model.
    fn of_model(self, model: Option<String>) -> Self {
        match self {
            Self::Compress(options) => Self::Compress(CompressOptions { model, ..options }),
            Self::Decompress(options) => Self::Decompress(DecompressOptions { model, ..options }),
        }
    }

    /// Returns what is known about a file's text before it is coded. `None` for a pipe, and for data to decompress whose header is invalid
    /// or does not state the length.
    fn text(&self, pair: &FilePair) -> Option<KnownText> {
        let bytes = pair.bytes().ok()??;
        match self {
            Self::Compress(options) => Some(KnownText { bytes, block: options.block_chars().into() }),
            Self::Decompress(_) => {
                let mut beginning = Vec::new();
                pair.open().ok()?.take(HEADER).read_to_end(&mut beginning).ok()?;
                let mut reader = ContainerReader::default();
                reader.push(&beginning);
                match reader.next().ok()?? {
                    Part::Header(header) => Some(KnownText { bytes: header.text_bytes?, block: header.block as u64 }),
                    _ => None,
                }
            }
        }
    }
}

/// The size of a file's text.
struct KnownText {
    bytes: u64,
    /// Symbols of a block.
    block: u64,
}

impl KnownText {
    /// Returns the number of blocks after the first `symbols` symbols.
    fn blocks_after(&self, symbols: u64) -> u64 {
        self.bytes.saturating_sub(symbols).div_ceil(self.block.max(1))
    }
}

/// The progress of all files, in bytes of their texts. A symbol counts as one byte.
struct CodingProgress {
    bar: Progress,
    texts: Vec<Option<KnownText>>,
    done: Vec<u64>,
    began: Instant,
}

impl CodingProgress {
    /// Records a report about the first running block of a file. At most `blocks` of the file run side by side; the others are assumed to
    /// be as far as the first.
    fn update(&mut self, index: usize, blocks: u64, progress: CodecProgress) {
        let Some(Some(text)) = self.texts.get(index) else { return };
        let before = progress.block.saturating_mul(text.block);
        let running = text.blocks_after(before).min(blocks);
        let done = before.saturating_add(progress.chars.saturating_mul(running)).min(text.bytes);
        // Reports about a block that was behind the first one wait until that has ended.
        self.done[index] = done.max(self.done[index]);
        self.show();
    }

    fn finish(&mut self, index: usize) {
        let Some(Some(text)) = self.texts.get(index) else { return };
        self.done[index] = text.bytes;
        self.show();
    }

    fn show(&mut self) {
        // Compressed data may state any length.
        let done = self.done.iter().copied().fold(0, u64::saturating_add);
        let total = self.texts.iter().flatten().map(|text| text.bytes).fold(0, u64::saturating_add);
        self.bar.update(done, total);
        self.bar.note(format!("{:.0} symbols/s", done as f64 / self.began.elapsed().as_secs_f64()));
    }
}

/// Runs the calls of a command.
struct Coder {
    client: Client,
    direction: Direction,
    /// True if existing files are replaced.
    overwrite: bool,
    partial_files: PartialFiles,
    /// Maximum files that run side by side.
    max_files: usize,
    /// Maximum blocks of a file that run side by side.
    blocks: u64,
    /// Maximum blocks of all these files. A file runs even if it alone has more.
    max_blocks: u64,
    progress: Mutex<CodingProgress>,
}

impl Coder {
    /// Codes all files. Returns their summaries or errors, in order: a file is coded even if others fail.
    async fn run_all(self: Arc<Self>, pairs: &[FilePair]) -> Result<Vec<Result<CodecSummary>>> {
        let mut results: Vec<_> = pairs.iter().map(|_| Ok(CodecSummary::default())).collect();
        let mut waiting = pairs.iter().cloned().enumerate().peekable();
        let mut running = JoinSet::new();
        let mut blocks = 0;
        loop {
            while running.len() < self.max_files
                && let Some((index, pair)) = waiting
                    .next_if(|(index, _)| running.is_empty() || blocks + self.running_blocks(*index) <= self.max_blocks)
            {
                blocks += self.running_blocks(index);
                let coder = Arc::clone(&self);
                running.spawn(async move { (index, coder.run_one(index, &pair).await) });
            }
            let Some(coded) = running.join_next().await else { return Ok(results) };
            let (index, result) = coded.map_err(|error| Error::Internal(format!("a file's task ended: {error}")))?;
            blocks -= self.running_blocks(index);
            results[index] = result;
        }
    }

    fn progress(&self) -> MutexGuard<'_, CodingProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many blocks of a file run side by side.
    fn running_blocks(&self, index: usize) -> u64 {
        let progress = self.progress();
        progress.texts[index].as_ref().map_or(self.blocks, |text| text.blocks_after(0).min(self.blocks))
    }

    /// Codes a file. Errors name the file that they concern.
    async fn run_one(&self, index: usize, pair: &FilePair) -> Result<CodecSummary> {
        let input = upload(pair)?;
        let mut output = OutputFile::create(pair, self.overwrite, &self.partial_files)?;
        let coded = self.code(index, pair, input, &mut output).await;
        let summary = coded.map_err(|error| in_file(&pair.input, error, output.piped))?;
        self.progress().finish(index);
        output.commit()?;
        Ok(summary)
    }

    async fn code(
        &self,
        index: usize,
        pair: &FilePair,
        input: Upload<Vec<u8>>,
        output: &mut OutputFile,
    ) -> Result<CodecSummary> {
        match &self.direction {
            Direction::Compress(options) => {
                let text_bytes = pair.bytes()?.filter(|_| !options.normalise());
                let options = CompressOptions { text_bytes, ..options.clone() };
                let messages = self.client.compress(options, input).await?;
                self.write(index, messages, output).await
            }
            Direction::Decompress(options) => {
                let messages = self.client.decompress(options.clone(), input).await?;
                self.write(index, messages, output).await
            }
        }
    }

    /// Writes the output of a call. Returns the summary at its end.
    async fn write<M: Into<Option<CodecEvent>>>(
        &self,
        index: usize,
        mut messages: MessageStream<M>,
        output: &mut OutputFile,
    ) -> Result<CodecSummary> {
        while let Some(message) = messages.next().await? {
            match message.into() {
                Some(CodecEvent::Output(bytes)) => output.write(&bytes)?,
                Some(CodecEvent::Progress(progress)) => {
                    self.progress().update(index, self.blocks, progress);
                }
                Some(CodecEvent::Summary(summary)) => return Ok(summary),
                None => {}
            }
        }
        Err(self.client.incomplete("a summary"))
    }
}

/// Opens a file and starts a thread that reads it in full pieces, because servers close a connection with many small messages.
fn upload(pair: &FilePair) -> Result<Upload<Vec<u8>>> {
    let mut file = pair.open()?;
    let input = pair.input.clone();
    let (parts_sender, parts) = mpsc::channel(WAITING_PARTS);
    let (failed, failure) = oneshot::channel();
    read_on_thread(move || {
        loop {
            let mut piece = Vec::new();
            match file.by_ref().take(PIECE).read_to_end(&mut piece) {
                Ok(0) => return,
                Ok(_) => {
                    // Fails when the call has ended.
                    if parts_sender.blocking_send(piece).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    // Sent before the parts end, so that their end is not mistaken for the end of the file.
                    let _ = failed.send(unreadable(FILE, &input)(error));
                    return;
                }
            }
        }
    })?;
    Ok(Upload { parts, failure })
}

/// Adds the file's name to an error about its text or data, and states how many bytes standard output already has. Errors of reading or
/// writing name the file themselves.
fn in_file(path: &Path, error: Error, piped: u64) -> Error {
    if matches!(error, Error::Setting(_) | Error::Io { .. }) {
        return error;
    }
    let why = message(error);
    // An error about a flag does not concern the file.
    let file =
        if why.starts_with("--") { String::new() } else { format!("{}: ", printable(&path.display().to_string())) };
    let written =
        if piped > 0 { format!("; the output is incomplete: {piped} bytes were written") } else { String::new() };
    Error::Unreadable { field: None, why: format!("{file}{why}{written}") }
}
