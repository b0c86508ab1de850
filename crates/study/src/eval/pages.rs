//! What attention looks at: the pages that hold it, the estimates that find these pages, and tokens by class.
//!
//! Texts go through the model with the full cache, in f32. The queries after a prompt are those of decode steps. All
//! numbers are means over decode steps, query heads and texts:
//!
//! - *Pages that hold 99 %*: the fewest pages whose tokens get [`HELD`] of the attention (ArkVale's slides,
//!   "Token-level Sparsity").
//! - *Ranks*: the place of a page among all by the attention of its tokens, 1 for the most ("Dynamism").
//! - *Recall at k*: the share of the k pages with the largest max q . k that is among the k pages with the largest
//!   [estimate](ESTIMATES) ("Importance Estimation Accuracy").
//! - *IA, IC, UIA*: shares of tokens, and of the attention of decode steps, by [`Class`] (MPCache, section 3 and
//!   figure 15).
//!
//! A page is a run of tokens that begins at a multiple of its size. Only full pages have estimates, and a step counts
//! for the recall at k if it has 2k of them. ArkVale chooses pages for all heads of a layer together; here, as in
//! MPCache, each query head has its own. A policy's estimates on shares are
//! [`Similarity`](waggle_mpcache::policies::Similarity); a sphere would take a root for every query there.

use ndarray::{Array1, ArrayView1, ArrayView2, Axis, s};
use waggle_engine::{Float, FloatWeight};
use waggle_model::Model;
use waggle_report::table::{Cell, Document, Table};

use super::attention::Mean;
use super::heads::read;
use super::run::check;
use super::{EvalError, InClear, Sequence};
use crate::watch::{Seen, watch};

/// The share of the attention that few pages hold.
pub const HELD: f64 = 0.99;
/// The share of a prompt whose last queries are the observation window (MPCache, appendix F.1).
pub const WINDOW: f64 = 0.2;
/// A token is important to a query that gives it at least this many times an even share of its attention.
pub const EVEN: f32 = 1.0;
/// A token is important to all if it is important to this share of the window's queries.
pub const ALL: f64 = 0.9;
/// A token is unimportant to all if it is important to less than this share of the window's queries.
pub const CERTAIN: f64 = 0.1;
/// The numbers of pages k for which recall is measured.
pub const TOP: [usize; 4] = [1, 2, 4, 8];
/// The number of pages of a head whose ranks are shown: those with most attention over all decode steps.
pub const RANKED: usize = 6;

/// The estimates of a page's largest q . k: q . mean(k); MPCache's linear form at alpha = 0.6 (eq. 6); and ArkVale's
/// volumes around the centre c of the page's box, q . c + |q| r. The radius r is a number for a sphere, and one for
/// each channel for a cuboid: the largest distance of a key from c, the mean, or the middle of smallest and largest.
pub const ESTIMATES: [&str; 8] = [
    "centroid",
    "linear, 0.6",
    "sphere, max",
    "sphere, mean",
    "sphere, centre",
    "cuboid, max",
    "cuboid, mean",
    "cuboid, centre",
];

/// How the queries of the observation window see a token that stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Unimportant to all (UIA): important to less than [`CERTAIN`] of the queries.
    Unimportant,
    /// Important to certain queries (IC).
    Certain,
    /// Important to all (IA): to [`ALL`] of the queries or more.
    All,
}

impl Class {
    /// The class of a token that is important to `votes` of `queries` queries.
    fn of(votes: usize, queries: usize) -> Self {
        match votes as f64 / queries as f64 {
            share if share >= ALL => Class::All,
            share if share < CERTAIN => Class::Unimportant,
            _ => Class::Certain,
        }
    }
}

