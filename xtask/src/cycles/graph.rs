//! Neighbours that need each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::resolve::resolve;
use super::tree::{Place, Tree};

/// `from` needs `to`.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) places: Vec<Place>,
}

/// Which modules of each module need which of their neighbours, by the path of the module around them.
pub(super) fn neighbours(tree: &Tree) -> BTreeMap<String, Vec<Edge>> {
    let mut all: BTreeMap<String, BTreeMap<(String, String), Vec<Place>>> = BTreeMap::new();
    for (id, module) in tree.modules.iter().enumerate() {
        let here = tree.line(id);
        for named in &module.named {
            let Some(target) = resolve(tree, id, &named.segments) else { continue };
            let there = tree.line(target);
            let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            // One of them is around the other.
            let (Some(from), Some(to)) = (here.get(common), there.get(common)) else { continue };
            let pair = [from, to].map(|id| tree.modules[*id].name.clone());
            let scope = all.entry(tree.path(here[common - 1])).or_default();
            scope.entry(pair.into()).or_default().push(named.place.clone());
        }
    }
    let edges = |pairs: BTreeMap<(String, String), Vec<Place>>| {
        pairs.into_iter().map(|((from, to), places)| Edge { from, to, places }).collect()
    };
    all.into_iter().map(|(scope, pairs)| (scope, edges(pairs))).collect()
}

/// Modules that need each other, and the shortest ways in which they do.
#[derive(Debug)]
pub(super) struct Knot {
    pub(super) modules: BTreeSet<String>,
    /// Every pair that needs each other, or, if there is none, one longer cycle.
    pub(super) cycles: Vec<Vec<Edge>>,
}

/// The largest sets of modules in which each needs every other, directly or not.
pub(super) fn knots(edges: &[Edge]) -> Vec<Knot> {
    let mut knots: Vec<Knot> = Vec::new();
    let names: BTreeSet<&str> = edges.iter().map(|edge| edge.from.as_str()).collect();
    for name in names {
        if knots.iter().any(|knot| knot.modules.contains(name)) {
            continue;
        }
        let Some(shortest) = way(edges, name, name) else { continue };
        let needs = |from: &str, to: &str| way(edges, from, to).is_some();
        let all: BTreeSet<&str> = edges.iter().map(|edge| edge.to.as_str()).collect();
        let modules: BTreeSet<String> =
            all.into_iter().filter(|other| needs(name, other) && needs(other, name)).map(String::from).collect();
        let within = edges.iter().filter(|edge| modules.contains(&edge.from) && edge.from < edge.to);
        let back = |edge: &Edge| edges.iter().find(|back| back.from == edge.to && back.to == edge.from).cloned();
        let pairs: Vec<Vec<Edge>> = within.filter_map(|edge| Some(vec![edge.clone(), back(edge)?])).collect();
        knots.push(Knot { modules, cycles: if pairs.is_empty() { vec![shortest] } else { pairs } });
    }
    knots
}

/// A shortest way from one module to another, of one step at least.
fn way(edges: &[Edge], start: &str, end: &str) -> Option<Vec<Edge>> {
    let mut came: BTreeMap<&str, &Edge> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for edge in edges.iter().filter(|edge| edge.from == at) {
            if !came.contains_key(edge.to.as_str()) {
                came.insert(&edge.to, edge);
                queue.push_back(&edge.to);
            }
        }
    }
    let mut way = vec![(*came.get(end)?).clone()];
    while way[way.len() - 1].from != start {
        let before = came[way[way.len() - 1].from.as_str()];
        way.push(before.clone());
    }
    way.reverse();
    Some(way)
}
