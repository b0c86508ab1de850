//! The modules of a crate, and the paths that each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree, Visibility};

use crate::Error;
use crate::files::{read, short};

/// Index of a module in its [`Tree`].
pub(super) type Id = usize;

/// Where a path stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: String,
    line: usize,
    path: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} ({}:{})", self.path, self.file, self.line)
    }
}

/// A path as it is written.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) segments: Vec<String>,
    pub(super) place: Place,
}

/// One module: what it defines and what it names.
#[derive(Default, Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) parent: Option<Id>,
    pub(super) children: BTreeMap<String, Id>,
    /// Items other than modules.
    pub(super) items: BTreeSet<String>,
    /// Names that `use` brings in, and what they stand for.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// Paths before `::*`.
    pub(super) globs: Vec<Vec<String>>,
    /// Every path.
    pub(super) named: Vec<Named>,
}

/// The modules of a crate; the first is its root.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
}

impl Tree {
    /// Reads a crate from its first file.
    pub(super) fn read(first: &Path) -> Result<Self, Error> {
        let mut tree = Tree { modules: vec![Module::default()] };
        let folder = first.parent().unwrap_or(Path::new("")).to_path_buf();
        tree.file(0, first, folder)?;
        Ok(tree)
    }

    /// A crate whose modules are all inline.
    #[cfg(test)]
    pub(super) fn parse(source: &str) -> Result<Self, Error> {
        let mut tree = Tree { modules: vec![Module::default()] };
        let path = PathBuf::from("lib.rs");
        let file = syn::parse_file(source).map_err(|source| Error::Syntax { path: path.clone(), source })?;
        tree.items(0, &file.items, &path, Path::new(""))?;
        Ok(tree)
    }

    /// Adds a file as module `id`, whose own modules lie in `folder`.
    fn file(&mut self, id: Id, path: &Path, folder: PathBuf) -> Result<(), Error> {
        let file = syn::parse_file(&read(path)?).map_err(|source| Error::Syntax { path: path.into(), source })?;
        self.items(id, &file.items, path, &folder)
    }

    fn items(&mut self, id: Id, items: &[Item], file: &Path, folder: &Path) -> Result<(), Error> {
        for item in items {
            if let Item::Mod(module) = item {
                if !only_tests(&module.attrs) {
                    self.module(id, module, file, folder)?;
                }
                continue;
            }
            let mut reader = Reader { module: &mut self.modules[id], file: short(file) };
            reader.visit_item(item);
        }
        Ok(())
    }

    fn module(&mut self, parent: Id, item: &ItemMod, file: &Path, folder: &Path) -> Result<(), Error> {
        let (id, name) = (self.modules.len(), item.ident.to_string());
        self.modules.push(Module { name: name.clone(), parent: Some(parent), ..Module::default() });
        self.modules[parent].children.insert(name.clone(), id);
        if let Some((_, items)) = &item.content {
            return self.items(id, items, file, &folder.join(&name));
        }
        let (beside, inside) = (folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs"));
        let path = [beside, inside].into_iter().find(|path| path.is_file());
        let path = path.ok_or_else(|| Error::NoModule { path: file.into(), module: name.clone() })?;
        self.file(id, &path, folder.join(name))
    }

    /// The modules around `id` from the root on, and itself.
    pub(super) fn line(&self, id: Id) -> Vec<Id> {
        let mut line: Vec<Id> = std::iter::successors(Some(id), |id| self.modules[*id].parent).collect();
        line.reverse();
        line
    }

    /// `a::b` for a module.
    pub(super) fn path(&self, id: Id) -> String {
        self.line(id)[1..].iter().map(|id| self.modules[*id].name.as_str()).collect::<Vec<_>>().join("::")
    }
}

/// Whether something exists in tests alone.
fn only_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => tests(list.tokens.clone()),
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// Whether a condition is `test`, or `all` of some with `test` among them.
fn tests(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(all), TokenTree::Group(group)] if all == "all" => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            let comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
            parts.split(comma).any(|part| tests(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// Writes down what the items of one module define and name.
struct Reader<'a> {
    module: &'a mut Module,
    file: String,
}

impl Reader<'_> {
    fn name(&mut self, segments: Vec<String>, span: Span) {
        let place = Place { file: self.file.clone(), line: span.start().line, path: segments.join("::") };
        self.module.named.push(Named { segments, place });
    }

    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => match &item.ident {
                Some(name) => name,
                None => return,
            },
            _ => return,
        };
        self.module.items.insert(name.to_string());
    }

    /// The paths of a `use`, each with what it is called here.
    fn import(&mut self, tree: &UseTree, mut prefix: Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix.clone())),
            UseTree::Glob(glob) => {
                self.name(prefix.clone(), glob.star_token.spans[0]);
                self.module.globs.push(prefix);
            }
            UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = prefix.last().cloned() {
                    self.bring(last, prefix, name.ident.span());
                }
            }
            UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                self.bring(name.ident.to_string(), prefix, name.ident.span());
            }
            UseTree::Rename(name) => {
                if name.ident != "self" {
                    prefix.push(name.ident.to_string());
                }
                self.bring(name.rename.to_string(), prefix, name.ident.span());
            }
        }
    }

    fn bring(&mut self, name: String, path: Vec<String>, span: Span) {
        self.name(path.clone(), span);
        self.module.imports.insert(name, path);
    }

    /// The paths among the tokens of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Option<(Vec<String>, Span)> = None;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) => match (&mut path, colons) {
                    (Some((segments, _)), 2) => {
                        segments.push(word.to_string());
                        colons = 0;
                    }
                    (path, _) => {
                        let before = path.replace((vec![word.to_string()], word.span()));
                        self.ended(before);
                        colons = 0;
                    }
                },
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.ended(path.take());
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.ended(path);
    }

    fn ended(&mut self, path: Option<(Vec<String>, Span)>) {
        if let Some((segments, span)) = path.filter(|(segments, _)| segments.len() > 1) {
            self.name(segments, span);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if only_tests(attributes(item)) {
            return;
        }
        self.define(item);
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, vec![]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.name(segments, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.tokens(item.tokens.clone());
    }

    // Neither uses what it names.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
