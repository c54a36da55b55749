//! The source files that a `Generate` passes, found by following the calls from function to function.
//!
//! [`Program`] has the definitions, and [`Walk`] evaluates one function after another. A value is known by the workspace's types that
//! its type mentions: `Option<Arc<Handle>>` is `{Handle}`. A method of another crate (`map`, `lock`, `iter`) returns what it is called
//! with. This finds more than a call runs, because every branch is followed that [`NOT_TAKEN`] does not name.

use crate::sources::{File, Sources, expressions, names, parent};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;
use syn::{
    Attribute, BinOp, Block, Expr, ExprBlock, Fields, FnArg, Generics, ImplItem, Item, Local, Macro, Member, Pat,
    ReturnType, Signature, Stmt, Token, TraitItem, Type,
    parse::ParseStream,
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
const NOT_TAKEN: [(&str, &str); 27] = [
    // the call succeeds
    ("weir_server::status", "status"),
    ("weir_server::middleware::observe::RefusalLog", "record_status"),
    ("weir_engine::worker::Worker", "restart"),
    // other methods have requests of their own
    ("weir_server::grpc::generation::JobService", "score segment compress decompress edit summarize check"),
    ("weir_engine::api::Job", "Code Next"),
    ("weir_engine::codec::coder", "BlockCoder"),
    ("weir_engine::completion", "DistributionsSoFar"),
    ("weir_engine::score", "window max_fed_symbols"),
    ("weir_engine::request::RequestKind", "Document"),
    ("weir_engine::observer::EngineEvent", "Summarized"),
    // the server has its default settings: no TLS, traces or speculation, and 32-bit floats
    ("weir_server::config::tls", "Tls"),
    ("weir_server::traces", "Traces CallSpan"),
    ("weir_engine::speculation", "Speculation Drafter DraftBudget"),
    ("weir_kernels::dtype::Dtype", "Int8 Int4"),
    ("weir_kernels::dtype::CacheDtype", "Int8"),
    // the model reads bytes and no documents, and ends segments at whitespace
    ("weir_models::text::subwords", "SubwordTokenizer"),
    ("weir_models::text::added_tokens", "AddedTokens"),
    ("weir_engine::cache::documents", "DocumentCache"),
    ("weir_engine::session::Generator", "end_segment"),
    ("weir_models::family::hourglass", "EntropyWork"),
    ("weir_models::nn::boundary", "Learned"),
    // the text may have any form
    ("weir_engine::engine::Handle", "compile"),
    ("weir_server::grpc::generation", "compile"),
    ("weir_engine::constraint", "ConstraintCompiler CompiledConstraint ConstraintMatcher shared_lengths"),
    // the prompt is a text, not ids, and the request wants no log-probabilities
    ("weir_models::text::stream_tokenizer", "TextCounter"),
    ("weir_engine::sampling::LogprobOptions", "compute"),
    ("weir_engine::options", "ExactLogprob"),
];

/// Maximum files that a request passes.
const MAX_FILES: usize = 70;

#[test]
fn the_path_of_a_request_is_listed() {
    const BEGIN: &str = "<!-- request-path: written by tests/weir/request_path.rs -->\n";
    const END: &str = "<!-- end -->";
    let sources = Sources::read();
    let mut program = Program::default();
    for file in &sources.files {
        file.items.iter().for_each(|item| program.declare(&sources, file, item));
    }
    let not_taken =
        NOT_TAKEN.iter().flat_map(|(path, names)| names.split(' ').map(move |name| format!("{path}::{name}")));
    let chosen = CHOSEN.iter().flat_map(|(of, chosen)| [of, chosen]);
    for name in STARTS.iter().chain(chosen).map(|name| (*name).to_owned()).chain(not_taken) {
        let is_definition = program.definitions.contains(&name) || program.functions.contains_key(&name);
        assert!(is_definition || sources.modules.contains(&name), "there is no {name}");
    }
    let mut walk = Walk {
        sources: &sources,
        program: &program,
        files: Vec::new(),
        reached: HashSet::new(),
        types: Types::new(),
        scope: &program.functions[STARTS[0]].scope,
        calls: Vec::new(),
        variables: HashMap::new(),
        value: Types::new(),
        unmatched: false,
    };
    STARTS.iter().for_each(|start| walk.follow(start));
    let entry = |file: &&File| format!("- `{}`: {}\n", file.path, first_sentence(&file.text));
    let list: String = walk.files.iter().map(entry).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (kept, after) = rest.split_once(END).unwrap();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&page, [before, BEGIN, &list, END, after].concat()).unwrap();
    } else {
        assert!(kept == list, "CONTRIBUTING.md lists other files: set WEIR_WRITE_DOCS=1 to write these:\n{list}");
    }
    assert!(walk.files.len() <= MAX_FILES, "a request passes {} files:\n{list}", walk.files.len());
}

