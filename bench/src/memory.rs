//! Memory use of this process, from /proc (proc(5)).

use std::error::Error;
use std::fs;

/// Resets the recorded peak to the present resident memory. If the kernel refuses, the previous peak remains,
/// which may be too high.
pub fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the maximum resident memory since the last reset, MB (10^6 bytes).
pub fn peak_megabytes() -> Result<f64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    Ok(peak_kib(&status).ok_or("no VmHWM in /proc/self/status")? as f64 * 1024.0 / 1e6)
}

fn peak_kib(status: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read() {
        assert_eq!(peak_kib("Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t    5120 kB\nVmRSS:\t 1 kB\n"), Some(5120));
        assert_eq!(peak_kib("Name:\tx\n"), None);
    }
}
