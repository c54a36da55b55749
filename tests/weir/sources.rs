//! The sources of the packages: their files, and what the paths in them name.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseBuffer, ParseStream};
use syn::{Attribute, Expr, Item, Macro, UseTree};

/// The packages: the name that code gives each, the folder of its sources, and the packages that it may use.
pub(crate) const PACKAGES: [(&str, &str, &[&str]); 9] = [
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

/// One source file.
pub(crate) struct File {
    /// Path in the repository.
    pub(crate) path: String,
    /// Full path of its module: `weir_engine::cache::segment`.
    pub(crate) module: String,
    pub(crate) text: String,
    pub(crate) items: &'static [Item],
}

/// The files of all packages, without modules that exist for tests only.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) files: Vec<File>,
    pub(crate) modules: BTreeSet<String>,
    /// Full paths of the names that modules import, each with the path that the module gives.
    pub(crate) imports: HashMap<String, String>,
}

impl Sources {
    pub(crate) fn read() -> Self {
        let mut sources = Self::default();
        for (package, folder, _) in PACKAGES {
            // A package of a library and a program has two roots, which share the package's path.
            sources.read_module(package, folder, &["lib.rs", "main.rs"].map(|root| format!("{folder}/{root}")));
        }
        sources
    }

    /// Reads a module from its possible files that exist, and then the modules that it declares. Their files are in `folder`.
    fn read_module(&mut self, module: &str, folder: &str, files: &[String]) {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        for path in files.iter().filter(|path| repository.join(path).exists()) {
            self.modules.insert(module.to_owned());
            let text = fs::read_to_string(repository.join(path)).unwrap();
            let items: &[Item] = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}")).items.leak();
            self.files.push(File { path: path.clone(), module: module.to_owned(), text, items });
            for item in items {
                match item {
                    Item::Use(item) => leaves(&item.tree, "", &mut |name, path| {
                        // `use serde_json;` names another crate
                        if name != path {
                            self.imports.insert(format!("{module}::{name}"), path.to_owned());
                        }
                    }),
                    Item::Mod(item) if item.content.is_none() && !is_for_tests(&item.attrs) => {
                        let folder = format!("{folder}/{}", item.ident);
                        let files = [".rs", "/mod.rs"].map(|end| format!("{folder}{end}"));
                        self.read_module(&format!("{module}::{}", item.ident), &folder, &files);
                    }
                    _ => {}
                }
            }
        }
        assert!(self.modules.contains(module), "{module} has none of the files {files:?}");
    }

    /// Full path of what a path names inside a module. A name of another crate counts as the module's.
    pub(crate) fn resolve(&self, module: &str, path: &str) -> String {
        path.split("::").fold(String::new(), |found, name| match name {
            "crate" => module.split("::").next().unwrap_or(module).to_owned(),
            "self" => module.to_owned(),
            "super" if found.is_empty() => parent(module).to_owned(),
            "super" => parent(&found).to_owned(),
            package if found.is_empty() && self.modules.contains(package) => package.to_owned(),
            name => self.member(if found.is_empty() { module } else { &found }, name),
        })
    }

    /// Full path of a name that a module defines or imports.
    fn member(&self, module: &str, name: &str) -> String {
        let path = format!("{module}::{name}");
        match self.imports.get(&path) {
            Some(import) if !self.modules.contains(&path) => self.resolve(module, import),
            _ => path,
        }
    }

    /// The module that a full path begins with.
    pub(crate) fn module_of<'a>(&self, path: &'a str) -> &'a str {
        if self.modules.contains(path) { path } else { self.module_of(parent(path)) }
    }
}

/// A path without its last name.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once("::").map_or("", |(parent, _)| parent)
}

pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let condition = |attribute: &Attribute| attribute.parse_args::<syn::Ident>();
    attributes.iter().any(|cfg| cfg.path().is_ident("cfg") && condition(cfg).is_ok_and(|name| name == "test"))
}

/// The names of a path.
pub(crate) fn names(path: &syn::Path) -> String {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>().join("::")
}

/// Calls `add` with each name that a `use` imports, and the path that it stands for. The name of a glob is `*`.
pub(crate) fn leaves(tree: &UseTree, prefix: &str, add: &mut impl FnMut(&str, &str)) {
    let with = |name: &syn::Ident| if prefix.is_empty() { name.to_string() } else { format!("{prefix}::{name}") };
    match tree {
        UseTree::Path(tree) => leaves(&tree.tree, &with(&tree.ident), add),
        UseTree::Name(tree) if tree.ident == "self" => add(prefix.rsplit("::").next().unwrap_or(prefix), prefix),
        UseTree::Name(tree) => add(&tree.ident.to_string(), &with(&tree.ident)),
        UseTree::Rename(tree) => add(&tree.rename.to_string(), &with(&tree.ident)),
        UseTree::Glob(_) => add("*", prefix),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, prefix, add)),
    }
}

/// The expressions among a macro's tokens.
pub(crate) fn expressions(called: &Macro) -> Vec<Expr> {
    let mut found = Vec::new();
    // An error says that an expression has tokens which syn does not know.
    _ = called.parse_body_with(|input: ParseStream<'_>| read_expressions(input, &mut found));
    found
}

fn read_expressions(input: ParseStream<'_>, found: &mut Vec<Expr>) -> syn::Result<()> {
    while !input.is_empty() {
        let ahead = input.fork();
        if let Ok(expression) = ahead.parse() {
            input.advance_to(&ahead);
            found.push(expression);
        } else if let Ok(inner) = brackets(input) {
            read_expressions(&inner, found)?;
        } else {
            input.step(|cursor| Ok(((), cursor.token_tree().map_or(*cursor, |(_, rest)| rest))))?;
        }
    }
    Ok(())
}

/// Enters the brackets that come next.
fn brackets<'a>(input: ParseStream<'a>) -> syn::Result<ParseBuffer<'a>> {
    let inner;
    if input.peek(syn::token::Brace) {
        syn::braced!(inner in input);
    } else if input.peek(syn::token::Paren) {
        syn::parenthesized!(inner in input);
    } else {
        syn::bracketed!(inner in input);
    }
    Ok(inner)
}