/// The attention of one head over the first text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionMap {
    /// The layer, from 0.
    pub layer: usize,
    /// The query head, from 0.
    pub head: usize,
    /// Tokens of the prompt. Its last queries, which judge the tokens before them, are the observation window.
    pub prompt: usize,
    /// The class of each token before the window.
    pub classes: Vec<Class>,
    /// For each query, its attention to the tokens up to its own.
    pub rows: Vec<Vec<f32>>,
}

impl AttentionMap {
    /// The ranks of the [`RANKED`] pages of `size` tokens with most attention: position of the query, page and rank.
    pub fn ranks(&self, size: usize) -> Vec<[usize; 3]> {
        let steps: Vec<_> = self.rows.iter().skip(self.prompt).map(|row| masses(row, size)).collect();
        let mut sums = vec![0.0; steps.last().map_or(0, Vec::len)];
        steps.iter().for_each(|step| sums.iter_mut().zip(step).for_each(|(sum, mass)| *sum += mass));
        let shown = order(&sums);
        let mut ranks = Vec::new();
        for (step, order) in steps.iter().map(|step| order(step)).enumerate() {
            let rank = |page: &usize| Some(order.iter().position(|other| other == page)? + 1);
            let row = |page: &usize| Some([self.prompt + step, *page, rank(page)?]);
            ranks.extend(shown.iter().take(RANKED).filter_map(row));
        }
        ranks
    }
}

/// What attention looks at; the [module](self) defines each measure.
#[derive(Clone, Debug)]
pub struct AttentionStudy {
    /// Sizes of pages, in tokens. The ranks are those of the last size.
    pub sizes: Vec<usize>,
    /// The heads that are drawn.
    pub maps: Vec<AttentionMap>,
    layers: Vec<usize>,
    /// By layer and size: the pages that hold 99 %, and all pages.
    pages: Vec<[Mean; 2]>,
    /// By size and estimate: the recall at each k.
    recall: Vec<[Mean; TOP.len()]>,
    /// By layer: for each class, its share of the tokens before the window, and of the attention of a decode step.
    classes: Vec<[Mean; 6]>,
}

/// Studies the attention of `model` over `sequences` by pages of the given `sizes`, in the layers that have keys of
/// their own and see all tokens. `drawn` are layers and query heads to draw; without any, head 0 of the first, the
/// middle and the last layer. `tick` is called after each sequence.
///
/// # Errors
/// Errors of a sequence that does not fit the model, and [`EvalError::NoHead`].
pub fn study_attention(
    model: &Model<FloatWeight>,
    sequences: &[Sequence],
    sizes: &[usize],
    drawn: &[(usize, usize)],
    tick: &dyn Fn(),
) -> Result<AttentionStudy, EvalError> {
    check(&InClear { model, engine: Float::default }, None, sequences, &[])?;
    let of = model.spec().attention();
    let layers: Vec<usize> = (0..of.windows.len()).filter(|layer| of.windows[*layer].is_none()).collect();
    let places = [0, layers.len() / 2, layers.len().saturating_sub(1)];
    let mut own: Vec<_> = places.into_iter().map(|i| (layers.get(i).copied().unwrap_or(0), 0)).collect();
    own.dedup();
    let drawn = if drawn.is_empty() { &own } else { drawn };
    let absent = |(layer, head): &&(usize, usize)| !layers.contains(layer) || *head >= of.heads[*layer].heads;
    if let Some(&(layer, head)) = drawn.iter().find(absent) {
        return Err(EvalError::NoHead { layer, head });
    }
    let map = |&(layer, head): &(usize, usize)| AttentionMap { layer, head, ..AttentionMap::default() };
    let mut study = AttentionStudy {
        sizes: sizes.to_vec(),
        maps: drawn.iter().map(map).collect(),
        pages: vec![Default::default(); layers.len() * sizes.len()],
        recall: vec![Default::default(); sizes.len() * ESTIMATES.len()],
        classes: vec![Default::default(); layers.len()],
        layers: layers.clone(),
    };
    for (i, sequence) in sequences.iter().enumerate() {
        let prompt = sequence.prompt();
        let window = prompt - ((prompt as f64 * WINDOW) as usize).max(1);
        let votes = layers.iter().map(|layer| vec![vec![0; window]; of.heads[*layer].heads]).collect();
        let mut reader = Reader { prompt, votes, read: vec![0; layers.len()], draws: i == 0 };
        let look = move |study: &mut AttentionStudy, seen: &Seen| reader.add(study, seen);
        study = watch(&of, study, look, |cache| read(model, cache, sequence.ids()))?;
        tick();
    }
    Ok(study)
}

