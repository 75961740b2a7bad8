//! Paths in Rust code, and the modules of this crate that they lead to.
//!
//! Files are parsed, so that paths are found everywhere: in a `use` of many lines, in code, in a macro's tokens, after
//! `super::` or an alias. Code that is compiled for tests only is left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path as FilePath;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Lit, LitStr, Meta, UseTree};

/// The names of a path without its root: `["tensor", "Tensor"]` is `crate::tensor::Tensor`.
pub type Names = Vec<String>;

/// Maximum number of consecutive aliases, so that two that refer to each other end.
const MAX_ALIASES: usize = 16;

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this crate. (The program calls the library by its name, `flux`; their modules have different names.)
    Own(Names),
    /// In another crate, or a type or a variable of the module itself.
    Other(Names),
}

/// A path as it was written.
#[derive(Clone)]
struct Written {
    line: usize,
    /// The module that contains it.
    module: Names,
    /// `true` if it begins with `::`.
    rooted: bool,
    names: Names,
}

/// The names in a file.
#[derive(Clone)]
pub struct SourceFile {
    /// Relative to src/.
    pub name: String,
    module: Names,
    /// Modules that only tests have, and modules inside the file.
    test_modules: Vec<Names>,
    inner_modules: Vec<Names>,
    written: Vec<Written>,
    /// The names that a module imports, and their targets.
    imports: HashMap<(Names, String), (bool, Names)>,
    /// The modules that a module imports with a glob.
    globs: Vec<(Names, Names)>,
    /// Lines with unsafe code, or with an attribute that allows it.
    pub unsafe_lines: Vec<usize>,
    /// Literals and their lines, without comments.
    pub literals: Vec<(usize, String)>,
}

impl SourceFile {
    /// Parses the text of a file of src/.
    pub fn parse(name: &str, text: &str) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let module = module_of(name);
        let mut reader = Reader {
            module: module.clone(),
            file: Self {
                name: name.to_string(),
                module,
                test_modules: Vec::new(),
                inner_modules: Vec::new(),
                written: Vec::new(),
                imports: HashMap::new(),
                globs: Vec::new(),
                unsafe_lines: Vec::new(),
                literals: Vec::new(),
            },
        };
        reader.visit_file(&file);
        Ok(reader.file)
    }
}

/// Returns the module of a file: `a/mod.rs` and `a.rs` are the module `a`; lib.rs and main.rs are the root.
fn module_of(name: &str) -> Names {
    let stem = name.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if ["lib", "main"].contains(&stem) { Vec::new() } else { stem.split('/').map(String::from).collect() }
}

/// All files of src/ and the targets of their paths.
pub struct Sources {
    pub files: Vec<SourceFile>,
    modules: BTreeSet<Names>,
}

impl Sources {
    pub fn new(mut files: Vec<SourceFile>) -> Self {
        let tests: Vec<Names> = files.iter().flat_map(|file| file.test_modules.clone()).collect();
        files.retain(|file| !tests.iter().any(|test| file.module.starts_with(test)));
        let inner = files.iter().flat_map(|file| file.inner_modules.clone());
        let modules = files.iter().map(|file| file.module.clone()).chain(inner).collect();
        Self { files, modules }
    }

    /// Reads a folder of sources.
    pub fn read(src: &FilePath) -> Self {
        let mut files = Vec::new();
        read_below(src, "", &mut files);
        Self::new(files)
    }

    /// Returns every path of a file: its line, and its target.
    pub fn used<'a>(&'a self, file: &'a SourceFile) -> impl Iterator<Item = (usize, Place)> + 'a {
        let place = |path: &Written| self.place(file, &path.module, path.rooted, &path.names, MAX_ALIASES);
        file.written.iter().map(move |path| (path.line, place(path)))
    }

