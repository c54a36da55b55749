//! Lossless compression: texts come back on every family, dtype, batch, thread count and instruction set with the same bits, and
//! damaged data never come back as a wrong text.

use crate::{
    conformance::on_each,
    process::{program, weir, weir_json},
    support::settings as default_settings,
    *,
};
use proptest::prelude::*;
use tempfile::tempdir;
use weir::{
    engine::codec::{
        BlockStream, Code, CodeInput, Coded, CompressOptions, Compressor, Decompressor, coder::check_model,
    },
    models::contract::Exactness,
    report::sample::Sample,
};

/// A block that runs: its session, and its row while it has one.
struct Running {
    session: Session,
    row: SequenceRow,
    coded: Option<Coded>,
}

impl Running {
    fn new(model: &dyn Model, request: Code) -> Result<Self> {
        let session = Session::code(request, model.card())?;
        let row = SequenceRow::new(model.begin(session.boundaries().clone())?);
        Ok(Self { session, row, coded: None })
    }
}

/// Codes blocks side by side, `rows` at a time, in steps of at most `chunk` symbols a row.
fn code_blocks(model: &dyn Model, blocks: Vec<Code>, rows: usize, chunk: usize) -> Result<Vec<Coded>> {
    let mut results = Vec::new();
    let mut blocks = blocks.into_iter().peekable();
    while blocks.peek().is_some() {
        let batch = blocks.by_ref().take(rows).map(|block| Running::new(model, block));
        results.extend(run_batch(model, batch.collect::<Result<_>>()?, chunk)?);
    }
    Ok(results)
}

fn run_batch(model: &dyn Model, mut batch: Vec<Running>, chunk: usize) -> Result<Vec<Coded>> {
    let mut scratch = model.scratch();
    loop {
        let unfinished: Vec<usize> = (0..batch.len()).filter(|&index| batch[index].coded.is_none()).collect();
        if unfinished.is_empty() {
            return Ok(batch.into_iter().filter_map(|running| running.coded).collect());
        }
        // the contract takes rows side by side
        let mut rows: Vec<SequenceRow> = Vec::new();
        for &index in &unfinished {
            let Running { session, row, .. } = &mut batch[index];
            session.feed(row, chunk);
            let empty = SequenceRow::new(model.begin(session.boundaries().clone())?);
            rows.push(std::mem::replace(row, empty));
        }
        let which: Vec<usize> = (0..rows.len()).collect();
        advance(model, &mut rows, &which, &mut scratch)?;
        for (&index, row) in unfinished.iter().zip(rows) {
            let running = &mut batch[index];
            running.row = row;
            if let SessionProgress::Finished(_) = running.session.absorb(&mut running.row)? {
                running.coded = running.session.take_coded();
                assert!(running.coded.is_some(), "a finished block has a result");
            }
        }
    }
}

/// Runs a stream from its input to its output.
fn transcode(
    model: &dyn Model,
    stream: &mut dyn BlockStream,
    input: &[u8],
    rows: usize,
    chunk: usize,
) -> Result<Vec<u8>> {
    let mut blocks = Vec::new();
    for piece in input.chunks(100) {
        stream.push(piece)?;
        while let Some(block) = stream.next_block()? {
            blocks.push(block);
        }
    }
    stream.finish()?;
    while let Some(block) = stream.next_block()? {
        blocks.push(block);
    }
    let mut out = Vec::new();
    for coded in code_blocks(model, blocks, rows, chunk)? {
        stream.accept(coded, &mut out)?;
    }
    stream.end(&mut out)?;
    Ok(out)
}

const WINDOWS: WindowOptions = WindowOptions { length: 48, stride: 31 };

pub(crate) fn compress(model: &dyn Model, text: &[u8], block: usize, rows: usize, chunk: usize) -> Result<Vec<u8>> {
    let text_bytes = Some(text.len() as u64);
    let options = CompressOptions { block, windows: WINDOWS, normalise: false, text_bytes };
    transcode(model, &mut Compressor::new(model.card(), options)?, text, rows, chunk)
}

fn decompress(model: &dyn Model, data: &[u8], rows: usize) -> Result<Vec<u8>> {
    transcode(model, &mut Decompressor::new(model.card())?, data, rows, 16)
}

/// Returns the first `count` characters of the bundled English.
fn english(model: &dyn Model, count: usize) -> Vec<u8> {
    let vocabulary = &model.card().vocabulary;
    vocabulary.decode(&Sample::new(vocabulary).window(0, count)).into_bytes()
}

