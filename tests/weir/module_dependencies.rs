//! Dependencies between the modules of the packages, read off the sources' paths.

use crate::sources::{File, PACKAGES, Sources, expressions, is_for_tests, leaves, names, parent};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{ExprMethodCall, Item, ItemMod, ItemUse, Macro, VisRestricted, Visibility};

#[test]
fn packages_depend_on_each_other_one_way() {
    let sources = Sources::read();
    for (package, _, allowed) in PACKAGES {
        let files = sources.files.iter().filter(|file| package_of(&file.module) == package);
        let packages = files.flat_map(|file| uses(&sources, file)).map(|module| package_of(&module).to_owned());
        let used: BTreeSet<String> = packages.filter(|used| used != package).collect();
        assert_eq!(Vec::from_iter(used), allowed, "packages that {package} uses");
    }
}

/// In each package and each folder, the files and subfolders (and the folder's own `mod.rs`) form no ring.
#[test]
fn no_ring_of_files() {
    let sources = Sources::read();
    // `lib.rs` and `main.rs` name every part: they are the map.
    let files = sources.files.iter().filter(|file| file.module.contains("::"));
    let uses: Vec<_> = files.map(|file| (file, uses(&sources, file))).collect();
    let folders: BTreeSet<&str> = uses.iter().map(|(file, _)| parent(&file.module)).collect();
    let mut rings = Vec::new();
    for folder in folders {
        let unit = |module: &str| {
            let inside = module.strip_prefix(folder)?;
            let name = if inside.is_empty() { "mod" } else { inside.strip_prefix("::")?.split("::").next()? };
            Some(name.to_owned())
        };
        let mut dependencies = Dependencies::new();
        for (file, uses) in &uses {
            let Some(from) = unit(&file.module) else { continue };
            for to in uses.iter().filter_map(|target| unit(target)).filter(|to| *to != from) {
                dependencies.entry(from.clone()).or_default().entry(to).or_insert_with(|| file.path.clone());
            }
        }
        if let Some(ring) = ring(&dependencies) {
            let step = |step: &[String]| format!("{} → {} ({})", step[0], step[1], dependencies[&step[0]][&step[1]]);
            rings.push(format!("{folder}: {}", ring.windows(2).map(step).collect::<Vec<_>>().join(", ")));
        }
    }
    assert!(rings.is_empty(), "{}", rings.join("\n"));
}

/// `weir verify` is a second implementation: it shares types with the first, and how weights are rounded, but no other arithmetic.
#[test]
fn verify_uses_neither_kernels_nor_layers() {
    let shared = [
        "weir_kernels::dtype::Dtype",
        "weir_kernels::linear::weights::stored_weights",
        "weir_models::nn::Activation",
        "weir_models::nn::boundary::BoundaryConfig",
        "weir_models::nn::pooling::Pooling",
        "weir_models::nn::position::PositionKind",
        "weir_models::nn::window::Window",
    ];
    let sources = Sources::read();
    for file in sources.files.iter().filter(|file| file.module.starts_with("weir::verify")) {
        for target in mentions(file.items).iter().map(|path| sources.resolve(&file.module, path)) {
            let implements = package_of(&target) == "weir_kernels" && !target.starts_with("weir_kernels::error::")
                || target.starts_with("weir_models::nn::");
            let is_shared = shared.iter().any(|shared| target.strip_prefix(shared).is_some_and(is_variant));
            assert!(is_shared || !implements, "{} uses {target}", file.path);
        }
    }
}

/// Returns true if the rest of a path after an item's name is empty or a variant: a method would begin with a small letter.
fn is_variant(rest: &str) -> bool {
    rest.strip_prefix("::").map_or(rest.is_empty(), |name| name.starts_with(char::is_uppercase))
}

