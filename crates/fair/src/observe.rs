//! `--observe`: shows flows on the queues that the kernel selects. Changes no choice and no setting.
//!
//! A meter at tcx egress counts bytes by flow before the qdisc, so queued bytes count as sent. The
//! flow's socket records the queue of its last segment. An unconnected UDP socket records no queue.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_apply::{Leftover, Report, Run, StateDirectory};
use evenkeel_datapath::{HookKind, Tuple};
use serde::Serialize;

use crate::device::Device;
use crate::error::FairError;
use crate::flows::{DeviceView, FlowView, NfmView, QueueCounters, QueueView, Sample, Sampler, endpoints};
use crate::preflight::Preflight;
use crate::session::ForeignChange;
use crate::stack::Stack;
use crate::watch::Watched;
use crate::windows::{Window, Windows};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observation {
    /// The name that the user gave, which may differ from the device's name.
    pub interface: String,
    pub seconds: f64,
    pub devices: Vec<DeviceView>,
}

/// Observes flows on the devices below an interface. Dropping this value detaches all programs.
pub struct Observer {
    interface: String,
    devices: Vec<Observed>,
    stack: Option<Stack>,
}

/// Interval of the checks of qdiscs, XPS maps and filters. Each check lists the qdiscs of all
/// interfaces, and reads two files per queue.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The name of a device, and the report of its rollback.
pub type Detached = (String, Report);

struct Observed {
    device: Device,
    sampler: Sampler,
    /// Journals the meter's filter; `None` if the meter is attached by tcx.
    run: Option<Run>,
    /// Time of the last check of qdiscs, XPS maps and filters.
    checked: Instant,
    watched: Watched,
    tally: Tally,
}

impl Observer {
    /// Attaches to the devices of a preflight, in the calling thread's network namespace.
    ///
    /// Without tcx hooks, the meter is a filter, which stays when the process ends. So the filter is a
    /// journalled change. Before this change, the function rolls back killed runs of the device, as
    /// [`crate::Session::start`] does, and returns them.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the programs, or if another run has a device whose meter
    /// is a filter.
    pub fn start(
        preflight: &Preflight,
        state: &StateDirectory,
        guardian: &dyn Fn() -> Option<Command>,
    ) -> Result<(Self, Vec<Leftover>), FairError> {
        Self::begin(preflight, state, guardian).map_err(|error| error.of_devices(preflight.names()))
    }

    fn begin(
        preflight: &Preflight,
        state: &StateDirectory,
        guardian: &dyn Fn() -> Option<Command>,
    ) -> Result<(Self, Vec<Leftover>), FairError> {
        let (mut devices, mut leftovers) = (Vec::new(), Vec::new());
        for planned in &preflight.devices {
            let device = planned.device.clone();
            let mut run = match device.hook {
                HookKind::Tcx => None,
                HookKind::Clsact => {
                    let named = &preflight.interface;
                    let begun =
                        Run::begin_below(named, state, device.index, &device.name, "fair", guardian())?;
                    leftovers.extend(begun.1);
                    Some(begun.0)
                }
            };
            let counters = QueueCounters::of(&device);
            let mut sampler = Sampler::attach(device.index, device.queues, counters, run.as_mut())?;
            let first = sampler.sample(None, run.as_mut())?;
            let mut watched = Watched::new(&device)?;
            watched.expect_meter(run.is_none().then(|| sampler.program()).transpose()?);
            devices.push(Observed {
                tally: Tally::new(first),
                device,
                sampler,
                run,
                checked: Instant::now(),
                watched,
            });
        }
        let stack = Stack::of(preflight)?;
        Ok((Self { interface: preflight.interface.clone(), devices, stack }, leftovers))
    }

    /// Returns whether the meters are filters. The observer removes filters at the end.
    #[must_use]
    pub fn uses_filters(&self) -> bool {
        self.devices.iter().any(|observed| observed.run.is_some())
    }

    /// Detaches the meters. Returns the reports of the devices whose meters were filters.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be removed.
    pub fn finish(self) -> Result<Vec<Detached>, FairError> {
        let runs =
            self.devices.into_iter().filter_map(|Observed { device, run, .. }| Some((device.name, run?)));
        runs.map(|(name, run)| Ok((name, run.finish()?))).collect()
    }

    pub fn take_remarks(&mut self) -> Vec<String> {
        let runs = self.devices.iter_mut().filter_map(|observed| observed.run.as_mut());
        runs.flat_map(Run::take_remarks).collect()
    }

