//! Tools that the tests against hostile bytes share.
//!
//! A *target* is a test that feeds bytes of a peer, a file or a user to one decoder and checks the result: never a
//! panic, never more memory than the step allows, and either a typed error or a value that encodes to the same bytes.
//! Its inputs are the files of a [`Corpus`] (messages of real sessions and inputs that were found to be awkward), and
//! variants of them that bolero draws ([`Recipe`]). [`target!`] runs one.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # std::fs::write(dir.path().join("honest"), b"42").unwrap();
//! # let dir = dir.path();
//! waggle_fuzz::target!(waggle_fuzz::Corpus::open(dir), |bytes: &[u8]| {
//!     let parse = || std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<u8>().ok());
//!     let (parsed, memory) = waggle_fuzz::memory::peak(parse);
//!     assert!(memory < 1000);
//!     if let Some(number) = parsed {
//!         assert!(number.to_string().len() <= bytes.len());
//!     }
//! });
//! ```
//!
//! [`link`] has links in memory on which every message can be spoiled and a stall is noticed at once.
#![deny(missing_docs)]

mod corpus;
pub mod link;
pub mod memory;
mod recipe;

#[doc(hidden)]
pub use bolero;
pub use corpus::Corpus;
pub use recipe::{Edit, Place, Recipe};

/// Milliseconds that a target runs for unless `BOLERO_RANDOM_TEST_TIME_MS` says otherwise.
pub const MILLISECONDS: u64 = 500;

/// Runs a check on every file of a [`Corpus`], and then on variants of them until the time is up: [`MILLISECONDS`],
/// or `BOLERO_RANDOM_TEST_TIME_MS`. The check is a closure over `&[u8]` that panics where a property does not hold. A
/// failure names the file, or shows the smallest variant found and the seed that repeats it (`BOLERO_RANDOM_SEED`).
#[macro_export]
macro_rules! target {
    ($corpus:expr, $check:expr $(,)?) => {{
        let corpus: $crate::Corpus = $corpus;
        let check = ::std::panic::AssertUnwindSafe($check);
        corpus.each(|bytes| (*check)(bytes));
        let corpus = ::std::panic::AssertUnwindSafe(corpus);
        $crate::bolero::check!()
            .with_test_time(::std::time::Duration::from_millis($crate::MILLISECONDS))
            .with_type::<$crate::Recipe>()
            .for_each(move |recipe| {
                let (corpus, check) = (&corpus, &check);
                (**check)(&recipe.apply(corpus))
            });
    }};
}