/// Full paths of types of the workspace.
type Types = BTreeSet<String>;

/// Where a type stands.
#[derive(Clone)]
struct Scope<'a> {
    file: &'a File,
    /// What `Self` stands for; the module outside of types.
    owner: String,
    generics: Vec<&'a Generics>,
}

struct Function<'a> {
    scope: Scope<'a>,
    signature: &'a Signature,
    /// None if a trait leaves it to its implementations.
    body: Option<Expr>,
}

/// The definitions of all packages, by full path.
#[derive(Default)]
struct Program<'a> {
    /// Types, traits and variants.
    definitions: HashSet<String>,
    fields: HashMap<String, (Scope<'a>, &'a Type)>,
    functions: HashMap<String, Function<'a>>,
    /// A trait, a type that implements it, and the name of a method.
    implementations: Vec<(String, String, String)>,
}

impl<'a> Program<'a> {
    /// Records what an item defines.
    fn declare(&mut self, sources: &Sources, file: &'a File, item: &'a Item) {
        let path = |name: &syn::Ident| format!("{}::{name}", file.module);
        let scope = |owner: &str, generics| Scope { file, owner: owner.to_owned(), generics };
        match item {
            Item::Struct(item) => self.add_fields(scope(&path(&item.ident), vec![&item.generics]), &item.fields),
            Item::Enum(item) => {
                let owner = path(&item.ident);
                for variant in &item.variants {
                    let path = format!("{owner}::{}", variant.ident);
                    self.add_fields(scope(&path, vec![&item.generics]), &variant.fields);
                }
                self.definitions.insert(owner);
            }
            Item::Trait(item) => {
                let owner = path(&item.ident);
                for member in &item.items {
                    if let TraitItem::Fn(member) = member {
                        let scope = scope(&owner, vec![&item.generics]);
                        self.add_function(scope, &member.sig, member.default.as_ref().map(block));
                    }
                }
                self.definitions.insert(owner);
            }
            Item::Impl(item) => {
                let Type::Path(ty) = &*item.self_ty else { return };
                let owner = sources.resolve(&file.module, &names(&ty.path));
                let of = item.trait_.as_ref().map(|(_, path, _)| sources.resolve(&file.module, &names(path)));
                for member in &item.items {
                    if let ImplItem::Fn(member) = member {
                        let scope = scope(&owner, vec![&item.generics]);
                        self.add_function(scope, &member.sig, Some(block(&member.block)));
                        let of = of.clone().map(|of| (of, owner.clone(), member.sig.ident.to_string()));
                        self.implementations.extend(of);
                    }
                }
            }
            Item::Fn(item) => self.add_function(scope(&file.module, vec![]), &item.sig, Some(block(&item.block))),
            Item::Macro(item) => {
                if let Ok((signature, value)) = item.mac.parse_body_with(multiversion) {
                    self.add_function(scope(&file.module, vec![]), Box::leak(Box::new(signature)), Some(value));
                }
            }
            _ => {}
        }
    }

    fn add_fields(&mut self, scope: Scope<'a>, fields: &'a Fields) {
        for (index, field) in fields.iter().enumerate() {
            let name = field.ident.as_ref().map_or_else(|| index.to_string(), syn::Ident::to_string);
            self.fields.insert(format!("{}::{name}", scope.owner), (scope.clone(), &field.ty));
        }
        self.definitions.insert(scope.owner);
    }

