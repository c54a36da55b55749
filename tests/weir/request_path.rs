//! The source files that a `Generate` passes, found by following the calls from function to function.
//!
//! [`Program`] indexes the sources, and [`Walk`] evaluates one function after another. A value is known by the workspace's types that
//! its type mentions: `Option<Arc<Handle>>` is `{Handle}`. A method of another crate (`map`, `lock`, `iter`) returns what it is called
//! with. This finds more than a call runs, because every branch is followed that [`NOT_TAKEN`] does not name.

use crate::module_dependencies::Sources;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    path::Path,
};
use syn::{
    Attribute, Block, Expr, ExprPath, Fields, FnArg, GenericParam, Generics, ImplItem, Item, ItemImpl, Macro, Member,
    Pat, ReturnType, Signature, Stmt, Token, TraitItem, Type, UseTree,
    parse::{ParseBuffer, ParseStream, discouraged::Speculative},
    visit::{self, Visit},
};

/// Where a call enters the workspace's code, in this order: other crates call these, or another thread runs them.
const STARTS: [&str; 7] = [
    // tokio: a new connection
    "weir_server::transport::connections::accept",
    // hyper: a request on a connection
    "weir_server::transport::http2::CallService::call",
    // its layers are called in the order in which this function names them
    "weir_server::middleware::stack",
    // tonic: the request's message, its handler, and the response's messages
    "weir_proto::codec::BoundedCodec::decode",
    "weir_server::grpc::generation::JobService::generate",
    "weir_proto::codec::BoundedCodec::encode",
    // the worker's thread, which the handler's `WakeSignal::raise` wakes
    "weir_engine::worker::Worker::round",
];

/// The types behind traits of which a server has several implementations.
const CHOSEN: [(&str, &str); 4] = [
    ("weir_engine::observer::Observer", "weir_server::metrics::Meter"),
    ("weir_models::contract::Model", "weir_models::family::hourglass::Hourglass"),
    ("weir_models::contract::State", "weir_models::family::hourglass::HourglassState"),
    ("weir_kernels::isa::simd::Simd", "weir_kernels::isa::avx512::Avx512"),
];

/// What a plain `Generate` does not reach: functions, and types and variants of which it has no value. Each line has the path before
/// one or several names.
const NOT_TAKEN: [(&str, &str); 22] = [
    // the call succeeds
    ("weir_server::status", "status"),
    ("weir_server::middleware::observe::RefusalLog", "record_status"),
    ("weir_engine::worker::Worker", "restart"),
    // other methods have requests of their own
    ("weir_server::grpc::generation::JobService", "score segment compress decompress edit summarize"),
    ("weir_engine::api::Job", "Code Next"),
    ("weir_engine::codec::coder", "BlockCoder"),
    ("weir_engine::completion", "DistributionsSoFar"),
    ("weir_engine::score", "window max_fed_symbols"),
    ("weir_engine::request::RequestKind", "Document"),
    ("weir_engine::observer::EngineEvent", "Summarized"),
    // the server has its default settings: no TLS, traces or speculation, and 32-bit floats
    ("weir_server::config::tls", "Tls"),
    ("weir_server::traces", "Traces CallSpan"),
    ("weir_engine::speculation", "Speculation Drafter"),
    ("weir_kernels::dtype::Dtype", "Int8 Int4"),
    ("weir_kernels::dtype::CacheDtype", "Int8"),
    // the model reads bytes and no documents, and ends segments at whitespace
    ("weir_models::text::subwords", "SubwordTokenizer"),
    ("weir_engine::cache::documents", "DocumentCache"),
    ("weir_engine::session::Generator", "end_segment"),
    ("weir_models::family::hourglass", "EntropyWork"),
    ("weir_models::nn::boundary", "Learned"),
    // the prompt is a text, not ids, and the request wants no log-probabilities
    ("weir_models::text::stream_tokenizer", "TextCounter"),
    ("weir_engine::sampling::LogprobOptions", "compute"),
];

/// Maximum files that a request passes.
const MAX_FILES: usize = 70;

