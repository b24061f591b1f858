//! Segment sizes, queue weights and service balancing on a live interface: runs the controller on top of the
//! journal.
//!
//! The controller sets weights, segment sizes and `tcp_limit_output_bytes` through [`crate::gate`].

use std::sync::Arc;
use std::time::Duration;

use evenkeel_apply::{Change, Knob, Ours, Run};
use evenkeel_control::{
    BacklogBackend, BacklogControl, BalanceControl, ControlError, ControlOptions, DeviceSegments,
    OutputLimit, RouteRefresh, SegmentBackend, SegmentControl, WeightControl, sizes_of,
};
use evenkeel_datapath::QueueSelect;
use evenkeel_model::shell::{Line, Script};
use evenkeel_netlink::Netlink;
use evenkeel_transmit::segments::{SIZES, SegmentGoal, SegmentOptions};

use crate::device::Device;
use crate::error::FairError;
use crate::gate::{JournalGate, OUTPUT_LIMIT, sizes};
use crate::preflight::current;

/// Segment sizes while queues are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentMode {
    #[default]
    Off,
    /// The largest size that limits short-term unfairness to a goal.
    Auto,
    /// This size, bytes, or a larger one while the CPUs are saturated.
    Fixed(u32),
}

/// Bytes of Titan's short window: 1 ms at 10 Gbit/s. At other rates, the window is the time for this
/// number of bytes.
const WINDOW_BYTES: u64 = 1_250_000;
/// Limit of unfairness in a window of [`WINDOW_BYTES`] for `auto`: two flows differ by at most one fair
/// share.
const GOAL: f64 = 1.0;
const INTERVAL: Duration = Duration::from_millis(10);
/// Time for which queues must be shared before segments shrink.
const SHRINK_AFTER_NS: u64 = 100_000_000;
/// Time for which queues must be unshared before segments grow again.
const GROW_AFTER_NS: u64 = 5_000_000_000;

/// A back end that does not restore sizes, because the journal does.
struct Journalled<B>(B);

impl SegmentBackend for Journalled<DeviceSegments> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn set(&mut self, bytes: u32) -> Result<(), ControlError> {
        self.0.set(bytes)
    }

    fn refresh(&mut self) -> Result<(), ControlError> {
        self.0.refresh()
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        Ok(())
    }
}

impl SegmentMode {
    /// Returns the controller's options for a device whose largest segment is `largest`; `None` if
    /// sizes are not controlled.
    fn options(self, largest: u32) -> Option<SegmentOptions> {
        let goal = self.goal()?;
        Some(SegmentOptions { goal, largest, shrink_after_ns: SHRINK_AFTER_NS, grow_after_ns: GROW_AFTER_NS })
    }

    fn goal(self) -> Option<SegmentGoal> {
        match self {
            Self::Off => None,
            Self::Auto => Some(SegmentGoal::Auto { window_bytes: WINDOW_BYTES, goal: GOAL }),
            Self::Fixed(bytes) => Some(SegmentGoal::Fixed(bytes)),
        }
    }

    /// Refuses sizes if the route cache cannot be flushed, because running flows would keep the old
    /// size.
    pub(crate) fn check(self) -> Result<(), FairError> {
        if self == Self::Off {
            return Ok(());
        }
        RouteRefresh::open().map(drop).map_err(|error| {
            FairError::unable(
                format!("--segments needs to flush the route cache: {error}"),
                "mount /proc/sys for writing (in a container: --privileged), or use --segments off",
            )
        })
    }

    pub(crate) fn plan(self, device: &Device) -> Result<Script, FairError> {
        let (mut script, interface) = (Script::default(), &device.name);
        let sizes = match self {
            Self::Off => return Ok(script),
            Self::Auto => {
                let sizes: Vec<_> = SIZES.iter().rev().map(u32::to_string).collect();
                format!("one of {} bytes", sizes.join(", "))
            }
            Self::Fixed(bytes) => format!("{bytes} bytes, or more while the processors are saturated"),
        };
        script.push(Line::comment(format_args!(
            "while flows share queues: gso_max_size and gso_ipv4_max_size of {interface} are {sizes},"
        )));
        script.comment("  and the route cache is flushed once for each change, so that running flows follow");
        script.push(undo(device, Knob::GsoSizes)?);
        Ok(script)
    }
}

