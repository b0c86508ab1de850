//! The configurations that are compared.

use mpcache::{PolicyError, PolicySpec};

use super::findings::Paper;

/// A configuration of the ablation.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// Its name in the tables.
    pub(crate) name: &'static str,
    /// The policy that it stands for.
    pub(crate) policy: PolicySpec,
    /// What the paper reports for it.
    pub(crate) paper: Option<Paper>,
}

/// Every configuration, `full` first: what the others are compared with. A step looks at the share `budget` of all
/// tokens, look-once eviction keeps the share `keep` of the prompt. If `only` has texts, those whose names contain
/// none of them are left out.
pub(crate) fn configurations(budget: f64, keep: f64, only: &[String]) -> Result<Vec<Configuration>, PolicyError> {
    let mut all = Vec::new();
    let mut add = |name, policy: String, paper| -> Result<(), PolicyError> {
        all.push(Configuration { name, policy: policy.parse()?, paper });
        Ok(())
    };
    let paper = |faster, less| Some(Paper { faster, less });
    add("full", "full".into(), None)?;
    // One cluster is longer than any cache, so there is nothing to choose, and all kept tokens are attended to.
    add("static only", format!("mpcache:static={keep},budget={keep},clusters=65535"), paper(1.42, 2.76))?;
    add("static only, to the budget", format!("mpcache:static={budget},budget={budget},clusters=65535"), None)?;
    add("dynamic, single tokens", format!("mpcache:static=1,share=off,budget={budget},clusters=1"), None)?;
    add("dynamic, clusters 8/4", format!("mpcache:static=1,share=off,budget={budget}"), None)?;
    add("dynamic, clusters 32/16", format!("mpcache:static=1,share=off,budget={budget},clusters=32/16"), None)?;
    add("clusters 8/4, layers share", format!("mpcache:static=1,budget={budget}"), None)?;
    let everything = format!("mpcache:static={keep},budget={budget}");
    add("all", everything.clone(), paper(1.9, 5.9))?;
    for (name, option) in [
        ("all, clusters 32/16", "clusters=32/16"),
        ("all, gather=scores", "gather=scores"),
        ("all, topk=shuffle-reveal", "topk=shuffle-reveal"),
        ("all, topk=sort", "topk=sort"),
        ("all, select=per-layer", "select=per-layer"),
        ("all, scores + shuffle-reveal", "gather=scores,topk=shuffle-reveal"),
        ("all, scores + per-layer", "gather=scores,select=per-layer"),
        ("all, scores + 32/16", "gather=scores,clusters=32/16"),
        ("all, scores + shuffle-reveal + 32/16", "gather=scores,topk=shuffle-reveal,clusters=32/16"),
        ("all, scores + shuffle-reveal + per-layer", "gather=scores,topk=shuffle-reveal,select=per-layer"),
    ] {
        add(name, format!("{everything},{option}"), None)?;
    }
    add("mpcache-scores", format!("mpcache-scores:budget={budget}"), None)?;
    let evicted = format!("mpcache-scores:static={keep},budget={budget}");
    add("mpcache-scores + static", evicted.clone(), None)?;
    for (name, option) in [
        ("mpcache-scores + static + share", "share=on"),
        ("mpcache-scores + static, per-head", "select=per-head"),
        ("mpcache-scores + static, clusters=4", "clusters=4,similarity=centroid"),
    ] {
        add(name, format!("{evicted},{option}"), None)?;
    }
    if !only.is_empty() {
        all.retain(|c| c.name == "full" || only.iter().any(|text| c.name.contains(text)));
    }
    Ok(all)
}
