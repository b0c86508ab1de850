//! Permutation networks of any size (Waksman, JACM 1968; Beauquier and Darrot, "On arbitrary size Waksman networks
//! and their vulnerability", 2002). A network of n items has sum_{i <= n} ceil(log2 i) switches.

use crate::words::equal;

/// The wiring of a network. It depends on the size alone.
#[derive(Debug)]
pub(super) struct Network {
    /// The two wires of every switch. A switch that is set exchanges its wires. No switch comes before one that feeds
    /// it.
    pub(super) switches: Vec<[usize; 2]>,
    /// The wire on which each input starts.
    pub(super) inputs: Vec<usize>,
    /// The wire on which each output arrives.
    pub(super) outputs: Vec<usize>,
}

pub(super) fn switches(n: usize) -> usize {
    if n < 2 { 0 } else { switches(n / 2) + switches(n - n / 2) + n - 1 }
}

impl Network {
    pub(super) fn new(n: usize) -> Self {
        let mut switches = Vec::with_capacity(self::switches(n));
        let wires: Vec<usize> = (0..n).collect();
        let outputs = wire(&wires, &mut switches);
        Network { switches, inputs: wires, outputs }
    }

    /// The network that undoes this one: its switches take the same settings in the reverse order.
    pub(super) fn reversed(mut self) -> Self {
        self.switches.reverse();
        Network { switches: self.switches, inputs: self.outputs, outputs: self.inputs }
    }
}

/// Builds the network over `wires`; returns the wires of its outputs in order.
///
/// Inputs 2i and 2i + 1 meet in a switch that sends one to the upper half and the other to the lower half. Outputs 2j
/// and 2j + 1 come from one half each. An odd last item passes through the lower half alone; an even last pair has no
/// output switch.
fn wire(wires: &[usize], switches: &mut Vec<[usize; 2]>) -> Vec<usize> {
    let n = wires.len();
    if n < 2 {
        return wires.to_vec();
    }
    switches.extend(wires.chunks_exact(2).map(|pair| [pair[0], pair[1]]));
    let half = |first: usize| wires.iter().skip(first).step_by(2).copied();
    let upper: Vec<usize> = half(0).take(n / 2).collect();
    let lower: Vec<usize> = half(1).chain((n % 2 == 1).then_some(wires[n - 1])).collect();
    let upper = wire(&upper, switches);
    let lower = wire(&lower, switches);
    switches.extend((0..(n - 1) / 2).map(|j| [upper[j], lower[j]]));
    (0..n).map(|j| if j.is_multiple_of(2) && j / 2 < n / 2 { upper[j / 2] } else { lower[j / 2] }).collect()
}

/// All ones if `a == b`, else zero.
pub(super) fn same(a: u32, b: u32) -> u32 {
    equal(a.into(), b.into()).wrapping_neg() as u32
}

/// `a` where `mask` is all ones, `b` where it is zero.
pub(super) fn select(mask: u32, a: u32, b: u32) -> u32 {
    (a & mask) | (b & !mask)
}

/// The entry of `values` at `at`, found by looking at all of them.
fn entry(values: &[u32], at: u32) -> u32 {
    (0..).zip(values).fold(0, |found, (i, value)| found | value & same(i, at))
}

/// The position of `value` in `values`, found by looking at all of them; 0 if it is nowhere.
fn position(values: &[u32], value: u32) -> u32 {
    (0..).zip(values).fold(0, |found, (i, &v)| found | i & same(v, value))
}