/// What is known of a text as it goes through the model.
struct Reader {
    prompt: usize,
    /// For each layer, query head and token before the window, the queries of the window to which it is important.
    votes: Vec<Vec<Vec<usize>>>,
    /// Tokens that each layer has read. A layer that reads the keys of another comes when these have been read.
    read: Vec<usize>,
    draws: bool,
}

impl Reader {
    /// Adds the queries of a layer to `study`.
    fn add(&mut self, study: &mut AttentionStudy, seen: &Seen) {
        let (tokens, shape, rows, layer) = (seen.keys.nrows(), seen.shape, seen.q.shape()[1], seen.layer);
        if std::mem::replace(&mut self.read[layer], tokens) == tokens {
            return;
        }
        for head in 0..shape.heads {
            let (kv, member) = (head / shape.group(), head % shape.group());
            let (keys, votes) = (seen.of_head(seen.keys, kv), &mut self.votes[layer][head]);
            let (window, judges) = (votes.len(), self.prompt - votes.len());
            let class = |votes: &usize| Class::of(*votes, judges);
            let full =
                |size: &usize| keys.axis_chunks_iter(Axis(0), *size).take(tokens / size).map(Digest::new).collect();
            let digests: Vec<Vec<Digest>> = study.sizes.iter().map(full).collect();
            let place = (study.layers[layer], head);
            let drawn = study.maps.iter().position(|map| self.draws && (map.layer, map.head) == place);
            for (row, at) in (tokens - rows..tokens).enumerate() {
                let p = seen.p.slice(s![kv, member * rows + row, ..=at]).to_vec();
                if at >= self.prompt {
                    study.add_classes(layer, &p, votes.iter().map(class));
                    study.add_pages(layer, &p, &digests, keys.slice(s![..=at, ..]), seen.q.slice(s![head, row, ..]));
                } else if at >= window {
                    let even = EVEN / p.len() as f32;
                    votes.iter_mut().zip(&p).for_each(|(votes, p)| *votes += usize::from(*p >= even));
                }
                if let Some(map) = drawn.map(|drawn| &mut study.maps[drawn]) {
                    (map.prompt, map.classes) = (self.prompt, votes.iter().map(class).collect());
                    map.rows.push(p);
                }
            }
        }
    }
}

impl AttentionStudy {
    /// Adds the attention `p` of a decode step of `layer`, in which the tokens before the window have `classes`.
    fn add_classes(&mut self, layer: usize, p: &[f32], classes: impl ExactSizeIterator<Item = Class>) {
        let (all, judged) = (p.iter().map(|p| f64::from(*p)).sum::<f64>(), classes.len() as f64);
        let mut shares = [0.0; 6];
        for (p, class) in p.iter().zip(classes) {
            shares[2 - class as usize] += 1.0 / judged;
            shares[5 - class as usize] += f64::from(*p) / all;
        }
        self.classes[layer].iter_mut().zip(shares).for_each(|(mean, share)| mean.add(share));
    }

