//! The congestion controls of the host, and the removal of a pinned congestion control.

use std::io;
use std::time::{Duration, Instant};

use evenkeel_datapath::{LolaCounters, LolaFlow, LolaInstance, pin_path};
use evenkeel_host::{Capability, Host};
use evenkeel_model::text::path_text;
use evenkeel_transmit::lola::Settings;

use crate::error::CongestionError;
use crate::session::DEFAULT;

#[derive(Clone, Debug)]
pub struct Controls {
    /// The congestion control of new sockets in this network namespace.
    pub default: String,
    pub available: Vec<String>,
    /// The congestion controls that a process without `CAP_NET_ADMIN` may choose.
    pub allowed: Vec<String>,
}

impl Controls {
    /// Reads the congestion controls from `/proc/sys/net/ipv4`.
    pub fn read() -> Result<Self, CongestionError> {
        let host = Host::live();
        let allowed = host.read("/proc/sys/net/ipv4/tcp_allowed_congestion_control")?;
        Ok(Self {
            default: host.read(&format!("/proc/sys/{DEFAULT}"))?.trim().to_owned(),
            available: host.congestion_controls()?,
            allowed: allowed.split_whitespace().map(str::to_owned).collect(),
        })
    }
}

#[derive(Clone, Debug)]
pub struct Loaded {
    pub name: String,
    /// Whether new sockets may choose this congestion control. Otherwise only its users keep it in the
    /// kernel: flows, other sockets, or another network namespace.
    pub registered: bool,
    /// Whether the congestion control is pinned in this mount namespace.
    pub pinned: bool,
    pub settings: Settings,
    pub counters: LolaCounters,
    pub flows: Vec<LolaFlow>,
}

/// Returns Evenkeel's congestion controls in the kernel, oldest first. Returns `None` if the process lacks
/// `CAP_SYS_ADMIN` or `CAP_BPF` in the initial user namespace.
///
/// # Errors
/// Returns an error if the kernel refuses to list or read them.
pub fn loaded() -> Result<Option<Vec<Loaded>>, CongestionError> {
    let host = Host::live();
    if !host.missing_capabilities(&[Capability::SysAdmin, Capability::Bpf])?.is_empty() {
        return Ok(None);
    }
    let available = host.congestion_controls()?;
    let instances = LolaInstance::all()?;
    let mut found = Vec::new();
    for (index, instance) in instances.iter().enumerate() {
        let name = instance.name();
        // Registered names are unique, so only the newest instance of a name can be registered.
        let is_newest = instances[index + 1..].iter().all(|other| other.name() != name);
        let registered = is_newest && available.contains(&name);
        found.push(Loaded {
            registered,
            pinned: registered && pin_path(&name)?.exists(),
            settings: instance.settings(),
            counters: instance.counters(),
            flows: instance.flows()?,
            name,
        });
    }
    Ok(Some(found))
}

/// Maximum time to wait until the kernel removes an unregistered congestion control.
const REMOVAL: Duration = Duration::from_secs(1);

/// Returns whether an unregistered congestion control without flows stays in the kernel: a socket without a
/// connection, or the default of another network namespace, still uses it. Returns `false` if [`loaded`]
/// returns `None`. Waits up to a second for the removal.
///
/// # Errors
/// See [`loaded`].
pub fn lingers(name: &str) -> Result<bool, CongestionError> {
    const PAUSE: Duration = Duration::from_millis(50);
    let began = Instant::now();
    loop {
        let found = loaded()?.and_then(|all| all.into_iter().rfind(|one| one.name == name));
        if found.is_none_or(|one| one.registered || !one.flows.is_empty()) {
            return Ok(false);
        }
        if began.elapsed() > REMOVAL {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends a pinned registration. Existing flows of the congestion control keep it until they end.
///
/// # Errors
/// Returns an error if the congestion control is not pinned, or the pin cannot be removed.
pub fn unload(name: &str) -> Result<(), CongestionError> {
    let path = pin_path(name)?;
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CongestionError::unable(
            format!("no congestion control named {name} is pinned ({} does not exist)", path_text(&path)),
            "if it was loaded without --pin, end the process that loaded it (Ctrl-C or SIGTERM); if it was pinned in \
             another mount namespace, unload it there; `ip netns exec` gives each command its own mounts, \
             `nsenter --net=/run/netns/NAME` does not",
        )),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(CongestionError::unable(
            format!("cannot remove {}: {error}", path_text(&path)),
            "run the command as root",
        )),
        Err(source) => Err(CongestionError::File { action: format!("remove {}", path_text(&path)), source }),
    }
}