/// Appends the settings of all switches, in the order of the network, that make output j the input `source[j]`.
///
/// `source` is secret: branches and addresses depend on n alone. Every step settles one pair of outputs and looks at
/// all entries. So a network of n items takes ceil(n / 2) steps for any `source`, and about 2 n^2 short operations
/// with the networks inside it.
pub(super) fn route(source: &[u32], out: &mut Vec<bool>) {
    let n = source.len();
    if n < 2 {
        return;
    }
    let half = n / 2;
    // Whether the even input, and the even output, of each pair goes through the lower half; and all ones for settled
    // outputs.
    let (mut inputs, mut outputs, mut settled) = (vec![0u32; half], vec![0u32; half], vec![0u32; half]);
    // The last output comes from the lower half. Any other choice that is not yet forced is free.
    let mut j = n as u32 - 1;
    for _ in 0..n.div_ceil(2) {
        // Output j comes from the lower half and its partner from the upper half, whose input forces the next. An odd
        // last output has no pair.
        for (p, (output, settled)) in (0..).zip(outputs.iter_mut().zip(&mut settled)) {
            let here = same(p, j / 2);
            *output |= here & !j & 1;
            *settled |= here;
        }
        let i = entry(source, j);
        (0..).zip(&mut inputs).for_each(|(p, input)| *input |= same(p, i / 2) & !i & 1);
        let next = position(source, i ^ 1) ^ 1;
        // A chain ends at the odd last input, a loop where it began. The next starts at the first pair left.
        let ends = same(i / 2, half as u32) | entry(&settled, next / 2);
        let left = (0..).zip(&settled).fold(u32::MAX, |least, (p, settled)| least.min(p | settled));
        j = select(ends, left.wrapping_mul(2) | 1, next);
    }
    out.extend(inputs.iter().map(|&bit| bit == 1));
    let (mut upper, mut lower) = (vec![0; half], vec![0; n - half]);
    for (p, pair) in source.chunks_exact(2).enumerate() {
        let low = outputs[p].wrapping_neg();
        upper[p] = select(low, pair[1], pair[0]) / 2;
        lower[p] = select(low, pair[0], pair[1]) / 2;
    }
    if n % 2 == 1 {
        lower[half] = source[n - 1] / 2;
    }
    route(&upper, out);
    route(&lower, out);
    out.extend(outputs[..(n - 1) / 2].iter().map(|&bit| bit == 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The items 0..n, permuted by the switches for `source`, and then permuted back.
    fn permuted(source: &[u32]) -> Vec<u32> {
        let n = source.len();
        let mut bits = Vec::new();
        route(source, &mut bits);
        assert_eq!(bits.len(), switches(n));
        let run = |network: &Network, bits: &[bool], items: &[u32]| -> Vec<u32> {
            assert_eq!(network.switches.len(), bits.len());
            let mut wires = vec![0; n];
            network.inputs.iter().zip(items).for_each(|(&wire, item)| wires[wire] = *item);
            for (&[a, b], bit) in network.switches.iter().zip(bits) {
                if *bit {
                    wires.swap(a, b);
                }
            }
            network.outputs.iter().map(|&wire| wires[wire]).collect()
        };
        let items: Vec<u32> = (0..n as u32).collect();
        let there = run(&Network::new(n), &bits, &items);
        bits.reverse();
        assert_eq!(run(&Network::new(n).reversed(), &bits, &there), items);
        there
    }

    /// Every permutation of up to seven items, in lexicographic order.
    #[test]
    fn every_small_permutation_is_routed() {
        for n in 0..=7 {
            let mut source: Vec<u32> = (0..n).collect();
            loop {
                assert_eq!(permuted(&source), source);
                let Some(i) = (1..n as usize).rev().find(|&i| source[i - 1] < source[i]) else { break };
                let j = (i..n as usize).rev().find(|&j| source[j] > source[i - 1]).expect("i itself is larger");
                source.swap(i - 1, j);
                source[i..].reverse();
            }
        }
    }

    proptest! {
        #[test]
        fn larger_permutations_are_routed(source in (8u32..300).prop_flat_map(|n| {
            Just((0..n).collect::<Vec<_>>()).prop_shuffle()
        })) {
            prop_assert_eq!(permuted(&source), source);
        }
    }

    #[test]
    fn sizes_are_those_of_the_formula() {
        for n in 1..600usize {
            let log = n.next_power_of_two().ilog2() as usize;
            assert_eq!(switches(n), n * log + 1 - (1 << log));
        }
    }
}
