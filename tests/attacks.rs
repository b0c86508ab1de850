//! Programs that misbehave (`dev/attacks`) take nothing from an honest helper.

use super::examples::example;
use super::support::text;

/// At a helper that knew halves by their name alone, one key in both roles got all weights.
#[test]
fn a_client_with_two_links_to_a_helper_gets_no_weights() {
    let output = example("attack_halves").arg(env!("CARGO_BIN_EXE_waggle")).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    for (what, count) in [("refused: ", 24), ("nothing: two keys, and halves of one's own", 2), ("TAKEN", 0)] {
        assert_eq!(said.lines().filter(|line| line.starts_with(what)).count(), count, "{said}");
    }
    assert!(said.ends_with("nothing was taken\n"), "{said}");
}
