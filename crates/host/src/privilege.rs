//! Privileges of this process, from the effective set in `/proc/self/status` (capabilities(7)).

use crate::{Host, HostError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Change links, queueing disciplines and classifiers.
    NetAdmin,
    /// Create and enter namespaces.
    SysAdmin,
    /// Load BPF programs that read kernel structures.
    Perfmon,
    /// Load BPF programs.
    Bpf,
    /// Write files of other users.
    DacOverride,
    /// Inspect processes with more privileges.
    SysPtrace,
}

impl Capability {
    /// Returns the capability's number (include/uapi/linux/capability.h), which is its bit in a set.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::DacOverride => 1,
            Self::NetAdmin => 12,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::SysPtrace => "CAP_SYS_PTRACE",
        })
    }
}

impl Host {
    /// Returns whether the process is in a child user namespace. There the kernel refuses BPF programs
    /// and most files of queues, even if the process has the capabilities.
    #[must_use]
    pub fn is_in_user_namespace(&self) -> bool {
        let map = self.read("/proc/self/uid_map");
        map.is_ok_and(|map| map.split_ascii_whitespace().ne(["0", "0", "4294967295"]))
    }

    /// Returns advice for a process that lacks privileges.
    #[must_use]
    pub fn how_to_be_privileged(&self) -> &'static str {
        match self.is_in_user_namespace() {
            true => "run the command as root in the initial user namespace",
            false => "run the command as root",
        }
    }

    pub fn missing_capabilities(&self, wanted: &[Capability]) -> Result<Vec<Capability>, HostError> {
        let path = "/proc/self/status";
        let text = self.read(path)?;
        for (index, line) in text.lines().enumerate() {
            let Some(set) = line.strip_prefix("CapEff:") else { continue };
            let set = u64::from_str_radix(set.trim(), 16).map_err(|_| HostError::Format {
                path: self.path(path),
                line: index + 1,
                reason: format!("'{}' is not a set of capabilities", set.trim()),
            })?;
            // Kernels before 5.8 lack CAP_PERFMON and CAP_BPF; CAP_SYS_ADMIN includes them.
            let is_child = self.is_in_user_namespace();
            let all = set >> Capability::SysAdmin.number() & 1 == 1;
            return Ok(wanted
                .iter()
                .copied()
                .filter(|capability| {
                    let is_for_bpf = matches!(capability, Capability::Bpf | Capability::Perfmon);
                    let is_set = set >> capability.number() & 1 == 1 || all && is_for_bpf;
                    // The kernel checks CAP_PERFMON and CAP_BPF in the initial user namespace
                    // (`bpf_capable`).
                    !is_set || is_child && is_for_bpf
                })
                .collect());
        }
        Err(HostError::Format { path: self.path(path), line: 0, reason: "no line CapEff".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn missing(status: &str) -> Result<Vec<Capability>, HostError> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("proc/self")).unwrap();
        std::fs::write(directory.path().join("proc/self/status"), status).unwrap();
        Host::at(directory.path()).missing_capabilities(&[
            Capability::NetAdmin,
            Capability::SysAdmin,
            Capability::Bpf,
            Capability::Perfmon,
        ])
    }

    #[test]
    fn root_has_everything_and_a_user_nothing() {
        assert_eq!(missing("Name:\tx\nCapEff:\t000001ffffffffff\n").unwrap(), []);
        assert_eq!(missing("CapEff:\t0000000000000000\n").unwrap().len(), 4);
    }

    #[test]
    fn bpf_alone_is_not_enough() {
        let set = 1_u64 << 39 | 1 << 38;
        assert_eq!(
            missing(&format!("CapEff:\t{set:016x}\n")).unwrap(),
            [Capability::NetAdmin, Capability::SysAdmin]
        );
    }

    #[test]
    fn a_user_namespace_gives_no_capability_for_bpf() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("proc/self");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("status"), "CapEff:\t000001ffffffffff\n").unwrap();
        let host = Host::at(directory.path());
        for (map, missing) in
            [("         0          0 4294967295\n", 0), ("         0       1000          1\n", 2)]
        {
            std::fs::write(own.join("uid_map"), map).unwrap();
            let wanted = [Capability::NetAdmin, Capability::Bpf, Capability::Perfmon];
            assert_eq!(host.missing_capabilities(&wanted).unwrap().len(), missing);
            assert_eq!(host.how_to_be_privileged().ends_with("initial user namespace"), missing > 0);
        }
    }

    #[test]
    fn damage_is_an_error() {
        assert!(missing("CapEff:\txyz\n").unwrap_err().to_string().contains("status:1: 'xyz'"));
        assert!(missing("Name:\tx\n").unwrap_err().to_string().contains("no line CapEff"));
    }
}
