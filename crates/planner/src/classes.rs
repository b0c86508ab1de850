//! Classes of layers that cost the same: one layer of each class is run, and its costs are booked for the others.

use std::any::Any;
use std::collections::BTreeMap;

use waggle_engine::{Layer, OperandId};

use waggle_protocols::correlation::Need;
use waggle_protocols::cost::Cost;
use waggle_protocols::stock::Use;
use waggle_protocols::{CorrelationKind, FixedWeight, Needs, Uses};

use crate::forecast::Passage;

#[derive(Default)]
pub(crate) struct Classes {
    list: Vec<Class>,
    /// The index of the class whose first layer is running.
    running: Option<usize>,
}

/// What tells classes apart: the model's class number, and for each weight its inputs, outputs, fractional bits, bits
/// of an entry, and whether the weight is public.
type Key = (usize, Vec<(usize, usize, u32, u32, bool)>);

/// Layers that cost the same in every pass.
struct Class {
    key: Key,
    /// The layer that is run.
    first: Member,
    others: Vec<Member>,
    /// The needs of the first layer in all passes.
    needs: Needs,
    /// The events of the first layer in this pass.
    events: Vec<Event>,
    /// What the first layer returned in this pass: one tensor or several.
    output: Option<Box<dyn Any + Send>>,
}

#[derive(Debug)]
struct Member {
    index: usize,
    /// The layer's scope in the ledger.
    path: String,
    weights: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A scope begins.
    Enter(String),
    /// A scope ends.
    Leave,
    /// Correlations are taken from a stock that all layers share. Correlations of a weight or an operand belong to
    /// one layer and are booked as costs.
    Take(Need),
    /// A cost is booked.
    Book {
        cost: Cost,
        /// The passages that the other layers of the class use when they book the cost. Empty until the first of them
        /// does.
        passages: Vec<Passage>,
    },
}

impl Classes {
    /// Begins a layer in the scope `path`. Returns the layer's class if its first layer was recorded in this pass.
    /// Otherwise the layer is the first one, which is run and recorded.
    pub(crate) fn begin(&mut self, layer: &Layer<FixedWeight>, path: &str) -> Option<usize> {
        let weights = layer.weights.iter().map(|w| (w.spec.inputs, w.spec.outputs, w.frac, w.bits(), w.spec.public));
        let key = (layer.class, weights.collect());
        let member = || {
            let weights = layer.weights.iter().map(|weight| weight.spec.name.clone()).collect();
            Member { index: layer.index, path: path.to_owned(), weights }
        };
        let known = self.list.iter().position(|class| class.key == key);
        let class = known.unwrap_or_else(|| {
            let (needs, events, output) = (Needs::default(), Vec::new(), None);
            self.list.push(Class { key, first: member(), others: Vec::new(), needs, events, output });
            self.list.len() - 1
        });
        let Class { first, others, events, output, .. } = &mut self.list[class];
        if first.index == layer.index {
            self.running = Some(class);
            (*events, *output) = (Vec::new(), None);
            return None;
        }
        if others.iter().all(|other| other.index != layer.index) {
            others.push(member());
        }
        Some(class)
    }

    /// Ends the layer that is being run, if there is one, with what it returned.
    pub(crate) fn end(&mut self, output: Box<dyn Any + Send>) {
        if let Some(class) = self.running.take() {
            self.list[class].output = Some(output);
        }
    }

    pub(crate) fn output(&self, class: usize) -> Option<&dyn Any> {
        self.list[class].output.as_ref().map(|output| &**output as &dyn Any)
    }

    pub(crate) fn events(&mut self, class: usize) -> &mut [Event] {
        &mut self.list[class].events
    }

    /// Records `event` if a layer is being run.
    pub(crate) fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(class) = self.running {
            self.list[class].events.push(event());
        }
    }

    /// The needs in all passes of the layer that is being run, if there is one.
    pub(crate) fn running(&mut self) -> Option<&mut Needs> {
        self.running.map(|class| &mut self.list[class].needs)
    }

    /// Adds the needs of all layers to `all`.
    pub(crate) fn add_to(&self, all: &mut Needs) {
        for Class { first, others, needs, .. } in &self.list {
            all.add(needs.clone());
            others.iter().for_each(|other| all.add(renamed(needs, first, other)));
        }
    }
}

/// The needs of the layer `to`, from the `needs` of the layer `from` of the same class.
fn renamed(needs: &Needs, from: &Member, to: &Member) -> Needs {
    let kind = |kind: &CorrelationKind| {
        let place = kind.weight().and_then(|name| from.weights.iter().position(|weight| weight == name));
        place.and_then(|place| kind.for_weight(&to.weights[place])).unwrap_or_else(|| kind.clone())
    };
    let operand = |id: OperandId| if id.layer == from.index { OperandId { layer: to.index, ..id } } else { id };
    let mut uses = Uses::default();
    needs.uses.each(|what, path, amount| {
        let what = match what {
            Use::Units(of) => Use::Units(kind(of)),
            Use::Operand(id) => Use::Operand(operand(*id)),
            Use::Cots(sender) => Use::Cots(*sender),
        };
        let path = path.strip_prefix(&from.path).map_or_else(|| path.to_owned(), |rest| to.path.clone() + rest);
        uses.note(what, &path, amount);
    });
    Needs {
        units: needs.units.iter().map(|(of, units)| (kind(of), *units)).collect(),
        operands: needs
            .operands
            .iter()
            .map(|(id, events)| (operand(*id), events.clone()))
            .collect::<BTreeMap<_, _>>(),
        cots: needs.cots,
        uses,
    }
}
