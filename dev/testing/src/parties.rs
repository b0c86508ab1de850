//! Both parties of a protocol in one process.

use ndarray::ArrayD;
use rand::Rng;
use waggle_net::{Entry, Role};
use waggle_protocols::local::Pair;
#[cfg(feature = "laws")]
pub use waggle_protocols::{DEALER, TWO_PHASES};
use waggle_protocols::{Error, Options, TwoParty};

/// The result of one party, and the entries of its ledger without times.
pub type Outcome<T> = (T, Vec<Entry>);

/// Two connected parties, over the ideal dealer if `options` name it, otherwise over real OTs.
///
/// # Panics
/// If the set-up fails.
pub fn pair(options: Options) -> Pair {
    Pair::new(options).expect("set-up")
}

/// Runs `protocol` as both parties at once and returns what the client and the server got.
///
/// # Panics
/// If a party fails.
pub fn run<T: Send>(
    options: Options,
    protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
) -> [Outcome<T>; 2] {
    let mut pair = pair(options);
    let [client, server] = pair.run(protocol).expect("both parties are honest");
    let mut untimed = |role| pair.party(role).session().channel().ledger().untimed();
    [(client, untimed(Role::Client)), (server, untimed(Role::Server))]
}

/// Splits words into fresh random shares modulo 2^64: first the client's, then the server's.
pub fn share(words: &ArrayD<u64>) -> [ArrayD<u64>; 2] {
    let mut rng = rand::rng();
    let client = words.mapv(|_| rng.next_u64());
    let mut server = words.clone();
    server.zip_mut_with(&client, |word, client| *word = word.wrapping_sub(*client));
    [client, server]
}

/// The share of `role` in `words`. The parties draw the same `masks`, each on its own: the client's share is the
/// mask, and the server's the word less the mask.
pub fn share_of(words: &ArrayD<u64>, role: Role, masks: &mut impl Rng) -> ArrayD<u64> {
    words.mapv(|word| {
        let mask = masks.next_u64();
        if role == Role::Client { mask } else { word.wrapping_sub(mask) }
    })
}

/// The words that two shares stand for.
pub fn open([client, server]: &[ArrayD<u64>; 2]) -> ArrayD<u64> {
    let mut words = client.clone();
    words.zip_mut_with(server, |client, server| *client = client.wrapping_add(*server));
    words
}

/// This party's part of `shares`.
pub fn own<'a, V>(abb: &mut TwoParty, shares: &'a [V; 2]) -> &'a V {
    &shares[abb.session().role() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::arr1;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn shares_stand_for_their_words() {
        let words = arr1(&[0, 1, u64::MAX, 1 << 63]).into_dyn();
        assert_eq!(open(&share(&words)), words);
        let apart = [Role::Client, Role::Server].map(|role| share_of(&words, role, &mut StdRng::seed_from_u64(5)));
        assert_eq!(open(&apart), words);
    }
}
