//! Resources that this process has used so far.

use std::time::Duration;

/// CPU time of all threads of this process; `None` where the system does not tell.
pub fn process_cpu_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(Duration::new(u64::try_from(spent.tv_sec).ok()?, u32::try_from(spent.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    None
}

/// The largest amount of physical memory that this process has held, in bytes (`VmHWM`); `None` off Linux.
pub fn peak_memory_bytes() -> Option<u64> {
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Reads a line such as `VmHWM:     5120 kB`, where kB stands for 1024 bytes.
fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 1 kB\n"), Some(5120 * 1024));
        assert_eq!(peak_of("VmRSS:\t 1 kB\n"), None);
        assert_eq!(peak_of("VmHWM:\tmany kB\n"), None);
        assert_eq!(peak_of("VmHWM:\t18446744073709551615 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_and_cpu_time_grow_with_use() {
        let before = process_cpu_time().expect("Linux has the clock");
        let block = vec![1u8; 64 << 20];
        let sum: u64 = std::hint::black_box(&block).iter().map(|&x| u64::from(x)).sum();
        assert_eq!(sum, 64 << 20);
        assert!(process_cpu_time().expect("Linux has the clock") > before);
        assert!(peak_memory_bytes().expect("Linux has the file") >= 64 << 20);
    }
}