    /// Takes a sample. Call this function ten times per second. Returns a change in these cases:
    /// - the interface or an observed device no longer exists, or an observed device was renamed
    /// - an observed device is no longer below the interface
    /// - the queues, root qdisc or XPS maps of an observed device have changed
    /// - another program removed a meter, or hides packets from it
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be queried.
    pub fn tick(&mut self) -> Result<Option<ForeignChange>, FairError> {
        for observed in &mut self.devices {
            // Other changes by other programs do not affect an observation.
            if let Some(reason) = observed.difference()? {
                return Ok(Some(ForeignChange { device: observed.device.name.clone(), reason }));
            }
            let sample = observed.sampler.sample(None, observed.run.as_mut())?;
            if observed.run.is_none() {
                // The sampler may have attached a new program.
                observed.watched.expect_meter(Some(observed.sampler.program()?));
            }
            observed.tally.take(sample);
        }
        self.stack.as_mut().map_or(Ok(None), Stack::difference)
    }

    #[must_use]
    pub fn observation(&self) -> Observation {
        Observation {
            interface: self.interface.clone(),
            seconds: self.devices.first().map_or(0.0, |observed| observed.tally.seconds()),
            devices: self.devices.iter().map(|observed| observed.tally.view(&observed.device)).collect(),
        }
    }
}

impl Observed {
    /// Returns a change that invalidates the meter's figures or the facts about the device.
    fn difference(&mut self) -> Result<Option<String>, FairError> {
        let own = self.watched.own_difference()?;
        if own.is_some() || self.checked.elapsed() < CHECK_INTERVAL {
            return Ok(own);
        }
        self.checked = Instant::now();
        let queues = self.watched.queue_difference()?;
        let (None, Some(run)) = (&queues, &mut self.run) else { return Ok(queues) };
        Ok(run.disturbances()?.first().map(ToString::to_string))
    }
}

struct Tally {
    began_ns: u64,
    first_queue_bytes: Option<Vec<u64>>,
    /// The largest readings of the queues' byte counters. A qdisc that replaces the root qdisc counts from 0,
    /// so the last reading may be smaller.
    queue_bytes: Option<Vec<u64>>,
    windows: Windows,
    totals: HashMap<Tuple, u64>,
    /// The flows that were busy in the window with the most busy flows (of several, the last), with their
    /// queues, if known; `None` before the first complete window.
    busy: Option<HashMap<Tuple, Option<u32>>>,
    /// Whether the meter was full in at least one sample.
    incomplete: bool,
    nfm_sum: f64,
    nfm_max: f64,
    nfm_windows: usize,
}

impl Tally {
    fn new(first: Sample) -> Self {
        Self {
            began_ns: first.at_ns,
            first_queue_bytes: first.queue_bytes.clone(),
            queue_bytes: first.queue_bytes.clone(),
            incomplete: first.incomplete,
            windows: Windows::new(first),
            totals: HashMap::new(),
            busy: None,
            nfm_sum: 0.0,
            nfm_max: 0.0,
            nfm_windows: 0,
        }
    }

    fn seconds(&self) -> f64 {
        self.windows.last.at_ns.saturating_sub(self.began_ns) as f64 / 1e9
    }

    fn take(&mut self, sample: Sample) {
        for (last, now) in self.queue_bytes.iter_mut().flatten().zip(sample.queue_bytes.iter().flatten()) {
            *last = (*last).max(*now);
        }
        self.incomplete |= sample.incomplete;
        let taken = self.windows.take(sample);
        for (tuple, bytes) in taken.sent.iter() {
            *self.totals.entry(*tuple).or_default() += bytes;
        }
        let Some(Window { busy, fairness, .. }) = taken.window else { return };
        if let Some(fairness) = fairness {
            self.nfm_sum += fairness.nfm_1s;
            self.nfm_max = self.nfm_max.max(fairness.nfm_1s);
            self.nfm_windows += 1;
        }
        if self.busy.as_ref().is_none_or(|most| busy.len() >= most.len()) {
            let queues = self.windows.last.queues();
            self.busy = Some(busy.into_keys().map(|tuple| (tuple, queues.get(&tuple).copied())).collect());
        }
    }

