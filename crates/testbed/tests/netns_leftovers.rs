//! Tests that a test bed removes all its objects: when it is dropped, when a test panics, and when building
//! fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};

use evenkeel_model::scenario::Topology;
use evenkeel_testbed::{Bed, BedOptions, Namespace};
use evenkeel_transmit::{Policy, Pool};

use support::leftovers::{Holdings, interfaces, open_descriptors, own_namespace};
use support::traffic::{Bulk, BulkOptions};
use support::{options, process};

fn mine() -> Holdings {
    Holdings::of(std::process::id())
}

fn namespace_of(namespace: &Namespace) -> u64 {
    namespace.run(|| Ok(own_namespace())).unwrap()
}

fn leaves_nothing(topology: Topology, work: impl FnOnce(&mut Bed)) {
    let (before, descriptors, links, own) = (mine(), open_descriptors(), interfaces(), own_namespace());
    let mut made = Holdings::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut bed = Bed::build(&options(topology, Policy::Dqa)).unwrap();
        made = mine().since(&before);
        assert_eq!(interfaces(), links, "the test's own namespace has not changed");
        let namespaces = [namespace_of(&bed.sender), namespace_of(&bed.receiver)];
        assert!(!namespaces.contains(&own) && namespaces[0] != namespaces[1]);
        assert!(namespaces.iter().all(|inode| made.namespaces.contains(inode)), "{namespaces:?}, {made:?}");
        // Check that the test detects the objects while they exist.
        assert_eq!(made.still_there(), made);
        assert!(made.programs.len() >= 3 && made.maps.len() >= 3 && made.links.len() == 2, "{made:?}");
        work(&mut bed);
        made.add(&mine().since(&before));
    }));
    made.assert_gone();
    assert_eq!(open_descriptors(), descriptors);
    assert_eq!(interfaces(), links);
    assert_eq!(own_namespace(), own);
    match outcome {
        Err(panic) if panic.downcast_ref() != Some(&EXPECTED) => resume_unwind(panic),
        _ => {}
    }
}

const EXPECTED: &str = "a test body that fails";

#[test]
fn a_bed_that_is_dropped() {
    for topology in [Topology::SoftNic, Topology::Mq] {
        leaves_nothing(topology, |bed| {
            let bulk = Bulk::start(bed, BulkOptions { flows: 2, ..BulkOptions::default() });
            bulk.wait_for_each(500_000);
            bulk.finish();
        });
    }
}

#[test]
fn a_bed_that_is_dropped_under_load() {
    leaves_nothing(Topology::SoftNic, |bed| {
        let bulk = Bulk::start(bed, BulkOptions { flows: 4, ..BulkOptions::default() });
        bulk.wait_for_each(200_000);
        bulk.reset();
    });
}

#[test]
fn a_test_body_that_panics() {
    leaves_nothing(Topology::SoftNic, |bed| {
        let _bulk = Bulk::start(bed, BulkOptions { flows: 2, ..BulkOptions::default() });
        let _process = process(&bed.sender, "sleep", &["60"]);
        panic_any(EXPECTED);
    });
}

#[test]
fn a_process_dies_with_its_bed() {
    leaves_nothing(Topology::SoftNic, |bed| {
        let before = mine();
        let process = process(&bed.sender, "sleep", &["60"]);
        let child = mine().since(&before);
        assert_eq!(child.children.iter().map(|child| child.id).collect::<Vec<_>>(), [process.id()]);
        drop(process);
        child.assert_gone();
    });
}

#[test]
fn a_bed_that_cannot_be_built() {
    let (before, descriptors) = (mine(), open_descriptors());
    // Each set of options fails at a later stage: sysctl, NIC, programs.
    let base = options(Topology::SoftNic, Policy::Dqa);
    let broken = [
        BedOptions {
            sender_sysctls: vec![("net/ipv4/no_such_thing".to_owned(), "1".to_owned())],
            ..base.clone()
        },
        BedOptions { mtu: 1, ..base.clone() },
        BedOptions { pools: vec![Pool { first: 7, count: 2 }], ..base },
    ];
    for options in broken {
        let Err(error) = Bed::build(&options) else { panic!("built: {options:?}") };
        assert!(!error.to_string().is_empty());
        assert_eq!(open_descriptors(), descriptors, "{error}");
        assert_eq!(mine().since(&before), Holdings::default(), "{error}");
    }
}

#[test]
fn namespaces_end_with_their_last_descriptor() {
    let namespace = Namespace::new().unwrap();
    let held = mine();
    let inode = namespace_of(&namespace);
    assert!(held.namespaces.contains(&inode));
    let (only, socket) =
        (Holdings { namespaces: [inode].into(), ..Holdings::default() }, namespace.netlink());
    assert_eq!(only.still_there(), only);
    drop((namespace, socket));
    only.assert_gone();
}
