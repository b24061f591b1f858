//! Decides whether a device lost a setting by itself, or another program changed it. Pure: the caller reads
//! the device.

use evenkeel_model::change::Knob;

/// Values of a device that change when its driver resets it or its link goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Numbers of transmit and receive queues in use.
    pub queues: (u32, u32),
    /// Transmit timeouts, after which the driver resets the device (`dev_watchdog`, net/sched/sch_generic.c).
    pub timeouts: u64,
    /// `carrier_changes` of sysfs.
    pub carrier_changes: u64,
}

/// Returns why the device lost a setting between two readings. Returns `None` if no reset explains the loss:
/// then another program changed the setting. `is_as_before`: whether the setting has the value from before
/// the service's change, or no longer exists.
///
/// A change of the number of queues can reset the settings of queues (`netif_set_real_num_tx_queues`,
/// net/core/dev.c). A carrier that flaps explains only settings of queues and interrupts, because a program's
/// change of rings, channels or offloads makes the carrier flap, too. No reset explains a change of the
/// channels, of a sysctl or of a processor's file.
#[must_use]
pub fn reset_of(
    knob: &Knob,
    is_as_before: bool,
    before: &DeviceState,
    now: &DeviceState,
) -> Option<&'static str> {
    let is_of_queues = knob.is_of_queues() || matches!(knob, Knob::InterruptAffinity(_));
    if matches!(knob, Knob::Channels(_) | Knob::Sysctl(_) | Knob::ProcessorFile(_)) {
        return None;
    }
    if now.timeouts != before.timeouts && (is_as_before || is_of_queues) {
        return Some("the driver reset the device after a transmit timeout");
    }
    if now.queues != before.queues && is_of_queues {
        return Some("the number of queues changed");
    }
    let has_flapped = now.carrier_changes.wrapping_sub(before.carrier_changes) >= 2;
    (has_flapped && is_of_queues && is_as_before).then_some("the link went down and up")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: DeviceState = DeviceState { queues: (4, 4), timeouts: 0, carrier_changes: 2 };

    #[test]
    fn another_program_is_told_from_a_reset() {
        let map = Knob::InterfaceFile("queues/rx-0/rps_cpus".to_owned());
        let sack = Knob::Sysctl("net/ipv4/tcp_sack".to_owned());
        let fewer = DeviceState { queues: (2, 2), ..BEFORE };
        let timeout = DeviceState { timeouts: 1, ..BEFORE };
        let flap = DeviceState { carrier_changes: 4, ..BEFORE };
        let down = DeviceState { carrier_changes: 3, ..BEFORE };
        for (knob, as_before, now, is_reset) in [
            (&map, true, BEFORE, false),
            (&map, false, fewer, true),
            (&map, false, flap, false),
            (&map, true, flap, true),
            (&map, true, down, false),
            (&Knob::Mtu, true, flap, false),
            (&Knob::Mtu, true, fewer, false),
            (&Knob::Mtu, true, timeout, true),
            (&Knob::Mtu, false, timeout, false),
            (&sack, true, timeout, false),
        ] {
            assert_eq!(reset_of(knob, as_before, &BEFORE, &now).is_some(), is_reset, "{knob:?} {now:?}");
        }
    }
}
