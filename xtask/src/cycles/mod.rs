//! `cargo xtask cycles`: no two modules that stand side by side need each other.
//!
//! A module that needs its neighbour can be read after it; two that need each other can only be read together. The
//! check reads sources alone: every path in the code (`use`, types, expressions, macros) is followed through
//! re-exports to the module that defines what it names. A path from within module `a` to something within its
//! neighbour `b` makes `a` need `b`, at every level of nesting. Not counted: tests (`cfg(test)`), documentation,
//! methods, and what a module shares with the module around it, since a module and its parts are read together in any
//! case.

mod graph;
mod resolve;
mod tree;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use crate::Error;
use crate::files::{read, root, say, short};
use graph::{Edge, Knot, neighbours};
use tree::Tree;

/// Finds modules that need each other, at every level of every crate.
///
/// Exits with code 1 if there are any that `xtask/cycles.allow` does not name, or if that file names any that are not
/// there.
#[derive(Args)]
pub(crate) struct CyclesArgs {
    /// Print every dependency between neighbours too.
    #[arg(long)]
    edges: bool,
}

/// Modules of a crate that may form a cycle for now.
#[derive(Debug, PartialEq, Eq)]
struct Allowance {
    /// Target and, for nested modules, the module around them.
    scope: String,
    modules: BTreeSet<String>,
}

pub(crate) fn run(args: &CyclesArgs) -> Result<(), Error> {
    let list = root().join("xtask/cycles.allow");
    let text = if list.is_file() { read(&list)? } else { String::new() };
    let mut allowed = allowances(&text).map_err(|line| Error::Allowance { path: list, line })?;
    let mut found = 0;
    for target in targets()? {
        let tree = Tree::read(&target)?;
        let name = short(&target);
        for (scope, edges) in neighbours(&tree) {
            let scope = if scope.is_empty() { name.clone() } else { format!("{name}: {scope}") };
            if args.edges {
                edges.iter().for_each(|edge| say(format_args!("{scope}: {} -> {}", edge.from, edge.to)));
            }
            for Knot { modules, cycles } in graph::knots(&edges) {
                let before = allowed.len();
                allowed.retain(|entry| !(scope == entry.scope && modules == entry.modules));
                if allowed.len() == before {
                    found += 1;
                    say(format_args!("{scope}: {}", modules.into_iter().collect::<Vec<_>>().join(" ")));
                    cycles.iter().for_each(|cycle| say(format_args!("{}", shown(cycle))));
                }
            }
        }
    }
    for entry in &allowed {
        let modules = entry.modules.iter().cloned().collect::<Vec<_>>().join(" ");
        say(format_args!("xtask/cycles.allow: there is no cycle `{}: {modules}`", entry.scope));
    }
    match (found, allowed.len()) {
        (0, 0) => Ok(()),
        (found, stale) => Err(Error::Found(format!("{found} cycles, {stale} allowances for none"))),
    }
}

/// A cycle, one dependency a line with the places that make it.
fn shown(cycle: &[Edge]) -> String {
    let line = |edge: &Edge| {
        let more = if edge.places.len() > 1 { format!(" and {} more", edge.places.len() - 1) } else { String::new() };
        let place = edge.places.first().map_or_else(String::new, ToString::to_string);
        format!("    {} -> {}: {place}{more}", edge.from, edge.to)
    };
    cycle.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Reads the list of allowed cycles: `TARGET: MODULE MODULE ...` a line, `#` before a comment. An error is the number
/// of a line.
fn allowances(text: &str) -> Result<Vec<Allowance>, usize> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(number, line)| {
        let (scope, modules) = line.rsplit_once(':').ok_or(number)?;
        let modules: BTreeSet<String> = modules.split_whitespace().map(String::from).collect();
        if modules.len() < 2 {
            return Err(number);
        }
        Ok(Allowance { scope: scope.trim().to_owned(), modules })
    });
    entries.collect()
}

