//! The source of one crate: its modules, the origin of their names, and the paths that they use.
//!
//! Code under `#[cfg(test)]` is left out: tests may use any module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module's path in its crate: empty for the crate's root.
pub(crate) type ModulePath = Vec<String>;

/// The parts of a module that determine its dependencies.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// The file, relative to the crate.
    pub(crate) file: PathBuf,
    /// Names of modules declared here.
    pub(crate) children: BTreeSet<String>,
    /// Names that `use` brings in, with the path that each stands for.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Paths whose every name `use path::*` brings in.
    pub(crate) globs: Vec<Vec<String>>,
    /// Names of the items that are defined here.
    pub(crate) items: BTreeSet<String>,
    /// Paths that the code uses, with their lines.
    pub(crate) uses: Vec<(Vec<String>, usize)>,
}

/// All modules of a crate.
#[derive(Debug, Default)]
pub(crate) struct CrateSource {
    pub(crate) modules: BTreeMap<ModulePath, Module>,
    /// Lines of the files of product code, of their tests, and the number of files.
    pub(crate) product_lines: usize,
    pub(crate) test_lines: usize,
    pub(crate) files: usize,
}

impl CrateSource {
    /// Reads a crate from its `src/lib.rs` or `src/main.rs` on.
    pub(crate) fn read(folder: &Path) -> Result<Self, String> {
        let mut source = Self::default();
        let roots = ["src/lib.rs", "src/main.rs"];
        let root = roots
            .iter()
            .map(Path::new)
            .find(|root| folder.join(root).is_file());
        let root = root.ok_or_else(|| format!("{}: no lib.rs or main.rs", folder.display()))?;
        source.read_file(folder, root, Path::new("src"), Vec::new())?;
        source.test_lines += lines_below(&folder.join("tests"));
        let all = lines_below(&folder.join("src"));
        source.test_lines += all.saturating_sub(source.product_lines);
        Ok(source)
    }

    fn read_file(
        &mut self,
        folder: &Path,
        file: &Path,
        children: &Path,
        path: ModulePath,
    ) -> Result<(), String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", folder.join(file).display());
        let text = std::fs::read_to_string(folder.join(file)).map_err(|e| fail(&e))?;
        let parsed = syn::parse_file(&text).map_err(|e| fail(&e))?;
        self.product_lines += text.lines().count();
        self.files += 1;
        self.read_items(folder, file, children, path, &parsed.items)
    }

    fn read_items(
        &mut self,
        folder: &Path,
        file: &Path,
        children: &Path,
        path: ModulePath,
        items: &[syn::Item],
    ) -> Result<(), String> {
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        for item in items {
            if for_tests(attributes(item)) {
                if matches!(item, syn::Item::Mod(m) if m.content.is_some()) {
                    let lines = lines_of(item);
                    self.product_lines = self.product_lines.saturating_sub(lines);
                }
                continue;
            }
            match item {
                syn::Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    module.children.insert(name.clone());
                    let mut below = path.clone();
                    below.push(name.clone());
                    let folder_of = children.join(&name);
                    match &inner.content {
                        Some((_, items)) => {
                            self.read_items(folder, file, &folder_of, below, items)?;
                        }
                        None => {
                            let flat = children.join(format!("{name}.rs"));
                            let nested = folder_of.join("mod.rs");
                            let found = if folder.join(&flat).is_file() {
                                flat
                            } else {
                                nested
                            };
                            self.read_file(folder, &found, &folder_of, below)?;
                        }
                    }
                }
                syn::Item::Use(item) => module.add_use(&item.tree, Vec::new()),
                other => {
                    if let Some(name) = name_of(other) {
                        module.items.insert(name);
                    }
                    Paths(&mut module).visit_item(other);
                }
            }
        }
        self.modules.insert(path, module);
        Ok(())
    }
}

impl Module {
    fn add_use(&mut self, tree: &syn::UseTree, mut prefix: Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_use(&path.tree, prefix);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, prefix.clone());
                }
            }
            syn::UseTree::Name(name) => {
                let own = name.ident == "self";
                if !own {
                    prefix.push(name.ident.to_string());
                }
                if let Some(last) = prefix.last().cloned() {
                    self.uses.push((prefix.clone(), name.span().start().line));
                    self.imports.insert(last, prefix);
                }
            }
            syn::UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    prefix.push(rename.ident.to_string());
                }
                self.uses.push((prefix.clone(), rename.span().start().line));
                self.imports.insert(rename.rename.to_string(), prefix);
            }
            syn::UseTree::Glob(glob) => {
                self.uses.push((prefix.clone(), glob.span().start().line));
                self.globs.push(prefix);
            }
        }
    }
}

/// Collects the paths of an item's code, those inside of macros too.
struct Paths<'a>(&'a mut Module);

impl<'a> Visit<'a> for Paths<'_> {
    /// `pub(in path)` is no dependency on the module of the path.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            let names = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.0.uses.push((names, path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, found: &'a syn::Macro) {
        self.tokens(found.tokens.clone());
        visit::visit_macro(self, found);
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.0.add_use(&item.tree, Vec::new());
    }

    fn visit_item(&mut self, item: &'a syn::Item) {
        if !for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }
}

impl Paths<'_> {
    /// Finds `a::b::c` in tokens that are no parsed code.
    fn tokens(&mut self, stream: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in stream {
            match token {
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Ident(name) => {
                    self.end_path(&mut path, line);
                    line = name.span().start().line;
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path, line);
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => {
                    self.end_path(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.end_path(&mut path, line);
    }

    fn end_path(&mut self, path: &mut Vec<String>, line: usize) {
        let found = std::mem::take(path);
        if found.len() > 1 {
            self.0.uses.push((found, line));
        }
    }
}

/// Whether an item exists for tests alone: `#[cfg(test)]` or `#[test]`.
fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .meta
                    .require_list()
                    .is_ok_and(|list| list.tokens.to_string() == "test"))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::Type(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(i) => &i.ident,
        syn::Item::Enum(i) => &i.ident,
        syn::Item::Fn(i) => &i.sig.ident,
        syn::Item::Macro(i) => i.ident.as_ref()?,
        syn::Item::Static(i) => &i.ident,
        syn::Item::Struct(i) => &i.ident,
        syn::Item::Trait(i) => &i.ident,
        syn::Item::Type(i) => &i.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn lines_of(item: &syn::Item) -> usize {
    let span = item.span();
    span.end().line.saturating_sub(span.start().line) + 1
}

/// Lines of all `.rs` files of a folder and its folders.
fn lines_below(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let mut lines = 0;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            lines += lines_below(&path);
        } else if path.extension().is_some_and(|e| e == "rs") {
            lines += std::fs::read_to_string(&path).map_or(0, |text| text.lines().count());
        }
    }
    lines
}
