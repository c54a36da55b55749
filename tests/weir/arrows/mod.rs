//! Dependencies between the rooms of the packages and inside them, read off the sources' paths.
//!
//! A room may use only the rooms that `MAY_USE` lists. Inside a room, and inside each of its folders, the files and folders
//! must not use each other in a ring. The module [`paths`] reads the sources.

mod paths;

use paths::{Module, Sources, code_of};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The sources of each package, and its rooms. Cargo allows no ring of packages.
const PACKAGES: [(&str, &[&str]); 4] = [
    ("core/src", &["error", "kernels", "nn", "sync"]),
    ("engine/src", &["decode", "engine", "family", "text"]),
    ("server/src", &["config", "metrics", "serve"]),
    ("src", &["cli", "report", "verify"]),
];

/// Each room, and the rooms that it may use. Every room may use `error`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("cli", &["config", "serve", "engine", "decode", "family", "kernels", "report", "text", "verify"]),
    ("config", &["engine", "family"]),
    ("serve", &["config", "engine", "decode", "metrics", "text"]),
    ("metrics", &["decode", "engine"]),
    ("engine", &["decode", "sync"]),
    ("report", &["decode", "kernels", "text"]),
    // A second implementation: it must not use `nn` or `kernels`.
    ("verify", &["decode", "family", "text"]),
    ("family", &["decode", "nn", "text", "kernels"]),
    ("decode", &["kernels", "text"]),
    ("nn", &["kernels"]),
    ("kernels", &["sync"]),
    ("sync", &[]),
    ("text", &[]),
    ("error", &[]),
];

