//! Circles of files: modules of a crate that name each other, directly or through other modules.
//!
//! A file names another by a path that begins with `crate`, `super` or `self`. A module that names a module inside
//! it, or the other way round, is no circle. Tests and what a crate's root exports again do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A module's path within its crate.
type Module = Vec<String>;

/// The circles of all crates below `root`, each with its files in order.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn find(root: &Path) -> io::Result<Vec<Vec<PathBuf>>> {
    let mut circles = Vec::new();
    for sources in crates(root)? {
        let mut files = BTreeMap::new();
        modules(&sources, &Vec::new(), &mut files)?;
        let mut named = BTreeMap::new();
        for (module, file) in &files {
            let text = without_tests(&fs::read_to_string(file)?);
            let others = paths(&text).into_iter().filter_map(|path| resolve(module, &path, &files));
            named.insert(module.clone(), others.collect::<BTreeSet<_>>());
        }
        circles.extend(circles_of(&named).into_iter().map(|circle| {
            circle
                .iter()
                .map(|module| files[*module].strip_prefix(root).unwrap_or(&files[*module]).to_owned())
                .collect()
        }));
    }
    Ok(circles)
}

/// The source folders of the packages below `folder`.
fn crates(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if folder.join("Cargo.toml").is_file() && folder.join("src").is_dir() {
        found.push(folder.join("src"));
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["src", "target", "tests", "shared"].contains(&&*name) {
            found.extend(crates(&path)?);
        }
    }
    Ok(found)
}

/// Adds the files of `folder`, whose module is `parent`, to `found` under their modules.
fn modules(folder: &Path, parent: &Module, found: &mut BTreeMap<Module, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = [&parent[..], std::slice::from_ref(&name)].concat();
        if name == "tests" {
            continue;
        } else if path.is_dir() {
            modules(&path, &module, found)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let root = ["mod", "lib", "main"].contains(&&*name);
            found.insert(if root { parent.clone() } else { module }, path);
        }
    }
    Ok(())
}

/// `text` without comments, and without the tests at its end.
fn without_tests(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths in `text` that lead to modules of its crate; `use a::{b, c::d}` has two.
fn paths(text: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':') {
                tree(&text[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Adds the paths of the `use` tree at the beginning of `text` to `found`, each with the path `above` in front.
/// Returns the text behind the tree.
fn tree<'t>(text: &'t str, above: &mut Module, found: &mut Vec<Module>) -> &'t str {
    let depth = above.len();
    let mut text = text.trim_start();
    loop {
        if let Some(rest) = text.strip_prefix('{') {
            text = rest.trim_start();
            while !text.is_empty() && !text.starts_with('}') {
                let before = text.len();
                text = tree(text, above, found).trim_start().trim_start_matches(',').trim_start();
                if text.len() == before {
                    break;
                }
            }
            above.truncate(depth);
            return text.strip_prefix('}').unwrap_or(text);
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        if end > 0 {
            above.push(text[..end].to_owned());
        }
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) if end > 0 => text = rest.trim_start(),
            _ => break,
        }
    }
    found.push(above.clone());
    above.truncate(depth);
    // The new name behind `as` is no module.
    match text.trim_start().strip_prefix("as ") {
        Some(rest) => rest.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
        None => text,
    }
}

/// The module that `path` leads to from `here`; `None` if no file has it, or if one of the two modules lies inside
/// the other.
fn resolve(here: &Module, path: &Module, files: &BTreeMap<Module, PathBuf>) -> Option<Module> {
    let mut whole = if path.first().is_some_and(|first| first == "crate") { Vec::new() } else { here.clone() };
    for step in path {
        match &**step {
            "crate" | "self" => {}
            "super" => drop(whole.pop()),
            name => whole.push(name.to_owned()),
        }
    }
    let found = (1..=whole.len()).rev().map(|length| &whole[..length]).find(|part| files.contains_key(*part))?;
    let within = found.starts_with(here) || here.starts_with(found);
    (!within).then(|| found.to_vec())
}

/// Groups of modules in which each module leads to all others.
fn circles_of(named: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<&Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = named.keys().map(|from| (from, reached(from, named))).collect();
    let mut left: BTreeSet<&Module> = named.keys().collect();
    let mut circles = Vec::new();
    while let Some(first) = left.pop_first() {
        let back = |other: &&&Module| reach[first].contains(**other) && reach[**other].contains(first);
        let others: Vec<&Module> = left.iter().filter(back).copied().collect();
        if !others.is_empty() {
            left.retain(|module| !others.contains(module));
            circles.push([vec![first], others].concat());
        }
    }
    circles
}

fn reached<'m>(from: &'m Module, named: &'m BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'m Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&Module> = named[from].iter().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(named.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate with these files.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<PathBuf>> {
        let dir = std::env::temp_dir().join(format!("waggle-circles-{}-{}", std::process::id(), files.len()));
        for (file, text) in files.iter().chain(&[("Cargo.toml", "")]) {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = find(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        found
    }

    #[test]
    fn a_circle_is_found_through_lists_and_folders() {
        let names = |circle: &[&str]| circle.iter().map(PathBuf::from).collect::<Vec<_>>();
        let found = circles(&[
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::{b::{self, X as Y}, Z};"),
            ("src/b/mod.rs", "mod inner;"),
            ("src/b/inner.rs", "fn f(_: super::super::c::T) {}"),
            ("src/c.rs", "use super::b::inner;\nuse crate::a;"),
        ]);
        assert_eq!(found, [names(&["src/b/inner.rs", "src/c.rs"])]);
    }

    #[test]
    fn roots_comments_and_tests_make_none() {
        let found = circles(&[
            ("src/lib.rs", "use crate::a::A;"),
            ("src/a.rs", "use crate::Error; // crate::b\nuse crate::b::B;"),
            ("src/b.rs", "struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("src/tests.rs", "use crate::a::A;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
