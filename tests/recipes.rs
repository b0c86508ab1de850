//! The recipes for schedulers run: `examples/recipes/check`, which skips those that are not installed and says so.
#![cfg(unix)]

use std::process::Command;

#[test]
fn the_recipes_run() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes/check");
    let output = Command::new(script).env("WAGGLE", env!("CARGO_BIN_EXE_waggle")).output().unwrap();
    let [out, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    println!("{out}{errors}");
    assert!(output.status.success(), "{:?}", output.status);
    let ran = ["mpirun", "ray"].map(|name| out.contains(&format!("== {name}: 4 parts made and spent")));
    let skipped = ["mpirun", "ray"].map(|name| errors.contains(&format!("SKIPPED: {name}")));
    assert_eq!(ran, skipped.map(|skipped| !skipped), "each ran, or said that it did not");
}