    fn view(&self, device: &Device) -> DeviceView {
        let total: u64 = self.totals.values().sum();
        let last = self.windows.last.queues();
        let in_window = |tuple: &Tuple| self.busy.as_ref()?.get(tuple).copied();
        let queue_of = |tuple: &Tuple| last.get(tuple).copied().or_else(|| in_window(tuple).flatten());
        let busy = self.busy.as_ref().map(HashMap::len);
        let unknown = self.busy.as_ref().map(|busy| busy.values().filter(|queue| queue.is_none()).count());
        // Without a known queue, a busy flow may be on any queue.
        let is_known = busy.zip(unknown).is_some_and(|(busy, unknown)| busy == 0 || unknown < busy);
        let mut queues: Vec<QueueView> = (0..device.queues)
            .map(|queue| QueueView {
                queue,
                busy_flows: is_known.then_some(0),
                bytes: self.bytes_of_queue(queue),
            })
            .collect();
        for queue in self.busy.iter().flat_map(HashMap::values).flatten() {
            if let Some(flows) = queues.get_mut(*queue as usize).and_then(|view| view.busy_flows.as_mut()) {
                *flows += 1;
            }
        }
        let mut flows: Vec<FlowView> = self
            .totals
            .iter()
            .map(|(tuple, bytes)| {
                let (source, destination, protocol) = endpoints(tuple);
                FlowView {
                    source,
                    destination,
                    protocol,
                    queue: queue_of(tuple),
                    bytes: *bytes,
                    share: if total > 0 { *bytes as f64 / total as f64 } else { 0.0 },
                    busy: self.busy.as_ref().map(|busy| busy.contains_key(tuple)),
                }
            })
            .collect();
        flows.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.source.cmp(&other.source)));
        let sharing = queues.iter().filter_map(|queue| queue.busy_flows).filter(|flows| *flows > 1);
        let has_count = is_known && device.shared_root().is_none();
        let colliding_flows = has_count.then(|| sharing.sum());
        DeviceView {
            name: device.name.clone(),
            driver: device.driver.clone(),
            root_qdisc: device.root.as_ref().map(|root| root.kind.clone()),
            busy_flows: busy,
            busy_flows_without_queue: unknown,
            colliding_flows,
            incomplete: self.incomplete,
            advice: device.advice_on_sharing().filter(|_| colliding_flows > Some(0)),
            queues,
            flows,
            nfm_1s: (self.nfm_windows > 0).then(|| NfmView {
                mean: self.nfm_sum / self.nfm_windows as f64,
                max: self.nfm_max,
                windows: self.nfm_windows,
            }),
        }
    }

    fn bytes_of_queue(&self, queue: u32) -> Option<u64> {
        let now = self.queue_bytes.as_ref()?.get(queue as usize)?;
        let before = self.first_queue_bytes.as_ref()?.get(queue as usize)?;
        Some(now.saturating_sub(*before))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::flows::FlowSample;
    use crate::windows::BIN_NS;
    use std::net::IpAddr;

    fn tuple(port: u16) -> Tuple {
        let address = IpAddr::from([192, 0, 2, 1]);
        Tuple { source: address, source_port: port, destination: address, destination_port: 1, protocol: 6 }
    }

    fn device() -> Device {
        Device::for_tests("eth0")
    }

    /// Stands for an unknown queue.
    const UNKNOWN: u32 = u32::MAX;

    /// Creates a sample at a tenth of a second. Each flow has a port, its total bytes and its queue.
    fn sample(tenth: u64, flows: &[(u16, u64, u32)], epoch: u32) -> Sample {
        let flows = flows.iter().map(|(port, bytes, queue)| {
            (tuple(*port), FlowSample { bytes: *bytes, queue: Some(*queue).filter(|queue| *queue < UNKNOWN) })
        });
        Sample { at_ns: tenth * BIN_NS, epoch, ..Sample::of(flows) }
    }

    #[test]
    fn two_flows_that_share_a_queue_are_seen() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..=10 {
            tally.take(sample(tenth, &[(1, tenth * 100, 2), (2, tenth * 100, 2), (3, tenth * 200, 0)], 0));
        }
        let view = tally.view(&device());
        let of_queue = |queue: usize| view.queues[queue].busy_flows;
        assert_eq!((view.colliding_flows, of_queue(2), of_queue(0)), (Some(2), Some(2), Some(1)));
        assert_eq!(view.advice, None, "the device does not report how many queues it can have");
        let channels = Some(evenkeel_host::Channels { combined_most: 8, ..Default::default() });
        let advice = tally.view(&Device { channels, ..device() }).advice.unwrap();
        assert!(advice.contains("ethtool -L eth0 combined 8"), "{advice}");
        let ports: Vec<(u64, f64)> = view.flows.iter().map(|flow| (flow.bytes, flow.share)).collect();
        assert_eq!(ports, [(2000, 0.5), (1000, 0.25), (1000, 0.25)]);
        // The largest and the smallest flow differ by 1,000 bytes; the fair share is a third of 4,000.
        let found = view.nfm_1s.unwrap();
        assert!((found.mean - 0.75).abs() < 1e-9 && found.windows == 1, "{found:?}");
        assert!((tally.seconds() - 1.0).abs() < 1e-9);
    }

    /// HTB selects a flow's class independently of the flow's queue.
    #[test]
    fn below_a_root_qdisc_of_all_queues_no_collision_is_counted() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..=10 {
            tally.take(sample(tenth, &[(1, tenth * 100, 2), (2, tenth * 100, 2)], 0));
        }
        let below = |kind: &str| {
            let root = evenkeel_netlink::tc_state::QdiscState {
                kind: kind.to_owned(),
                handle: evenkeel_netlink::tc::Handle::ROOT,
                parent: evenkeel_netlink::tc::Handle::ROOT,
                options: Vec::new(),
                beside: None,
            };
            tally.view(&Device { root: Some(root), ..device() }).colliding_flows
        };
        assert_eq!(
            (below("htb"), below("pfifo"), below("mq"), below("noqueue")),
            (None, None, Some(2), Some(2))
        );
    }

    #[test]
    fn a_flow_that_pauses_is_not_busy_and_owed_nothing() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..=10 {
            let pausing = if tenth < 5 { 100 } else { 200 };
            tally.take(sample(tenth, &[(1, tenth * 100, 1), (2, pausing, 1)], 0));
        }
        let view = tally.view(&device());
        assert_eq!((view.colliding_flows, view.nfm_1s, view.advice), (Some(0), None, None));
        assert_eq!(view.flows.len(), 2);
    }

    #[test]
    fn flows_that_end_before_the_observation_stay_busy() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..=30 {
            let (two, one) = (tenth.min(10) * 100, tenth * 100);
            tally.take(sample(tenth, &[(1, two, 2), (2, two, 2), (3, one, 0)], 0));
        }
        let view = tally.view(&device());
        assert_eq!(
            (view.busy_flows, view.colliding_flows, view.queues[2].busy_flows),
            (Some(3), Some(2), Some(2))
        );
        assert!(view.flows.iter().all(|flow| flow.busy == Some(true)), "{view:?}");
    }

    #[test]
    fn of_windows_with_equally_many_busy_flows_the_last_counts() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..=20 {
            let queue = if tenth <= 10 { 2 } else { 1 };
            tally.take(sample(tenth, &[(1, tenth * 100, 2), (2, tenth * 100, queue)], 0));
        }
        assert_eq!(tally.view(&device()).colliding_flows, Some(0));
    }

    #[test]
    fn a_busy_flow_without_a_known_queue_is_counted() {
        let view = |flows: &[(u16, u32)]| {
            let mut tally = Tally::new(Sample::default());
            for tenth in 1..=10 {
                let flows: Vec<_> = flows.iter().map(|(port, queue)| (*port, tenth * 100, *queue)).collect();
                tally.take(sample(tenth, &flows, 0));
            }
            let view = tally.view(&device());
            (view.busy_flows, view.busy_flows_without_queue, view.colliding_flows, view.queues[2].busy_flows)
        };
        assert_eq!(view(&[(1, UNKNOWN), (2, UNKNOWN)]), (Some(2), Some(2), None, None));
        assert_eq!(view(&[(1, UNKNOWN), (2, 2), (3, 1)]), (Some(3), Some(1), Some(0), Some(1)));
        assert_eq!(view(&[]), (Some(0), Some(0), Some(0), Some(0)));
    }

    #[test]
    fn a_full_meter_makes_the_observation_incomplete() {
        let mut tally = Tally::new(Sample::default());
        tally.take(sample(1, &[], 0));
        assert!(!tally.view(&device()).incomplete);
        tally.take(Sample { incomplete: true, ..sample(2, &[], 0) });
        tally.take(sample(3, &[], 1));
        assert!(tally.view(&device()).incomplete);
    }

    #[test]
    fn nothing_is_known_before_the_first_whole_second() {
        let mut tally = Tally::new(Sample::default());
        for tenth in 1..10 {
            tally.take(sample(tenth, &[(1, tenth * 100, 2), (2, tenth * 100, 2)], 0));
        }
        let view = tally.view(&device());
        assert_eq!((view.colliding_flows, view.queues[2].busy_flows, view.flows[0].busy), (None, None, None));
    }

    #[test]
    fn totals_go_on_when_the_meter_begins_anew() {
        let mut tally = Tally::new(Sample::default());
        tally.take(sample(1, &[(1, 500, 0)], 0));
        tally.take(sample(2, &[(1, 100, 0)], 1));
        assert_eq!(tally.view(&device()).flows[0].bytes, 600);
    }

    #[test]
    fn a_qdisc_that_counts_from_zero_leaves_the_last_reading() {
        let counted = |tenth, bytes| Sample { queue_bytes: Some(vec![bytes]), ..sample(tenth, &[], 0) };
        let mut tally = Tally::new(counted(0, 1000));
        tally.take(counted(1, 5000));
        tally.take(counted(2, 10));
        assert_eq!(tally.view(&device()).queues[0].bytes, Some(4000));
    }

    #[test]
    fn a_late_sample_makes_no_window() {
        let mut tally = Tally::new(Sample::default());
        for tenth in (1..=40).filter(|tenth| tenth % 9 != 0) {
            let at = if tenth % 9 == 1 { tenth + 20 } else { tenth };
            tally.take(sample(at, &[(1, tenth * 100, 0), (2, tenth * 900, 0)], 0));
        }
        assert_eq!(tally.view(&device()).nfm_1s, None);
    }
}
