//! Reads Rust sources as a graph of modules: which module uses which.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// One source file.
pub(super) struct Module {
    /// Path from the root of its package: `["engine", "batch", "rows"]`. Empty for `lib.rs` and `main.rs`.
    pub(super) path: Vec<String>,
    /// The file, relative to the repository.
    pub(super) file: String,
    pub(super) text: String,
}

impl Module {
    /// The room: the first part of the path; `lib` or `main` for the root of a package.
    pub(super) fn room(&self) -> &str {
        let root = || self.file.trim_end_matches(".rs").rsplit('/').next().unwrap_or_default();
        self.path.first().map_or_else(root, String::as_str)
    }
}

/// All modules of several packages. No two packages have a room of the same name, and each names the others' rooms as its own.
pub(super) struct Sources {
    /// Modules by file.
    pub(super) modules: BTreeMap<String, Module>,
    paths: BTreeSet<Vec<String>>,
    /// Names that a module re-exports, with the full path of what they name.
    exports: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
}

impl Sources {
    /// Reads every `.rs` file in the folders `sources` of `root`. Modules that exist for tests only are left out.
    pub(super) fn read(root: &Path, sources: &[&str]) -> Self {
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

    /// Modules that belong to a room: all but `lib.rs` and `main.rs`.
    pub(super) fn rooms(&self) -> impl Iterator<Item = &Module> {
        self.modules.values().filter(|module| !module.path.is_empty())
    }

    /// Modules that have children, and so a folder of their own.
    pub(super) fn folders(&self) -> BTreeSet<Vec<String>> {
        let parents = self.paths.iter().filter(|path| path.len() > 1).map(|path| path[..path.len() - 1].to_vec());
        parents.collect()
    }

    /// Who uses whom among a folder's direct children and its own file (`mod`). `arrows[from][to]` names a file that does.
    pub(super) fn arrows_inside(&self, folder: &[String]) -> BTreeMap<String, BTreeMap<String, String>> {
        let unit = |path: &[String]| path.get(folder.len()).cloned().unwrap_or_else(|| "mod".to_string());
        let mut arrows: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for module in self.rooms().filter(|module| module.path.starts_with(folder)) {
            let from = unit(&module.path);
            for target in self.uses(module).into_iter().filter(|target| target.starts_with(folder)) {
                let to = unit(&target);
                if to != from {
                    arrows.entry(from.clone()).or_default().entry(to).or_insert_with(|| module.file.clone());
                }
            }
        }
        arrows
    }

    /// Modules that a module uses. A name that another module re-exports counts as a use of the module that defines it.
    pub(super) fn uses(&self, module: &Module) -> BTreeSet<Vec<String>> {
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
pub(super) fn code_of(text: &str) -> String {
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
    let code = code_of(
        "use crate::{a::{b, c}, d,\n e::f};\n// crate::no\npub use g::H;\npub(in super::k) fn l() { super::i::j() }\n",
    );
    let paths: Vec<String> =
        paths_in(&code).iter().map(|(path, exported)| format!("{}{exported}", path.join("."))).collect();
    assert_eq!(
        paths,
        ["crate.a.bfalse", "crate.a.cfalse", "crate.dfalse", "crate.e.ffalse", "g.Htrue", "super.i.jfalse"]
    );
}