    /// Adds the query `q` of a decode step of `layer`, with its attention `p` to the tokens of the `keys`. `digests`
    /// has, for each size, those of all pages.
    fn add_pages(
        &mut self,
        layer: usize,
        p: &[f32],
        digests: &[Vec<Digest>],
        keys: ArrayView2<f32>,
        q: ArrayView1<f32>,
    ) {
        let scores = keys.dot(&q).to_vec();
        for (i, (size, digests)) in self.sizes.iter().zip(digests).enumerate() {
            let masses = masses(p, *size);
            let [held, all] = &mut self.pages[layer * self.sizes.len() + i];
            held.add(holding(&masses) as f64);
            all.add(masses.len() as f64);
            let largest = |page: &[f32]| f64::from(page.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let exact = order(&scores.chunks_exact(*size).map(largest).collect::<Vec<_>>());
            let estimates: Vec<_> = digests[..exact.len()].iter().map(|digest| digest.estimates(q)).collect();
            for (e, means) in self.recall[i * ESTIMATES.len()..][..ESTIMATES.len()].iter_mut().enumerate() {
                let found = order(&estimates.iter().map(|of| f64::from(of[e])).collect::<Vec<_>>());
                for (k, mean) in TOP.into_iter().zip(means).filter(|(k, _)| 2 * k <= exact.len()) {
                    let both = exact[..k].iter().filter(|page| found[..k].contains(page)).count();
                    mean.add(both as f64 / k as f64);
                }
            }
        }
    }

    /// The numbers: pages that hold 99 %, by layer and size; recall, by size and estimate; classes, by layer.
    pub fn document(&self) -> Document {
        let count = |number: usize| Cell::count(number as u64);
        let with_size = |cell: Cell| self.sizes.iter().map(move |size| vec![cell.clone(), count(*size)]);
        let pages = self.layers.iter().flat_map(|layer| with_size(count(*layer)));
        let recall = self.sizes.iter().flat_map(|size| ESTIMATES.map(|name| vec![Cell::text(name), count(*size)]));
        let classes = self.layers.iter().map(|layer| vec![count(*layer)]);
        let mut document = Document::default();
        document.caption("The full cache in f32: means over decode steps and query heads");
        document.table("pages", means("layer|page|hold 99 %|pages", pages, &self.pages));
        document.table("recall", means("estimate|page|k = 1|k = 2|k = 4|k = 8", recall, &self.recall));
        let heads = "layer|IA tokens|IC tokens|UIA tokens|IA attention|IC attention|UIA attention";
        document.table("classes", means(heads, classes, &self.classes));
        document
    }

    /// The ranks of the pages with most attention at every decode step, for programs.
    pub fn ranks(&self) -> Table {
        let mut table = Table::new(4, ["layer", "head", "position", "page", "rank"].map(|title| (title, "")));
        for (map, size) in self.maps.iter().flat_map(|map| self.sizes.last().map(|size| (map, *size))) {
            for [position, page, rank] in map.ranks(size) {
                table.add([map.layer, map.head, position, page, rank].map(|number| Cell::count(number as u64)));
            }
        }
        table
    }
}

/// The table with the titles `heads`, of rows that begin with `names` and go on with `means`.
fn means<const N: usize>(heads: &str, names: impl Iterator<Item = Vec<Cell>>, means: &[[Mean; N]]) -> Table {
    let titles: Vec<_> = heads.split('|').map(|title| (title, "")).collect();
    let mut table = Table::new(titles.len() - N, titles);
    let cell = |mean: &Mean| Cell::maybe(mean.get(), |mean| Cell::number(mean, format!("{mean:.3}")));
    names.zip(means).for_each(|(names, means)| table.add(names.into_iter().chain(means.iter().map(cell))));
    table
}

/// The attention of each page of `size` tokens. `p` is that of each token.
fn masses(p: &[f32], size: usize) -> Vec<f64> {
    p.chunks(size).map(|page| page.iter().map(|p| f64::from(*p)).sum()).collect()
}

/// The least number of pages that get [`HELD`] of all attention.
fn holding(masses: &[f64]) -> usize {
    let (all, mut held) = (masses.iter().sum::<f64>(), 0.0);
    let reaches = |page: usize| {
        held += masses[page];
        held >= HELD * all
    };
    order(masses).into_iter().position(reaches).map_or(masses.len(), |place| place + 1)
}

/// The places of `values`, the largest first. Of equal values the earlier one comes first.
fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    order
}

