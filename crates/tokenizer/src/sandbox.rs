//! The rights that the worker's process gives up before it reads anything.
//!
//! | | Linux on x86-64, AArch64, RISC-V | other Unix |
//! |---|---|---|
//! | limits | memory, processor time; no file, no new descriptor or process, no core dump | the same |
//! | sandbox | no new privileges; standard input and output, and system calls of [`system_calls`] alone | |
//!
//! A call that is not in the list fails with EPERM and has no effect. A library that can do without the call goes on.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The largest address space of the worker, in bytes. A vocabulary of 256,000 tokens takes about a tenth of it.
const MEMORY_BYTES: u64 = 2 << 30;
/// The processor time of the worker, in seconds. After this time the worker ends, and the parent starts another one.
/// One token of a text takes some tens of microseconds.
const CPU_SECONDS: u64 = 60;

/// Sets the limits of this process and, on Linux, shuts it into a sandbox. Returns `None` if there is a sandbox or
/// the system is not Linux, and otherwise the reason why there is none.
///
/// # Errors
/// If the limits cannot be set.
pub(super) fn enter() -> io::Result<Option<String>> {
    for (resource, most) in [
        (Resource::As, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 0),
        (Resource::Nproc, 0),
    ] {
        // A lower limit of an administrator is kept.
        let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(shut().err())
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
use self::calls::shut;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod calls {
    use std::collections::BTreeMap;
    use std::env::consts::ARCH;

    use seccompiler::SeccompCmpArgLen::Dword;
    use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq};
    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule,
        apply_filter_all_threads,
    };

    /// Lets every thread of this process make only the [`system_calls`].
    pub(super) fn shut() -> Result<(), String> {
        let program = system_calls().and_then(|calls| {
            let refused = SeccompAction::Errno(libc::EPERM as u32);
            let filter = SeccompFilter::new(calls, refused, SeccompAction::Allow, ARCH.try_into()?)?;
            BpfProgram::try_from(filter)
        });
        let program = program.map_err(|error| error.to_string())?;
        // This sets PR_SET_NO_NEW_PRIVS first.
        apply_filter_all_threads(&program).map_err(|error| error.to_string())
    }

    /// The permitted system calls by number, each with a list of conditions. A call is permitted if one of its
    /// conditions holds, or if it has none.
    fn system_calls() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
        let all = |conditions: &[(u8, SeccompCmpOp, i32)]| {
            let conditions = conditions.iter().map(|(argument, compare, value)| {
                SeccompCondition::new(*argument, Dword, compare.clone(), *value as u64)
            });
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        };
        let no_code = || all(&[(2, MaskedEq(libc::PROT_EXEC as u64), 0)]);
        Ok(BTreeMap::from([
            // Only standard input may be read. Descriptors that were inherited by mistake stay out of reach.
            (libc::SYS_read, vec![all(&[(0, Eq, 0)])?]),
            (libc::SYS_write, vec![all(&[(0, Eq, 1)])?, all(&[(0, Eq, 2)])?]),
            (libc::SYS_mmap, vec![no_code()?]),
            (libc::SYS_mprotect, vec![no_code()?]),
            (libc::SYS_munmap, vec![]),
            (libc::SYS_mremap, vec![]),
            (libc::SYS_madvise, vec![]),
            (libc::SYS_brk, vec![]),
            (libc::SYS_futex, vec![]),
            (libc::SYS_sched_yield, vec![]),
            (libc::SYS_clock_gettime, vec![]),
            (libc::SYS_getrandom, vec![]),
            // If the stack overflows or memory runs out, the process ends by a signal.
            (libc::SYS_rt_sigaction, vec![]),
            (libc::SYS_rt_sigprocmask, vec![]),
            (libc::SYS_rt_sigreturn, vec![]),
            (libc::SYS_sigaltstack, vec![]),
            (libc::SYS_getpid, vec![]),
            (libc::SYS_gettid, vec![]),
            (libc::SYS_tgkill, vec![all(&[(0, Eq, std::process::id() as i32), (2, Eq, libc::SIGABRT)])?]),
            (libc::SYS_exit, vec![]),
            (libc::SYS_exit_group, vec![]),
        ]))
    }
}

#[cfg(all(target_os = "linux", not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))))]
fn shut() -> Result<(), String> {
    Err(format!("there is none for the processor {}", std::env::consts::ARCH))
}

/// Does nothing, because systems other than Linux have only limits.
#[cfg(not(target_os = "linux"))]
fn shut() -> Result<(), String> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind::PermissionDenied;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::thread;

    use rustix::process::{Pid, Signal, getppid, kill_process};

    use super::*;

    type Attempt = Box<dyn FnOnce() -> io::Result<()>>;

    /// Actions that the sandbox must refuse, each with its name.
    fn attempts() -> Vec<(&'static str, Attempt)> {
        let mut open = File::open("/dev/zero").unwrap();
        let parent: Pid = getppid().unwrap();
        let code = memmap2::MmapMut::map_anon(4096).unwrap();
        let core = getrlimit(Resource::Core);
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        vec![
            ("read what was open", Box::new(move || open.read_exact(&mut [0]))),
            ("write to what was open", Box::new(move || datagram.send(&[0]).map(drop))),
            ("open a file", Box::new(|| File::open("/dev/null").map(drop))),
            ("make a file", Box::new(|| File::create("made in the sandbox").map(drop))),
            ("read a folder", Box::new(|| std::fs::read_dir("/").map(drop))),
            ("remove a file", Box::new(|| std::fs::remove_file("/dev/null"))),
            ("make a socket", Box::new(|| TcpListener::bind("127.0.0.1:0").map(drop))),
            ("start a process", Box::new(|| Command::new("true").spawn().map(drop))),
            ("become a program", Box::new(|| Err(Command::new("true").exec()))),
            ("start a thread", Box::new(|| thread::Builder::new().spawn(|| ()).map(drop))),
            ("signal the parent", Box::new(move || Ok(kill_process(parent, Signal::CONT)?))),
            ("run new code", Box::new(|| code.make_exec().map(drop))),
            ("raise a limit", Box::new(move || Ok(setrlimit(Resource::Core, core)?))),
        ]
    }

    /// The process that `nothing_else_is_possible` starts. It enters the sandbox and tries all attempts.
    #[test]
    #[ignore = "shuts its process in; `nothing_else_is_possible` starts it"]
    fn shut_in() {
        let attempts = attempts();
        assert_eq!(enter().unwrap(), None);
        let mut out = io::stdout();
        for (name, attempt) in attempts {
            let refused = attempt().is_err_and(|error| error.kind() == PermissionDenied);
            writeln!(out, "\n{name}: {}", if refused { "refused" } else { "DONE" }).unwrap();
        }
        // The sandbox leaves memory, and lets the process end itself by a signal.
        writeln!(out, "\n{} bytes", vec![1u8; 64 << 20].len()).unwrap();
        std::process::abort();
    }

    #[test]
    fn nothing_else_is_possible() {
        use std::os::unix::process::ExitStatusExt;

        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::tests::shut_in", "--ignored", "--nocapture", "--test-threads", "1"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        for (name, _) in attempts() {
            assert!(said.lines().any(|line| line == format!("{name}: refused")), "{name}: {child:?}");
        }
        assert!(said.contains("67108864 bytes") && child.status.signal() == Some(libc::SIGABRT), "{child:?}");
    }
}