/// First files of everything with modules: libraries, programs, examples.
fn targets() -> Result<Vec<PathBuf>, Error> {
    let ends = ["src/lib.rs", "src/main.rs"];
    let example = |path: &PathBuf| {
        let folder = path.parent().and_then(|dir| dir.parent()).and_then(|dir| dir.file_name());
        path.ends_with("main.rs") && folder.is_some_and(|name| name == "examples")
    };
    let all = crate::files::sources(&[])?;
    Ok(all.into_iter().filter(|path| ends.iter().any(|end| path.ends_with(end)) || example(path)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knots of a crate whose modules are inline, each as the names of its modules.
    fn found(source: &str) -> Vec<String> {
        let tree = Tree::parse(source).unwrap();
        let knots = neighbours(&tree).into_iter().flat_map(|(scope, edges)| {
            let names = |knot: Knot| knot.modules.into_iter().collect::<Vec<_>>().join(" ");
            graph::knots(&edges).into_iter().map(|knot| format!("{scope}/{}", names(knot))).collect::<Vec<_>>()
        });
        knots.collect()
    }

    #[test]
    fn a_chain_is_no_cycle() {
        assert!(found("mod a { use crate::b::B; } mod b { pub struct B; } mod c { use crate::{a, b}; }").is_empty());
    }

    #[test]
    fn two_neighbours_that_name_each_other_are_a_cycle() {
        let source = "mod a { use crate::b::B; pub struct A; } mod b { pub struct B(super::a::A); }";
        assert_eq!(found(source), ["/a b"]);
    }

    #[test]
    fn a_cycle_of_three_is_found_and_one_beside_it() {
        let source = "mod a { use crate::b::B; pub struct A; } mod b { use crate::c::C; pub struct B; }
                      mod c { use crate::a::A; pub struct C; } mod d { use crate::e::E; pub struct D; }
                      mod e { use crate::d::D; pub struct E; } mod f { use crate::a::A; }";
        assert_eq!(found(source), ["/a b c", "/d e"]);
    }

    #[test]
    fn a_knot_shows_its_pairs_or_one_longer_cycle() {
        let source = "mod a { pub struct A(crate::b::B); } mod b { pub struct B(crate::a::A, crate::c::C); }
                      mod c { pub struct C(crate::a::A); }";
        let shown = |source: &str| -> Vec<String> {
            let edges = neighbours(&Tree::parse(source).unwrap()).remove("").unwrap();
            let knots = graph::knots(&edges);
            let cycles = knots.iter().flat_map(|knot| &knot.cycles);
            cycles.map(|cycle| cycle.iter().map(|edge| edge.from.as_str()).collect::<String>()).collect()
        };
        assert_eq!(shown(source), ["ab"]);
        assert_eq!(shown(&source.replace("crate::a::A, ", "")), ["abc"]);
    }

    #[test]
    fn re_exports_lead_to_where_a_thing_is_defined() {
        let source =
            "pub use b::B; pub use a::*; mod a { use crate::B; pub struct A; } mod b { use crate::A; pub struct B; }";
        assert_eq!(found(source), ["/a b"]);
        // Through a name that was changed, and through the prelude of another module.
        let source = "mod a { pub use crate::c::C as D; pub struct A; } mod b { use crate::a::D; pub struct X; } mod c { pub struct C(crate::b::X); }";
        assert_eq!(found(source), ["/b c"]);
    }

    #[test]
    fn what_a_parent_defines_makes_no_neighbours() {
        let source = "pub struct P; mod a { use crate::P; pub struct A; } mod b { use super::{P, a::A}; }";
        assert!(found(source).is_empty());
    }

    #[test]
    fn nested_modules_have_cycles_of_their_own() {
        let source =
            "mod outer { mod a { use super::b::B; pub struct A; } mod b { use super::a::A; pub struct B; } }";
        assert_eq!(found(source), ["outer/a b"]);
        // From deep inside one to deep inside the other.
        let source = "mod a { mod deep { use crate::b::deep::B; pub struct A; } }
                      mod b { mod deep { pub struct B; fn f(_: crate::a::deep::A) {} } }";
        assert_eq!(found(source), ["/a b"]);
    }

    #[test]
    fn expressions_and_macros_count_and_tests_and_documentation_do_not() {
        let source = "mod a { fn f() { g!(crate::b::h(1)); } pub fn k() {} } mod b { fn h(_: u8) { crate::a::k() } }";
        assert_eq!(found(source), ["/a b"]);
        let source = "mod a { #[cfg(test)] mod tests { use crate::b::B; } pub struct A; }
                      mod b { /// [`crate::a::A`]
                              pub struct B; fn f() { crate::a::f() } }";
        assert!(found(source).is_empty());
        // Some code of `any` is there without tests.
        let source = "mod a { #[cfg(any(test, unix))] use crate::b::B; pub struct A; } mod b { use crate::a::A; pub struct B; }";
        assert_eq!(found(source), ["/a b"]);
    }

    #[test]
    fn what_a_macro_makes_is_where_its_path_leads() {
        let source = "mod a { make!(A); use crate::b::B; } mod b { use crate::a::A; make!(B); }";
        assert_eq!(found(source), ["/a b"]);
    }

    #[test]
    fn a_module_may_have_the_name_of_its_function() {
        let source = "mod max { pub fn max() {} } pub use max::max; mod a { use crate::max; fn f() { max() } }";
        assert!(found(source).is_empty());
    }

    #[test]
    fn the_list_of_allowances_is_read_with_comments() {
        let list = allowances("# why\n\nhe/src/lib.rs: keys galois\n").unwrap();
        let modules = ["galois", "keys"].map(String::from).into();
        assert_eq!(list, [Allowance { scope: "he/src/lib.rs".into(), modules }]);
        assert_eq!((allowances("he"), allowances("\nhe: keys")), (Err(1), Err(2)));
    }
}
