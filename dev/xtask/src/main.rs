//! The steps of a release and a check of its sources, called as `cargo xtask`.
#![forbid(unsafe_code)]

mod circles;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use thiserror::Error;

const USAGE: &str = "usage:
  cargo xtask dist                     an archive for this machine, in the folder `dist` of the target directory: the
                                       program, completions, man pages, and all licences
  cargo xtask circles                  fails if files of a crate name each other in a circle
  cargo xtask licences MANIFEST FILE   the licences of all packages that the package of MANIFEST is built of";

/// The reason why a task failed.
#[derive(Debug, Error)]
enum Error {
    #[error("{USAGE}")]
    Usage,
    #[error("{0} circles of files: cut them, or move what they share below them")]
    Circles(usize),
    #[error("there is no {tool}: {install}")]
    Missing { tool: &'static str, install: &'static str },
    #[error("{command}: {status}")]
    Failed { command: String, status: String },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["dist"] => dist(),
        ["circles"] => no_circles(),
        ["licences", manifest, file] => licences(Path::new(manifest), Path::new(file)),
        _ => Err(Error::Usage),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fails if files name each other in a circle.
fn no_circles() -> Result<(), Error> {
    let circles = circles::find(&root()).map_err(at(&root()))?;
    for circle in &circles {
        println!("{}", circle.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" "));
    }
    if circles.is_empty() { Ok(()) } else { Err(Error::Circles(circles.len())) }
}

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Makes the archive of a release, and prints its path.
fn dist() -> Result<(), Error> {
    // A missing `cargo about` is reported before the program is built.
    about()?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let target = std::path::absolute(&target).map_err(at(&target))?;
    let mut build = cargo();
    build.args(["rustc", "--release", "--locked", "--package", "waggle-cli", "--bin", "waggle"]);
    if cfg!(target_os = "linux") {
        // The program has the C library in it: it runs on every distribution and in an empty root. Without a dynamic
        // linker to ask for the system call, `getrandom` would open files, which the tokenizer's sandbox does not.
        build.env("RUSTFLAGS", "--cfg getrandom_backend=\"linux_getrandom\"");
        build.args(["--", "-C", "target-feature=+crt-static"]);
    }
    run(&mut build)?;
    let program = target.join("release").join(format!("waggle{}", env::consts::EXE_SUFFIX));

    let name = format!("waggle-{}-{}-{}", env!("CARGO_PKG_VERSION"), env::consts::ARCH, env::consts::OS);
    let place = target.join("dist");
    let folder = place.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    let completions = folder.join("completions");
    fs::create_dir_all(&completions).map_err(at(&completions))?;
    copy(&program, &folder)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root().join(file), &folder)?;
    }
    // Each shell looks for a file of another name.
    for (shell, file) in [("bash", "waggle.bash"), ("zsh", "_waggle"), ("fish", "waggle.fish")] {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        let path = completions.join(file);
        fs::write(&path, script).map_err(at(&path))?;
    }
    run(Command::new(&program).arg("man").arg(folder.join("man/man1")))?;
    licences(Path::new("Cargo.toml"), &folder.join("THIRD-PARTY.txt"))?;

    let archive = place.join(format!("{name}.tar.gz"));
    run(Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&place).arg(&name))?;
    println!("{}", archive.display());
    Ok(())
}

/// Writes the licences of everything that the package of `manifest` is built from. `dev/about.toml` says which
/// licences are allowed.
fn licences(manifest: &Path, file: &Path) -> Result<(), Error> {
    about()?;
    let file = std::path::absolute(file).map_err(at(file))?;
    let mut command = cargo();
    command.args(["about", "generate", "--locked", "--fail", "--config", "dev/about.toml", "--manifest-path"]);
    run(command.arg(manifest).arg("--output-file").arg(file).arg("dev/xtask/third-party.hbs"))
}

/// Fails if there is no `cargo about`.
fn about() -> Result<(), Error> {
    let found = cargo().args(["about", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => {
            Err(Error::Missing { tool: "cargo-about", install: "cargo install --locked cargo-about --features cli" })
        }
    }
}

fn run(command: &mut Command) -> Result<(), Error> {
    output(command.stdout(Stdio::inherit())).map(drop)
}

/// The standard output of a command that succeeds. Its standard error goes to the terminal.
fn output(command: &mut Command) -> Result<Vec<u8>, Error> {
    let program = command.get_program().display().to_string();
    let failed = |status: String| Error::Failed { command: program, status };
    match command.stderr(Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(failed(output.status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn copy(file: &Path, folder: &Path) -> Result<(), Error> {
    let to = folder.join(file.file_name().unwrap_or_default());
    fs::copy(file, to).map(drop).map_err(at(file))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.to_owned(), source }
}
