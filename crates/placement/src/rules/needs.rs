//! Sources of the facts that rules need, as paths of the host; `*` represents each interface or CPU. A
//! sysctl is given by its path below `/proc/sys`. The kernel's answers over ioctl and netlink also have
//! paths.

pub const CARRIER_CHANGES: &str = "/sys/class/net/*/carrier_changes";
/// `ethtool -l`.
pub const CHANNELS: &str = "/sys/class/net/*/ethtool/channels";
/// `ethtool -c`.
pub const COALESCING: &str = "/sys/class/net/*/ethtool/coalescing";
pub const DUPLEX: &str = "/sys/class/net/*/duplex";
/// A file that includes the driver's name.
pub const DRIVER: &str = "/sys/class/net/*/device/uevent";
/// `ethtool -S`.
pub const DRIVER_STATISTICS: &str = "/sys/class/net/*/ethtool/statistics";
/// `ethtool -k`.
pub const FEATURES: &str = "/sys/class/net/*/ethtool/features";
/// Type of the IOMMU group.
pub const IOMMU: &str = "/sys/class/net/*/device/iommu_group/type";
/// Supported link modes (`ethtool`).
pub const LINK_MODES: &str = "/sys/class/net/*/ethtool/supported_mbps";
/// Speed of the PCI Express link.
pub const LINK_SPEED: &str = "/sys/class/net/*/device/current_link_speed";
/// Width of the PCI Express link.
pub const LINK_WIDTH: &str = "/sys/class/net/*/device/current_link_width";
/// Maximum speed of the PCI Express link.
pub const BEST_SPEED: &str = "/sys/class/net/*/device/max_link_speed";
/// Maximum width of the PCI Express link.
pub const BEST_WIDTH: &str = "/sys/class/net/*/device/max_link_width";
pub const MTU: &str = "/sys/class/net/*/mtu";
/// Whether the interface is up.
pub const STATE: &str = "/sys/class/net/*/operstate";
pub const NODE: &str = "/sys/class/net/*/device/numa_node";
/// Queues: RPS, XPS, byte queue limits.
pub const QUEUES: &str = "/sys/class/net/*/queues";
/// The driver's private flags (`ethtool --show-priv-flags`).
pub const PRIVATE_FLAGS: &str = "/sys/class/net/*/ethtool/private_flags";
/// `MaxReadReq` (`lspci -vv`).
pub const READ_REQUEST: &str = "/sys/class/net/*/ethtool/max_read_request";
/// `ethtool -g`.
pub const RINGS: &str = "/sys/class/net/*/ethtool/rings";
/// `ethtool -x`, `-n rx-flow-hash`.
pub const RSS: &str = "/sys/class/net/*/ethtool/rss";
/// The hash function and key of RSS, by which the queue of a connection can be computed.
pub const RSS_HASH: &str = "/sys/class/net/*/ethtool/rss_hash";
pub const SPEED: &str = "/sys/class/net/*/speed";
/// The kernel's counters of an interface (`struct rtnl_link_stats64`).
pub const STATISTICS: &str = "/sys/class/net/*/statistics";
pub const TX_QUEUE_LENGTH: &str = "/sys/class/net/*/tx_queue_len";
pub const BONDING: &str = "/sys/class/net/*/bonding";
pub const COMMAND_LINE: &str = "/proc/cmdline";
/// Model and flags of the CPUs.
pub const CPUINFO: &str = "/proc/cpuinfo";
/// Frequency governors.
pub const FREQUENCY: &str = "/sys/devices/system/cpu/cpu*/cpufreq";
pub const IDLE_STATES: &str = "/sys/devices/system/cpu/cpu*/cpuidle";
/// Numbers of interrupts that each CPU served.
pub const INTERRUPTS: &str = "/proc/interrupts";
/// The rows of [`INTERRUPTS`] that belong to a NIC.
pub const NIC_INTERRUPTS: &str = "/sys/class/net/*/interrupts";
/// Affinity masks of interrupts.
pub const AFFINITY: &str = "/proc/irq";
/// CPUs of `isolcpus=`.
pub const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
/// CPUs of `nohz_full=`.
pub const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";
pub const KERNEL: &str = "/proc/sys/kernel/osrelease";
pub const MEMORY: &str = "/proc/meminfo";
/// Counters `TcpExt`, `IpExt`.
pub const NETSTAT: &str = "/proc/net/netstat";
/// CPUs of each memory node.
pub const NODES: &str = "/sys/devices/system/node";
pub const PROCESSES: &str = "/proc/PID/comm";
/// Arguments of services.
pub const PROCESS_ARGUMENTS: &str = "/proc/PID/cmdline";
/// CPU on which a process ran last.
pub const PROCESS_STAT: &str = "/proc/PID/stat";
/// CPUs that a process may run on.
pub const PROCESS_STATUS: &str = "/proc/PID/status";
/// Processes that own sockets.
pub const SOCKET_OWNERS: &str = "/proc/PID/fd";
/// `tc -s qdisc show`.
pub const QDISCS: &str = "netlink/qdiscs";
/// Counters `Ip`, `Tcp`, `Udp`.
pub const SNMP: &str = "/proc/net/snmp";
pub const SNMP6: &str = "/proc/net/snmp6";
/// TCP sockets (`ss -ti`).
pub const SOCKETS: &str = "netlink/sockets";
/// The destination with the most connections from one address.
pub const PORTS: &str = "netlink/ports";
/// Memory of sockets.
pub const SOCKSTAT: &str = "/proc/net/sockstat";
/// Counters of the memory management.
pub const VMSTAT: &str = "/proc/vmstat";
/// Counters of the receive softirq.
pub const SOFTNET: &str = "/proc/net/softnet_stat";
/// Time that each CPU spent in each state.
pub const TIMES: &str = "/proc/stat";
pub const TOPOLOGY: &str = "/sys/devices/system/cpu/cpu*/topology";
pub const UDP: &str = "/proc/net/udp";
pub const UDP6: &str = "/proc/net/udp6";
/// Raw sockets (`raw(7)`) and their drops.
pub const RAW: &str = "/proc/net/raw";
pub const RAW6: &str = "/proc/net/raw6";
