//! A session: registers the congestion control, sets the default if requested, and undoes both changes.

use std::path::PathBuf;
use std::process::Command;

use evenkeel_apply::{Change, Knob, Leftover, Report, Run, StateDirectory, Value};
use evenkeel_datapath::{DatapathError, LolaCongestion, LolaCounters, LolaFlow};
use evenkeel_host::{Capability, Host};
use evenkeel_transmit::lola::Settings;

use crate::error::CongestionError;
use crate::loaded::{Loaded, loaded};

/// The sysctl of the default congestion control of new sockets, per network namespace.
pub(crate) const DEFAULT: &str = "net/ipv4/tcp_congestion_control";
/// The interface whose journal contains the default. Every network namespace has this interface with
/// this index (`LOOPBACK_IFINDEX`, include/net/net_namespace.h).
const LOOPBACK: (u32, &str) = (1, "lo");
/// The kernel requires `CAP_PERFMON` to load struct_ops programs (`is_perfmon_prog_type`,
/// kernel/bpf/syscall.c).
const CAPABILITIES: [Capability; 3] = [Capability::NetAdmin, Capability::Perfmon, Capability::Bpf];

#[derive(Clone, Debug)]
pub struct Request {
    /// The name by which sockets choose the congestion control.
    pub name: String,
    pub settings: Settings,
    /// Whether the congestion control becomes the default of new sockets in this network namespace.
    pub default: bool,
    /// Whether the registration will be pinned ([`Session::pin`]).
    pub pin: bool,
}

pub struct Session {
    control: LolaCongestion,
    run: Option<Run>,
}

/// The result of a finished session.
pub struct Ended {
    pub counters: LolaCounters,
    /// Flows that keep the congestion control until they end.
    pub flows: Vec<LolaFlow>,
    /// The report about the restored default; `None` if the session had not set the default.
    pub report: Option<Report>,
    /// See [`is_default`].
    pub is_default: bool,
}

/// Returns whether a congestion control is the default of new connections in this network namespace. If
/// an unregistered congestion control is the default, the kernel keeps giving it to new connections until
/// another default is set (`tcp_assign_congestion_control`).
///
/// # Errors
/// Returns an error if the sysctl cannot be read.
pub fn is_default(name: &str) -> Result<bool, CongestionError> {
    Ok(Host::live().read(&format!("/proc/sys/{DEFAULT}"))?.trim() == name)
}

impl Session {
    /// Registers the congestion control. If the request says so, rolls back a killed run, then sets the
    /// default.
    ///
    /// # Errors
    /// Returns an error if a requirement is missing, the name is taken, or a setting is out of range.
    pub fn start(
        request: &Request,
        state: &StateDirectory,
        guardian: Option<Command>,
    ) -> Result<(Self, Option<Leftover>), CongestionError> {
        request.settings.check().map_err(|problem| CongestionError::Usage(format!("--{problem}")))?;
        preflight(request)?;
        let control = LolaCongestion::register(&request.name, &request.settings)
            .map_err(|error| explain(error, &request.name))?;
        if !request.default {
            return Ok((Self { control, run: None }, None));
        }
        let (mut run, leftover) = Run::begin(state, LOOPBACK.0, LOOPBACK.1, "congestion", guardian)?;
        run.change(&Change::new(Knob::Sysctl(DEFAULT.to_owned()), Value::Text(request.name.clone())))?;
        Ok((Self { control, run: Some(run) }, leftover))
    }

    /// Checks that the congestion control is registered. If the session set the default, also checks that
    /// the default is unchanged. Returns the reason to end the session if another program changed either
    /// of them. Call this function several times a second.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or no guardian can be started.
    pub fn check(&mut self) -> Result<Option<String>, CongestionError> {
        if !Host::live().congestion_controls()?.iter().any(|name| name == self.control.name()) {
            return Ok(Some(format!("another program unregistered {}", self.control.name())));
        }
        let Some(run) = &mut self.run else { return Ok(None) };
        Ok(run.disturbances()?.first().map(ToString::to_string))
    }

