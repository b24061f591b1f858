//! Tests of queue weights on real kernel interfaces: netdevsim supports all of net-shaper, igb has no
//! shapers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../scripts/vm/guest.rs"]
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use evenkeel_netlink::Netlink;
use evenkeel_netlink::shaper::{QueueCapabilities, Shaper, Shapers};
use evenkeel_netlink::tx_maxrate::{TxMaxrate, TxMaxrateError};

const BUS: &str = "/sys/bus/netdevsim";
const QUEUES: u32 = 4;

/// A simulated device. Dropping the value removes the device.
struct Simulated {
    id: u32,
    index: u32,
}

impl Simulated {
    fn new(id: u32) -> Self {
        assert!(Command::new("modprobe").arg("netdevsim").status().unwrap().success());
        fs::write(format!("{BUS}/new_device"), format!("{id} 1 {QUEUES}")).unwrap();
        let entry = fs::read_dir(format!("{BUS}/devices/netdevsim{id}/net")).unwrap().next().unwrap();
        let name = entry.unwrap().file_name().into_string().unwrap();
        let index = Netlink::open().unwrap().link_index(&name).unwrap();
        Self { id, index }
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ = fs::write(format!("{BUS}/del_device"), self.id.to_string());
    }
}

fn igb() -> (String, u32) {
    let of_igb = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("device/driver")).is_ok_and(|driver| driver.ends_with("igb"))
    };
    let entry = fs::read_dir("/sys/class/net").unwrap().map(Result::unwrap).find(of_igb).unwrap();
    let name = entry.file_name().into_string().unwrap();
    let index = Netlink::open().unwrap().link_index(&name).unwrap();
    (name, index)
}

#[test]
fn queue_weights_are_set_read_and_put_back() {
    guest::require();
    let device = Simulated::new(71);
    let mut shapers = Shapers::open().unwrap().expect("this kernel has net-shaper");
    assert!(shapers.queue_capabilities(device.index).unwrap().weight);
    assert_eq!(shapers.queues(device.index).unwrap(), BTreeMap::new());
    assert_eq!(shapers.queue(device.index, 0).unwrap(), None);

    // Another program has already limited the rate of a queue.
    let limited = Shaper { bandwidth_max: 10_000_000_000, burst: 65_536, ..Shaper::default() };
    shapers.restore_queue(device.index, 2, Some(&limited)).unwrap();
    let before = shapers.queues(device.index).unwrap();
    assert_eq!(before, BTreeMap::from([(2, limited)]));

    for (queue, weight) in [(0, 1), (1, 7), (2, 3), (3, u32::MAX), (1, 2)] {
        shapers.set_queue_weight(device.index, queue, weight).unwrap();
    }
    let weights: Vec<u32> =
        shapers.queues(device.index).unwrap().values().map(|shaper| shaper.weight).collect();
    assert_eq!(weights, [1, 2, 3, u32::MAX]);
    assert_eq!(
        shapers.queue(device.index, 2).unwrap(),
        Some(Shaper { weight: 3, ..limited }),
        "a weight leaves the rest alone"
    );

    for queue in 0..QUEUES {
        shapers.restore_queue(device.index, queue, before.get(&queue)).unwrap();
    }
    assert_eq!(shapers.queues(device.index).unwrap(), before);
    shapers.restore_queue(device.index, 0, None).unwrap();
}

#[test]
fn a_queue_that_is_not_there_is_refused_in_the_kernels_words() {
    guest::require();
    let device = Simulated::new(72);
    let mut shapers = Shapers::open().unwrap().unwrap();
    let error = shapers.set_queue_weight(device.index, QUEUES, 1).unwrap_err();
    assert_eq!(error.refusal_code(), Some(libc::ENOENT));
    assert!(error.to_string().contains("Not existing queue id 4"), "{error}");
}

#[test]
fn a_driver_without_shapers_has_no_capabilities() {
    guest::require();
    let (_, index) = igb();
    let mut shapers = Shapers::open().unwrap().unwrap();
    assert_eq!(shapers.queue_capabilities(index).unwrap(), QueueCapabilities::default());
    let error = shapers.set_queue_weight(index, 0, 1).unwrap_err();
    assert_eq!(error.refusal_code(), Some(libc::EOPNOTSUPP), "{error}");
    let error = shapers.queue_capabilities(i32::MAX as u32).unwrap_err();
    assert_ne!(error.refusal_code(), Some(libc::EOPNOTSUPP), "{error}");
}

#[test]
fn a_driver_without_rate_caps_refuses_them() {
    guest::require();
    let (name, _) = igb();
    let rates = TxMaxrate::new(Path::new("/sys"), &name);
    assert_eq!(rates.get(0).unwrap(), 0);
    assert!(!rates.is_supported(0).unwrap());
    match rates.set(0, 100) {
        Err(TxMaxrateError::File { source, .. }) => {
            assert_eq!(source.raw_os_error(), Some(libc::EOPNOTSUPP), "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rates.get(0).unwrap(), 0);
}
