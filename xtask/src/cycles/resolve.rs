//! From a path to the module that defines what it names.

use super::tree::{Id, Tree};

/// Longest chain of re-exports that is followed: beyond it names go in a circle.
const MAX_HOPS: usize = 32;

/// The module in which the thing at `path`, as written in module `from`, is defined; `None` if it is no module of
/// this crate.
pub(super) fn resolve(tree: &Tree, from: Id, path: &[String]) -> Option<Id> {
    follow(tree, from, path, MAX_HOPS)
}

fn follow(tree: &Tree, from: Id, path: &[String], hops: usize) -> Option<Id> {
    let (first, mut rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => 0,
        "self" => from,
        "super" => tree.modules[from].parent?,
        _ => return scope(tree, from, path, hops),
    };
    while rest.first().is_some_and(|next| next == "super") {
        (at, rest) = (tree.modules[at].parent?, &rest[1..]);
    }
    Some(inside(tree, at, rest, hops))
}

/// The same for a path that goes on from module `at`: what is not found there is taken to be made there by a macro.
fn inside(tree: &Tree, at: Id, path: &[String], hops: usize) -> Id {
    scope(tree, at, path, hops).unwrap_or(at)
}

/// The same for a path whose first name must be in the scope of module `at`.
fn scope(tree: &Tree, at: Id, path: &[String], hops: usize) -> Option<Id> {
    let hops = hops.checked_sub(1)?;
    let (first, rest) = path.split_first()?;
    let module = &tree.modules[at];
    let child = module.children.get(first);
    // An item may have the name of a module: what stands at the end of a path is the item.
    if module.items.contains(first) && (rest.is_empty() || child.is_none()) {
        return Some(at);
    }
    if let Some(child) = child {
        return Some(inside(tree, *child, rest, hops));
    }
    if let Some(target) = module.imports.get(first) {
        // A crate under its own name: `use serde;`.
        if target.as_slice() == [first.clone()] {
            return None;
        }
        let whole: Vec<String> = target.iter().chain(rest).cloned().collect();
        return follow(tree, at, &whole, hops);
    }
    let sources = module.globs.iter().filter_map(|glob| follow(tree, at, glob, hops));
    let mut found = sources.filter(|source| *source != at).filter_map(|source| scope(tree, source, path, hops));
    found.next()
}