    /// Returns messages for the user since the last call.
    pub fn take_remarks(&mut self) -> Vec<String> {
        self.run.as_mut().map(Run::take_remarks).unwrap_or_default()
    }

    #[must_use]
    pub fn settings(&self) -> Settings {
        self.control.settings()
    }

    #[must_use]
    pub fn counters(&self) -> LolaCounters {
        self.control.counters()
    }

    /// Returns the flows that use the congestion control, oldest first.
    pub fn flows(&self) -> Result<Vec<LolaFlow>, CongestionError> {
        Ok(self.control.flows()?)
    }

    /// Pins the registration, so that the registration outlives this process. Returns the path of the
    /// pinned file.
    pub fn pin(&mut self) -> Result<PathBuf, CongestionError> {
        Ok(self.control.pin()?)
    }

    /// Restores the default. Unregisters the congestion control, unless it is pinned.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be removed, or the flows or the default cannot be read.
    pub fn finish(self) -> Result<Ended, CongestionError> {
        // Restore the default first, so that no new socket gets an unregistered congestion control.
        let report = self.run.map(Run::finish).transpose()?;
        let (counters, flows) = (self.control.counters(), self.control.flows()?);
        let is_default = is_default(self.control.name())?;
        Ok(Ended { counters, flows, report, is_default })
    }
}

fn preflight(request: &Request) -> Result<(), CongestionError> {
    let host = Host::live();
    let missing = host.missing_capabilities(&CAPABILITIES)?;
    if !missing.is_empty() {
        let list: Vec<String> = missing.iter().map(ToString::to_string).collect();
        return Err(CongestionError::unable(
            format!("this process lacks {}, which loading a congestion control needs", list.join(", ")),
            host.how_to_be_privileged(),
        ));
    }
    if !host.has_sysfs() {
        return Err(CongestionError::unable("/sys is not mounted", "mount it: mount -t sysfs sysfs /sys"));
    }
    if !host.has_btf() {
        return Err(CongestionError::unable(
            "the kernel has no BPF type information (/sys/kernel/btf/vmlinux)",
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as all large distributions have",
        ));
    }
    if !LolaCongestion::is_available()? {
        return Err(CongestionError::unable(
            "the kernel has no congestion controls in BPF (struct_ops for tcp_congestion_ops)",
            "use Linux 6.6 or newer with CONFIG_BPF_JIT",
        ));
    }
    if host.congestion_controls()?.contains(&request.name) {
        return Err(taken(&request.name));
    }
    let mounts = host.read("/proc/self/mounts")?;
    if request.pin && !mounts.lines().any(|mount| mount.contains(" /sys/fs/bpf bpf ")) {
        return Err(CongestionError::unable(
            "no BPF file system is mounted at /sys/fs/bpf, which --pin needs",
            "mount it: mount -t bpf bpf /sys/fs/bpf; instead of `ip netns exec`, which gives each command its own mounts, \
             use `nsenter --net=/run/netns/NAME`",
        ));
    }
    Ok(())
}

fn taken(name: &str) -> CongestionError {
    let found =
        loaded().ok().flatten().map(|all| all.into_iter().find(|one| one.registered && one.name == name));
    let remedy = match found {
        Some(Some(Loaded { pinned: true, .. })) => {
            format!("run `evenkeel congestion unload {name}`, or choose another name with --name")
        }
        Some(None) => {
            "it belongs to the kernel or to another program: choose another name with --name".to_owned()
        }
        _ => "end the process that has loaded it, or unload it in the mount namespace in which it is pinned, or choose \
              another name with --name"
            .to_owned(),
    };
    CongestionError::unable(format!("a congestion control named {name} is already registered"), remedy)
}

/// Replaces the error for a name that was taken after the preflight by a clearer error.
fn explain(error: DatapathError, name: &str) -> CongestionError {
    if error.is_taken() { taken(name) } else { error.into() }
}
