//! The XPS maps that drivers set by themselves.
//!
//! Some drivers distribute the CPUs over their queues when they create the queues. The kernel does
//! not record which program set a map. So this module attributes a map to the driver if the map has the
//! form of the driver's distribution.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use evenkeel_host::{XpsKey, XpsMap};
use evenkeel_model::change::processor_list_text;
use evenkeel_model::text::counted;

/// Distribution of the CPUs over the queues by a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// Each queue has one CPU.
    OneEach,
    /// Each CPU has a queue. If there are fewer queues than CPUs, a queue has several CPUs.
    All,
}

/// The drivers that set XPS maps. Each comment names the file (below `drivers/net`) and the function.
const DRIVERS: [(&str, Spread); 11] = [
    ("virtio_net", Spread::All),  // virtio_net.c: virtnet_set_affinity
    ("mlx5_core", Spread::All),   // ethernet/mellanox/mlx5/core/en_main.c: mlx5e_set_default_xps_cpumasks
    ("bnxt_en", Spread::All),     // ethernet/broadcom/bnxt/bnxt.c: bnxt_set_xps_mapping
    ("mlx4_en", Spread::OneEach), // ethernet/mellanox/mlx4/en_tx.c: mlx4_en_activate_tx_ring
    ("ixgbe", Spread::OneEach),   // ethernet/intel/ixgbe/ixgbe_main.c: ixgbe_configure_tx_ring
    ("i40e", Spread::OneEach),    // ethernet/intel/i40e/i40e_main.c: i40e_config_xps_tx_ring
    ("ice", Spread::OneEach),     // ethernet/intel/ice/ice_base.c: ice_cfg_xps_tx_ring
    ("fm10k", Spread::OneEach),   // ethernet/intel/fm10k/fm10k_pci.c: fm10k_configure_tx_ring
    ("gve", Spread::OneEach),     // ethernet/google/gve/gve_tx.c: gve_tx_add_to_block
    ("enic", Spread::OneEach),    // ethernet/cisco/enic/enic_main.c: enic_set_affinity_hint
    ("mvpp2", Spread::OneEach),   // ethernet/marvell/mvpp2/mvpp2_main.c: mvpp2_setup_txqs
];

/// Directories with programs and rules that the system runs on new interfaces.
const CONFIGURATION: [&str; 9] = [
    "etc/udev/rules.d",
    "run/udev/rules.d",
    "usr/lib/udev/rules.d",
    "etc/tuned",
    "etc/systemd/system",
    "etc/NetworkManager/dispatcher.d",
    "etc/networkd-dispatcher/routable.d",
    "etc/network/if-up.d",
    "etc/cron.d",
];
/// Limits of a search: number of files per directory, and bytes per file.
const MOST_FILES: usize = 500;
const MOST_BYTES: u64 = 64 * 1024;

/// Checks whether the driver set the maps. `nearest` lists the online CPUs by distance from the device.
///
/// # Errors
/// Returns the first reason why the driver did not set the maps, as a clause.
pub fn check(driver: &str, maps: &[XpsMap], nearest: &[u32]) -> Result<(), String> {
    let Some((_, spread)) = DRIVERS.iter().find(|(name, _)| *name == driver) else {
        return Err(format!("the driver ({driver}) sets no XPS maps"));
    };
    if let Some(map) = maps.iter().find(|map| map.key == XpsKey::ReceiveQueues && !map.members.is_empty()) {
        return Err(format!("{} of queue {} is set, and {driver} never sets it", map.key.file(), map.queue));
    }
    let maps: Vec<&XpsMap> = maps.iter().filter(|map| map.key == XpsKey::Cpus).collect();
    let mut queues: BTreeMap<u32, usize> = BTreeMap::new();
    for member in maps.iter().flat_map(|map| &map.members) {
        *queues.entry(*member).or_default() += 1;
    }
    // With more queues than CPUs, a queue has one CPU, and a CPU has several queues.
    let (least, most) = match spread {
        Spread::OneEach => (1, 1),
        Spread::All => shares(queues.len(), maps.len()),
    };
    if let Some(map) = maps.iter().find(|map| !(least..=most).contains(&map.members.len())) {
        let usual = if least == most { least.to_string() } else { format!("{least} or {most}") };
        return Err(format!(
            "queue {} has {}, where {driver} sets {usual}",
            map.queue,
            counted(map.members.len(), "processor")
        ));
    }
    let (_, most) = shares(maps.len(), queues.len());
    if let Some((member, count)) = queues.iter().find(|(_, count)| **count > most) {
        return Err(format!("processor {member} has {count} queues, where {driver} gives it at most {most}"));
    }
    let named: BTreeSet<u32> = queues.into_keys().collect();
    let first = |order: &[u32]| order.iter().take(named.len()).copied().collect::<BTreeSet<u32>>();
    let mut ascending = nearest.to_vec();
    ascending.sort_unstable();
    let usual = first(nearest);
    if named == usual || named == first(&ascending) {
        return Ok(());
    }
    let missing: BTreeSet<u32> = usual.difference(&named).copied().collect();
    let (noun, verb) = if missing.len() == 1 { ("processor", "has") } else { ("processors", "have") };
    let list = processor_list_text(&missing);
    Err(format!("{noun} {list} {verb} no queue, and {driver} uses the nearest processors"))
}

