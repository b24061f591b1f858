//! TCP LoLa as a congestion control: loading, settings, counters, flows.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use evenkeel_transmit::lola::{Phase, Settings};
use libbpf_rs::btf::{Btf, BtfType};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, OpenObject};

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::object;
use crate::queue_select::Tuple;
use crate::raw;

const OBJECT: &str = "lola";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lola.bpf.o"));

/// The kernel's BTF type for congestion controls in BPF (`net/ipv4/bpf_tcp_ca.c`).
const KERNEL_TYPE: &str = "bpf_struct_ops_tcp_congestion_ops";
/// Noun for the object in error messages.
const KIND: &str = "a congestion control";
/// The program that grows the window; it uses every map.
const GROWTH: &str = "lola_cong_avoid";

const SETTINGS: &str = ".data.settings";
const COUNTERS: &str = ".data.counters";
const FLOWS: &str = "lola_flows";

type RawSettings = evenkeel_transmit::raw::ek_lola_settings;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LolaCounters {
    pub started: u64,
    pub ended: u64,
    /// Flows whose state is not published, because the map of flows was full.
    pub unseen: u64,
    pub losses: u64,
    /// Number of tailored decreases.
    pub decreases: u64,
}

/// State of a flow after its last measurement, loss or change of phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LolaFlow {
    pub tuple: Tuple,
    /// Time since the flow began to use this congestion control, ns.
    pub age_ns: u64,
    pub phase: Phase,
    /// Packets.
    pub cwnd: u32,
    /// Bytes.
    pub mss: u32,
    /// `None` before the first RTT sample.
    pub base_rtt_us: Option<u32>,
    pub queueing_us: u32,
    pub losses: u32,
    pub decreases: u32,
}

struct Maps {
    settings: Mapped<RawSettings>,
    counters: Mapped<raw::ek_lola_counters>,
    flows: MapHandle,
}

impl Maps {
    fn of(maps: &[MapHandle]) -> Result<Self, DatapathError> {
        let find = |name: &'static str| {
            let named = maps.iter().find(|map| map.name() == name);
            named.ok_or(DatapathError::Missing { kind: "map", name })
        };
        Ok(Self {
            settings: Mapped::new(find(SETTINGS)?.as_fd(), 1)?,
            counters: Mapped::new(find(COUNTERS)?.as_fd(), 1)?,
            flows: MapHandle::try_from(find(FLOWS)?)
                .map_err(DatapathError::system("duplicate a BPF map's descriptor"))?,
        })
    }

    fn counters(&self) -> LolaCounters {
        let raw::ek_lola_counters { started, ended, unseen, losses, decreases, .. } = self.counters.read(0);
        LolaCounters { started, ended, unseen, losses, decreases }
    }

    fn flows(&self) -> Result<Vec<LolaFlow>, DatapathError> {
        let now = crate::monotonic_ns();
        let mut flows = Vec::new();
        for key in self.flows.keys() {
            let value = self
                .flows
                .lookup(&key, MapFlags::ANY)
                .map_err(DatapathError::system("read the state of a flow"))?;
            // The flow may have ended since its key was read.
            let Some(value) = value.filter(|value| value.len() >= size_of::<raw::ek_lola_flow>()) else {
                continue;
            };
            // SAFETY: the value is at least as long as the structure, whose fields are integers.
            let flow = unsafe { std::ptr::read_unaligned(value.as_ptr().cast::<raw::ek_lola_flow>()) };
            flows.push(LolaFlow {
                tuple: Tuple::from_raw(&flow.tuple),
                age_ns: now.saturating_sub(flow.started_ns),
                phase: Phase::of(flow.phase as u8),
                cwnd: flow.cwnd,
                mss: flow.mss,
                base_rtt_us: (flow.base_rtt_us != 0).then_some(flow.base_rtt_us),
                queueing_us: flow.queueing_us,
                losses: flow.losses,
                decreases: flow.decreases,
            });
        }
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.age_ns));
        Ok(flows)
    }

    fn settings(&self) -> Settings {
        self.settings.read(0).into()
    }

    fn set(&self, settings: &Settings) {
        // SAFETY: a valid, aligned pointer into the mapping; a program may read a mix of old and new values,
        // each of which is valid.
        unsafe { self.settings.pointer(0).write_volatile((*settings).into()) }
    }
}