/// Describes the possible changes by [`limit_backlog`] as comments.
pub(crate) fn backlog_plan(device: &Device) -> Result<Script, FairError> {
    let mut script = Script::default();
    script.comment("while flows share queues: tcp_limit_output_bytes is lower");
    script.push(undo(device, Knob::Sysctl(OUTPUT_LIMIT.to_owned()))?);
    Ok(script)
}

/// Returns the shell line that sets a knob to its current value, as a comment.
fn undo(device: &Device, knob: Knob) -> Result<Line, FairError> {
    let undo = Change::new(knob.clone(), current(device, &knob)?);
    Ok(Line::comment(format_args!("  undo: {}", undo.shell(&device.name))))
}

pub(crate) struct Wanted {
    pub(crate) segments: SegmentMode,
    pub(crate) weights: Option<WeightControl>,
    pub(crate) balance: Option<BalanceControl>,
    pub(crate) rate_bps: Option<u64>,
    /// Whether no other device is managed at the same time.
    pub(crate) alone: bool,
}

/// Prepares the controller, and adds to the journal the segment sizes and output limits that it may set.
/// Returns `None` if there is nothing to control.
pub(crate) fn prepare(
    wanted: Wanted,
    run: &mut Run,
    gate: &Arc<JournalGate>,
    device: &Device,
    select: &QueueSelect,
) -> Result<Option<ControlOptions>, FairError> {
    let Wanted { segments: mode, weights, balance, rate_bps, alone } = wanted;
    if mode == SegmentMode::Off && weights.is_none() && balance.is_none() {
        return Ok(None);
    }
    let mut netlink = Netlink::open()?;
    let original = netlink.gso_sizes(device.index)?;
    let mut segments = None;
    if let Some(options) = mode.options(original.ipv4) {
        let device = DeviceSegments::new(netlink, device.index, RouteRefresh::open()?, gate.clone())?;
        let may_come = options.sizes().into_iter().map(|bytes| sizes(sizes_of(bytes, original)));
        gate.admit(run, &Knob::GsoSizes, Ours::These(may_come.collect()))?;
        segments = Some(SegmentControl { backend: Box::new(Journalled(device)), options });
    }
    // The limit applies to the whole namespace, and two devices might need different limits. The
    // preflight has reported a limit that cannot be set.
    let shaped = segments.is_some() || weights.is_some();
    let limits = alone && shaped && OutputLimit::check().is_ok();
    let backlog = match limits.then(|| limit_backlog(run, gate)) {
        Some(Ok(backlog)) => Some(backlog),
        // Another run in this namespace sets the limit. Two runs would overwrite each other's value.
        Some(Err(FairError::Apply(error))) if error.is_owned() => None,
        Some(Err(error)) => return Err(error),
        None => None,
    };
    Ok(Some(ControlOptions {
        view: select.view()?,
        interval: INTERVAL,
        weights,
        segments,
        backlog: backlog.map(|backend| BacklogControl { backend, rate_bps }),
        balance,
        segment_bytes: original.ipv4,
    }))
}

/// Returns the back end for the limit of each flow's data below its socket.
fn limit_backlog(run: &mut Run, gate: &Arc<JournalGate>) -> Result<Box<dyn BacklogBackend>, FairError> {
    let limit = OutputLimit::open(gate.clone())?;
    let ours = Ours::NumberBetween { least: 1, most: limit.original() };
    gate.admit(run, &Knob::Sysctl(OUTPUT_LIMIT.to_owned()), ours)?;
    Ok(Box::new(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_is_known_beforehand() {
        let sizes =
            |mode: SegmentMode| mode.options(65_536).map(|options| options.sizes()).unwrap_or_default();
        assert_eq!(
            sizes(SegmentMode::Fixed(16_384)),
            sizes(SegmentMode::Auto),
            "also while processors are saturated"
        );
        assert!(sizes(SegmentMode::Fixed(20_000)).contains(&20_000));
        assert!(sizes(SegmentMode::Off).is_empty());
        assert_eq!(SegmentMode::Off.plan(&Device::for_tests("eth0")).ok(), Some(Script::default()));
    }
}
