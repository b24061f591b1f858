//! The processors of senders, interrupts and applications, and the settings that the test bed refuses.

use evenkeel_model::scenario::{HostNode, InterruptCores, Scenario, TransferKnobs, Variant};
use evenkeel_model::text::counted;
use evenkeel_model::world::Assessment;

use crate::error::TestbedError;
use crate::traffic::stall;

/// Largest queue of a CPU map (`cpu_map_update_elem`, kernel/bpf/cpumap.c).
const LARGEST_RING: u32 = 16_384;

/// The processors that all flows together use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) sender: usize,
    /// One per flow.
    pub(super) readers: Vec<usize>,
    /// Processors of the receive rings.
    pub(super) rings: Vec<usize>,
}

/// Places the sender on the last processor, and the applications on the first ones. Returns the reason if
/// there are too few processors, or if the test bed does not support the placement of the interrupts.
pub(super) fn place(knobs: &TransferKnobs, processors: &[usize]) -> Result<Places, String> {
    let flows = knobs.flows as usize;
    let (rings, for_what) = match knobs.interrupts {
        InterruptCores::EveryCore => (1, " with interrupts on every core"),
        _ => (0, ""),
    };
    let needed = flows + 1 + rings;
    let Some((sender, receiving)) = processors.split_last().filter(|_| processors.len() >= needed) else {
        return Err(format!(
            "{} and the sender need {needed} processors{for_what}, and this machine has {}",
            counted(flows, "application"),
            processors.len()
        ));
    };
    let (readers, others) = receiving.split_at(flows);
    let rings = match knobs.interrupts {
        // Without a processor of their own, the interrupts share the sender's processor.
        InterruptCores::Apart if others.is_empty() => vec![*sender],
        InterruptCores::Apart => others.to_vec(),
        InterruptCores::OnApplications => readers.to_vec(),
        InterruptCores::EveryCore => receiving.to_vec(),
        InterruptCores::WithReader | InterruptCores::OwnCore => {
            return Err(format!(
                "the test bed chooses the processor of a flow's interrupts by a hash, not by its application \
                 (interrupts = \"{}\", not \"apart\" or \"on-applications\")",
                knobs.interrupts
            ));
        }
    };
    Ok(Places { sender: *sender, readers: readers.to_vec(), rings })
}

/// Returns the settings of a variant with notes, or all reasons why the test bed cannot run it.
pub(crate) fn assess(
    scenario: &Scenario,
    variant: &Variant,
    knobs: &TransferKnobs,
    processors: &[usize],
    controls: &[String],
) -> Result<Assessment, String> {
    let places = place(knobs, processors);
    let elsewhere = [knobs.interrupt_node, knobs.application_node].contains(&HostNode::Other);
    let lacking = [
        (knobs.senders > 1 || knobs.receivers > 1, "the test bed has one sender and one receiver"),
        (knobs.ports.len() > 1, "the test bed's sender has one port"),
        (knobs.switch_buffer.is_some(), "the test bed has no switch"),
        (knobs.start_interval.as_u64() > 0, "the flows of the test bed start together"),
        (knobs.reverse_delay.as_u64() > 0, "the test bed does not delay acknowledgements"),
        (knobs.pacing, "the test bed's link is a tbf, below which the qdisc fq cannot pace"),
        (knobs.tcp_series, "the test bed does not record the state of TCP (tcp-series)"),
        (elsewhere, "the test bed uses the processors of one memory node"),
        (knobs.other_tuning.is_some(), "the test bed does not change this setting of this machine"),
    ];
    let mut reasons: Vec<String> = places.as_ref().err().cloned().into_iter().collect();
    reasons.extend(lacking.iter().filter(|(lacks, _)| *lacks).map(|(_, why)| (*why).to_owned()));
    if !reasons.is_empty() {
        reasons.push("run the variant with --on sim".to_owned());
    }
    if knobs.reader_stall.as_u64() > 0 && !stall::is_available() {
        reasons
            .push("this process may not use userfaultfd, by which a read sleeps (reader-stall)".to_owned());
    }
    if knobs.ring > LARGEST_RING {
        reasons.push(format!(
            "a queue of the kernel's CPU map has at most {LARGEST_RING} packets; use a shorter ring"
        ));
    }
    let unknown = |control: &String| !controls.contains(control);
    if let Some(control) = controls_of(scenario, knobs).into_iter().find(unknown) {
        reasons.push(format!("this kernel does not offer {control}; use one of {}", controls.join(", ")));
    }
    if !reasons.is_empty() {
        return Err(reasons.join("; "));
    }
    let places = places?;
    let mut settings: std::collections::BTreeMap<String, String> =
        variant.settings().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    // This machine determines these settings, so ignore the variant's values.
    ["machine", "round-trip", "highest-clock"].iter().for_each(|name| {
        settings.remove(*name);
    });
    let list = |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    settings.insert("sender-processor".to_owned(), places.sender.to_string());
    settings.insert("application-processors".to_owned(), list(&places.readers));
    settings.insert("ring-processors".to_owned(), list(&places.rings));
    let mut notes = vec!["the kernel's ring is the queue of a CPU map, which a thread reads".to_owned()];
    if places.rings.contains(&places.sender) {
        notes.push(format!(
            "the ring shares processor {} with the sender, because this machine has {}",
            places.sender,
            counted(processors.len(), "processor")
        ));
    }
    Ok(Assessment { settings, notes })
}