#[test]
fn the_path_of_a_request_is_listed() {
    const BEGIN: &str = "<!-- request-path: written by tests/weir/request_path.rs -->\n";
    const END: &str = "<!-- end -->";
    let program = Program::read();
    let not_taken = not_taken();
    let named = STARTS.iter().chain(CHOSEN.iter().flat_map(|(of, chosen)| [of, chosen])).map(|name| (*name).to_owned());
    for name in named.chain(not_taken.iter().cloned()) {
        assert!(program.is_known(&name), "there is no {name}");
    }
    let files = program.files_from(&STARTS, &not_taken);
    let list: String = files.iter().map(|file| format!("- `{file}`: {}\n", program.summaries[*file])).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (kept, after) = rest.split_once(END).unwrap();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&page, [before, BEGIN, &list, END, after].concat()).unwrap();
    } else {
        assert!(kept == list, "CONTRIBUTING.md lists other files: set WEIR_WRITE_DOCS=1 to write these:\n{list}");
    }
    assert!(files.len() <= MAX_FILES, "a request passes {} files:\n{list}", files.len());
}

/// Full paths of types of the workspace.
type Types = BTreeSet<String>;

/// Stands for the type parameters that a type mentions.
const GENERIC: &str = "?";

/// A function.
struct Function {
    file: String,
    module: Vec<String>,
    /// The type of `self`.
    owner: Option<String>,
    /// Type parameters of the `impl` and of the function.
    generics: Vec<&'static Generics>,
    inputs: Vec<&'static FnArg>,
    output: Option<&'static Type>,
    body: Body,
}

enum Body {
    Block(&'static Block),
    /// The function that `multiversion!` wraps.
    Value(&'static Expr),
    /// A trait leaves it to its implementations.
    None,
}

enum Definition {
    /// A type or a variant.
    Fields(&'static Generics, &'static Fields),
    Trait,
    Alias(&'static Generics, &'static Type),
}

/// The definitions of all packages, by full path.
#[derive(Default)]
struct Program {
    modules: HashSet<String>,
    /// Module → name → paths that it imports under this name; `*` has the modules of globs.
    imports: HashMap<String, HashMap<String, Vec<Vec<String>>>>,
    /// Types and variants with their modules.
    definitions: HashMap<String, (Vec<String>, Definition)>,
    /// Several functions have one path if each has a `cfg`.
    functions: HashMap<String, Vec<Function>>,
    /// Type → traits of the workspace that it implements, and trait → types.
    traits: HashMap<String, Types>,
    implementors: HashMap<String, Types>,
    /// Type → its methods from traits of other crates.
    foreign: HashMap<String, Types>,
    /// Type → what it dereferences to.
    targets: HashMap<String, Types>,
    /// File → first sentence of its documentation.
    summaries: BTreeMap<String, String>,
}

/// The place of a path in the source.
#[derive(Clone, Copy)]
struct Scope<'a> {
    module: &'a [String],
    owner: Option<&'a str>,
    generics: &'a [&'static Generics],
}

impl Program {
    fn read() -> Self {
        let mut program = Self::default();
        let mut impls = Vec::new();
        for module in Sources::read().modules.into_values() {
            let parsed = syn::parse_file(&module.text).unwrap_or_else(|error| panic!("{}: {error}", module.file));
            let items = Vec::leak(parsed.items);
            program.declare(&module.file, &module.path, items, &mut impls);
            program.summaries.insert(module.file, first_sentence(&module.text));
        }
        for (file, module, item) in impls {
            program.add_impl(&file, &module, item);
        }
        program
    }

    /// The files of the functions that are reached from these, in the order of the calls.
    fn files_from(&self, starts: &[&str], not_taken: &HashSet<String>) -> Vec<&str> {
        let mut walk = Walk::new(self, starts[0], not_taken);
        for start in starts {
            walk.reach((*start).to_owned());
            walk.run();
        }
        let mut files: Vec<&str> = Vec::new();
        for path in walk.order {
            let Function { file, body, .. } = &self.functions[&path][0];
            if matches!(body, Body::Block(_) | Body::Value(_)) && !files.contains(&file.as_str()) {
                files.push(file);
            }
        }
        files
    }

