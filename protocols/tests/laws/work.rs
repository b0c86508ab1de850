//! A plan counts the transfers that a session makes and takes.

use waggle_net::Role;
use waggle_planner::{Deployment, Tallies};
use waggle_protocols::ops::{AtLeast, B2a, Mul};
use waggle_protocols::{Abb, Error, Kernel, Options, Shape};

use waggle_testing::laws::planner;
use waggle_testing::own;

use crate::small::{run, share};

/// Signs as words, times the values: OTs in both directions.
fn positive<B: Abb>(abb: &mut B, x: &B::Words) -> Result<B::Words, Error> {
    let bits = abb.apply(AtLeast { thresholds: &[0], width: 20 }, x)?;
    let words = abb.apply(B2a { width: 32 }, &bits)?;
    abb.apply(Mul { width: 32, error_bits: 0 }, (&words, &words))
}

/// Units of `kernel` at `party` in all accounts.
fn units(tallies: &Tallies, party: Role, kernel: Kernel) -> f64 {
    tallies.values().map(|units| units[party as usize][kernel as usize]).sum()
}

#[test]
fn a_plan_counts_the_transfers_that_a_session_makes_and_takes() {
    for (ot, silent) in
        [(waggle_ot::CotKind::Silent, true), (waggle_ot::CotKind::SoftSpoken(waggle_ot::SoftSpoken::K2), false)]
    {
        let options = Options { ot, ..Options::default() };
        // Enough for a round of silent OT one way, and for SoftSpoken OT alone the other way.
        let n = 9000;
        let values: Vec<u64> = (0..n as u64).collect();
        let shares = share(&values, &[n]);
        let counted = run(options, |abb| {
            let x = own(abb, &shares);
            positive(abb, x)?;
            let session = abb.session();
            let sent = (session.sender().made(), session.sender().used());
            Ok((sent, (session.receiver().made(), session.receiver().used())))
        });
        let mut planner = planner(options).tallied(Deployment::idle());
        positive(&mut planner, &Shape(vec![n])).unwrap();
        let tallies = planner.tallies().unwrap();
        for (role, (((made, used), (received, chosen)), _)) in [Role::Client, Role::Server].into_iter().zip(counted) {
            assert_eq!(units(tallies, role, Kernel::TakeOt), (used + chosen) as f64, "{ot:?} {role:?}");
            let planned = |kernel| units(tallies, role, kernel);
            if silent {
                // SoftSpoken makes OTs where few are taken: four leaves for each OT, and the first round besides.
                let direct = [Kernel::SoftSpokenSend, Kernel::SoftSpokenReceive].map(|kernel| planned(kernel) / 4.0);
                assert!(made as f64 <= planned(Kernel::SilentSend) + direct[0], "{role:?}");
                assert!(received as f64 <= planned(Kernel::SilentReceive) + direct[1], "{role:?}");
                let silent = planned(Kernel::SilentSend) + planned(Kernel::SilentReceive);
                assert!(silent > 0.0 && silent <= (made + received) as f64, "{silent} of {made} and {received}");
            } else {
                // Two leaves for each OT, and for those OTs that mask the check of an extension, which fill its last
                // batch.
                let leaves = |made: u64| (2 * made.next_multiple_of(2048)) as f64;
                assert_eq!(planned(Kernel::SoftSpokenSend), leaves(made), "{role:?}");
                assert_eq!(planned(Kernel::SoftSpokenReceive), leaves(received), "{role:?}");
            }
        }
    }
}