pub(super) fn controls_of(scenario: &Scenario, knobs: &TransferKnobs) -> Vec<String> {
    match knobs.congestion_control.as_slice() {
        [] => vec![scenario.workload.congestion_control.clone()],
        controls => controls.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn places_of(knobs: &TransferKnobs, processors: &[usize]) -> Result<Places, TestbedError> {
    place(knobs, processors).map_err(|missing| TestbedError::Unable {
        missing,
        remedy: "allow this process to run on more processors (taskset)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    use super::*;

    fn bundled_scenario(name: &str) -> Scenario {
        let (_, text) = bundled().iter().find(|(known, _)| *known == name).unwrap();
        parse(text, name, variant_tables()).unwrap()
    }

    #[test]
    fn work_is_placed_on_any_number_of_processors() {
        let scenario = bundled_scenario("tcp100g-cores");
        let place = |variant: usize, processors| {
            let processors: Vec<usize> = (0..processors).collect();
            place(scenario.variants[variant].transfers().unwrap(), &processors)
                .map(|places| (places.readers, places.rings, places.sender))
        };
        let refusal = |needed| format!("3 applications and the sender need {needed}, and this machine has 2");
        let needs = ["5 processors with interrupts on every core", "4 processors", "4 processors"];
        for (variant, needed) in needs.into_iter().enumerate() {
            assert_eq!(place(variant, 2), Err(refusal(needed)));
        }
        let applications = vec![0, 1, 2];
        assert_eq!(place(1, 4), Ok((applications.clone(), vec![3], 3)), "apart, with the sender");
        assert_eq!(place(1, 6), Ok((applications.clone(), vec![3, 4], 5)), "apart");
        assert_eq!(place(2, 6), Ok((applications.clone(), applications.clone(), 5)), "on applications");
        assert_eq!(place(0, 6), Ok((applications, vec![0, 1, 2, 3, 4], 5)), "on every core");
        let needed = place(0, 4).unwrap_err();
        assert!(needed.contains("need 5 processors with interrupts on every core"), "{needed}");
        let two = bundled_scenario("tcp100g-two-cores");
        let rings =
            |variant: usize| super::place(two.variants[variant].transfers().unwrap(), &[4, 7]).unwrap();
        assert_eq!((rings(0).rings, rings(1).rings), (vec![4], vec![7]));
    }

    #[test]
    fn settings_that_the_test_bed_lacks_are_refused() {
        let scenario = bundled_scenario("tcp100g-two-cores");
        let variant = &scenario.variants[0];
        let controls = ["cubic".to_owned(), "reno".to_owned()];
        let assess = |change: &dyn Fn(&mut TransferKnobs)| {
            let mut knobs = variant.transfers().unwrap().clone();
            change(&mut knobs);
            assess(&scenario, variant, &knobs, &[0, 1], &controls)
        };
        let accepted = assess(&|_| {}).unwrap();
        assert_eq!(accepted.settings["ring-processors"], "0");
        assert_eq!(accepted.settings["sender-processor"], "1");
        assert!(!accepted.settings.contains_key("machine"), "the machine is this one");
        type Change = fn(&mut TransferKnobs);
        let cases: [(Change, &str); 5] = [
            (|knobs| knobs.pacing = true, "fq cannot pace"),
            (|knobs| knobs.interrupts = InterruptCores::WithReader, "by a hash"),
            (|knobs| knobs.interrupt_node = HostNode::Other, "one memory node"),
            (|knobs| knobs.ring = 65_536, "at most 16384 packets"),
            (
                |knobs| knobs.congestion_control = vec![evenkeel_model::scenario::TransferControl::Bbr3],
                "does not offer bbr3; use one of cubic, reno",
            ),
        ];
        for (change, reason) in cases {
            let refusal = assess(&change).unwrap_err();
            assert!(refusal.contains(reason), "{refusal}");
        }
        let all = assess(&|knobs| (knobs.flows, knobs.pacing, knobs.ring) = (3, true, 65_536)).unwrap_err();
        assert_eq!(
            all,
            "3 applications and the sender need 4 processors, and this machine has 2; the test bed's link is a tbf, below \
             which the qdisc fq cannot pace; run the variant with --on sim; a queue of the kernel's CPU map has at most \
             16384 packets; use a shorter ring"
        );
    }
}
