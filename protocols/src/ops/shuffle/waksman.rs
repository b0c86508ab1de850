//! Permutation networks of any size (Waksman, JACM 1968; Beauquier and Darrot, "On arbitrary size Waksman networks and
//! their vulnerability", 2002): n items, sum of ceil(log2 i) for i <= n switches.

/// The wiring of a network: depends on the size alone.
#[derive(Debug)]
pub(super) struct Network {
    /// The two wires of every switch, in an order in which no switch comes before one that feeds it. A set switch
    /// exchanges what its wires carry.
    pub(super) switches: Vec<[usize; 2]>,
    /// The wire on which each output arrives.
    pub(super) outputs: Vec<usize>,
}

/// Number of switches of a network of `n` items.
pub(super) fn switches(n: usize) -> usize {
    if n < 2 { 0 } else { switches(n / 2) + switches(n - n / 2) + n - 1 }
}

impl Network {
    /// The network of `n` items.
    pub(super) fn new(n: usize) -> Self {
        let mut switches = Vec::with_capacity(self::switches(n));
        let wires: Vec<usize> = (0..n).collect();
        let outputs = wire(&wires, &mut switches);
        Network { switches, outputs }
    }
}

/// Builds the network over `wires`; returns the wires of its outputs in order.
///
/// Inputs 2i and 2i + 1 meet in a switch that sends one to the upper, the other to the lower half; outputs 2j and 2j + 1
/// come from one each. An odd last item passes through the lower half alone; an even last pair has no output switch.
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
    (0..n).map(|j| if j % 2 == 0 && j / 2 < n / 2 { upper[j / 2] } else { lower[j / 2] }).collect()
}

/// Appends the setting of every switch, in the order of the network, with which output j is input `source[j]`.
pub(super) fn route(source: &[usize], out: &mut Vec<bool>) {
    let n = source.len();
    if n < 2 {
        return;
    }
    let half = n / 2;
    let mut destination = vec![0; n];
    source.iter().enumerate().for_each(|(j, &i)| destination[i] = j);
    // Whether the even input, the even output of each pair goes through the lower half.
    let (mut inputs, mut outputs) = (vec![None; half], vec![None; half]);
    // The last output comes from the lower half; any other choice not yet forced is free.
    for start in std::iter::once(n - 1).chain((1..n).step_by(2)) {
        let mut j = start;
        // Output j comes from the lower half, its partner from the upper one, whose input forces the next.
        loop {
            if j / 2 < half {
                if outputs[j / 2].is_some() {
                    break;
                }
                outputs[j / 2] = Some(j % 2 == 0);
            }
            let i = source[j];
            if i / 2 >= half {
                // The odd last input: the chain ends; its other end, if open, is the odd last output.
                break;
            }
            inputs[i / 2] = Some(i % 2 == 0);
            let partner = destination[i ^ 1];
            j = partner ^ 1;
        }
    }
    let bit = |choice: &Option<bool>| choice.expect("every pair lies on one of the loops");
    out.extend(inputs.iter().map(bit));
    let (mut upper, mut lower) = (vec![0; half], vec![0; n - half]);
    for j in 0..half {
        let low = bit(&outputs[j]);
        upper[j] = source[2 * j + usize::from(low)] / 2;
        lower[j] = source[2 * j + usize::from(!low)] / 2;
    }
    if n % 2 == 1 {
        lower[half] = source[n - 1] / 2;
    }
    route(&upper, out);
    route(&lower, out);
    out.extend(outputs[..(n - 1) / 2].iter().map(bit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permuted(source: &[usize]) -> Vec<usize> {
        let network = Network::new(source.len());
        let mut bits = Vec::new();
        route(source, &mut bits);
        assert_eq!((network.switches.len(), bits.len()), (switches(source.len()), switches(source.len())));
        let mut wires: Vec<usize> = (0..source.len()).collect();
        for (&[a, b], bit) in network.switches.iter().zip(bits) {
            if bit {
                wires.swap(a, b);
            }
        }
        network.outputs.iter().map(|&wire| wires[wire]).collect()
    }

    /// Every permutation of up to seven items, in lexicographic order.
    #[test]
    fn every_small_permutation_is_routed() {
        for n in 0..=7 {
            let mut source: Vec<usize> = (0..n).collect();
            loop {
                assert_eq!(permuted(&source), source);
                let Some(i) = (1..n).rev().find(|&i| source[i - 1] < source[i]) else { break };
                let j = (i..n).rev().find(|&j| source[j] > source[i - 1]).expect("i itself is larger");
                source.swap(i - 1, j);
                source[i..].reverse();
            }
        }
    }

    proptest! {
        #[test]
        fn larger_permutations_are_routed(source in (8usize..300).prop_flat_map(|n| {
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