    /// Resolves the beginning of a path of `module`, until it begins at the root of a crate.
    fn place(&self, file: &SourceFile, module: &[String], rooted: bool, names: &[String], left: usize) -> Place {
        let (first, rest) = names.split_first().expect("a path has a name");
        let below = |module: &[String], rest: &[String]| Place::Own([module, rest].concat());
        let parent = |module: &[String]| module[..module.len().saturating_sub(1)].to_vec();
        match first.as_str() {
            _ if rooted => return Place::Other(names.to_vec()),
            "crate" => return Place::Own(rest.to_vec()),
            "self" => return below(module, rest),
            "super" => {
                let up = rest.iter().take_while(|name| *name == "super").count();
                let module = (0..up).fold(parent(module), |module, _| parent(&module));
                return below(&module, &rest[up..]);
            }
            _ => {}
        }
        if let Some((rooted, target)) = file.imports.get(&(module.to_vec(), first.clone()))
            && left > 0
        {
            return match self.place(file, module, *rooted, target, left - 1) {
                Place::Own(target) => below(&target, rest),
                Place::Other(target) => Place::Other([&target, rest].concat()),
            };
        }
        let child = |module: &[String]| self.modules.contains(&[module, std::slice::from_ref(first)].concat());
        if child(module) {
            return below(module, names);
        }
        for (_, target) in file.globs.iter().filter(|(importer, _)| importer == module && left > 0) {
            if let Place::Own(target) = self.place(file, module, false, target, left - 1)
                && child(&target)
            {
                return below(&target, names);
            }
        }
        Place::Other(names.to_vec())
    }

    /// Returns the module that defines the target of a path of this crate, through all re-exports.
    fn holder(&self, path: &[String]) -> Names {
        let mut path = path.to_vec();
        for _ in 0..MAX_ALIASES {
            let module = (0..=path.len()).rev().map(|n| &path[..n]).find(|module| self.modules.contains(*module));
            let module = module.unwrap_or_default().to_vec();
            let Some(name) = path.get(module.len()) else { return module };
            let key = (module.clone(), name.clone());
            let found = self.files.iter().filter(|file| file.name != "main.rs").find_map(|file| {
                let (rooted, target) = file.imports.get(&key)?;
                Some(self.place(file, &module, *rooted, target, MAX_ALIASES))
            });
            match found {
                Some(Place::Own(target)) => path = [&target, &path[module.len() + 1..]].concat(),
                _ => return module,
            }
        }
        path
    }

    /// Returns the modules that every module uses.
    pub fn module_graph(&self) -> BTreeMap<Names, BTreeSet<Names>> {
        let mut graph: BTreeMap<Names, BTreeSet<Names>> = BTreeMap::new();
        for file in &self.files {
            let uses = graph.entry(file.module.clone()).or_default();
            for (_, place) in self.used(file) {
                if let Place::Own(path) = place {
                    uses.insert(self.holder(&path));
                }
            }
        }
        graph
    }
}

fn read_below(folder: &FilePath, below: &str, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("src is a folder") {
        let entry = entry.expect("readable");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            read_below(&entry.path(), &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(entry.path()).expect("UTF-8");
            files.push(SourceFile::parse(&name, &text).unwrap_or_else(|error| panic!("src/{name}: {error}")));
        }
    }
}

/// Returns the cycles among the modules of each folder: sets of siblings that use each other, directly or through
/// others of them. A sibling uses everything that its submodules use.
pub fn circles(graph: &BTreeMap<Names, BTreeSet<Names>>) -> Vec<(String, BTreeSet<String>)> {
    let folders: BTreeSet<&[String]> = graph.keys().flat_map(|m| (0..m.len()).map(|n| &m[..n])).collect();
    let mut found = Vec::new();
    for folder in folders {
        let sibling = |module: &Names| module.strip_prefix(folder).and_then(|rest| rest.first()).cloned();
        let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, uses) in graph {
            let Some(from) = sibling(module) else { continue };
            reach.entry(from.clone()).or_default().extend(uses.iter().filter_map(sibling).filter(|to| *to != from));
        }
        // Each round doubles the length of the known ways, and no way is longer than the number of modules.
        for _ in 0..reach.len() {
            let once = reach.clone();
            for to in reach.values_mut() {
                let further: Vec<String> = to.iter().filter_map(|name| once.get(name)).flatten().cloned().collect();
                to.extend(further);
            }
        }
        let circle = |name: &String| -> BTreeSet<String> {
            let both = |other: &&String| reach[name].contains(*other) && reach[*other].contains(name);
            reach.keys().filter(both).cloned().collect()
        };
        let circles: BTreeSet<_> = reach.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
        found.extend(circles.into_iter().map(|circle| (folder.join("::"), circle)));
    }
    found
}

/// Walks through the syntax of a file.
struct Reader {
    module: Names,
    file: SourceFile,
}

impl Reader {
    fn write(&mut self, line: usize, rooted: bool, names: Names) {
        self.file.written.push(Written { line, module: self.module.clone(), rooted, names });
    }

