//! Dependencies between the modules of the packages and inside them, read off the sources' paths.
//!
//! A top-level module may use only those that `MAY_USE` lists. Inside a module, and inside each of its folders, the files and folders
//! must not use each other in a ring.

use crate::*;

/// The sources of each package, and its modules. Cargo allows no ring of packages.
const PACKAGES: [(&str, &[&str]); 4] = [
    ("core/src", &["error", "kernels", "nn", "sync"]),
    ("engine/src", &["decode", "engine", "family", "text"]),
    ("server/src", &["config", "metrics", "serve"]),
    ("src", &["cli", "report", "verify"]),
];

/// Each module, and the modules that it may use. Every module may use `error`.
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

/// Crates, and the modules that may name them.
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

/// Names of the packages in code. Their `lib.rs` files re-export the modules of others, and all other files name these as `crate`.
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

/// Returns the top-level modules that a module uses.
fn used_modules(sources: &Sources, module: &Module) -> BTreeSet<String> {
    sources.uses(module).into_iter().filter_map(|target| target.first().cloned()).collect()
}

#[test]
fn modules_depend_on_each_other_one_way() {
    let sources = sources();
    let mut wrong = Vec::new();
    for module in sources.below_root() {
        let top = module.top();
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == top) else {
            wrong.push(format!("{}: the module {top:?} is not in MAY_USE", module.file));
            continue;
        };
        for target in used_modules(&sources, module) {
            if target != top && target != "error" && !allowed.contains(&target.as_str()) {
                wrong.push(format!("{}: {top} must not use {target}", module.file));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_module_is_in_its_package() {
    for module in sources().below_root() {
        let (folder, modules) = PACKAGES.iter().find(|(folder, _)| in_package(module, folder)).unwrap();
        assert!(modules.contains(&module.top()), "{}: {folder} has no module {}", module.file, module.top());
    }
}

/// A path such as `weir_engine::family` would use a module unseen.
#[test]
fn only_lib_rs_names_other_packages() {
    let mut wrong = Vec::new();
    for module in sources().modules.values().filter(|module| module.top() != "lib") {
        let named = named_packages(&code_of(&module.text));
        wrong.extend(named.iter().map(|package| format!("{}: name the module as crate::, not {package}", module.file)));
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
    for (top, allowed) in MAY_USE {
        let modules = sources.below_root().filter(|module| module.top() == *top);
        let used: BTreeSet<String> = modules.flat_map(|module| used_modules(&sources, module)).collect();
        for target in *allowed {
            assert!(used.contains(*target), "{top} does not use {target}");
        }
    }
}

/// `src/lib.rs` shows the same table to readers: a row per module, with the modules that it uses.
#[test]
fn the_map_in_lib_rs_is_this_table() {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let mut shown = BTreeMap::new();
    for line in lib.lines().filter(|line| ["//! | [`", "//! | `"].iter().any(|start| line.starts_with(start))) {
        let cells: Vec<&str> =
            line.trim_start_matches("//! |").trim_end_matches('|').split('|').map(str::trim).collect();
        let [module, _, uses] = cells[..] else { panic!("a row of the map has three cells: {line}") };
        let uses: BTreeSet<&str> = uses.split(", ").filter(|module| *module != "–").collect();
        shown.insert(module.trim_matches(['[', ']', '`']), uses);
    }
    let table: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(module, uses)| (*module, uses.iter().copied().collect())).collect();
    assert_eq!(shown, table);
}

/// In each folder, the files and subfolders (and the folder's own `mod.rs`) form no ring.
#[test]
fn no_ring_inside_a_module() {
    let sources = sources();
    let mut rings = Vec::new();
    for folder in sources.folders() {
        let dependencies = sources.dependencies_inside(&folder);
        if let Some(ring) = ring(&dependencies) {
            let steps: Vec<String> = ring
                .windows(2)
                .map(|step| format!("{} → {} ({})", step[0], step[1], dependencies[&step[0]][&step[1]]))
                .collect();
            rings.push(format!("{}: {}", folder.join("/"), steps.join(", ")));
        }
    }
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// Packages with modules of their own: their files and folders, and those inside each folder, form no ring.
#[test]
fn no_ring_inside_other_packages() {
    let mut rings = Vec::new();
    for package in ["crates/client/src", "crates/measure/src", "loadtest/src", "proto/src"] {
        let sources = Sources::read(Path::new(env!("CARGO_MANIFEST_DIR")), &[package]);
        assert!(!sources.modules.is_empty(), "{package}");
        let folders = std::iter::once(Vec::new()).chain(sources.folders());
        rings.extend(folders.filter_map(|folder| {
            let ring = ring(&sources.dependencies_inside(&folder))?;
            Some(format!("{package}/{}: {}", folder.join("/"), ring.join(" → ")))
        }));
    }
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// A path through the graph that ends where it began, if one exists. `dependencies[from][to]` is an example of a use.
fn ring(dependencies: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    fn visit(
        unit: &str,
        dependencies: &BTreeMap<String, BTreeMap<String, String>>,
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
        let targets = dependencies.get(unit).into_iter().flat_map(BTreeMap::keys);
        let cycle = targets.into_iter().find_map(|target| visit(target, dependencies, path, finished));
        path.pop();
        finished.insert(unit.to_string());
        cycle
    }
    let mut finished = BTreeSet::new();
    dependencies.keys().find_map(|unit| visit(unit, dependencies, &mut Vec::new(), &mut finished))
}

/// Whether a line names a crate, and not another crate whose name begins or ends with it.
fn names_crate(line: &str, krate: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let path = format!("{krate}::");
    line.match_indices(&path).any(|(start, _)| !line[..start].ends_with(part))
        || line.strip_prefix(&format!("use {krate}")).is_some_and(|after| !after.starts_with(part))
}

#[test]
fn crates_stay_in_their_modules() {
    let mut wrong = Vec::new();
    for module in sources().modules.values() {
        let code = code_of(&module.text);
        for (name, allowed) in CRATES {
            let named = code.lines().map(str::trim_start).any(|line| names_crate(line, name));
            if named && !allowed.contains(&module.top()) {
                wrong.push(format!("{}: {} must not name {name}", module.file, module.top()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A simulation runs these modules in virtual time and repeats what it did. Other sources of time and chance would prevent both.
#[test]
fn what_a_simulation_runs_is_deterministic() {
    // Timings of the machine.
    let real = ["engine/calibration", "engine/clock"];
    let mut wrong = Vec::new();
    for module in sources().modules.values() {
        let is_real = real.iter().any(|path| module.file.contains(path));
        if is_real || !["engine", "metrics", "serve"].contains(&module.top()) {
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
        assert!(!is_unsafe || module.top() == "kernels", "{} has unsafe code", module.file);
    }
}

#[test]
fn a_ring_is_found() {
    let dependencies = |pairs: &[(&str, &str)]| {
        let mut dependencies: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (from, to) in pairs {
            dependencies.entry(from.to_string()).or_default().insert(to.to_string(), String::new());
        }
        dependencies
    };
    assert_eq!(ring(&dependencies(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert_eq!(ring(&dependencies(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap(), ["b", "c", "b"]);
}

/// One source file.
struct Module {
    /// Path from the root of its package: `["engine", "batch", "rows"]`. Empty for `lib.rs` and `main.rs`.
    path: Vec<String>,
    /// The file, relative to the repository.
    file: String,
    text: String,
}

impl Module {
    /// The top-level module: the first part of the path; `lib` or `main` for the root of a package.
    fn top(&self) -> &str {
        let root = || self.file.trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
        self.path.first().map_or_else(root, String::as_str)
    }
}

/// All modules of several packages. No two packages have a top-level module of the same name, and each names the others' modules as its own.
struct Sources {
    /// Modules by file.
    modules: BTreeMap<String, Module>,
    paths: BTreeSet<Vec<String>>,
    /// Names that a module re-exports, with the full path of what they name.
    exports: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
}

impl Sources {
    /// Reads every `.rs` file in the folders `sources` of `root`. Modules that exist for tests only are left out.
    fn read(root: &Path, sources: &[&str]) -> Self {
        let mut modules = BTreeMap::new();
        for folder in sources {
            let folder = root.join(folder);
            read_folder(root, &folder, &folder, &mut modules);
        }
        let test_only: Vec<Vec<String>> = modules.values().flat_map(test_modules).collect();
        modules.retain(|_, module: &mut Module| !test_only.iter().any(|path| module.path.starts_with(path)));
        let paths = modules.values().map(|module| module.path.clone()).collect();
        let mut sources = Self { modules, paths, exports: BTreeMap::new() };
        let exports =
            sources.modules.values().map(|module| (module.path.clone(), sources.exports_of(module))).collect();
        sources.exports = exports;
        sources
    }

    /// All modules but `lib.rs` and `main.rs`.
    fn below_root(&self) -> impl Iterator<Item = &Module> {
        self.modules.values().filter(|module| !module.path.is_empty())
    }

    /// Modules that have children, and so a folder of their own.
    fn folders(&self) -> BTreeSet<Vec<String>> {
        let parents = self.paths.iter().filter(|path| path.len() > 1).map(|path| path[..path.len() - 1].to_vec());
        parents.collect()
    }

    /// Who uses whom among a folder's direct children and its own file (`mod`). `dependencies[from][to]` names a file that does.
    fn dependencies_inside(&self, folder: &[String]) -> BTreeMap<String, BTreeMap<String, String>> {
        let unit = |path: &[String]| path.get(folder.len()).cloned().unwrap_or_else(|| "mod".to_string());
        let mut dependencies: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for module in self.below_root().filter(|module| module.path.starts_with(folder)) {
            let from = unit(&module.path);
            for target in self.uses(module).into_iter().filter(|target| target.starts_with(folder)) {
                let to = unit(&target);
                if to != from {
                    dependencies.entry(from.clone()).or_default().entry(to).or_insert_with(|| module.file.clone());
                }
            }
        }
        dependencies
    }

    /// Modules that a module uses. A name that another module re-exports counts as a use of the module that defines it.
    fn uses(&self, module: &Module) -> BTreeSet<Vec<String>> {
        let code = code_of(&module.text);
        let mut uses = BTreeSet::new();
        for (path, exported) in paths_in(&code) {
            // A re-export passes a name on; the module depends on it only if its own code names it, too.
            let named = path.last().is_some_and(|name| word_count(&code, name) > 1);
            if (!exported || named)
                && let Some(target) = self.resolve(&module.path, &path, 8)
            {
                uses.insert(target);
            }
        }
        uses.remove(&module.path);
        uses
    }

    fn exports_of(&self, module: &Module) -> BTreeMap<String, Vec<String>> {
        let code = code_of(&module.text);
        let exported = paths_in(&code).into_iter().filter(|(_, exported)| *exported);
        exported
            .filter_map(|(path, _)| {
                let absolute = self.absolute(&module.path, &path)?;
                Some((path.last()?.clone(), absolute))
            })
            .collect()
    }

    /// Full path of what a path names inside a module; none if it belongs to another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut base = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            child => {
                base.push(child.to_string());
                if !self.paths.contains(&base) {
                    return None;
                }
                rest = &rest[1..];
            }
        }
        base.extend(rest.iter().filter(|part| *part != "self").cloned());
        Some(base)
    }

    /// Module that a path leads to, through at most `depth` re-exports.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let absolute = self.absolute(module, path)?;
        let known = (0..=absolute.len()).rev().find(|&len| len == 0 || self.paths.contains(&absolute[..len]))?;
        let owner = &absolute[..known];
        let exported = absolute.get(known).and_then(|name| self.exports.get(owner)?.get(name));
        match exported {
            Some(exported) if depth > 0 => {
                let mut path = vec!["crate".to_string()];
                path.extend(exported.iter().cloned());
                self.resolve(&[], &path, depth - 1)
            }
            _ => Some(owner.to_vec()),
        }
    }
}

/// Reads the files of `folder`, which is in the folder `source` of a package. Their names are relative to `root`.
fn read_folder(root: &Path, source: &Path, folder: &Path, modules: &mut BTreeMap<String, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(root, source, &path, modules);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = |to: &Path| path.strip_prefix(to).unwrap().to_string_lossy().replace('\\', "/");
            let file = relative(root);
            let mut parts: Vec<String> =
                relative(source).trim_end_matches(".rs").split('/').map(str::to_string).collect();
            if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                parts.pop();
            }
            let text = fs::read_to_string(&path).unwrap();
            modules.insert(file.clone(), Module { path: parts, file, text });
        }
    }
}

/// Modules that a file declares under `#[cfg(test)]`.
fn test_modules(module: &Module) -> Vec<Vec<String>> {
    let mut lines = module.text.lines().map(str::trim);
    let mut declared_modules = Vec::new();
    while let Some(line) = lines.next() {
        let declared = (line == "#[cfg(test)]").then(|| lines.next()).flatten();
        if let Some(name) = declared.and_then(|line| line.strip_prefix("mod ")?.strip_suffix(';')) {
            declared_modules.push([module.path.as_slice(), &[name.to_string()]].concat());
        }
    }
    declared_modules
}

/// A file without its comments and without what follows the head of its inline test module.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let tests = line.trim() == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        if tests {
            break;
        }
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// How often `name` occurs in `code` as a whole word.
fn word_count(code: &str, name: &str) -> usize {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| *word == name).count()
}

/// Every path of two or more parts in a file's code, `use` groups written out, and whether a `pub use` re-exports it.
fn paths_in(code: &str) -> Vec<(Vec<String>, bool)> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(|c: char| c.is_alphabetic() || c == '_') {
        let before = rest[..start].chars().next_back();
        rest = &rest[start..];
        let word = identifier(rest);
        let after = &rest[word.len()..];
        if word == "in" && code[..code.len() - rest.len()].ends_with("pub(") {
            // the path says who may see the item
            rest = &after[after.find(')').unwrap_or(after.len())..];
        } else if word == "use" && after.starts_with(' ') {
            let end = after.find(';').unwrap_or(after.len());
            let line_start = code[..code.len() - rest.len()].rfind('\n').map_or(0, |offset| offset + 1);
            let exported = code[line_start..].trim_start().starts_with("pub");
            let mut expanded = Vec::new();
            expand(after[..end].trim(), &[], &mut expanded);
            paths.extend(expanded.into_iter().map(|path| (path, exported)));
            rest = &after[end..];
        } else if after.starts_with("::") && before != Some('$') && before != Some(':') {
            let mut path = vec![word.to_string()];
            rest = after;
            while let Some(next) = rest.strip_prefix("::") {
                let part = identifier(next);
                if part.is_empty() {
                    break;
                }
                path.push(part.to_string());
                rest = &next[part.len()..];
            }
            paths.push((path, false));
            rest = rest.strip_prefix("::").unwrap_or(rest);
        } else {
            rest = after;
        }
    }
    paths
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    &text[..end]
}

/// Writes a `use` tree out: `a::{b, c::d}` → `a::b`, `a::c::d`.
fn expand(tree: &str, prefix: &[String], out: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let mut depth = 0;
        let mut start = 0;
        for (index, c) in group.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                expand(&group[start..index], prefix, out);
                start = index + 1;
            }
        }
        return expand(&group[start..], prefix, out);
    }
    let name = identifier(tree);
    if name.is_empty() {
        // This is the end of a list, or a glob.
        if tree == "*" {
            out.push(prefix.to_vec());
        }
        return;
    }
    let mut path = prefix.to_vec();
    path.push(name.to_string());
    match tree[name.len()..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, out),
        None => out.push(path),
    }
}

#[test]
fn groups_and_inline_paths_are_read() {
    let code = code_of("use crate::{a::{b, c}, d,\n e::f};\n// crate::no\npub use g::H;\n fn l() { super::i::j() }\n");
    let paths: Vec<String> =
        paths_in(&code).iter().map(|(path, exported)| format!("{}{exported}", path.join("."))).collect();
    assert_eq!(
        paths,
        ["crate.a.bfalse", "crate.a.cfalse", "crate.dfalse", "crate.e.ffalse", "g.Htrue", "super.i.jfalse"]
    );
}