/// Returns a small model with random weights that pools at spaces.
fn default_fixture() -> Arc<dyn Model> {
    static MODEL: LazyLock<Arc<dyn Model>> = LazyLock::new(|| {
        let settings = Settings { threads: 1, ..default_settings() };
        load(&converted("whitespaces"), &settings).unwrap()
    });
    MODEL.clone()
}

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/compared/hourglass-whitespace-english");

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

fn english_text(count: usize) -> String {
    String::from_utf8(english(&*load(Path::new(MODEL), &default_settings()).unwrap(), count)).unwrap()
}

#[test]
fn the_file_has_the_size_that_the_score_predicts() {
    let folder = tempdir().unwrap();
    let text = path(folder.path(), "a.txt");
    let out = path(folder.path(), "a.weir");
    let back = path(folder.path(), "b.txt");
    let english = english_text(1500);
    fs::write(&text, &english).unwrap();
    let args = ["compress", "--json", "--model", MODEL, "--windowed", "512,384", "--isa", "avx2", &text, &out];
    let args = if weir::kernels::Isa::parse("avx2").is_some() { &args[..] } else { &[&args[..6], &args[8..]].concat() };
    let report = weir_json(args);
    let bytes = fs::metadata(&out).unwrap().len();
    assert_eq!((&report["files"][0]["compressed_bytes"], &report["files"][0]["chars"]), (&bytes.into(), &1500.into()));
    let score = weir_json(&["score", "--json", "--model", MODEL, "--windowed", "512,384", "--file", &text]);
    let predicted = score["bits_per_char"].as_f64().unwrap() * 1499.0 + 27f64.log2();
    // header, one block's front, and end; the coder ends with up to two words
    let around = 63 + 9 + 41;
    let coded = (bytes - around) as f64 * 8.0;
    assert!((predicted..predicted + 64.5).contains(&coded), "{coded} bits, not {predicted}");
    // other rows, other steps
    weir(&["decompress", "--model", MODEL, "--threads=1", "--rows=1", "--chunk=7", &out, &back]).unwrap();
    assert_eq!(fs::read_to_string(&back).unwrap(), english);
}

#[test]
fn several_files_share_a_batch() {
    let folder = tempdir().unwrap();
    let english = english_text(1500);
    let texts = [&english[..700], "", &english[700..], "a"];
    let names = ["a", "b", "c", "d"].map(|name| path(folder.path(), name));
    for (name, text) in names.iter().zip(texts) {
        fs::write(name, text).unwrap();
    }
    let model = converted("whitespaces");
    let model = model.to_str().unwrap();
    let packed = path(folder.path(), "packed");
    fs::create_dir(&packed).unwrap();
    let options = ["--model", model, "--rows", "5", "--block", "100", "--json"];
    let all: Vec<&str> = ["compress"].into_iter().chain(options).chain(names.iter().map(String::as_str)).collect();
    let report = weir_json(&[&all[..], &[&packed]].concat());
    assert_eq!(report["files"].as_array().unwrap().len(), 4);
    let inputs = ["a", "b", "c", "d"].map(|name| path(Path::new(&packed), &format!("{name}.weir")));
    let refusal = weir(&[&["decompress", "--model", model][..], &[&inputs[0], &names[0]]].concat()).unwrap_err();
    assert!(refusal.contains("the file exists; --force overwrites it"), "{refusal}");
    for name in &names {
        fs::remove_file(name).unwrap();
    }
    let options = ["decompress", "--model", model, "--rows", "3"];
    let out = path(folder.path(), "");
    let all: Vec<&str> = options.into_iter().chain(inputs.iter().map(String::as_str)).chain([&*out]).collect();
    let printed = weir(&all).unwrap();
    assert!(printed.contains("symbols per second"), "{printed}");
    for (name, text) in names.iter().zip(texts) {
        assert_eq!(fs::read_to_string(name).unwrap(), text);
    }
}

