//! The computations, and code that leaks, by which the methods show that they find something.

use std::hint::black_box;

/// Takes a secret in and returns what computes on it.
pub(crate) type Prepare = Box<dyn Fn(&[u8]) -> Box<dyn FnMut()>>;

/// A computation on a secret.
pub(crate) struct Probe {
    pub(crate) name: String,
    pub(crate) secret_bytes: usize,
    pub(crate) prepare: Prepare,
}

/// Bytes of the secret of a control.
const CONTROL_BYTES: usize = 4096;

/// All computations, each with whether its secret must show; the controls come first.
pub(crate) fn with_controls() -> Vec<(bool, Probe)> {
    let control = |name: &str, prepare: Prepare| Probe { name: name.into(), secret_bytes: CONTROL_BYTES, prepare };
    let early_exit = control(
        "control: comparison that ends at the first difference",
        Box::new(|secret| {
            let secret = secret.to_vec();
            Box::new(move || {
                black_box(black_box(&secret).iter().all(|&byte| black_box(byte) == 0));
            })
        }),
    );
    let sum = control(
        "control: sum of all bytes",
        Box::new(|secret| {
            let secret = secret.to_vec();
            Box::new(move || {
                black_box(black_box(&secret).iter().fold(0u8, |sum, &byte| black_box(sum.wrapping_mul(3) ^ byte)));
            })
        }),
    );
    let of_ot = |ot::probe::Probe { name, secret_bytes, prepare }| Probe { name, secret_bytes, prepare };
    let of_he = |he::probe::Probe { name, secret_bytes, prepare }| Probe { name, secret_bytes, prepare };
    let probes = ot::probe::probes().into_iter().map(of_ot).chain(he::probe::probes().into_iter().map(of_he));
    let sound = std::iter::once(sum).chain(probes).map(|probe| (false, probe));
    std::iter::once((true, early_exit)).chain(sound).collect()
}

/// A look-up at an address that is the secret: it takes the same time from the cache, so only memcheck finds it.
pub(crate) fn lookup_control() -> Probe {
    Probe {
        name: "control: table indexed by the secret".into(),
        secret_bytes: CONTROL_BYTES,
        prepare: Box::new(|secret| {
            let (secret, table) = (secret.to_vec(), [7u8; 256]);
            Box::new(move || {
                black_box(secret.iter().fold(0, |sum, &byte| sum ^ black_box(&table)[usize::from(byte)]));
            })
        }),
    }
}