    fn import(&mut self, rooted: bool, before: &mut Names, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(rooted, before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(rooted, before, tree)),
            UseTree::Name(name) => self.import_name(rooted, before, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import_name(rooted, before, &rename.ident, &rename.rename),
            UseTree::Glob(glob) => {
                self.write(glob.span().start().line, rooted, before.clone());
                self.file.globs.push((self.module.clone(), before.clone()));
            }
        }
    }

    fn import_name(&mut self, rooted: bool, before: &[String], name: &Ident, alias: &Ident) {
        let mut names = before.to_vec();
        let mut alias = alias.to_string();
        // `a::{self}` is `a`.
        if name == "self" && !before.is_empty() {
            if alias == "self" {
                alias = before[before.len() - 1].clone();
            }
        } else {
            names.push(name.to_string());
        }
        self.write(name.span().start().line, rooted, names.clone());
        self.file.imports.insert((self.module.clone(), alias), (rooted, names));
    }

    fn text(&mut self, text: &LitStr) {
        self.file.literals.push((text.span().start().line, text.value()));
    }

    /// Collects literals, and paths of two or more names, among the tokens of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let punct = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal.clone()) {
                        self.text(&text);
                    }
                }
                TokenTree::Ident(ident) => {
                    if ident == "unsafe" {
                        self.file.unsafe_lines.push(ident.span().start().line);
                    }
                    let rooted = i >= 2 && punct(i - 1, ':') && punct(i - 2, ':');
                    // `$crate` is `crate`; any other name after a `$` is a variable.
                    let variable = i >= 1 && punct(i - 1, '$') && ident != "crate";
                    let mut names = vec![ident.to_string()];
                    while punct(i + 1, ':')
                        && punct(i + 2, ':')
                        && let Some(TokenTree::Ident(next)) = tokens.get(i + 3)
                    {
                        names.push(next.to_string());
                        i += 3;
                    }
                    if names.len() > 1 && !variable {
                        self.write(ident.span().start().line, rooted, names);
                    }
                }
                _ => {}
            }
            i += 1;
        }
    }
}

/// Returns `true` if code with such a condition is compiled for tests only.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") || list.path.is_ident("cfg") => {
            let parse = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            list.parse_args_with(parse).is_ok_and(|all| all.iter().any(needs_test))
        }
        _ => false,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && needs_test(&attribute.meta))
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        } else if let Item::Mod(item) = item {
            self.file.test_modules.push([&self.module[..], &[item.ident.to_string()]].concat());
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(item) if is_for_tests(&item.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        if item.content.is_some() {
            self.file.inner_modules.push(self.module.clone());
            visit::visit_item_mod(self, item);
            self.module.pop();
        } else {
            self.module.pop();
            item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        self.import(item.leading_colon.is_some(), &mut Vec::new(), &item.tree);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        let alias = item.rename.as_ref().map_or(&item.ident, |(_, alias)| alias);
        self.import_name(true, &[], &item.ident, alias);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single name is a variable, or a name imported by a `use`.
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.write(path.span().start().line, path.leading_colon.is_some(), names);
        }
        visit::visit_path(self, path);
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.text(text);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {} // `pub(in crate::a)` uses nothing

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        self.tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            let lifts = ["allow", "expect", "warn"].iter().any(|level| list.path.is_ident(level));
            if lifts && list.tokens.to_string().contains("unsafe_code") || list.path.is_ident("unsafe") {
                self.file.unsafe_lines.push(attribute.span().start().line);
            }
            self.tokens(list.tokens.clone());
        }
        if !attribute.path().is_ident("doc") {
            visit::visit_attribute(self, attribute);
        }
    }

    fn visit_expr_unsafe(&mut self, item: &'ast syn::ExprUnsafe) {
        self.file.unsafe_lines.push(item.span().start().line);
        visit::visit_expr_unsafe(self, item);
    }

    fn visit_signature(&mut self, item: &'ast syn::Signature) {
        self.file.unsafe_lines.extend(item.unsafety.map(|token| token.span.start().line));
        visit::visit_signature(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.file.unsafe_lines.extend(item.unsafety.map(|token| token.span.start().line));
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.file.unsafe_lines.extend(item.unsafety.map(|token| token.span.start().line));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.file.unsafe_lines.push(item.span().start().line);
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_type_bare_fn(&mut self, item: &'ast syn::TypeBareFn) {
        self.file.unsafe_lines.extend(item.unsafety.map(|token| token.span.start().line));
        visit::visit_type_bare_fn(self, item);
    }
}