/// Returns the smallest and largest share if `number` is distributed over `places`, at least one each.
fn shares(number: usize, places: usize) -> (usize, usize) {
    let places = places.max(1);
    ((number / places).max(1), number.div_ceil(places).max(1))
}

/// Returns the files of the system's configuration that may set XPS maps, sorted. These files mention the
/// maps, or a driver's script that sets the maps.
#[must_use]
pub fn possible_setters(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = CONFIGURATION
        .iter()
        .filter_map(|directory| std::fs::read_dir(root.join(directory)).ok())
        .flat_map(|entries| entries.flatten().take(MOST_FILES))
        .map(|entry| entry.path())
        .filter(|path| mentions_xps(path))
        .collect();
    found.sort();
    found
}

fn mentions_xps(path: &Path) -> bool {
    // Reading a FIFO would block.
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return false;
    }
    let mut text = Vec::new();
    let Ok(file) = std::fs::File::open(path) else { return false };
    if file.take(MOST_BYTES).read_to_end(&mut text).is_err() {
        return false;
    }
    let text = String::from_utf8_lossy(&text);
    ["xps_cpus", "xps_rxqs", "set_irq_affinity"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::xps::tests::maps;

    const EIGHT: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    /// The CPUs by distance from a device at the second node.
    const SECOND_NODE: [u32; 8] = [4, 5, 6, 7, 0, 1, 2, 3];

    #[test]
    fn distributions_of_drivers_are_recognised() {
        // virtnet_set_affinity: 8 CPUs on 3 queues.
        check("virtio_net", &maps(&[&[0, 1, 2], &[3, 4, 5], &[6, 7]]), &EIGHT).unwrap();
        check("virtio_net", &maps(&[&[0], &[1], &[0], &[1]]), &[0, 1]).unwrap();
        // mlx5e_set_default_xps_cpumasks: vectors 0, 2, 4, 6 and 1, 3, 5, 7 from the nearest CPU.
        check("mlx5_core", &maps(&[&[4, 6, 0, 2], &[5, 7, 1, 3]]), &SECOND_NODE).unwrap();
        check("ice", &maps(&[&[4], &[5], &[6], &[7]]), &SECOND_NODE).unwrap();
        // i40e_config_xps_tx_ring uses no node: cpumask_local_spread(vector, -1).
        check("i40e", &maps(&[&[0], &[1]]), &SECOND_NODE).unwrap();
        check("i40e", &maps(&[&[0], &[1], &[0]]), &[0, 1]).unwrap();
    }

    #[test]
    fn maps_of_an_administrator_are_named() {
        let difference = |driver, members: &[&[u32]]| check(driver, &maps(members), &EIGHT).unwrap_err();
        assert_eq!(difference("igb", &[&[0], &[1]]), "the driver (igb) sets no XPS maps");
        assert_eq!(difference("ice", &[&[0], &[1, 2]]), "queue 1 has 2 processors, where ice sets 1");
        assert_eq!(difference("ice", &[&[0], &[]]), "queue 1 has 0 processors, where ice sets 1");
        assert_eq!(
            difference("virtio_net", &[&[0, 1, 2, 3, 4], &[5, 6, 7]]),
            "queue 0 has 5 processors, where virtio_net sets 4"
        );
        assert_eq!(
            difference("ixgbe", &[&[1], &[2]]),
            "processor 0 has no queue, and ixgbe uses the nearest processors"
        );
        assert_eq!(
            difference("i40e", &[&[0], &[0], &[0], &[1]]),
            "processor 0 has 3 queues, where i40e gives it at most 2"
        );
        let by_receive_queue = [XpsMap { queue: 0, key: XpsKey::ReceiveQueues, members: vec![0] }];
        assert_eq!(
            check("ice", &by_receive_queue, &EIGHT).unwrap_err(),
            "xps_rxqs of queue 0 is set, and ice never sets it"
        );
    }

    #[test]
    fn configuration_that_sets_maps_is_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("etc/udev/rules.d/70-net.rules", "ATTR{queues/tx-0/xps_cpus}=\"f\"\n");
        write("etc/udev/rules.d/80-other.rules", "ATTR{mtu}=\"9000\"\n");
        write("etc/systemd/system/nic.service", "ExecStart=/opt/set_irq_affinity local eth0\n");
        let found = possible_setters(root.path());
        assert_eq!(
            found,
            [
                root.path().join("etc/systemd/system/nic.service"),
                root.path().join("etc/udev/rules.d/70-net.rules")
            ]
        );
    }
}
