//! The computations, and code that leaks, by which the methods show that they find something.

use std::hint::black_box;

use waggle_bits::probe::Probe;

/// Bytes of the secret of a control.
const CONTROL_BYTES: usize = 4096;

/// All computations, each with whether its secret must show; the controls come first.
pub(crate) fn with_controls() -> Vec<(bool, Probe)> {
    let early_exit = Probe::new("control: comparison that ends at the first difference", CONTROL_BYTES, |secret| {
        let secret = secret.to_vec();
        move || {
            black_box(black_box(&secret).iter().all(|&byte| black_box(byte) == 0));
        }
    });
    let sum = Probe::new("control: sum of all bytes", CONTROL_BYTES, |secret| {
        let secret = secret.to_vec();
        move || {
            black_box(black_box(&secret).iter().fold(0u8, |sum, &byte| black_box(sum.wrapping_mul(3) ^ byte)));
        }
    });
    let probes = waggle_ot::probe::probes().into_iter().chain(waggle_he::probe::probes());
    let sound = std::iter::once(sum).chain(probes).map(|probe| (false, probe));
    std::iter::once((true, early_exit)).chain(sound).collect()
}

/// A look-up at an address that is the secret: it takes the same time from the cache, so only memcheck finds it.
pub(crate) fn lookup_control() -> Probe {
    Probe::new("control: table indexed by the secret", CONTROL_BYTES, |secret| {
        let (secret, table) = (secret.to_vec(), [7u8; 256]);
        move || {
            black_box(secret.iter().fold(0, |sum, &byte| sum ^ black_box(&table)[usize::from(byte)]));
        }
    })
}