/// Crates, and the rooms that may name them.
const CRATES: &[(&str, &[&str])] = &[
    ("axum", &["serve"]),
    ("base64", &["family", "serve"]),
    ("flate2", &["serve"]),
    ("http_body", &["serve"]),
    ("constriction", &["decode"]),
    ("hdrhistogram", &["metrics"]),
    ("hyper", &["serve"]),
    ("hyper_util", &["serve"]),
    ("opentelemetry", &["serve"]),
    ("opentelemetry_otlp", &["serve"]),
    ("opentelemetry_sdk", &["serve"]),
    ("prometheus_client", &["metrics"]),
    ("tonic", &["serve"]),
    ("tonic_health", &["serve"]),
    ("tonic_reflection", &["serve"]),
    ("tonic_types", &["serve"]),
    ("tower", &["serve"]),
    ("tokio_io_timeout", &["serve"]),
    ("tungstenite", &["serve"]),
    // Opens files without waiting for a pipe's writer.
    ("libc", &["family", "kernels"]),
    ("lru", &["engine"]),
    ("uuid", &["engine", "serve"]),
    // `config` describes PEM files in the words of both programs.
    ("weir_client", &["cli", "config", "serve"]),
    ("weir_proto", &["cli", "serve"]),
    // Reads official checkpoints, and messages that may be absent.
    ("prost", &["family", "serve"]),
    ("tokio_stream", &["serve"]),
    // The engine's channels and wakers, and the command line's runtime and signals.
    ("tokio", &["serve", "engine", "cli"]),
    ("clap", &["cli", "main"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("indicatif", &["cli"]),
    ("lsp_server", &["cli"]),
    ("tracing_subscriber", &["cli"]),
    ("tracing_appender", &["cli"]),
    ("safetensors", &["cli", "verify"]),
    ("zip", &["family"]),
    ("candle_core", &["family", "verify"]),
    ("candle_nn", &["family", "verify"]),
    // The second implementation of Hugging Face models.
    ("candle_transformers", &["verify"]),
    // The threads of candle's products.
    ("rayon", &["family"]),
    // Hashes of checkpoints, API keys, certificates and the beginnings of texts.
    ("sha2", &["family", "config", "serve", "decode", "cli"]),
    ("subtle", &["config"]),
    ("toml", &["config"]),
    // `cli` names the provider of the client of `weir pull`.
    ("tokio_rustls", &["config", "serve", "cli"]),
    // The client of `weir pull`, and the authorities that it trusts.
    ("ureq", &["cli"]),
    ("rustls_native_certs", &["cli"]),
    ("socket2", &["serve"]),
    ("webpki", &["serve"]),
    ("rand_chacha", &["decode", "family"]),
    ("unicode_normalization", &["text"]),
    ("tokenizers", &["text"]),
    ("regex", &["text"]),
    ("regex_syntax", &["text"]),
    ("rustix", &["cli"]),
    // The service manager's socket.
    ("sd_notify", &["cli"]),
    ("thiserror", &["error", "family", "text"]),
    ("weir_measure", &["cli", "report"]),
    ("sysinfo", &["report", "serve"]),
    ("memmap2", &["kernels"]),
];

/// Minimum source files of each package. Fewer would mean that the folder is no longer the package's.
const MIN_FILES: usize = 30;
/// Names of the packages in code. Their `lib.rs` files re-export the rooms of others, and all other files name these as `crate`.
const PACKAGE_NAMES: [&str; 3] = ["weir_core", "weir_engine", "weir_server"];

fn in_package(module: &Module, folder: &str) -> bool {
    module.file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the packages that code names, which belong in `lib.rs` only.
fn named_packages(code: &str) -> Vec<&'static str> {
    let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    PACKAGE_NAMES.into_iter().filter(|package| words.contains(package)).collect()
}

fn sources() -> Sources {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = Sources::read(root, &PACKAGES.map(|(folder, _)| folder));
    for (folder, _) in PACKAGES {
        let count = sources.modules.values().filter(|module| in_package(module, folder)).count();
        assert!(count >= MIN_FILES, "only {count} files in {folder}");
    }
    sources
}

/// Rooms that a module uses.
fn used_rooms(sources: &Sources, module: &Module) -> BTreeSet<String> {
    sources.uses(module).into_iter().filter_map(|target| target.first().cloned()).collect()
}

#[test]
fn rooms_depend_on_each_other_one_way() {
    let sources = sources();
    let mut wrong = Vec::new();
    for module in sources.rooms() {
        let room = module.room();
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{}: the room {room:?} is not in MAY_USE", module.file));
            continue;
        };
        for target in used_rooms(&sources, module) {
            if target != room && target != "error" && !allowed.contains(&target.as_str()) {
                wrong.push(format!("{}: {room} must not use {target}", module.file));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_room_is_in_its_package() {
    for module in sources().rooms() {
        let (folder, rooms) = PACKAGES.iter().find(|(folder, _)| in_package(module, folder)).unwrap();
        assert!(rooms.contains(&module.room()), "{}: {folder} has no room {}", module.file, module.room());
    }
}

/// A path such as `weir_engine::family` would use a room unseen.
#[test]
fn only_lib_rs_names_other_packages() {
    let mut wrong = Vec::new();
    for module in sources().modules.values().filter(|module| module.room() != "lib") {
        let named = named_packages(&code_of(&module.text));
        wrong.extend(named.iter().map(|package| format!("{}: name the room as crate::, not {package}", module.file)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        named_packages("let card = weir_engine::family::card();\npub use weir_core as core;"),
        PACKAGE_NAMES[..2]
    );
    assert!(named_packages(&code_of("// weir_engine::family\nlet a = weir_core_x::b + my_weir_core::c;")).is_empty());
}

/// A dependency that is allowed but unused would let the next one in unseen.
#[test]
fn every_allowed_dependency_is_used() {
    let sources = sources();
    for (room, allowed) in MAY_USE {
        let modules = sources.rooms().filter(|module| module.room() == *room);
        let used: BTreeSet<String> = modules.flat_map(|module| used_rooms(&sources, module)).collect();
        for target in *allowed {
            assert!(used.contains(*target), "{room} does not use {target}");
        }
    }
}

/// `src/lib.rs` shows the same table to readers: a row per room, with the rooms that it uses.
#[test]
fn the_map_in_lib_rs_is_this_table() {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let mut shown = BTreeMap::new();
    for line in lib.lines().filter(|line| ["//! | [`", "//! | `"].iter().any(|start| line.starts_with(start))) {
        let cells: Vec<&str> =
            line.trim_start_matches("//! |").trim_end_matches('|').split('|').map(str::trim).collect();
        let [room, _, uses] = cells[..] else { panic!("a row of the map has three cells: {line}") };
        let uses: BTreeSet<&str> = uses.split(", ").filter(|room| *room != "–").collect();
        shown.insert(room.trim_matches(['[', ']', '`']), uses);
    }
    let table: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(room, uses)| (*room, uses.iter().copied().collect())).collect();
    assert_eq!(shown, table);
}

/// In each folder, the files and subfolders (and the folder's own `mod.rs`) form no ring.
#[test]
fn no_ring_inside_a_room() {
    let sources = sources();
    let mut rings = Vec::new();
    for folder in sources.folders() {
        let arrows = sources.arrows_inside(&folder);
        if let Some(ring) = ring(&arrows) {
            let steps: Vec<String> = ring
                .windows(2)
                .map(|step| format!("{} → {} ({})", step[0], step[1], arrows[&step[0]][&step[1]]))
                .collect();
            rings.push(format!("{}: {}", folder.join("/"), steps.join(", ")));
        }
    }
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// Packages whose files stand next to each other.
#[test]
fn no_ring_inside_a_flat_package() {
    for package in ["crates/client/src", "proto/src"] {
        let arrows = Sources::read(Path::new(env!("CARGO_MANIFEST_DIR")), &[package]).arrows_inside(&[]);
        assert!(!arrows.is_empty(), "{package}");
        assert_eq!(ring(&arrows), None, "{package}");
    }
}

/// A path through the graph that ends where it began, if one exists. `arrows[from][to]` is an example of a use.
fn ring(arrows: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    fn visit(
        unit: &str,
        arrows: &BTreeMap<String, BTreeMap<String, String>>,
        path: &mut Vec<String>,
        finished: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|seen| seen == unit) {
            let mut ring = path[start..].to_vec();
            ring.push(unit.to_string());
            return Some(ring);
        }
        if finished.contains(unit) {
            return None;
        }
        path.push(unit.to_string());
        let targets = arrows.get(unit).into_iter().flat_map(BTreeMap::keys);
        let cycle = targets.into_iter().find_map(|target| visit(target, arrows, path, finished));
        path.pop();
        finished.insert(unit.to_string());
        cycle
    }
    let mut finished = BTreeSet::new();
    arrows.keys().find_map(|unit| visit(unit, arrows, &mut Vec::new(), &mut finished))
}

/// Whether a line names a crate, and not another crate whose name begins or ends with it.
fn names_crate(line: &str, krate: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let path = format!("{krate}::");
    line.match_indices(&path).any(|(start, _)| !line[..start].ends_with(part))
        || line.strip_prefix(&format!("use {krate}")).is_some_and(|after| !after.starts_with(part))
}

#[test]
fn crates_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for module in sources().modules.values() {
        let code = code_of(&module.text);
        for (name, allowed) in CRATES {
            let named = code.lines().map(str::trim_start).any(|line| names_crate(line, name));
            if named && !allowed.contains(&module.room()) {
                wrong.push(format!("{}: {} must not name {name}", module.file, module.room()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A simulation runs these rooms in virtual time and repeats what it did. Other sources of time and chance would prevent both.
#[test]
fn what_a_simulation_runs_is_deterministic() {
    // Timings of the machine.
    let real = ["engine/calibration", "engine/clock"];
    let mut wrong = Vec::new();
    for module in sources().modules.values() {
        let is_real = real.iter().any(|path| module.file.contains(path));
        if is_real || !["engine", "metrics", "serve"].contains(&module.room()) {
            continue;
        }
        let code = code_of(&module.text);
        if code.contains("Instant::now") || code.contains(".elapsed()") {
            wrong.push(format!("{}: take the time from engine::clock", module.file));
        }
        let selects = code.split("select! {").skip(1);
        if selects.into_iter().any(|branches| !branches.trim_start().starts_with("biased;")) {
            wrong.push(format!("{}: select! takes a random branch first unless it is biased", module.file));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_kernels_are_unsafe() {
    for module in sources().modules.values() {
        let is_unsafe = code_of(&module.text).contains("unsafe ");
        assert!(!is_unsafe || module.room() == "kernels", "{} has unsafe code", module.file);
    }
}

#[test]
fn a_ring_is_found() {
    let arrows = |pairs: &[(&str, &str)]| {
        let mut arrows: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (from, to) in pairs {
            arrows.entry(from.to_string()).or_default().insert(to.to_string(), String::new());
        }
        arrows
    };
    assert_eq!(ring(&arrows(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert_eq!(ring(&arrows(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap(), ["b", "c", "b"]);
}