/// TCP LoLa, registered with the kernel while this value lives or its link is pinned. Flows that use
/// TCP LoLa keep it until they end, even after `kill -9`.
pub struct LolaCongestion {
    maps: Maps,
    name: String,
    registration: Link,
    _object: Object,
}

impl LolaCongestion {
    /// Returns whether the kernel supports congestion controls in BPF: `CONFIG_BPF_JIT` and BTF.
    pub fn is_available() -> Result<bool, DatapathError> {
        let types =
            Btf::from_vmlinux().map_err(DatapathError::system("read the kernel's type information"))?;
        Ok(types.type_by_name::<BtfType<'_>>(KERNEL_TYPE).is_some())
    }

    /// Loads and registers the congestion control under a name.
    ///
    /// # Errors
    /// Returns an error if the name or a setting is invalid, the name is taken, or the kernel refuses.
    pub fn register(name: &str, settings: &Settings) -> Result<Self, DatapathError> {
        object::operations_name(KIND, name)?;
        settings.check().map_err(DatapathError::Limit)?;
        let mut opened = object::open(OBJECT, BYTES)?;
        configure(&mut opened, name, settings)?;
        let mut object = object::load(OBJECT, opened)?;
        let handles: Vec<MapHandle> =
            object.maps().filter_map(|map| MapHandle::try_from(&map).ok()).collect();
        let maps = Maps::of(&handles)?;
        let registration = object
            .maps_mut()
            .find(|map| map.name() == OBJECT)
            .ok_or(DatapathError::Missing { kind: "map", name: OBJECT })?
            .attach_struct_ops()
            .map_err(DatapathError::system("register the congestion control"))?;
        Ok(Self { maps, name: name.to_owned(), registration, _object: object })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn settings(&self) -> Settings {
        self.maps.settings()
    }

    #[must_use]
    pub fn counters(&self) -> LolaCounters {
        self.maps.counters()
    }

    /// Returns the flows, oldest first.
    pub fn flows(&self) -> Result<Vec<LolaFlow>, DatapathError> {
        self.maps.flows()
    }

    /// Pins the registration, so that it outlives this process until the pinned file is removed.
    ///
    /// # Errors
    /// Returns an error if the file exists, or no BPF file system is mounted.
    pub fn pin(&mut self) -> Result<PathBuf, DatapathError> {
        let path = pin_path(&self.name)?;
        self.registration.pin(&path).map_err(DatapathError::system("pin the congestion control"))?;
        Ok(path)
    }
}

pub fn pin_path(name: &str) -> Result<PathBuf, DatapathError> {
    object::operations_name(KIND, name)?;
    Ok(Path::new("/sys/fs/bpf").join(format!("evenkeel-{name}")))
}

/// A congestion control that this or another process registered. An unregistered congestion control
/// stays in the kernel while flows use it.
pub struct LolaInstance {
    maps: Maps,
}

impl LolaInstance {
    /// Returns all instances in the kernel, the newest last.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses: without `CAP_SYS_ADMIN`.
    pub fn all() -> Result<Vec<Self>, DatapathError> {
        let mut found = Vec::new();
        let mut id = 0;
        loop {
            // SAFETY: takes an id and writes the next one.
            let result = unsafe { libbpf_sys::bpf_prog_get_next_id(id, &mut id) };
            match -result {
                0 => {}
                libc::ENOENT => return Ok(found),
                code => {
                    let source = std::io::Error::from_raw_os_error(code);
                    return Err(DatapathError::System { action: "list the BPF programs", source });
                }
            }
            // SAFETY: takes an id and returns a descriptor or a negative error, as for a program that is
            // gone.
            let descriptor = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
            if descriptor < 0 {
                continue;
            }
            // SAFETY: the kernel returned this descriptor, and nothing else owns it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            if let Some(maps) = maps_of(&descriptor)?
                && let Ok(maps) = Maps::of(&maps)
            {
                found.push(Self { maps });
            }
        }
    }

    #[must_use]
    pub fn name(&self) -> String {
        let name = self.maps.counters.read(0).name;
        name.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect()
    }

    #[must_use]
    pub fn settings(&self) -> Settings {
        self.maps.settings()
    }

    /// Changes the settings of all flows, from the next ACK.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range.
    pub fn set(&self, settings: &Settings) -> Result<(), DatapathError> {
        settings.check().map_err(DatapathError::Limit)?;
        self.maps.set(settings);
        Ok(())
    }

    #[must_use]
    pub fn counters(&self) -> LolaCounters {
        self.maps.counters()
    }

    /// Returns the flows, oldest first.
    pub fn flows(&self) -> Result<Vec<LolaFlow>, DatapathError> {
        self.maps.flows()
    }
}

/// Returns the maps of a program; `None` if the program is not TCP LoLa.
fn maps_of(program: &OwnedFd) -> Result<Option<Vec<MapHandle>>, DatapathError> {
    const MOST: usize = 8;
    let known = object::program_info(program.as_fd())?;
    let name: Vec<u8> = known.name.iter().map(|character| *character as u8).collect();
    if CStr::from_bytes_until_nul(&name).is_ok_and(|name| name.to_bytes() != GROWTH.as_bytes()) {
        return Ok(None);
    }
    let mut ids = [0_u32; MOST];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: MOST as u32,
        map_ids: ids.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is as long as `length` says, and points to as many ids as it says.
    let result = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut length) };
    if result < 0 {
        let source = std::io::Error::from_raw_os_error(-result);
        return Err(DatapathError::System {
            action: "read the kernel's information about a BPF program",
            source,
        });
    }
    let count = (info.nr_map_ids as usize).min(MOST);
    Ok(Some(ids[..count].iter().filter_map(|id| MapHandle::from_map_id(*id).ok()).collect()))
}