    /// Records what a module defines and imports. Leaves its `impl`s in `impls`, because other modules may define their types.
    fn declare(
        &mut self,
        file: &str,
        module: &[String],
        items: &'static [Item],
        impls: &mut Vec<(String, Vec<String>, &'static ItemImpl)>,
    ) {
        let here = module.join("::");
        let path = |name: &syn::Ident| format!("{here}::{name}");
        let define = |definition| (module.to_vec(), definition);
        self.modules.insert(here.clone());
        for item in items {
            match item {
                Item::Use(item) => {
                    let names = self.imports.entry(here.clone()).or_default();
                    leaves(&item.tree, &[], &mut |name, path| names.entry(name).or_default().push(path));
                }
                Item::Struct(item) => {
                    let definition = Definition::Fields(&item.generics, &item.fields);
                    self.definitions.insert(path(&item.ident), define(definition));
                }
                Item::Enum(item) => {
                    let definition = Definition::Fields(&item.generics, &Fields::Unit);
                    self.definitions.insert(path(&item.ident), define(definition));
                    for variant in &item.variants {
                        let definition = Definition::Fields(&item.generics, &variant.fields);
                        self.definitions
                            .insert(format!("{}::{}", path(&item.ident), variant.ident), define(definition));
                    }
                }
                Item::Type(item) => {
                    self.definitions.insert(path(&item.ident), define(Definition::Alias(&item.generics, &item.ty)));
                }
                Item::Trait(item) => {
                    let owner = path(&item.ident);
                    self.definitions.insert(owner.clone(), define(Definition::Trait));
                    for member in &item.items {
                        if let TraitItem::Fn(member) = member {
                            let body = member.default.as_ref().map_or(Body::None, Body::Block);
                            let method = Function::new(file, module, Some(&owner), body);
                            let method = method.with_signature(Some(&item.generics), &member.sig);
                            self.add(format!("{owner}::{}", member.sig.ident), method);
                        }
                    }
                }
                Item::Fn(item) if !is_for_tests(&item.attrs) => {
                    let function = Function::new(file, module, None, Body::Block(&item.block));
                    self.add(path(&item.sig.ident), function.with_signature(None, &item.sig));
                }
                Item::Macro(item) => {
                    if let Ok((signature, value)) = item.mac.parse_body_with(multiversion) {
                        let function = Function::new(file, module, None, Body::Value(Box::leak(Box::new(value))));
                        let signature = Box::leak(Box::new(signature));
                        self.add(path(&signature.ident), function.with_signature(None, signature));
                    }
                }
                Item::Impl(item) => impls.push((file.to_owned(), module.to_vec(), item)),
                _ => {}
            }
        }
    }

    fn add(&mut self, path: String, function: Function) {
        self.functions.entry(path).or_default().push(function);
    }

    /// Records the members of an `impl`.
    fn add_impl(&mut self, file: &str, module: &[String], item: &'static ItemImpl) {
        let of = item.trait_.as_ref().map(|(_, path, _)| names(path));
        let of_workspace = of.as_ref().and_then(|names| self.resolve(module, names));
        let Type::Path(ty) = &*item.self_ty else { return };
        let Some(owner) = self.resolve(module, &names(&ty.path)) else { return };
        // followed where they are called by name
        let is_plain = |name: &String| ["Debug", "Default", "From"].contains(&name.as_str());
        let is_foreign = of_workspace.is_none() && !of.iter().flatten().next_back().is_none_or(is_plain);
        if let Some(of) = of_workspace {
            self.traits.entry(owner.clone()).or_default().insert(of.clone());
            self.implementors.entry(of).or_default().insert(owner.clone());
        }
        for member in &item.items {
            match member {
                ImplItem::Fn(member) if !is_for_tests(&member.attrs) => {
                    let path = format!("{owner}::{}", member.sig.ident);
                    if is_foreign {
                        self.foreign.entry(owner.clone()).or_default().insert(path.clone());
                    }
                    let method = Function::new(file, module, Some(&owner), Body::Block(&member.block));
                    self.add(path, method.with_signature(Some(&item.generics), &member.sig));
                }
                ImplItem::Type(member) if member.ident == "Target" => {
                    let types = self.types(&Scope { module, owner: Some(&owner), generics: &[] }, &member.ty);
                    self.targets.insert(owner.clone(), types);
                }
                _ => {}
            }
        }
    }

    fn is_known(&self, path: &str) -> bool {
        self.modules.contains(path) || self.definitions.contains_key(path) || self.functions.contains_key(path)
    }

    /// Full path of what a path names inside a module, if that belongs to the workspace.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<String> {
        self.resolve_through(module, path, 8)
    }

