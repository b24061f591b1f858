//! The files that a change may name.
//!
//! A change can come from a journal on disk. Its path is joined to `/proc/sys` or `/sys`, so a crafted
//! path could reach any file of the host. It could also reach a sysctl that starts programs
//! (`kernel/core_pattern`). Only the forms in this module are allowed.

use super::Knob;

/// Allowed sysctls outside `net/`.
const SYSCTLS: [&str; 4] =
    ["vm/zone_reclaim_mode", "kernel/numa_balancing", "kernel/nmi_watchdog", "kernel/timer_migration"];

/// Allowed files of a receive or transmit queue.
const QUEUE_FILES: [&str; 5] = ["xps_cpus", "xps_rxqs", "rps_cpus", "rps_flow_cnt", "tx_maxrate"];

/// Allowed files of the interface's directory.
const INTERFACE_FILES: [&str; 5] =
    ["mtu", "tx_queue_len", "threaded", "gro_flush_timeout", "napi_defer_hard_irqs"];

/// Allowed files in the `cpufreq` directory of a CPU or policy.
const FREQUENCY_FILES: [&str; 4] =
    ["scaling_governor", "scaling_min_freq", "scaling_max_freq", "energy_performance_preference"];

/// Returns whether a file name has no separator, no leading dot, and no character that is special in a
/// terminal or a shell.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Returns whether a name is `prefix` followed by a number, such as `tx-12`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns whether a path is an allowed sysctl. A part may be an interface name
/// (`net/ipv4/conf/eth0/rp_filter`), which may have any character except a slash, a colon and white space
/// (`dev_valid_name`, net/core/dev.c). Control characters are not allowed in any part.
fn is_sysctl(path: &str) -> bool {
    let mut names = path.split('/');
    let is_of_network = names.next() == Some("net") && names.clone().count() >= 2;
    let is_name = |name: &str| {
        !["", ".", ".."].contains(&name) && !name.chars().any(|one| one.is_control() || one.is_whitespace())
    };
    SYSCTLS.contains(&path) || is_of_network && names.all(is_name)
}

fn is_interface_file(path: &str) -> bool {
    let names: Vec<&str> = path.split('/').collect();
    match names[..] {
        [file] => INTERFACE_FILES.contains(&file),
        ["bonding", file] => is_plain(file),
        ["queues", queue, file] => {
            (is_numbered(queue, "tx-") || is_numbered(queue, "rx-")) && QUEUE_FILES.contains(&file)
        }
        ["queues", queue, "byte_queue_limits", file] => is_numbered(queue, "tx-") && is_plain(file),
        _ => false,
    }
}

fn is_processor_file(path: &str) -> bool {
    let names: Vec<&str> = path.split('/').collect();
    match names[..] {
        ["cpufreq", policy, file] => is_numbered(policy, "policy") && FREQUENCY_FILES.contains(&file),
        [cpu, "cpufreq", file] => is_numbered(cpu, "cpu") && FREQUENCY_FILES.contains(&file),
        [cpu, "power", "energy_perf_bias"] => is_numbered(cpu, "cpu"),
        [cpu, "cpuidle", state, "disable"] => is_numbered(cpu, "cpu") && is_numbered(state, "state"),
        _ => false,
    }
}

impl Knob {
    /// Returns whether a change may be made or rolled back: its path or name, if it has one, must be of a
    /// form in this module.
    #[must_use]
    pub fn is_permitted(&self) -> bool {
        match self {
            Self::Sysctl(path) => is_sysctl(path),
            Self::InterfaceFile(path) => is_interface_file(path),
            Self::ProcessorFile(path) => is_processor_file(path),
            Self::Feature(name) | Self::FlowHash(name) => is_plain(name),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_pass_and_other_files_do_not() {
        let sysctl = |path: &str| Knob::Sysctl(path.to_owned()).is_permitted();
        let interface = |path: &str| Knob::InterfaceFile(path.to_owned()).is_permitted();
        let processor = |path: &str| Knob::ProcessorFile(path.to_owned()).is_permitted();
        for path in ["net/ipv4/tcp_rmem", "net/ipv4/conf/a;b$c/rp_filter", "vm/zone_reclaim_mode"] {
            assert!(sysctl(path), "{path}");
        }
        for path in [
            "../../tmp/x",
            "net/../kernel/core_pattern",
            "net/./x",
            "net//x",
            "/net/x",
            "kernel/core_pattern",
            "kernel/modprobe",
            "net",
            "net/x",
            "net/a b/c",
            "net/ipv4/a\n",
            "",
        ] {
            assert!(!sysctl(path), "{path}");
        }
        for path in ["queues/tx-0/xps_cpus", "queues/rx-63/rps_flow_cnt", "mtu", "bonding/xmit_hash_policy"] {
            assert!(interface(path), "{path}");
        }
        for path in ["queues/tx-0/byte_queue_limits/limit_max", "queues/tx-0/tx_maxrate"] {
            assert!(interface(path), "{path}");
        }
        for path in [
            "../lo/mtu",
            "device/../x",
            "queues/tx-/xps_cpus",
            "queues/../mtu",
            "device/remove",
            "",
            "queues",
        ] {
            assert!(!interface(path), "{path}");
        }
        for path in ["cpufreq/policy0/scaling_governor", "cpu3/cpuidle/state2/disable"] {
            assert!(processor(path), "{path}");
        }
        for path in ["../../../../tmp/x", "cpu0/online", "cpu0/cpuidle/../state0/disable"] {
            assert!(!processor(path), "{path}");
        }
        assert!(Knob::GsoSizes.is_permitted() && !Knob::Feature("a b".to_owned()).is_permitted());
    }
}
