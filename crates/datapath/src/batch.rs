//! Transmit batching as a qdisc: loading, settings, counters.

use std::os::fd::AsFd;

use libbpf_rs::btf::{Btf, BtfType};
use libbpf_rs::{Link, MapCore, Object, OpenObject};

use crate::error::DatapathError;
use crate::mapped::Mapped;
use crate::object;
use crate::raw;

const OBJECT: &str = "batch";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/batch.bpf.o"));

/// The kernel's BTF type for qdiscs in BPF (`net/sched/bpf_qdisc.c`). Kernels without this type do not
/// support BPF qdiscs.
const KERNEL_TYPE: &str = "bpf_struct_ops_Qdisc_ops";

/// Noun for the object in error messages.
const KIND: &str = "a qdisc";

#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Name of the qdisc, unique on the machine: at most 15 ASCII letters, digits, `_` and `.`.
    pub name: String,
    /// Maximum time for which the queue holds a segment that arrives when the queue is empty, ns; 0: no hold.
    pub hold_ns: u64,
    /// A queue with this many segments is not held.
    pub batch_packets: u32,
    /// Capacity of each queue in segments, 1 to 65,536.
    pub limit_packets: u32,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { name: "evenkeel".to_owned(), hold_ns: 10_000, batch_packets: 32, limit_packets: 1000 }
    }
}

/// Counters, summed over all instances of the qdisc of one [`TransmitBatching`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounters {
    pub held: u64,
    /// Number of batches with more than one segment.
    pub batches: u64,
    pub dropped: u64,
}

/// A qdisc that briefly holds segments, so that all sockets of a batch enqueue before it dequeues (Titan,
/// section 4.4). Requires Linux 6.16 or later.
///
/// The qdisc can be a device's root qdisc or a child of `mq`. Use a value for one device only: the same
/// queue of two devices would share its segments. Dropping this value, or the end of the
/// process, removes the qdisc's registration but not its instances on devices. The kernel keeps
/// programs and maps until the instance is replaced. So remove the qdisc from the devices before
/// dropping this value.
pub struct TransmitBatching {
    counters: Mapped<raw::ek_batch_counters>,
    name: String,
    _registration: Link,
    _object: Object,
}

impl TransmitBatching {
    /// Returns whether the kernel supports BPF qdiscs: Linux 6.16 or later, with `CONFIG_NET_SCH_BPF`.
    pub fn is_available() -> Result<bool, DatapathError> {
        let types =
            Btf::from_vmlinux().map_err(DatapathError::system("read the kernel's type information"))?;
        Ok(types.type_by_name::<BtfType<'_>>(KERNEL_TYPE).is_some())
    }

    /// Loads and registers the qdisc. No device uses it yet.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, the kernel does not support BPF qdiscs, or the name is
    /// already registered.
    pub fn register(options: &BatchOptions) -> Result<Self, DatapathError> {
        validate(options)?;
        let mut opened = object::open(OBJECT, BYTES)?;
        configure(&mut opened, options)?;
        let mut object = object::load(OBJECT, opened)?;
        let counters = Mapped::new(object::map(&object, ".data.counters")?.as_fd(), 1)?;
        let registration = object
            .maps_mut()
            .find(|map| map.name() == OBJECT)
            .ok_or(DatapathError::Missing { kind: "map", name: OBJECT })?
            .attach_struct_ops()
            .map_err(DatapathError::system("register the qdisc for transmit batching"))?;
        Ok(Self { counters, name: options.name.clone(), _registration: registration, _object: object })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sums over all queues.
    #[must_use]
    pub fn counters(&self) -> BatchCounters {
        let raw::ek_batch_counters { held, batches, dropped } = self.counters.read(0);
        BatchCounters { held, batches, dropped }
    }
}

fn validate(options: &BatchOptions) -> Result<(), DatapathError> {
    object::operations_name(KIND, &options.name)?;
    if !(1..=raw::EK_BATCH_MAX_PACKETS).contains(&options.limit_packets) {
        return Err(DatapathError::Limit(format!(
            "transmit batching cannot hold {} segments for each queue; use 1 to {}",
            options.limit_packets,
            raw::EK_BATCH_MAX_PACKETS
        )));
    }
    Ok(())
}

fn configure(opened: &mut OpenObject, options: &BatchOptions) -> Result<(), DatapathError> {
    let config = raw::ek_batch_config {
        hold_ns: options.hold_ns,
        batch_packets: options.batch_packets,
        limit_packets: options.limit_packets,
    };
    let name = object::operations_name(KIND, &options.name)?;
    // SAFETY: a structure of integers without padding.
    let settings = unsafe { object::bytes_of(&config) };
    for mut map in opened.maps_mut() {
        match map.name().to_str() {
            Some(section) if section.ends_with(".rodata") => {
                object::initialise(&mut map, ".rodata", 0, settings)?;
            }
            // The name is the first member of the program's `struct Qdisc_ops`.
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
        let options = BatchOptions { name: "evk7".to_owned(), hold_ns: 1 << 40, ..BatchOptions::default() };
        configure(&mut opened, &options).unwrap();
        let value = |ends: &str| {
            let map = opened.maps().find(|map| map.name().to_str().unwrap().ends_with(ends)).unwrap();
            map.initial_value().unwrap().to_vec()
        };
        assert_eq!(value(".rodata")[..8], (1_u64 << 40).to_ne_bytes());
        assert_eq!(value("batch")[..16], *b"evk7\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn settings_that_do_not_fit_are_refused() {
        let name = |name: &str| BatchOptions { name: name.to_owned(), ..BatchOptions::default() };
        validate(&name("evenkeel_batch1")).unwrap();
        for bad in ["", "evenkeel_batch12", "even-keel", "ä"] {
            assert!(validate(&name(bad)).unwrap_err().to_string().contains("not a name of a qdisc"), "{bad}");
        }
        let limit = |limit_packets| BatchOptions { limit_packets, ..BatchOptions::default() };
        validate(&limit(65_536)).unwrap();
        for bad in [0, 65_537] {
            assert!(validate(&limit(bad)).unwrap_err().to_string().contains("1 to 65536"), "{bad}");
        }
    }
}