fn configure(opened: &mut OpenObject, name: &str, settings: &Settings) -> Result<(), DatapathError> {
    let (name, settings): (_, RawSettings) = (object::operations_name(KIND, name)?, (*settings).into());
    let named = std::mem::offset_of!(raw::ek_lola_counters, name);
    // SAFETY: a structure of integers without padding.
    let settings = unsafe { object::bytes_of(&settings) };
    for mut map in opened.maps_mut() {
        match map.name().to_str() {
            Some(SETTINGS) => object::initialise(&mut map, SETTINGS, 0, settings)?,
            Some(COUNTERS) => object::initialise(&mut map, COUNTERS, named, &name)?,
            // The name is the first member of the program's `struct tcp_congestion_ops`.
            Some(OBJECT) => object::initialise(&mut map, OBJECT, 0, &name)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn settings_and_name_are_where_the_program_has_them() {
        let mut opened = object::open(OBJECT, BYTES).unwrap();
        let settings = Settings { target_us: 7654, ..Settings::default() };
        configure(&mut opened, "evk7", &settings).unwrap();
        let value = |name: &str| {
            let map = opened.maps().find(|map| map.name() == name).unwrap();
            map.initial_value().unwrap().to_vec()
        };
        assert_eq!(value(SETTINGS)[..4], 7654_u32.to_ne_bytes());
        assert!(value(COUNTERS).windows(5).any(|bytes| bytes == b"evk7\0"));
        assert_eq!(value(OBJECT)[..16], *b"evk7\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn names_that_the_kernel_would_refuse_are_refused() {
        object::operations_name(KIND, "evenkeel_lola_1").unwrap();
        for bad in ["", "evenkeel_lola_12", "lo-la", "lo la", "ä", "a/b"] {
            let error = object::operations_name(KIND, bad).unwrap_err().to_string();
            assert!(error.contains("not a name of a congestion control"), "{bad}: {error}");
        }
    }

    #[test]
    fn settings_are_checked_before_the_kernel_sees_them() {
        let settings = Settings { curve: 0, ..Settings::default() };
        let error = LolaCongestion::register("evk8", &settings).err().unwrap().to_string();
        assert!(error.contains("curve"), "{error}");
    }
}