    fn add_function(&mut self, mut scope: Scope<'a>, signature: &'a Signature, body: Option<Expr>) {
        let path = format!("{}::{}", scope.owner, signature.ident);
        scope.generics.push(&signature.generics);
        self.functions.insert(path, Function { scope, signature, body });
    }
}

fn is_taken(path: &str) -> bool {
    let (owner, name) = path.rsplit_once("::").unwrap_or_default();
    !NOT_TAKEN.iter().any(|(of, names)| *of == owner && names.split(' ').any(|known| known == name))
}

fn block(block: &Block) -> Expr {
    Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block: block.clone() })
}

/// Parses `fn name(…) = body`, the argument of `multiversion!`.
fn multiversion(input: ParseStream<'_>) -> syn::Result<(Signature, Expr)> {
    input.call(Attribute::parse_outer)?;
    input.parse::<syn::Visibility>()?;
    let signature = input.parse()?;
    input.parse::<Token![=]>()?;
    Ok((signature, input.parse()?))
}

fn member_name(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

/// The first sentence of a file's documentation.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let end = paragraph.match_indices(". ").find(|(end, _)| !paragraph[..*end].ends_with("et al"));
    paragraph[..end.map_or(paragraph.len(), |(end, _)| end + 1)].replace("[`", "`").replace("`]", "`")
}

/// Follows calls from function to function.
struct Walk<'a> {
    sources: &'a Sources,
    program: &'a Program<'a>,
    /// The files of reached functions, in the order of the calls.
    files: Vec<&'a File>,
    reached: HashSet<String>,
    /// Types of which the path has values.
    types: Types,
    /// The function that is evaluated: its place, the functions that it calls, and its variables.
    scope: &'a Scope<'a>,
    calls: Vec<String>,
    variables: HashMap<String, Types>,
    /// The types of what was visited.
    value: Types,
    /// True if no value on the path matches a `let` of the condition that is evaluated.
    unmatched: bool,
}

impl<'a> Walk<'a> {
    fn follow(&mut self, start: &str) {
        self.reach(start.to_owned());
        let mut open = std::mem::take(&mut self.calls);
        while let Some(path) = open.pop() {
            let Function { scope, signature, body: Some(body) } = &self.program.functions[&path] else {
                continue;
            };
            if self.files.iter().all(|file| file.path != scope.file.path) {
                self.files.push(scope.file);
            }
            self.scope = scope;
            self.variables = HashMap::from([("self".to_owned(), Types::from([scope.owner.clone()]))]);
            for input in &signature.inputs {
                if let FnArg::Typed(input) = input {
                    self.bind(&input.pat, &self.mentioned(scope, &input.ty));
                }
            }
            self.visit_expr(body);
            open.extend(self.calls.drain(..).rev());
        }
    }

    /// Adds a function to those that are called.
    fn reach(&mut self, path: String) {
        let is_followed = is_taken(&path) && is_taken(parent(&path)) && self.program.functions.contains_key(&path);
        if is_followed && self.reached.insert(path.clone()) {
            self.calls.push(path);
        }
    }

    /// Records that values of these types exist: other crates call the methods of their own traits. Plain ones are called by name.
    fn note(&mut self, types: &Types) {
        let is_plain = |of: &str| ["Debug", "Default", "From"].iter().any(|plain| of.ends_with(plain));
        let new = types - &self.types;
        self.types.extend(new.iter().cloned());
        for (of, owner, method) in self.program.implementations.iter().filter(|(_, owner, _)| new.contains(owner)) {
            if !self.program.definitions.contains(of) && !is_plain(of) {
                self.reach(format!("{owner}::{method}"));
            }
        }
    }

