//! Counts dropped packets by the kernel's drop reason, from the tracepoint `skb:kfree_skb`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::btf::{Btf, ReferencesType as _, types};
use libbpf_rs::{MapCore, MapFlags, Object};

use crate::error::DatapathError;
use crate::object;
use crate::queue_select::Tuple;
use crate::raw;

const OBJECT: &str = "drops";
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.o"));

#[derive(Clone, Debug)]
pub struct DropCount {
    /// The kernel's name without the prefix `SKB_DROP_REASON_`, such as `SOCKET_RCVBUFF`.
    pub reason: String,
    /// `None` if the IP header could not be read, or the table of flows is full. For protocols other than TCP
    /// and UDP, and for fragments other than the first, the ports are 0.
    pub flow: Option<Tuple>,
    pub packets: u64,
}

/// Counts the drops in one or all network namespaces while it is attached. Dropping this value detaches the
/// program.
pub struct DropReasons {
    _link: OwnedFd,
    object: Object,
    names: BTreeMap<u32, String>,
}

impl DropReasons {
    /// Loads and attaches the program. It counts drops in the network namespace with this inode, and drops in
    /// an unknown namespace. With inode 0, it counts all drops.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the program: without `CAP_BPF` and `CAP_PERFMON`, or before
    /// Linux 5.17, which introduced drop reasons.
    pub fn attach(namespace_inode: u32) -> Result<Self, DatapathError> {
        let types = Btf::from_vmlinux().map_err(|error| DatapathError::System {
            action: "read the kernel's type information",
            source: crate::error::io_error(&error),
        })?;
        let (names, names_receiver) = (reasons(&types)?, names_receiver(&types));
        let mut opened = object::open(OBJECT, BYTES)?;
        for mut map in opened.maps_mut() {
            if map.name().to_str().is_some_and(|name| name.ends_with(".rodata")) {
                let settings = [namespace_inode, u32::from(names_receiver)].map(u32::to_ne_bytes).concat();
                object::initialise(&mut map, ".rodata", 0, &settings)?;
            }
        }
        let object = object::load(OBJECT, opened)?;
        let map = object::map(&object, "drops")?;
        for reason in names.keys() {
            let key = raw::ek_drop { reason: *reason, ..raw::ek_drop::default() };
            // SAFETY: the structure has no padding, because its size is the sum of its fields' sizes.
            let key = unsafe { object::bytes_of(&key) };
            map.update(key, &0_u64.to_ne_bytes(), MapFlags::ANY)
                .map_err(DatapathError::system("add the reasons to the table of drops"))?;
        }
        let program = object::program_descriptor(&object, "count_drop")?;
        // SAFETY: a NULL name is valid, because the load bound the program to its tracepoint
        // (`attach_btf_id`). `program` keeps its descriptor open during the call.
        let link =
            unsafe { libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_fd().as_raw_fd()) };
        if link < 0 {
            let source = std::io::Error::from_raw_os_error(-link);
            return Err(DatapathError::System { action: "attach to the tracepoint skb:kfree_skb", source });
        }
        // SAFETY: the kernel returned this descriptor, and nothing else owns it.
        let link = unsafe { OwnedFd::from_raw_fd(link) };
        Ok(Self { _link: link, object, names })
    }

    /// Returns the drops since the program was attached, most frequent ones first. Omits the drops of further
    /// flows and reasons once the map is full (8192 entries).
    pub fn counts(&self) -> Result<Vec<DropCount>, DatapathError> {
        let map = object::map(&self.object, "drops")?;
        let mut counts = Vec::new();
        for key in map.keys() {
            let value =
                map.lookup(&key, MapFlags::ANY).map_err(DatapathError::system("read a drop's count"))?;
            let packets = value.and_then(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)));
            let is_whole = key.len() >= size_of::<raw::ek_drop>();
            let Some(packets) = packets.filter(|packets| *packets > 0 && is_whole) else { continue };
            // SAFETY: the key is at least as long as the structure, whose fields are integers.
            let key = unsafe { std::ptr::read_unaligned(key.as_ptr().cast::<raw::ek_drop>()) };
            let reason =
                self.names.get(&key.reason).cloned().unwrap_or_else(|| format!("reason {}", key.reason));
            let flow = (key.tuple.family != 0).then(|| Tuple::from_raw(&key.tuple));
            counts.push(DropCount { reason, flow, packets });
        }
        counts.sort_by(|one, other| {
            other.packets.cmp(&one.packets).then_with(|| one.reason.cmp(&other.reason))
        });
        Ok(counts)
    }
}

fn reasons(types: &Btf<'_>) -> Result<BTreeMap<u32, String>, DatapathError> {
    let Some(reasons) = types.type_by_name::<types::Enum<'_>>("skb_drop_reason") else {
        return Err(DatapathError::Limit(
            "this kernel reports no drop reasons: it is older than Linux 5.17".to_owned(),
        ));
    };
    let name = |member: types::EnumMember<'_>| {
        let name = member.name?.to_str()?;
        let short = name.strip_prefix("SKB_DROP_REASON_").unwrap_or(name).to_owned();
        Some((u32::try_from(member.value).ok()?, short))
    };
    Ok(reasons.iter().filter_map(name).collect())
}

/// Returns whether the tracepoint has the receiving socket: `kfree_skb(void *, skb, location, reason,
/// rx_sk)`.
fn names_receiver(types: &Btf<'_>) -> bool {
    const PARAMETERS: usize = 5;
    let traced = types.type_by_name::<types::Typedef<'_>>("btf_trace_kfree_skb");
    let pointer = traced.and_then(|traced| types::Ptr::try_from(traced.referenced_type()).ok());
    let function = pointer.and_then(|pointer| types::FuncProto::try_from(pointer.referenced_type()).ok());
    function.is_some_and(|function| function.iter().count() == PARAMETERS)
}
