//! Every public function of `kernel-core` is called by the freestanding program, or by the harness that it links, and it is searched
//! for paths to a panic: what it does not link was not examined. Functions of traits are called through implementations, and what macros make is not
//! looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};

/// Public functions, as `module::name`, and methods, as `Type::name`.
#[derive(Default)]
struct Public {
    module: String,
    functions: BTreeSet<String>,
    /// The types by the method's name.
    methods: BTreeMap<String, BTreeSet<String>>,
}

/// Names of paths, the last two segments of each, and of methods that are called.
#[derive(Default)]
struct Used {
    imported: BTreeMap<String, String>,
    paths: BTreeSet<String>,
    methods: BTreeSet<String>,
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// Is part of tests, or of a group that is simulated.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let mut given = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
    given.any(|list| list.path.is_ident("cfg") && list.tokens.to_string().contains("test"))
}

impl<'a> Visit<'a> for Public {
    fn visit_item(&mut self, item: &'a syn::Item) {
        match item {
            syn::Item::Fn(function) if is_public(&function.vis) && !is_for_tests(&function.attrs) => {
                self.functions.insert(format!("{}::{}", self.module, function.sig.ident));
            }
            syn::Item::Impl(of) if of.trait_.is_none() && !is_for_tests(&of.attrs) => {
                let syn::Type::Path(owner) = &*of.self_ty else { return };
                let owner = &owner.path.segments.last().unwrap().ident;
                for item in &of.items {
                    if let syn::ImplItem::Fn(method) = item
                        && is_public(&method.vis)
                        && !is_for_tests(&method.attrs)
                    {
                        self.methods
                            .entry(method.sig.ident.to_string())
                            .or_default()
                            .insert(owner.to_string());
                    }
                }
            }
            syn::Item::Mod(module) if !is_for_tests(&module.attrs) => visit::visit_item_mod(self, module),
            _ => {}
        }
    }
}

impl<'a> Visit<'a> for Used {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        fn walk(tree: &syn::UseTree, parent: &str, imported: &mut BTreeMap<String, String>) {
            match tree {
                syn::UseTree::Path(path) => walk(&path.tree, &path.ident.to_string(), imported),
                syn::UseTree::Group(group) => {
                    group.items.iter().for_each(|tree| walk(tree, parent, imported));
                }
                syn::UseTree::Name(name) => {
                    imported.insert(name.ident.to_string(), format!("{parent}::{}", name.ident));
                }
                syn::UseTree::Rename(_) | syn::UseTree::Glob(_) => {}
            }
        }
        walk(&item.tree, "", &mut self.imported);
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let segments: Vec<_> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.paths.extend(match segments.as_slice() {
            [.., parent, name] => Some(format!("{parent}::{name}")),
            [name] => self.imported.get(name).cloned(),
            [] => None,
        });
        visit::visit_expr_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.methods.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }
}

/// Hands the parsed sources below `folder` on, with the names of their modules. Rooms for tests are not in the
/// program.
fn sources(folder: &Path, each: &mut impl FnMut(String, &syn::File)) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["reference", "sim", "testing", "tests"].contains(&name(&path).as_str()) {
            continue;
        }
        if path.is_dir() {
            sources(&path, each);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        each(name(if path.ends_with("mod.rs") { folder } else { &path }), &file);
    }
}

#[test]
fn the_freestanding_program_calls_every_public_function() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut public, mut used) = (Public::default(), Used::default());
    sources(&here.join("../kernel-core/src"), &mut |module, file| {
        public.module = module;
        public.visit_file(file);
    });
    for folder in ["freestanding/src", "harness/src"] {
        sources(&here.join(folder), &mut |_, file| used.visit_file(file));
    }

    let mut missing: Vec<_> = public.functions.difference(&used.paths).cloned().collect();
    for (name, owners) in &public.methods {
        // Of methods with the same name only the type in front tells which is called. All machines have a `step`.
        let by_name = (owners.len() == 1 || name == "step") && used.methods.contains(name);
        let paths = owners.iter().map(|owner| format!("{owner}::{name}"));
        missing.extend(paths.filter(|path| !by_name && !used.paths.contains(path)));
    }
    assert!(missing.is_empty(), "public, and verify/freestanding does not call it: {missing:#?}");
    let found = public.functions.len() + public.methods.values().map(BTreeSet::len).sum::<usize>();
    assert!(found > 200, "only {found} public functions were found");
}