    /// Finds a method on values of these types, and reaches it. None if it belongs to another crate.
    fn method(&mut self, on: &Types, method: &str) -> Vec<&'a Function<'a>> {
        let mut found = Vec::new();
        for name in on {
            let Some(function) = self.program.functions.get(&format!("{name}::{method}")) else { continue };
            found.push(function);
            self.reach(format!("{name}::{method}"));
            let chosen = CHOSEN.iter().find(|(of, _)| of == name).map(|(_, chosen)| *chosen);
            for (_, owner, _) in self.program.implementations.iter().filter(|(of, ..)| of == name) {
                if chosen.map_or(self.types.contains(owner), |chosen| chosen == owner) {
                    self.reach(format!("{owner}::{method}"));
                }
            }
        }
        found
    }

    /// The types of a call's result: what the functions declare, or what is given to another crate's.
    fn outputs(&self, functions: &[&Function<'_>], given: Types) -> Types {
        if functions.is_empty() {
            return given;
        }
        let declared = functions.iter().filter_map(|function| match &function.signature.output {
            ReturnType::Type(_, ty) => Some(self.mentioned(&function.scope, ty)),
            ReturnType::Default => None,
        });
        declared.flatten().collect()
    }

    /// The workspace's types that a type mentions.
    fn mentioned(&self, scope: &Scope<'_>, ty: &Type) -> Types {
        let mut mentioned = Mentioned { walk: self, scope, types: Types::new() };
        mentioned.visit_type(ty);
        mentioned.types
    }

    /// Full path of what a path names.
    fn resolve(&self, scope: &Scope<'_>, path: &syn::Path) -> String {
        let names = names(path);
        match names.strip_prefix("Self") {
            Some(rest) if path.segments[0].ident == "Self" => format!("{}{rest}", scope.owner),
            _ => self.sources.resolve(&scope.file.module, &names),
        }
    }

    /// Evaluates an expression. Returns the types of its value.
    fn eval(&mut self, expression: &Expr) -> Types {
        let outer = std::mem::take(&mut self.value);
        self.visit_expr(expression);
        let value = std::mem::replace(&mut self.value, outer);
        let value = value.into_iter().filter(|name| is_taken(name)).collect();
        self.note(&value);
        value
    }

    /// Evaluates the arguments of a call on `on`; closures get these values and earlier arguments'. Returns the types of all.
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
    fn path<'e>(&mut self, path: &syn::Path, arguments: impl IntoIterator<Item = &'e Expr>) -> Types {
        if let Some(variable) = self.variables.get(&names(path)).cloned() {
            return self.arguments(arguments, &variable);
        }
        let found = self.resolve(self.scope, path);
        let (owner, name) = found.rsplit_once("::").unwrap_or_default();
        let on = Types::from([owner.to_owned()]);
        let functions = self.method(&on, name);
        let given = self.arguments(arguments, &on);
        // without a function: a type or a variant, or a function of another crate
        let mut value = self.outputs(&functions, given);
        value.extend(self.program.definitions.get(&found).filter(|found| is_taken(found)).cloned());
        value
    }

    /// Binds the variables of a pattern to the parts of a value. Returns false if no value on the path matches.
    fn bind(&mut self, pattern: &Pat, types: &Types) -> bool {
        match pattern {
            Pat::Ident(pattern) => {
                self.note(types);
                self.variables.insert(pattern.ident.to_string(), types.clone());
                true
            }
            Pat::Struct(pattern) => {
                let owner = self.resolve(self.scope, &pattern.path);
                for field in &pattern.fields {
                    let types = self.part(&owner, &member_name(&field.member), types);
                    self.bind(&field.pat, &types);
                }
                is_taken(&owner)
            }
            Pat::TupleStruct(pattern) => {
                let owner = self.resolve(self.scope, &pattern.path);
                let mut matches = is_taken(&owner);
                for (index, inner) in pattern.elems.iter().enumerate() {
                    let types = self.part(&owner, &index.to_string(), types);
                    matches &= self.bind(inner, &types);
                }
                matches
            }
            Pat::Path(pattern) => is_taken(&self.resolve(self.scope, &pattern.path)),
            Pat::Tuple(pattern) => pattern.elems.iter().filter(|inner| !self.bind(inner, types)).count() == 0,
            Pat::Reference(pattern) => self.bind(&pattern.pat, types),
            Pat::Type(pattern) => self.bind(&pattern.pat, &(&self.mentioned(self.scope, &pattern.ty) | types)),
            _ => true,
        }
    }