/// A simulation runs the engine and the server in virtual time and repeats what it did. Other sources of time and chance would
/// prevent both.
#[test]
fn what_a_simulation_runs_is_deterministic() {
    let measures_the_machine = ["crates/engine/src/calibration.rs", "crates/engine/src/clock.rs"];
    let mut wrong = Vec::new();
    for file in Sources::read().files {
        let simulated = ["weir_engine", "weir_server"].contains(&package_of(&file.module));
        if !simulated || measures_the_machine.contains(&&*file.path) {
            continue;
        }
        for path in mentions(file.items) {
            if path.ends_with("Instant::now") || path == ".elapsed" {
                wrong.push(format!("{}: take the time from weir_engine::clock", file.path));
            } else if path == "select! {" {
                wrong.push(format!("{}: select! takes a random branch first unless it is biased", file.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Who uses whom. `dependencies[from][to]` names a file that does.
type Dependencies = BTreeMap<String, BTreeMap<String, String>>;

/// A path through the graph that ends where it began, if one exists.
fn ring(dependencies: &Dependencies) -> Option<Vec<String>> {
    let mut left: BTreeSet<&String> = dependencies.keys().collect();
    let next = |left: &BTreeSet<_>, from| dependencies[from].keys().find(|to| left.contains(to));
    while let Some(end) = left.iter().find(|from| next(&left, **from).is_none()).copied() {
        left.remove(end);
    }
    // whatever is left leads to a ring
    let mut path = vec![*left.first()?];
    loop {
        let to = next(&left, path[path.len() - 1])?;
        let seen = path.iter().position(|unit| *unit == to);
        path.push(to);
        if let Some(start) = seen {
            return Some(path[start..].iter().copied().cloned().collect());
        }
    }
}

#[test]
fn a_ring_is_found() {
    let dependencies = |pairs: &[(&str, &str)]| {
        let mut dependencies = Dependencies::new();
        for (from, to) in pairs {
            dependencies.entry((*from).to_owned()).or_default().insert((*to).to_owned(), String::new());
        }
        dependencies
    };
    assert_eq!(ring(&dependencies(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    assert_eq!(ring(&dependencies(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap(), ["b", "c", "b"]);
}

fn package_of(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// Other modules that a file uses. A name that another module re-exports counts as a use of the module that defines it.
fn uses(sources: &Sources, file: &File) -> BTreeSet<String> {
    let is_imported = |name: &str| sources.imports.contains_key(&format!("{}::{name}", file.module));
    // a single name may be a variable's
    let paths = mentions(file.items).into_iter().filter(|path| path.contains("::") || is_imported(path));
    let modules = paths.map(|path| sources.module_of(&sources.resolve(&file.module, &path)).to_owned());
    modules.filter(|module| *module != file.module).collect()
}

/// Paths in a file's code outside of its tests, `.name` for each method that it calls, and `select! {` if one is not `biased`.
fn mentions(items: &[Item]) -> BTreeSet<String> {
    struct Mentions(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Mentions {
        fn visit_item_mod(&mut self, item: &'ast ItemMod) {
            if !is_for_tests(&item.attrs) {
                visit::visit_item_mod(self, item);
            }
        }

        /// A re-export passes a name on; the module depends on it only if its own code also names it.
        fn visit_item_use(&mut self, item: &'ast ItemUse) {
            if matches!(item.vis, Visibility::Inherited) {
                leaves(&item.tree, "", &mut |_, path| _ = self.0.insert(path.to_owned()));
            }
        }

        fn visit_path(&mut self, path: &'ast syn::Path) {
            self.0.insert(names(path));
            visit::visit_path(self, path);
        }

        fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
            self.0.insert(format!(".{}", call.method));
            visit::visit_expr_method_call(self, call);
        }

        fn visit_macro(&mut self, called: &'ast Macro) {
            let is_select = called.path.segments.last().is_some_and(|name| name.ident == "select");
            if is_select && !called.tokens.to_string().starts_with("biased ;") {
                self.0.insert("select! {".to_owned());
            }
            visit::visit_macro(self, called);
            expressions(called).iter().for_each(|expression| self.visit_expr(expression));
        }

        /// This path says who may see the item.
        fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
    }
    let mut mentions = Mentions(BTreeSet::new());
    items.iter().for_each(|item| mentions.visit_item(item));
    mentions.0
}

#[test]
fn groups_and_inline_paths_are_read() {
    let code = "use crate::{a::{b, c}, d,\n e::f};\n// crate::no\npub(crate) use g::H;\nfn l() { super::i::j(m!(biased; Some(x) = f(), k::l => n.elapsed())) }\n\
                #[cfg(test)] mod tests { use crate::no; }";
    let paths = mentions(&syn::parse_file(code).unwrap().items);
    let expected = [
        ".elapsed",
        "Some",
        "biased",
        "crate::a::b",
        "crate::a::c",
        "crate::d",
        "crate::e::f",
        "f",
        "k::l",
        "m",
        "n",
        "super::i::j",
        "x",
    ];
    assert_eq!(Vec::from_iter(paths), expected);
}
