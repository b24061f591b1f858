//! Queue weights on netdevsim, which implements net-shaper without hardware.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use evenkeel_control::{Applied, DeviceShapers, OpenGate, ShaperWeights, WeightBackend};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::shaper::{Shaper, Shapers};

const BUS: &str = "/sys/bus/netdevsim";
const QUEUES: u32 = 4;
const ID: u32 = 81;

struct Simulated;

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ = fs::write(format!("{BUS}/del_device"), ID.to_string());
    }
}

#[test]
fn a_device_has_the_weights_of_its_queues_and_then_its_own_again() {
    guest::require();
    assert!(Command::new("modprobe").arg("netdevsim").status().unwrap().success());
    fs::write(format!("{BUS}/new_device"), format!("{ID} 1 {QUEUES}")).unwrap();
    let _device = Simulated;
    let entry = fs::read_dir(format!("{BUS}/devices/netdevsim{ID}/net")).unwrap().next().unwrap();
    let name = entry.unwrap().file_name().into_string().unwrap();
    let index = Netlink::open().unwrap().link_index(&name).unwrap();

    let mut shapers = Shapers::open().unwrap().expect("this kernel has net-shaper");
    let limited = Shaper { bandwidth_max: 10_000_000_000, weight: 9, ..Shaper::default() };
    shapers.restore_queue(index, 2, Some(&limited)).unwrap();
    let before = shapers.queues(index).unwrap();

    let device = DeviceShapers::new(Shapers::open().unwrap().unwrap(), index);
    let mut backend = ShaperWeights::new(device, QUEUES, 100, Arc::new(OpenGate)).unwrap();
    let mut weights = |backend: &mut ShaperWeights, wanted: &[u32]| {
        let applied = backend.apply(wanted, 65_536).unwrap();
        let found: BTreeMap<u32, u32> = shapers
            .queues(index)
            .unwrap()
            .into_iter()
            .map(|(queue, shaper)| (queue, shaper.weight))
            .collect();
        (applied, found.into_values().collect::<Vec<_>>())
    };
    assert_eq!(weights(&mut backend, &[3, 0, 5, 2]), (Applied { queues: 4, cut: false }, vec![3, 2, 5, 2]));
    assert_eq!(
        weights(&mut backend, &[3, 1, 500, 2]),
        (Applied { queues: 2, cut: true }, vec![3, 1, 100, 2])
    );
    backend.restore().unwrap();
    assert_eq!(shapers.queues(index).unwrap(), before);
}