/// Starts a command that reads its standard input, which stays open.
fn reading_a_pipe(command: &str, model: &Path, out: &str) -> Child {
    let args = [command, "--threads", "1", "--model", model.to_str().unwrap(), "/dev/stdin", out];
    program(&args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[cfg(unix)]
#[test]
fn a_pipe_is_compressed_and_decompressed() {
    let folder = tempdir().unwrap();
    let model = converted("whitespaces");
    let text = english_text(300).into_bytes();
    let mut input = text.clone();
    for (command, name) in [("compress", "a.weir"), ("decompress", "a.txt")] {
        let out = path(folder.path(), name);
        let mut child = reading_a_pipe(command, &model, &out);
        child.stdin.take().unwrap().write_all(&input).unwrap();
        assert!(child.wait().unwrap().success());
        input = fs::read(out).unwrap();
    }
    assert_eq!(input, text);
}

/// The file appears while the command reads its input.
#[cfg(unix)]
#[test]
fn a_file_that_appears_is_kept() {
    let folder = tempdir().unwrap();
    let out = path(folder.path(), "a.weir");
    let mut child = reading_a_pipe("compress", &converted("whitespaces"), &out);
    while fs::read_dir(folder.path()).unwrap().count() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(&out, "kept").unwrap();
    child.stdin.take().unwrap().write_all(b"a text").unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&out).unwrap(), "kept");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_no_partial_file() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let folder = tempdir().unwrap();
        let files = || fs::read_dir(folder.path()).unwrap().count();
        let mut child = reading_a_pipe("compress", &converted("whitespaces"), &path(folder.path(), "a.weir"));
        // `wait` would close it, and the command could complete its file before the signal ends it.
        let _input = child.stdin.take();
        while files() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success()
        );
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(files(), 0, "SIG{signal}");
    }
}