    /// Does so through at most `depth` imports.
    fn resolve_through(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        let (first, rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => module[0].clone(),
            "self" => module.join("::"),
            "super" => module.split_last()?.1.join("::"),
            package if self.modules.contains(package) => package.to_owned(),
            name => self.member(module, name, depth)?,
        };
        for name in rest {
            found = if !self.modules.contains(&found) {
                format!("{found}::{name}")
            } else if name == "super" {
                found.rsplit_once("::")?.0.to_owned()
            } else {
                let module: Vec<String> = found.split("::").map(str::to_owned).collect();
                self.member(&module, name, depth)?
            };
        }
        Some(found)
    }

    /// Full path of a name that a module defines or imports.
    fn member(&self, module: &[String], name: &str, depth: usize) -> Option<String> {
        let here = module.join("::");
        let path = format!("{here}::{name}");
        if self.is_known(&path) {
            return Some(path);
        }
        let imports = self.imports.get(&here)?;
        let depth = depth.checked_sub(1)?;
        let globs = imports.get("*").into_iter().flatten().map(|glob| [&glob[..], &[name.to_owned()]].concat());
        let named = imports.get(name).into_iter().flatten().cloned();
        named.chain(globs).find_map(|path| self.resolve_through(module, &path, depth))
    }

    /// The workspace's types that a type mentions.
    fn types(&self, scope: &Scope<'_>, ty: &Type) -> Types {
        let mut mentioned = Mentioned { program: self, scope: *scope, types: Types::new(), in_bound: false };
        mentioned.visit_type(ty);
        mentioned.types
    }

    /// The types of a field of a type or variant.
    fn field(&self, owner: &str, name: &str) -> Option<Types> {
        let (module, Definition::Fields(generics, fields)) = self.definitions.get(owner)? else { return None };
        let is_named = |(index, field): &(usize, &syn::Field)| {
            field.ident.as_ref().map_or_else(|| index.to_string() == name, |ident| ident == name)
        };
        let (_, field) = fields.iter().enumerate().find(is_named)?;
        Some(self.types(&Scope { module, owner: Some(owner), generics: &[generics] }, &field.ty))
    }
}

/// Collects the types that a type mentions. A type parameter stands for its bounds.
struct Mentioned<'a> {
    program: &'a Program,
    scope: Scope<'a>,
    types: Types,
    /// True while a parameter's bounds are visited, which may mention it again.
    in_bound: bool,
}

impl<'ast> Visit<'ast> for Mentioned<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = names(path);
        let all = self.scope.generics.iter();
        let parameter = all.flat_map(|generics| &generics.params).find_map(|parameter| match parameter {
            GenericParam::Type(parameter) if parameter.ident == names[0] => Some(parameter),
            _ => None,
        });
        if names[0] == "Self" {
            self.types.extend(self.scope.owner.map(str::to_owned));
        } else if let Some(parameter) = parameter {
            self.types.insert(GENERIC.to_owned());
            if !self.in_bound {
                self.in_bound = true;
                parameter.bounds.iter().for_each(|bound| self.visit_type_param_bound(bound));
                self.in_bound = false;
            }
        } else if let Some(found) = self.program.resolve(self.scope.module, &names) {
            match self.program.definitions.get(&found) {
                Some((module, Definition::Alias(generics, ty))) => {
                    self.types.extend(self.program.types(&Scope { module, owner: None, generics: &[generics] }, ty));
                }
                Some(_) => _ = self.types.insert(found),
                None => {}
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_expr(&mut self, _: &'ast Expr) {}
}

impl Function {
    fn new(file: &str, module: &[String], owner: Option<&str>, body: Body) -> Self {
        let module = module.to_vec();
        let owner = owner.map(str::to_owned);
        Self { file: file.to_owned(), module, owner, generics: Vec::new(), inputs: Vec::new(), output: None, body }
    }

    fn with_signature(self, outer: Option<&'static Generics>, signature: &'static Signature) -> Self {
        let output = match &signature.output {
            ReturnType::Type(_, output) => Some(&**output),
            ReturnType::Default => None,
        };
        let generics = outer.into_iter().chain([&signature.generics]).collect();
        Self { generics, inputs: signature.inputs.iter().collect(), output, ..self }
    }

    fn scope(&self) -> Scope<'_> {
        Scope { module: &self.module, owner: self.owner.as_deref(), generics: &self.generics }
    }
}

/// Parses `fn name(…) = body`, the argument of `multiversion!`.
fn multiversion(input: ParseStream<'_>) -> syn::Result<(Signature, Expr)> {
    input.call(Attribute::parse_outer)?;
    input.parse::<syn::Visibility>()?;
    let signature = input.parse()?;
    input.parse::<Token![=]>()?;
    Ok((signature, input.parse()?))
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Path>());
        condition.is_some_and(|name| name.is_ok_and(|name| name.is_ident("test") || name.is_ident("fuzzing")))
    })
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn member_name(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// Calls `add` with each name that a `use` imports, and the path that it stands for.
fn leaves(tree: &UseTree, prefix: &[String], add: &mut impl FnMut(String, Vec<String>)) {
    let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(tree) => leaves(&tree.tree, &with(&tree.ident), add),
        UseTree::Name(tree) if tree.ident == "self" => add(prefix[prefix.len() - 1].clone(), prefix.to_vec()),
        UseTree::Name(tree) => add(tree.ident.to_string(), with(&tree.ident)),
        UseTree::Rename(tree) => add(tree.rename.to_string(), with(&tree.ident)),
        UseTree::Glob(_) => add("*".to_owned(), prefix.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, prefix, add)),
    }
}

