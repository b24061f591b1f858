//! Facts that could not be read, and the reasons.

use serde::{Deserialize, Serialize};

/// A source of facts that could not be read. Rules that need this source give no verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// The source as a path of the host: `/proc/net/softnet_stat`, `/sys/class/net/eth0/speed`. Facts
    /// from ioctl and netlink also have paths: `/sys/class/net/eth0/ethtool/rings`, `netlink/qdiscs`.
    pub source: String,
    /// The file with its line, the kernel's error, or the missing privilege.
    pub why: String,
}

impl Unknown {
    #[must_use]
    pub fn new(source: impl Into<String>, why: impl Into<String>) -> Self {
        Self { source: source.into(), why: why.into() }
    }

    /// Returns whether this gap affects a rule's need.
    /// - A `*` in the need matches one part of a path.
    /// - `cpu*` matches one part with a number, such as `cpu3`.
    /// - A need, and an unknown directory, include all paths below them.
    #[must_use]
    pub fn concerns(&self, need: &str) -> bool {
        // Most sources differ from a need before its first `*`, so the comparison avoids the cost of
        // splitting the paths.
        let plain = need.find('*').unwrap_or(need.len()).min(self.source.len());
        self.source.as_bytes()[..plain] == need.as_bytes()[..plain]
            && self
                .source
                .split('/')
                .zip(need.split('/'))
                .all(|(part, needed)| part == needed || needed == "*" || is_numbered(part, needed))
    }

    /// Returns the interface whose facts are unknown; `None` for facts of the whole host.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.source.strip_prefix("/sys/class/net/")?.split('/').next()
    }
}

/// Returns whether a name matches a pattern such as `cpu*`, where `*` stands for a number. For example,
/// `cpu3` matches, and `cpufreq` does not match.
fn is_numbered(name: &str, pattern: &str) -> bool {
    let number = pattern.strip_suffix('*').and_then(|prefix| name.strip_prefix(prefix));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_gap_concerns_what_is_above_and_below_it() {
        let gap = |source: &str| Unknown::new(source, "missing");
        let speed = gap("/sys/class/net/eth0/speed");
        assert!(speed.concerns("/sys/class/net/*/speed"));
        assert!(!speed.concerns("/sys/class/net/*/statistics"));
        assert_eq!(speed.interface(), Some("eth0"));
        // The whole interface is unknown, or one file below the needed directory is unknown.
        assert!(gap("/sys/class/net/eth0").concerns("/sys/class/net/*/speed"));
        assert!(gap("/sys/class/net/eth0/queues/rx-3/rps_cpus").concerns("/sys/class/net/*/queues"));
        assert!(!gap("/proc/stat").concerns("/proc/PID/stat"));
        assert_eq!(gap("/proc/stat").interface(), None);
        let topology = "/sys/devices/system/cpu/cpu*/topology";
        for source in [
            "/sys/devices/system/cpu/cpu3/topology/core_id",
            "/sys/devices/system/cpu/cpu12",
            "/sys/devices/system/cpu",
        ] {
            assert!(gap(source).concerns(topology), "{source}");
        }
        for source in ["isolated", "nohz_full", "cpufreq", "cpu", "cpu3/cpufreq"] {
            assert!(!gap(&format!("/sys/devices/system/cpu/{source}")).concerns(topology), "{source}");
        }
    }
}
