//! `verify/ATOMICS.md` lists every access to an atomic word, and every fence, with its ordering and what models it. The first
//! columns are made of the sources; the last one is kept, and who adds an access or changes an ordering must say there anew
//! what it rests on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// The folders whose sources ship. The models themselves, in `verify/src/loom`, access words as what they run does.
const FOLDERS: [&str; 15] = [
    "kernel-core/src",
    "kernel-core/capi/src",
    "host/bench/src",
    "host/case/src",
    "host/cli/src",
    "host/group/src",
    "host/mpi/src",
    "host/plan/src",
    "host/sim/src",
    "host/spread/src",
    "host/trace/src",
    "host/python/src",
    "verify/src/explorer",
    "verify/boot/src",
    "verify/device/kernels/src",
];

/// Begins the last column of an access on whose ordering nothing rests.
const NOTHING: &str = "nothing: ";

const HEAD: &str = "\
# Atomic words and what models them

Every access to an atomic word and every fence of the sources that ship, tests left out, and what shows that its ordering is strong
enough. `cargo test -p veriep-verify --test atomics` generates all but the
last column and fails when the page is stale or a last column is empty; `UPDATE_GOLDEN=1` before it writes the page, and `?` where you
must say what models a new access. That is a test, or *nothing* with the reason why nothing rests on the ordering.

| file | function | access | ordering | what models it |
|---|---|---|---|---|
";

/// An access: file, function, operation, ordering.
type Access = [String; 4];

#[derive(Default)]
struct Accesses {
    file: String,
    owners: Vec<String>,
    all: BTreeSet<Access>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let mut given = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    given.any(|list| {
        list.path.is_ident("cfg") && list.tokens.to_string().split([' ', '(', ',', ')']).any(|t| t == "test")
    })
}

/// The ordering that an argument is, if it is one.
fn ordering(argument: &syn::Expr) -> Option<String> {
    const ALL: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
    const OURS: [&str; 8] = ["PUBLISH", "OBSERVE", "STORE", "TRANSFER", "SOURCE", "ARRIVE", "OPEN", "JOINED"];
    let syn::Expr::Path(path) = argument else { return None };
    let last = path.path.segments.last()?.ident.to_string();
    let is_given =
        path.path.is_ident("ordering") || path.path.is_ident("load") || path.path.is_ident("store");
    (is_given || ALL.contains(&last.as_str()) || OURS.contains(&last.as_str())).then_some(last)
}

impl Accesses {
    fn add(&mut self, operation: String, arguments: &Punctuated<syn::Expr, syn::Token![,]>) {
        const OPERATIONS: [&str; 8] =
            ["load", "store", "swap", "fetch", "compare", "count", "fence", "transfer"];
        let orderings: Vec<_> = arguments.iter().filter_map(ordering).collect();
        let is_access = OPERATIONS.iter().any(|known| operation.starts_with(known));
        if is_access && !orderings.is_empty() {
            let function = self.owners.join("::");
            self.all.insert([self.file.clone(), function, operation, orderings.join(", ")]);
        }
    }

    fn within(&mut self, owner: String, visit: impl FnOnce(&mut Self)) {
        self.owners.push(owner);
        visit(self);
        self.owners.pop();
    }
}

impl<'a> Visit<'a> for Accesses {
    fn visit_item_mod(&mut self, of: &'a syn::ItemMod) {
        if !is_for_tests(&of.attrs) {
            visit::visit_item_mod(self, of);
        }
    }

    fn visit_item_fn(&mut self, of: &'a syn::ItemFn) {
        if !is_for_tests(&of.attrs) {
            self.within(of.sig.ident.to_string(), |all| visit::visit_item_fn(all, of));
        }
    }

    fn visit_item_impl(&mut self, of: &'a syn::ItemImpl) {
        let syn::Type::Path(owner) = &*of.self_ty else { return visit::visit_item_impl(self, of) };
        let owner = owner.path.segments.last().unwrap().ident.to_string();
        if !is_for_tests(&of.attrs) {
            self.within(owner, |all| visit::visit_item_impl(all, of));
        }
    }

    fn visit_impl_item_fn(&mut self, of: &'a syn::ImplItemFn) {
        if !is_for_tests(&of.attrs) {
            self.within(of.sig.ident.to_string(), |all| visit::visit_impl_item_fn(all, of));
        }
    }

    fn visit_trait_item_fn(&mut self, of: &'a syn::TraitItemFn) {
        self.within(of.sig.ident.to_string(), |all| visit::visit_trait_item_fn(all, of));
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.add(call.method.to_string(), &call.args);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            self.add(path.path.segments.last().unwrap().ident.to_string(), &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, of: &'a syn::Macro) {
        let parsed = of.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
        // Owned, so not visited as what the file holds.
        for expression in parsed.into_iter().flatten() {
            let mut inner = Self { file: self.file.clone(), owners: self.owners.clone(), ..Self::default() };
            inner.visit_expr(&expression);
            self.all.extend(inner.all);
        }
    }
}

fn visit_folder(folder: &Path, all: &mut Accesses) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            visit_folder(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            // Parsing all of them would take most of the time.
            if !text.contains("Ordering") && !text.contains("coherent::") {
                continue;
            }
            all.file = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            let file = syn::parse_file(&text).unwrap();
            all.visit_file(&file);
        }
    }
}

/// The rows of a page: what models each access.
fn rows(page: &str) -> BTreeMap<Access, String> {
    let lines = page.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [file, function, operation, ordering, model] = cells[..] else {
            panic!("{line}: not five cells")
        };
        ([file, function, operation, ordering].map(|cell| cell.replace('`', "")), model.to_owned())
    };
    lines.map(row).collect()
}

/// Whether a test of that name exists, in a file of that name.
fn is_test(name: &str, sources: &[(String, String)]) -> bool {
    let Some((file, test)) = name.rsplit_once("::") else { return false };
    let function = format!("fn {test}(");
    sources.iter().any(|(path, text)| path.contains(file) && text.contains(&function))
}

/// All sources by their paths.
fn sources(folder: &Path, all: &mut Vec<(String, String)>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push((path.to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_atomic_word_has_a_model_or_a_reason() {
    let mut accesses = Accesses::default();
    FOLDERS.iter().for_each(|folder| visit_folder(&root().join(folder), &mut accesses));
    let path = root().join("verify/ATOMICS.md");
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let known = rows(&kept);
    let mut page = HEAD.to_owned();
    for access in &accesses.all {
        let [file, function, operation, ordering] = access;
        let model = known.get(access).map_or("?", String::as_str);
        page += &format!("| {file} | `{function}` | `{operation}` | `{ordering}` | {model} |\n");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let mut all = Vec::new();
    ["kernel-core", "host", "verify"].iter().for_each(|folder| sources(&root().join(folder), &mut all));
    let without: Vec<_> = rows(&page)
        .into_iter()
        .filter(|(_, model)| {
            let mut named = model.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).peekable();
            let is_modelled = named.peek().is_some() && named.all(|name| is_test(name, &all));
            !(is_modelled || model.starts_with(NOTHING) && model.len() > NOTHING.len())
        })
        .collect();
    assert!(without.is_empty(), "say in verify/ATOMICS.md what models these: {without:#?}");
    let differs = page.lines().zip(kept.lines()).find(|(new, old)| new != old);
    assert!(
        page == kept,
        "verify/ATOMICS.md is stale, first at {differs:?}: UPDATE_GOLDEN=1 cargo test --test atomics"
    );
    assert!(accesses.all.len() > 80, "only {} accesses were found", accesses.all.len());
}