/// The first sentence of a file's documentation, without links.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let ends = paragraph.match_indices(". ").map(|(end, _)| end).find(|end| !paragraph[..*end].ends_with("et al"));
    let end = ends.map_or(paragraph.len(), |end| end + 1);
    let without_target = |part: &str| match part.strip_prefix('(').and_then(|part| part.split_once(')')) {
        Some((_, rest)) => rest.to_owned(),
        None => part.to_owned(),
    };
    paragraph[..end].replace("[`", "`").split("`]").map(without_target).collect::<Vec<_>>().join("`")
}

/// The full paths in [`NOT_TAKEN`].
fn not_taken() -> HashSet<String> {
    let names = NOT_TAKEN.iter().flat_map(|(path, names)| names.split(' ').map(move |name| format!("{path}::{name}")));
    names.collect()
}

/// Follows calls from function to function.
struct Walk<'a> {
    program: &'a Program,
    not_taken: &'a HashSet<String>,
    /// Reached functions, in the order of the calls.
    order: Vec<String>,
    reached: HashSet<String>,
    /// Functions to evaluate, the next one last.
    open: Vec<String>,
    /// Types of which the path has values.
    types: Types,
    /// Methods that are called on traits.
    called_on_traits: BTreeSet<(String, String)>,
    /// The function that is evaluated, the functions that it calls, and its variables.
    function: &'a Function,
    calls: Vec<String>,
    variables: HashMap<String, Types>,
    /// The types of what was visited.
    value: Types,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, start: &str, not_taken: &'a HashSet<String>) -> Self {
        Self {
            program,
            not_taken,
            order: Vec::new(),
            reached: HashSet::new(),
            open: Vec::new(),
            types: Types::new(),
            called_on_traits: BTreeSet::new(),
            function: &program.functions[start][0],
            calls: Vec::new(),
            variables: HashMap::new(),
            value: Types::new(),
        }
    }

    fn is_taken(&self, path: &str) -> bool {
        !self.not_taken.contains(path)
    }

    fn run(&mut self) {
        self.open.append(&mut self.calls);
        while let Some(path) = self.open.pop() {
            for function in &self.program.functions[&path] {
                self.evaluate(function);
            }
            self.order.push(path);
            self.open.extend(self.calls.drain(..).rev());
        }
    }

    fn evaluate(&mut self, function: &'a Function) {
        self.function = function;
        self.variables.clear();
        for input in &function.inputs {
            match input {
                FnArg::Receiver(_) => {
                    self.variables.insert("self".to_owned(), function.owner.iter().cloned().collect());
                }
                FnArg::Typed(input) => {
                    let types = self.program.types(&function.scope(), &input.ty);
                    self.bind(&input.pat, &types);
                }
            }
        }
        match function.body {
            Body::Block(block) => self.visit_block(block),
            Body::Value(value) => self.visit_expr(value),
            Body::None => {}
        }
    }

    /// Adds a function to those that are called.
    fn reach(&mut self, path: String) {
        let owner = path.rsplit_once("::").map_or("", |(owner, _)| owner);
        let is_followed = self.is_taken(&path) && self.is_taken(owner) && self.program.functions.contains_key(&path);
        if is_followed && self.reached.insert(path.clone()) {
            self.calls.push(path);
        }
    }

    /// Records that values of these types exist: methods that are called through traits reach them.
    fn note(&mut self, types: &Types) {
        for name in types {
            if !self.types.insert(name.clone()) {
                continue;
            }
            for method in self.program.foreign.get(name).into_iter().flatten() {
                self.reach(method.clone());
            }
            let traits = self.program.traits.get(name);
            let is_called = |(of, _): &&(String, String)| traits.is_some_and(|traits| traits.contains(of));
            let called: Vec<_> = self.called_on_traits.iter().filter(is_called).cloned().collect();
            for (of, method) in called {
                self.reach_implementation(&of, name, &method);
            }
        }
    }

    fn reach_implementation(&mut self, of: &str, implementor: &str, method: &str) {
        let chosen = CHOSEN.iter().find(|(known, _)| *known == of).map(|(_, chosen)| *chosen);
        let exists = self.types.contains(implementor);
        if chosen.map_or(exists, |chosen| chosen == implementor) {
            self.reach(format!("{implementor}::{method}"));
        }
    }

    /// Finds a method on values of these types, and reaches it. None if it belongs to another crate.
    fn method(&mut self, on: &Types, method: &str) -> Vec<&'a Function> {
        let program = self.program;
        let mut found = Vec::new();
        for name in on {
            let owners = [name].into_iter().chain(program.traits.get(name).into_iter().flatten());
            let mut paths = owners.map(|owner| format!("{owner}::{method}"));
            let Some(path) = paths.find(|path| program.functions.contains_key(path)) else { continue };
            found.push(&program.functions[&path][0]);
            self.reach(path);
            self.called_on_traits.insert((name.clone(), method.to_owned()));
            for implementor in program.implementors.get(name).into_iter().flatten() {
                self.reach_implementation(name, implementor, method);
            }
        }
        found
    }

    /// The types of a call's result: what the functions declare, with the call's values in place of type parameters. What other
    /// crates return has the call's values.
    fn outputs(&self, functions: &[&Function], given: Types) -> Types {
        let declared = functions.iter().filter_map(|function| Some((function.scope(), function.output?)));
        let mut types: Types = declared.flat_map(|(scope, ty)| self.program.types(&scope, ty)).collect();
        if types.remove(GENERIC) || functions.is_empty() {
            types.extend(given);
        }
        types
    }

    /// Returns the types that values of these types dereference to.
    fn targets(&self, types: &Types) -> Types {
        types.iter().filter_map(|name| self.program.targets.get(name)).flatten().cloned().collect()
    }

    /// Evaluates an expression. Returns the types of its value.
    fn eval(&mut self, expression: &Expr) -> Types {
        let outer = std::mem::take(&mut self.value);
        self.visit_expr(expression);
        let value = std::mem::replace(&mut self.value, outer);
        let value = value.into_iter().filter(|name| self.is_taken(name)).collect();
        self.note(&value);
        value
    }

    /// Evaluates the arguments of a call on `on`; closures get these values and those of earlier arguments. Returns the types of all.
    fn arguments<'e>(&mut self, arguments: impl IntoIterator<Item = &'e Expr>, on: &Types) -> Types {
        let mut all = on.clone();
        for argument in arguments {
            if let Expr::Closure(closure) = argument {
                closure.inputs.iter().for_each(|input| _ = self.bind(input, &all));
            }
            all.extend(self.eval(argument));
        }
        all
    }

    /// Follows a path that is called with `arguments`, or used as a value.
    fn path(&mut self, path: &ExprPath, arguments: &[&Expr]) -> Types {
        let arguments = arguments.iter().copied();
        let names = names(&path.path);
        if let ([name], None) = (&names[..], &path.qself)
            && let Some(variable) = self.variables.get(name).cloned()
        {
            return self.arguments(arguments, &variable);
        }
        // `Type::method`, `<T as Trait>::method`, `Self::method`
        let scope = self.function.scope();
        let owner = path.path.segments.iter().take(names.len() - 1).cloned().collect();
        let mut mentioned = Mentioned { program: self.program, scope, types: Types::new(), in_bound: false };
        path.qself.iter().for_each(|qself| mentioned.visit_type(&qself.ty));
        if names.len() > 1 {
            mentioned.visit_path(&syn::Path { leading_colon: None, segments: owner });
        }
        let on = mentioned.types;
        let mut functions = self.method(&on, &names[names.len() - 1]);
        let found = self.full_path(&path.path);
        if functions.is_empty() {
            functions.extend(self.program.functions.get(&found).map(|functions| &functions[0]));
            self.reach(found.clone());
        }
        let given = self.arguments(arguments, &on);
        // with no function: a type or a variant, or a function of another crate
        let mut value = self.outputs(&functions, given);
        if self.program.definitions.contains_key(&found) && self.is_taken(&found) {
            let owner = found.rsplit_once("::").map_or("", |(owner, _)| owner);
            value.insert(if self.program.definitions.contains_key(owner) { owner } else { &found }.to_owned());
        }
        value
    }

    /// Evaluates a condition, and binds the variables of its `let`s. Returns false if no value on the path matches them.
    fn condition(&mut self, condition: &Expr) -> bool {
        match condition {
            Expr::Let(condition) => {
                let types = self.eval(&condition.expr);
                self.bind(&condition.pat, &types)
            }
            Expr::Binary(both) if matches!(both.op, syn::BinOp::And(_)) => {
                self.condition(&both.left) && self.condition(&both.right)
            }
            condition => {
                self.eval(condition);
                true
            }
        }
    }

    /// Binds the variables of a pattern to the parts of a value. Returns false if no value on the path matches.
    fn bind(&mut self, pattern: &Pat, types: &Types) -> bool {
        match pattern {
            Pat::Ident(pattern) => {
                let known: Types = types.iter().filter(|name| self.is_taken(name)).cloned().collect();
                self.note(&known);
                self.variables.insert(pattern.ident.to_string(), known);
                pattern.subpat.as_ref().is_none_or(|(_, inner)| self.bind(inner, types))
            }
            Pat::Struct(pattern) => {
                let owner = self.full_path(&pattern.path);
                for field in &pattern.fields {
                    let types = self.part(&owner, &member_name(&field.member), types);
                    self.bind(&field.pat, &types);
                }
                self.is_taken(&owner)
            }
            Pat::TupleStruct(pattern) => {
                let owner = self.full_path(&pattern.path);
                let mut matches = self.is_taken(&owner) && !pattern.path.is_ident("Err");
                for (index, inner) in pattern.elems.iter().enumerate() {
                    let types = self.part(&owner, &index.to_string(), types);
                    matches &= self.bind(inner, &types);
                }
                matches
            }
            Pat::Path(pattern) => self.is_taken(&self.full_path(&pattern.path)),
            Pat::Tuple(pattern) => self.bind_each(pattern.elems.iter(), types) == pattern.elems.len(),
            Pat::Slice(pattern) => self.bind_each(pattern.elems.iter(), types) == pattern.elems.len(),
            Pat::Or(pattern) => self.bind_each(pattern.cases.iter(), types) > 0,
            Pat::Reference(pattern) => self.bind(&pattern.pat, types),
            Pat::Paren(pattern) => self.bind(&pattern.pat, types),
            Pat::Type(pattern) => {
                let declared = self.program.types(&self.function.scope(), &pattern.ty);
                self.bind(&pattern.pat, &declared.union(types).cloned().collect())
            }
            _ => true,
        }
    }

    /// Returns how many of the patterns match.
    fn bind_each<'e>(&mut self, patterns: impl Iterator<Item = &'e Pat>, types: &Types) -> usize {
        patterns.filter(|pattern| self.bind(pattern, types)).count()
    }

    /// Full path of what a path names in the function; empty if it belongs to another crate.
    fn full_path(&self, path: &syn::Path) -> String {
        let mut names = names(path);
        if let (true, Some(owner)) = (names[0] == "Self", &self.function.owner) {
            names.splice(..1, owner.split("::").map(str::to_owned));
        }
        self.program.resolve(&self.function.module, &names).unwrap_or_default()
    }

    /// The types of a field of a value; those of the value if the field may hold any of them.
    fn part(&self, owner: &str, field: &str, whole: &Types) -> Types {
        let field = self.program.field(owner, field);
        field.map_or_else(|| whole.clone(), |types| if types.contains(GENERIC) { &types | whole } else { types })
    }

    /// Evaluates the expressions among a macro's tokens.
    fn tokens(&mut self, input: ParseStream<'_>) {
        while !input.is_empty() {
            let ahead = input.fork();
            if let Ok(expression) = ahead.parse::<Expr>() {
                input.advance_to(&ahead);
                let value = self.eval(&expression);
                self.value.extend(value);
            } else if let Ok(inner) = brackets(input) {
                self.tokens(&inner);
            } else {
                input.step(|cursor| Ok(((), cursor.token_tree().map_or(*cursor, |(_, rest)| rest)))).unwrap();
            }
        }
    }
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

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        let outer = std::mem::take(&mut self.value);
        for statement in &block.stmts {
            self.value.clear();
            match statement {
                Stmt::Local(local) => {
                    let types = local.init.as_ref().map(|init| self.eval(&init.expr)).unwrap_or_default();
                    let matches = self.bind(&local.pat, &types);
                    if let Some((_, other)) = local.init.as_ref().and_then(|init| init.diverge.as_ref()) {
                        self.eval(other);
                    }
                    if !matches {
                        break;
                    }
                }
                Stmt::Expr(expression, _) => self.visit_expr(expression),
                Stmt::Macro(statement) => self.visit_macro(&statement.mac),
                // a nested function belongs to the function around it
                Stmt::Item(item) => visit::visit_item(self, item),
            }
        }
        self.value.extend(outer);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let parsed = called.parse_body_with(|input: ParseStream<'_>| {
            self.tokens(input);
            Ok(())
        });
        parsed.unwrap();
    }

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_expr(&mut self, expression: &'ast Expr) {
        let value = match expression {
            Expr::Path(path) => self.path(path, &[]),
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) => self.path(path, &call.args.iter().collect::<Vec<_>>()),
                function => {
                    let on = self.eval(function);
                    self.arguments(&call.args, &on)
                }
            },
            Expr::MethodCall(call) => {
                let on = self.eval(&call.receiver);
                let name = call.method.to_string();
                let mut functions = self.method(&on, &name);
                if functions.is_empty() {
                    functions = self.method(&self.targets(&on), &name);
                }
                let given = self.arguments(&call.args, &on);
                self.outputs(&functions, given)
            }
            Expr::Field(field) => {
                let on = self.eval(&field.base);
                let name = member_name(&field.member);
                let is_field = |owner: &&String| self.program.field(owner, &name).is_some();
                let owners: Vec<String> = self.targets(&on).union(&on).filter(is_field).cloned().collect();
                if owners.is_empty() {
                    on
                } else {
                    owners.iter().flat_map(|owner| self.part(owner, &name, &on)).collect()
                }
            }
            Expr::Struct(made) => {
                let values = made.fields.iter().map(|field| &field.expr).chain(made.rest.as_deref());
                let fields = self.arguments(values, &Types::new());
                &fields | &self.path(&ExprPath { attrs: Vec::new(), qself: None, path: made.path.clone() }, &[])
            }
            Expr::Closure(closure) => self.eval(&closure.body),
            Expr::Let(_) => {
                self.condition(expression);
                Types::new()
            }
            Expr::If(branch) => {
                let matches = self.condition(&branch.cond);
                let mut value = std::mem::take(&mut self.value);
                if matches {
                    self.visit_block(&branch.then_branch);
                }
                branch.else_branch.iter().for_each(|(_, other)| self.visit_expr(other));
                std::mem::swap(&mut self.value, &mut value);
                value
            }
            Expr::ForLoop(repeated) => {
                let types = self.eval(&repeated.expr);
                self.bind(&repeated.pat, &types);
                self.visit_block(&repeated.body);
                Types::new()
            }
            Expr::Match(matched) => {
                let types = self.eval(&matched.expr);
                let mut value = Types::new();
                for arm in &matched.arms {
                    if self.bind(&arm.pat, &types) {
                        value.extend(self.eval(&arm.body));
                    }
                }
                value
            }
            _ => {
                let outer = std::mem::take(&mut self.value);
                visit::visit_expr(self, expression);
                std::mem::replace(&mut self.value, outer)
            }
        };
        self.value.extend(value);
    }
}