#[test]
fn no_changed_byte_and_no_part_gives_another_text() {
    let model = default_fixture();
    let text = english(&*model, 70);
    let data = compress(&*model, &text, 40, 2, 16).unwrap();
    assert_eq!(decompress(&*model, &data, 2).unwrap(), text);
    for position in 0..data.len() {
        let byte = data[position];
        for other in [&[byte ^ (1 << (position % 8))][..], &[!byte], &[], &[byte, byte]] {
            let mut damaged = data.clone();
            damaged.splice(position..=position, other.iter().copied());
            // the last bits of a block's words may have no meaning
            match decompress(&*model, &damaged, 2) {
                Ok(same) => assert_eq!(same, text, "byte {position}"),
                Err(Error::Damaged { .. } | Error::CompressedWith { .. }) => {}
                Err(other) => panic!("byte {position}: {other}"),
            }
        }
    }
    for length in 0..data.len() {
        assert!(matches!(decompress(&*model, &data[..length], 2), Err(Error::Damaged { .. })), "{length} bytes");
    }
    assert!(decompress(&*model, &[&data[..], &data].concat(), 2).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn random_changes_never_give_another_text(
        at in 0usize..200, removed in 0usize..9, added in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let model = default_fixture();
        let text = english(&*model, 70);
        let mut data = compress(&*model, &text, 40, 2, 16).unwrap();
        let at = at.min(data.len());
        let end = (at + removed).min(data.len());
        data.splice(at..end, added);
        if let Ok(same) = decompress(&*model, &data, 2) {
            prop_assert_eq!(same, text);
        }
    }
}

fn compressing(symbols: &[u32]) -> Code {
    Code { input: CodeInput::Compress(symbols.to_vec()), windows: WINDOWS, progress: false }
}

fn decompressing(symbols: usize, coded: &Coded) -> Code {
    let Coded::Data(data) = coded else { panic!("{coded:?}") };
    Code { input: CodeInput::Decompress { symbols, data: data.clone() }, windows: WINDOWS, progress: false }
}

/// Blocks of one symbol, of less than a window, of exactly one, and of several.
const LENGTHS: [usize; 5] = [1, 20, 32, 100, 63];

#[test]
fn blocks_come_back_in_every_family_dtype_and_batch() {
    on_each(|configuration, rng| {
        let model = &*configuration.model;
        let name = &configuration.name;
        let is_bitwise = model.card().exactness == Exactness::Bitwise;
        if let Err(error) = check_model(model.card()) {
            let reason = if is_bitwise { "reads subwords" } else { "computes the same bits" };
            assert!(error.to_string().contains(reason), "{name}: {error}");
            return;
        }
        assert!(is_bitwise, "{name} is accepted");
        let ids: Vec<u32> = model.card().vocabulary.text_ids().collect();
        let texts = LENGTHS.map(|length| (0..length).map(|_| ids[rng.below(ids.len())]).collect::<Vec<u32>>());
        let blocks = || texts.iter().map(|text| compressing(text)).collect::<Vec<_>>();
        let together = code_blocks(model, blocks(), LENGTHS.len(), 64).unwrap();
        let alone = code_blocks(model, blocks(), 1, 1).unwrap();
        assert!(together == alone, "{name}: a stepped encoder alone writes other data");
        let data =
            || texts.iter().zip(&alone).map(|(text, coded)| decompressing(text.len(), coded)).collect::<Vec<_>>();
        for rows in [1, LENGTHS.len()] {
            let symbols = code_blocks(model, data(), rows, 64).unwrap();
            let expected: Vec<_> = texts.iter().map(|text| Coded::Symbols(text.clone())).collect();
            assert!(symbols == expected, "{name}: {rows} rows");
        }
        if model.card().vocabulary.is_bytes() {
            let file: Vec<u8> = (0..=255).rev().collect();
            let data = compress(model, &file, 100, 3, 16).unwrap();
            assert!(decompress(model, &data, 2).unwrap() == file, "{name}: another file");
        }
    });
}

/// The engine takes rows away from requests when memory is short.
#[test]
fn a_block_that_loses_its_row_comes_back() {
    let model = default_fixture();
    let text: Vec<u32> = (0..130).map(|index| index * 7 % 27).collect();
    let coded = code_blocks(&*model, vec![compressing(&text)], 1, 16).unwrap();
    for request in [compressing(&text), decompressing(text.len(), &coded[0])] {
        let mut running = Running::new(&*model, request).unwrap();
        for step in 0..60 {
            running.session.feed(&mut running.row, 3);
            let rows = std::slice::from_mut(&mut running.row);
            advance(&*model, rows, &[0], &mut model.scratch()).unwrap();
            running.session.absorb(&mut running.row).unwrap();
            if let Some(coded) = running.session.take_coded() {
                running.coded = Some(coded);
                break;
            }
            if step % 13 == 12 {
                running.session.rewind();
                running.row = SequenceRow::new(model.begin(running.session.boundaries().clone()).unwrap());
            }
        }
        let result = run_batch(&*model, vec![running], 16).unwrap().remove(0);
        assert!(result == coded[0] || result == Coded::Symbols(text.clone()));
    }
}

const DEFAULT: &str = "hourglass-english";

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

fn model(name: &str, dtype: Dtype, threads: usize, isa: Isa) -> Arc<dyn Model> {
    load(&folder(name), &Settings { dtype, threads, isa, ..default_settings() }).unwrap()
}

/// Returns the instruction sets with the same bits as the widest one.
fn fused() -> Vec<Isa> {
    Isa::all().into_iter().filter(|isa| isa.fuses() == Isa::detect().fuses()).collect()
}

/// One side of a round trip.
#[derive(Debug, Clone, Copy)]
struct Side {
    isa: Isa,
    threads: usize,
    rows: usize,
    /// Symbols of a step of the compressor.
    chunk: usize,
}

/// Returns the pairs of settings whose bits agree. Each pair has both counts of threads, one row against many, and steps of one
/// symbol against chunks.
fn pairs() -> Vec<(Side, Side)> {
    let fused = fused();
    let from_all = fused.iter().flat_map(|&from| fused.iter().map(move |&to| (from, to)));
    let isas = from_all.filter(|(from, to)| from != to || fused.len() == 1).chain([(Isa::portable(), Isa::portable())]);
    let both_ways = |(number, (from, to)): (usize, (Isa, Isa))| {
        let many = Side { isa: from, threads: 1 + number % 2, rows: 16, chunk: 256 };
        let one = Side { isa: to, threads: 2 - number % 2, rows: 1, chunk: 1 };
        if number % 2 == 0 { (many, one) } else { (Side { isa: from, ..one }, Side { isa: to, ..many }) }
    };
    isas.enumerate().map(both_ways).collect()
}

/// Sends a text through a small model. `WEIR_CODEC_CHARS` sets its length. Ten million characters take hours.
#[allow(clippy::print_stdout, reason = "a long run reports its pairs")]
#[test]
fn a_text_comes_back_in_every_pair_of_settings() {
    let count = std::env::var("WEIR_CODEC_CHARS").map_or(1000, |count| count.parse().unwrap());
    for (dtype, (first, second)) in
        Dtype::ALL.into_iter().flat_map(|dtype| pairs().into_iter().map(move |pair| (dtype, pair)))
    {
        let began = Instant::now();
        let [compressor, decompressor] = [first, second].map(|Side { isa, threads, .. }| {
            load(&converted("whitespaces"), &Settings { dtype, threads, isa, ..default_settings() }).unwrap()
        });
        let text = english(&*compressor, count);
        let block = count.div_ceil(64);
        let data = compress(&*compressor, &text, block, first.rows, first.chunk).unwrap();
        let name = format!("{}: {first:?}, {second:?}", dtype.name());
        assert!(decompress(&*decompressor, &data, second.rows).unwrap() == text, "{name}: another text");
        // the whole data again would double the time
        let beginning = &text[..block.min(5000)];
        let again = |model: &dyn Model, side: Side| compress(model, beginning, 500, side.rows, side.chunk).unwrap();
        assert!(again(&*compressor, first) == again(&*decompressor, second), "{name}: other data");
        println!("{name}: {count} characters in {} bytes, {:.0?}", data.len(), began.elapsed());
    }
}

#[test]
fn the_portable_kernels_read_their_own_data_only() {
    const MODEL: &str = "compared/decoder-xpos-3m";
    let portable = model(MODEL, Dtype::F32, 1, Isa::portable());
    let text = english(&*portable, 120);
    let data = compress(&*portable, &text, 64, 2, 16).unwrap();
    assert_eq!(decompress(&*portable, &data, 1).unwrap(), text);
    if Isa::detect().fuses() == Isa::portable().fuses() {
        return;
    }
    let fused = model(MODEL, Dtype::F32, 1, Isa::detect());
    let error = decompress(&*fused, &data, 1).unwrap_err();
    assert!(matches!(error, Error::CompressedWith { what: "multiply-adds that round", .. }), "{error}");
}

/// Sends a text through a shipped model with these kernels. The data of a chunked batch on two threads equal a stepped row's on
/// one thread and the other instruction set.
fn comes_back(name: &str, dtype: Dtype, [isa, other]: [Isa; 2], chars: usize) {
    let batched = model(name, dtype, 2, isa);
    let text = english(&*batched, chars);
    let block = chars / 3;
    let data = match compress(&*batched, &text, block, 3, 16) {
        Ok(data) => data,
        Err(error) => {
            assert_eq!(batched.card().family, "pyramidion", "{name}: {error}");
            assert!(error.to_string().contains("one that reads subwords"), "{error}");
            return;
        }
    };
    let stepped = model(name, dtype, 1, other);
    let what = format!("{name}, {}, {} and {}", dtype.name(), isa.name(), other.name());
    assert!(compress(&*stepped, &text, block, 1, 1).unwrap() == data, "{what}: other data");
    assert!(decompress(&*stepped, &data, 16).unwrap() == text, "{what}: another text");
    assert!(decompress(&*batched, &data, 1).unwrap() == text, "{what}: another text");
}

/// Returns every shipped model with every dtype.
fn shipped() -> Vec<(String, Dtype)> {
    let compared = std::fs::read_dir(folder("compared")).unwrap();
    let compared = compared.map(|entry| format!("compared/{}", entry.unwrap().file_name().into_string().unwrap()));
    let mut names: Vec<String> = compared.chain([DEFAULT.to_owned()]).collect();
    names.sort_unstable();
    assert!(names.len() > 6, "{names:?}");
    names.into_iter().flat_map(|name| Dtype::ALL.map(|dtype| (name.clone(), dtype))).collect()
}

/// Short runs test one of the dtypes per model, the first and the second by turns.
fn shipped_models_give_texts_back(dtypes: [Dtype; 2]) {
    let another = fused().into_iter().find(|isa| *isa != Isa::detect()).unwrap_or(Isa::detect());
    let dtypes_of_models = shipped().into_iter().filter(|(_, dtype)| dtypes.contains(dtype)).enumerate();
    for (index, (name, dtype)) in dtypes_of_models {
        if long_runs() || index % 2 == index / 2 % 2 {
            comes_back(&name, dtype, [Isa::detect(), another], 60);
        }
    }
}

#[test]
fn every_shipped_model_gives_texts_back_in_floats_with_the_widest_kernels() {
    shipped_models_give_texts_back([Dtype::F32, Dtype::Bf16]);
}

#[test]
fn every_shipped_model_gives_texts_back_in_integers_with_the_widest_kernels() {
    shipped_models_give_texts_back([Dtype::Int8, Dtype::Int4]);
}

/// The portable kernels are slow: short runs take one dtype of each model, a different one from model to model.
#[test]
fn every_shipped_model_gives_texts_back_with_the_portable_kernels() {
    for (index, (name, dtype)) in shipped().iter().enumerate() {
        let count = Dtype::ALL.len();
        if long_runs() || index % count == index / count % count {
            comes_back(name, *dtype, [Isa::portable(); 2], 18);
        }
    }
}
