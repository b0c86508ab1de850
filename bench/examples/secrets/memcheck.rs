//! Secrets as undefined memory under Valgrind's memcheck.
//!
//! The parent starts Valgrind on its own program; the child marks each secret as undefined, computes, and asks
//! memcheck for the number of errors so far. Memcheck follows undefined bits through arithmetic and memory, and
//! counts an error where a branch or an address depends on one.

use std::process::Command;

use waggle_bits::probe::Probe;

use crate::probes;

/// Findings of memcheck in one computation.
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) errors: u64,
    /// Whether it must find something.
    pub(crate) expected: bool,
}

/// Findings of memcheck in all computations.
pub(crate) struct Report {
    pub(crate) version: String,
    /// The processor that Valgrind shows to the program.
    pub(crate) kernels: String,
    pub(crate) verdicts: Vec<Verdict>,
    /// The errors with their places.
    pub(crate) log: String,
}

/// Findings that are known to tell nothing, with the reason.
const SUPPRESSIONS: &str = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/examples/secrets/valgrind.supp");

/// Lines by which the child tells its results.
const VERDICT: &str = "verdict\t";
const KERNELS: &str = "kernels\t";

/// Runs the computations whose names contain `only` under memcheck; nothing if there is no Valgrind. Errors: Valgrind
/// failed, or did not tell results.
pub(crate) fn run(only: &str) -> Result<Option<Report>, String> {
    let version = match Command::new("valgrind").arg("--version").output() {
        Ok(output) if request::KNOWN => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => return Ok(None),
    };
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=memcheck", "--error-limit=no", "--num-callers=12", SUPPRESSIONS])
        .arg(program)
        .args(["--under-memcheck", "--only", only])
        .output()
        .map_err(|error| error.to_string())?;
    let (told, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{}\n{log}", output.status));
    }
    let verdict = |line: &str| {
        let mut fields = line.strip_prefix(VERDICT)?.split('\t');
        let errors = fields.next()?.parse().ok()?;
        Some(Verdict { errors, expected: fields.next()? == "true", name: fields.next()?.to_owned() })
    };
    let verdicts: Vec<Verdict> = told.lines().filter_map(verdict).collect();
    let kernels = told.lines().find_map(|line| line.strip_prefix(KERNELS)).ok_or("no word on the kernels")?;
    Ok(Some(Report { version, kernels: kernels.to_owned(), verdicts, log: log.into_owned() }))
}

/// The child: runs the computations and tells what memcheck found.
pub(crate) fn run_probes(only: &str) {
    let transform = format!("{:?}", waggle_he::ParamSet::Narrow.params().limbs()[0].ntt());
    // The name of the type is enough; its tables would follow.
    let transform = transform.split([' ', '(']).next().unwrap_or_default();
    println!("{KERNELS}transfers: {}; transforms: {transform}", waggle_ot::Kernels::default().name());
    let all = std::iter::once((true, probes::lookup_control())).chain(probes::with_controls());
    for (expected, probe) in all.filter(|(expected, probe)| *expected || probe.name.contains(only)) {
        let errors = check(&probe);
        println!("{VERDICT}{errors}\t{expected}\t{}", probe.name);
    }
}

/// Errors that memcheck counts in one run.
fn check(probe: &Probe) -> u64 {
    // Builds tables that are made on first use, so that they are not counted.
    (probe.prepare)(&vec![0; probe.secret_bytes])();
    let mut secret = vec![0; probe.secret_bytes];
    let before = request::errors();
    request::make_undefined(&mut secret);
    let mut run = (probe.prepare)(&secret);
    run();
    drop(run);
    request::errors() - before
}

/// Requests of a program to the Valgrind that runs it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod request {
    use std::arch::asm;

    /// Whether requests are known for this processor.
    pub(super) const KNOWN: bool = true;

    /// Numbers of requests (`valgrind.h`, `memcheck.h`).
    const COUNT_ERRORS: u64 = 0x1201;
    const MAKE_MEM_UNDEFINED: u64 = 0x4d43_0001;

    /// Makes a request, and returns its answer: 0 if no Valgrind runs this program, because then the instructions do
    /// nothing.
    ///
    /// # Safety
    /// - The memory that the request names must be this program's, and may not be read as a value before it is
    ///   written again, save by code under test.
    unsafe fn request(request: u64, arguments: [u64; 2]) -> u64 {
        let block = [request, arguments[0], arguments[1], 0, 0, 0];
        let answer;
        // SAFETY: the rotations of rdi add up to 128 bits and so leave it as it was, and rbx is exchanged with
        // itself. Valgrind knows the sequence, reads six words at rax, which `block` has, and writes the answer to
        // rdx.
        unsafe {
            asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") block.as_ptr(),
                inout("rdx") 0_u64 => answer,
                options(nostack),
            );
        }
        answer
    }

    /// Errors so far.
    pub(super) fn errors() -> u64 {
        // SAFETY: the request names no memory.
        unsafe { request(COUNT_ERRORS, [0; 2]) }
    }

    /// Marks `bytes` as undefined; their values stay.
    pub(super) fn make_undefined(bytes: &mut [u8]) {
        // SAFETY: the memory is that of `bytes`, which stay initialised as far as the language knows: memcheck alone
        // keeps the mark.
        unsafe { request(MAKE_MEM_UNDEFINED, [bytes.as_mut_ptr() as u64, bytes.len() as u64]) };
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod request {
    pub(super) const KNOWN: bool = false;

    pub(super) fn errors() -> u64 {
        0
    }

    pub(super) fn make_undefined(_: &mut [u8]) {}
}
