//! Tests the objects for kernels without tcx.
#![cfg(feature = "netns-tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_datapath::{Completion, HookKind, Meter, MeterOptions, QueueSelect, SelectOptions, Steering};

/// The kernel accepts each program, with the completion that was requested.
#[test]
fn the_kernel_accepts_every_program_for_filters() {
    for steering in [Steering::Queue, Steering::Class(0x10_0010)] {
        for completion in [Completion::Sockets, Completion::Ageing] {
            let options = SelectOptions {
                queues: 4,
                movable: true,
                hook: HookKind::Clsact,
                steering,
                completion,
                ..SelectOptions::default()
            };
            let select = QueueSelect::load(&options).unwrap();
            assert_eq!((select.completion(), select.refused()), (completion, None));
        }
    }
    Meter::load_for_filter(&MeterOptions { flows: 16, bins: 1, bin_ns: 1_000_000 }).unwrap();
}