/// What estimates know of a page.
struct Digest {
    mean: Array1<f32>,
    linear: Array1<f32>,
    centre: Array1<f32>,
    /// The [`radii`] of the sphere.
    sphere: [f32; 3],
    /// The [`radii`] of the cuboid in each channel.
    cuboid: Vec<[f32; 3]>,
}

impl Digest {
    /// The digest of a page with the `keys` (tokens, head_dim).
    fn new(keys: ArrayView2<f32>) -> Self {
        let max = keys.fold_axis(Axis(0), f32::NEG_INFINITY, |a, b| a.max(*b));
        let min = keys.fold_axis(Axis(0), f32::INFINITY, |a, b| a.min(*b));
        let centre = (&max + &min) / 2.0;
        let away = (&keys - &centre).mapv(f32::abs);
        Digest {
            mean: keys.sum_axis(Axis(0)) / keys.nrows() as f32,
            linear: max * 0.6 + min * 0.4,
            centre,
            sphere: radii(away.rows().into_iter().map(|row| row.dot(&row).sqrt())),
            cuboid: away.columns().into_iter().map(|column| radii(column.iter().copied())).collect(),
        }
    }

    /// The [estimates](ESTIMATES) of the page's largest q . k.
    fn estimates(&self, q: ArrayView1<f32>) -> [f32; ESTIMATES.len()] {
        let (centre, norm) = (q.dot(&self.centre), q.dot(&q).sqrt());
        let [s0, s1, s2] = self.sphere.map(|radius| centre + norm * radius);
        let cuboid = |i: usize| centre + q.iter().zip(&self.cuboid).map(|(q, radii)| q.abs() * radii[i]).sum::<f32>();
        [q.dot(&self.mean), q.dot(&self.linear), s0, s1, s2, cuboid(0), cuboid(1), cuboid(2)]
    }
}

/// The largest distance, the mean one, and the middle of the smallest and the largest.
fn radii(distances: impl Iterator<Item = f32> + Clone) -> [f32; 3] {
    let largest = distances.clone().fold(0.0, f32::max);
    let smallest = distances.clone().fold(f32::INFINITY, f32::min);
    let mean = distances.clone().sum::<f32>() / distances.count() as f32;
    [largest, mean, (smallest + largest) / 2.0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_ranks_and_the_most_seen_come_first() {
        let rows = vec![vec![1.0], vec![0.6, 0.4], vec![0.1, 0.2, 0.7], vec![0.4, 0.2, 0.1, 0.3]];
        let map = AttentionMap { prompt: 2, rows, ..AttentionMap::default() };
        assert_eq!(map.ranks(2), [[2, 1, 1], [2, 0, 2], [3, 1, 2], [3, 0, 1]]);
    }

    /// Three keys in the plane: the box is from (0, 0) to (4, 2), the centre (2, 1).
    #[test]
    fn estimates_by_hand() {
        let digest = Digest::new(ndarray::array![[0.0, 0.0], [4.0, 1.0], [2.0, 2.0]].view());
        let root = 5f32.sqrt();
        let sphere = [root, (root + 2.0 + 1.0) / 3.0, (1.0 + root) / 2.0].map(|radius| 2.0 + 5.0 * radius);
        let cuboid = [3.0 * 2.0 + 4.0, 3.0 * 4.0 / 3.0 + 4.0 * 2.0 / 3.0, 3.0 + 4.0 * 0.5].map(|reach| 2.0 + reach);
        let want: Vec<f32> = [2.0, 3.0 * 2.4 - 4.0 * 1.2].into_iter().chain(sphere).chain(cuboid).collect();
        let got = digest.estimates(ndarray::array![3.0, -4.0].view());
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5), "{got:?} for {want:?}");
    }
}
