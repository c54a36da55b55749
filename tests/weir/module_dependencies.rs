//! Dependencies between the modules of the packages, read off the sources' paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The packages: the name that code gives each, the folder of its sources, and the packages that it may use.
const PACKAGES: [(&str, &str, &[&str]); 9] = [
    ("weir_kernels", "crates/kernels/src", &[]),
    ("weir_models", "crates/models/src", &["weir_kernels"]),
    ("weir_engine", "crates/engine/src", &["weir_kernels", "weir_models"]),
    ("weir_proto", "proto/src", &[]),
    ("weir_client", "crates/client/src", &["weir_kernels", "weir_proto"]),
    ("weir_measure", "crates/measure/src", &[]),
    ("weir_server", "crates/server/src", &["weir_client", "weir_engine", "weir_kernels", "weir_models", "weir_proto"]),
    (
        "weir",
        "src",
        &["weir_client", "weir_engine", "weir_kernels", "weir_measure", "weir_models", "weir_proto", "weir_server"],
    ),
    ("weir_loadtest", "loadtest/src", &["weir_client", "weir_kernels", "weir_measure", "weir_proto"]),
];

#[test]
fn packages_depend_on_each_other_one_way() {
    let sources = Sources::read();
    for (package, _, allowed) in PACKAGES {
        let modules = sources.modules.values().filter(|module| module.path[0] == package);
        let used: BTreeSet<&str> =
            modules.flat_map(|module| sources.uses(module)).map(|target| sources.package(&target)).collect();
        let used: Vec<&str> = used.into_iter().filter(|used| *used != package).collect();
        assert_eq!(used, allowed, "packages that {package} uses");
    }
}

/// In each package and each folder, the files and subfolders (and the folder's own `mod.rs`) form no ring.
#[test]
fn no_ring_of_files() {
    let sources = Sources::read();
    let mut rings = Vec::new();
    for folder in sources.folders() {
        let dependencies = sources.dependencies_inside(&folder);
        if let Some(ring) = ring(&dependencies) {
            let steps: Vec<String> = ring
                .windows(2)
                .map(|step| format!("{} → {} ({})", step[0], step[1], dependencies[&step[0]][&step[1]]))
                .collect();
            rings.push(format!("{}: {}", folder.join("::"), steps.join(", ")));
        }
    }
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// `weir verify` is a second implementation: it shares no arithmetic with the first.
#[test]
fn verify_uses_neither_kernels_nor_layers() {
    let sources = Sources::read();
    for module in sources.modules.values().filter(|module| module.path.starts_with(&["weir".into(), "verify".into()])) {
        for target in sources.uses(module) {
            let names: Vec<&str> = target.iter().map(String::as_str).collect();
            let arithmetic = matches!(names[..], ["weir_kernels", ref rest @ ..] if rest != ["error"])
                || names.starts_with(&["weir_models", "nn"]);
            assert!(!arithmetic, "{} uses {}", module.file, target.join("::"));
        }
    }
}

/// A simulation runs the engine and the server in virtual time and repeats what it did. Other sources of time and chance would
/// prevent both.
#[test]
fn what_a_simulation_runs_is_deterministic() {
    let measures_the_machine = ["crates/engine/src/calibration.rs", "crates/engine/src/clock.rs"];
    let mut wrong = Vec::new();
    for module in Sources::read().modules.values() {
        let simulated = ["weir_engine", "weir_server"].contains(&module.path[0].as_str());
        if !simulated || measures_the_machine.contains(&module.file.as_str()) {
            continue;
        }
        let code = code_of(&module.text);
        if code.contains("Instant::now") || code.contains(".elapsed()") {
            wrong.push(format!("{}: take the time from weir_engine::clock", module.file));
        }
        let selects = code.split("select! {").skip(1);
        if selects.into_iter().any(|branches| !branches.trim_start().starts_with("biased;")) {
            wrong.push(format!("{}: select! takes a random branch first unless it is biased", module.file));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
pub(crate) struct Module {
    /// Path from its package: `["weir_engine", "cache", "segment"]`.
    pub(crate) path: Vec<String>,
    /// The file, relative to the repository.
    pub(crate) file: String,
    pub(crate) text: String,
}

/// All modules of the packages.
pub(crate) struct Sources {
    /// Modules by file.
    pub(crate) modules: BTreeMap<String, Module>,
    paths: BTreeSet<Vec<String>>,
    /// Names that a module re-exports, with the full path of what they name.
    exports: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
}

impl Sources {
    /// Reads every `.rs` file of the packages. Modules that exist for tests only are left out.
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut modules = BTreeMap::new();
        for (package, folder, _) in PACKAGES {
            let before = modules.len();
            read_folder(root, package, &root.join(folder), &root.join(folder), &mut modules);
            assert!(modules.len() > before, "{folder} has no sources");
        }
        let test_only: Vec<Vec<String>> = modules.values().flat_map(test_modules).collect();
        modules.retain(|_, module: &mut Module| !test_only.iter().any(|path| module.path.starts_with(path)));
        let paths = modules.values().map(|module| module.path.clone()).collect();
        let mut sources = Self { modules, paths, exports: BTreeMap::new() };
        // A package of a library and a program has two roots, whose exports are joined.
        for module in sources.modules.values() {
            let exports = sources.exports_of(module);
            sources.exports.entry(module.path.clone()).or_default().extend(exports);
        }
        sources
    }

    fn package<'a>(&self, path: &[String]) -> &'a str {
        PACKAGES.iter().find(|(package, ..)| *package == path[0]).map_or("", |(package, ..)| package)
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
        for module in self.modules.values().filter(|module| module.path.starts_with(folder)) {
            let from = unit(&module.path);
            if module.path.len() == 1 {
                // `lib.rs` and `main.rs` name every part: they are the map.
                continue;
            }
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
                base.truncate(1);
                rest = &rest[1..];
            }
            package if PACKAGES.iter().any(|(name, ..)| *name == package) => {
                base = vec![package.to_string()];
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
        let known = (1..=absolute.len()).rev().find(|&len| self.paths.contains(&absolute[..len]))?;
        let owner = &absolute[..known];
        let exported = absolute.get(known).and_then(|name| self.exports.get(owner)?.get(name));
        match exported {
            Some(exported) if depth > 0 => self.resolve(&[], exported, depth - 1),
            _ => Some(owner.to_vec()),
        }
    }
}

/// Reads the files of `folder`, which is in the folder `source` of `package`. Their names are relative to `root`.
fn read_folder(root: &Path, package: &str, source: &Path, folder: &Path, modules: &mut BTreeMap<String, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(root, package, source, &path, modules);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = |to: &Path| path.strip_prefix(to).unwrap().to_string_lossy().replace('\\', "/");
            let file = relative(root);
            let mut parts: Vec<String> =
                relative(source).trim_end_matches(".rs").split('/').map(str::to_string).collect();
            if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                parts.pop();
            }
            parts.insert(0, package.to_string());
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
        } else if word == "use" && after.starts_with(' ') && !in_string(&code[..code.len() - rest.len()]) {
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

/// Whether the last line of `before` ends inside a string.
fn in_string(before: &str) -> bool {
    before.lines().next_back().is_some_and(|line| line.matches('"').count() % 2 == 1)
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