    /// The types of a field of a value; the value's types if the field is not the workspace's.
    fn part(&self, owner: &str, field: &str, whole: &Types) -> Types {
        let field = self.program.fields.get(&format!("{owner}::{field}"));
        field.map_or_else(|| whole.clone(), |(scope, ty)| self.mentioned(scope, ty))
    }
}

/// Collects the types that a type mentions. A type parameter stands for its bounds.
struct Mentioned<'a> {
    walk: &'a Walk<'a>,
    scope: &'a Scope<'a>,
    types: Types,
}

impl<'ast> Visit<'ast> for Mentioned<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut parameters = self.scope.generics.iter().flat_map(|generics| generics.type_params());
        if let Some(parameter) = parameters.find(|parameter| parameter.ident == path.segments[0].ident) {
            parameter.bounds.iter().for_each(|bound| self.visit_type_param_bound(bound));
        }
        let found = self.walk.resolve(self.scope, path);
        self.types.extend(self.walk.program.definitions.get(&found).cloned());
        visit::visit_path(self, path);
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        let outer = std::mem::take(&mut self.value);
        for statement in &block.stmts {
            self.value.clear();
            let Stmt::Local(Local { pat, init: Some(init), .. }) = statement else {
                visit::visit_stmt(self, statement);
                continue;
            };
            let types = self.eval(&init.expr);
            let matches = self.bind(pat, &types);
            init.diverge.iter().for_each(|(_, other)| self.visit_expr(other));
            if !matches {
                break;
            }
        }
        self.value.extend(outer);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        expressions(called).iter().for_each(|expression| self.visit_expr(expression));
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        let mut value = Types::new();
        match expression {
            Expr::Path(path) => value = self.path(&path.path, []),
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) => value = self.path(&path.path, &call.args),
                _ => visit::visit_expr(self, expression),
            },
            Expr::MethodCall(call) => {
                let on = self.eval(&call.receiver);
                let method = call.method.to_string();
                let mut functions = self.method(&on, &method);
                if functions.is_empty() {
                    let dereferenced = self.method(&on, "deref");
                    functions = self.method(&self.outputs(&dereferenced, Types::new()), &method);
                }
                let given = self.arguments(&call.args, &on);
                value = self.outputs(&functions, given);
            }
            Expr::Field(field) => {
                let on = self.eval(&field.base);
                value.extend(on.iter().flat_map(|owner| self.part(owner, &member_name(&field.member), &on)));
            }
            Expr::Struct(made) => {
                let values = made.fields.iter().map(|field| &field.expr).chain(made.rest.as_deref());
                value = self.path(&made.path, values);
            }
            Expr::Binary(both) if matches!(both.op, BinOp::And(_)) => {
                self.visit_expr(&both.left);
                if !self.unmatched {
                    self.visit_expr(&both.right);
                }
            }
            Expr::Let(condition) => {
                let types = self.eval(&condition.expr);
                self.unmatched |= !self.bind(&condition.pat, &types);
            }
            Expr::If(branch) => {
                self.eval(&branch.cond);
                if !std::mem::take(&mut self.unmatched) {
                    self.visit_block(&branch.then_branch);
                }
                branch.else_branch.iter().for_each(|(_, other)| self.visit_expr(other));
            }
            Expr::ForLoop(repeated) => {
                let types = self.eval(&repeated.expr);
                self.bind(&repeated.pat, &types);
                self.visit_block(&repeated.body);
            }
            Expr::Match(matched) => {
                let types = self.eval(&matched.expr);
                for arm in &matched.arms {
                    if self.bind(&arm.pat, &types) {
                        self.visit_expr(&arm.body);
                    }
                }
            }
            _ => visit::visit_expr(self, expression),
        }
        self.value.extend(value);
    }
}
