//! Segment sizes, queue weights and service balancing under management: the loop of the crate `control`, with the journal beneath it.
//!
//! The loop sets `gso_max_size` and `tcp_limit_output_bytes` as often as it needs to. So both are journalled once,
//! with every value that may come; and they are put back by the journal and not by the loop, because only the
//! journal knows whether somebody else has changed them meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_apply::{Kernel, Knob, KnobError, Ours, Run, Value};
use evenkeel_control::{
    BacklogBackend, BacklogControl, BalanceControl, ControlError, ControlOptions, Controller, DeviceSegments,
    OutputLimit, RouteRefresh, SegmentBackend, SegmentControl, WeightControl,
};
use evenkeel_datapath::QueueSelect;
use evenkeel_model::shell::{Line, Script};
use evenkeel_netlink::{GsoSizes, Netlink};
use evenkeel_transmit::segments::{SIZES, SegmentGoal, SegmentOptions};

use crate::device::Device;
use crate::error::FairError;

/// What to do with the size of segments while queues are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentMode {
    /// Leave it alone.
    #[default]
    Off,
    /// The largest size that keeps short-term unfairness within a goal.
    Auto,
    /// This size, bytes.
    Fixed(u32),
}

/// A window of 1 ms at 10 Gbit/s, the paper's short one, stretched to the same bytes at every rate.
const WINDOW_BYTES: u64 = 1_250_000;
/// Unfairness over such a window that `auto` stays within: two flows differ by a fair share at most.
const GOAL: f64 = 1.0;
const INTERVAL: Duration = Duration::from_millis(10);
/// Queues must be shared for so long before segments shrink.
const SHRINK_AFTER_NS: u64 = 100_000_000;
/// Queues must be unshared for so long before segments grow again.
const GROW_AFTER_NS: u64 = 5_000_000_000;

const OUTPUT_LIMIT: &str = "net/ipv4/tcp_limit_output_bytes";

/// What the loop has set a knob to last; none while that is not known. Held while the loop sets it.
#[derive(Clone, Debug)]
pub(crate) struct LastSet {
    knob: Knob,
    /// The knob's name, with the interface's.
    name: String,
    value: Arc<Mutex<Option<Value>>>,
}

impl LastSet {
    fn new(knob: Knob, interface: &str, value: Value) -> Self {
        let name = knob.on(interface).to_string();
        Self { knob, name, value: Arc::new(Mutex::new(Some(value))) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Value>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the run, and keeps the loop from setting the knob until the returned guard is dropped.
    pub(crate) fn tell(&self, run: &mut Run) -> MutexGuard<'_, Option<Value>> {
        let value = self.lock();
        run.has_set(&self.knob, value.clone());
        value
    }

    /// Sets the knob by `set`, unless somebody else has set it since; `read` says what it is.
    fn replace(
        &self,
        mut read: impl FnMut() -> Result<Value, ControlError>,
        set: impl FnOnce() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mut last = self.lock();
        let found = read()?;
        if last.as_ref().is_some_and(|last| *last != found) {
            return Err(ControlError::SetByOthers { what: self.name.clone(), found: found.to_string() });
        }
        *last = None;
        set()?;
        *last = Some(read()?);
        Ok(())
    }
}

fn sizes(GsoSizes { all, ipv4 }: GsoSizes) -> Value {
    Value::Sizes { all, ipv4 }
}

/// Leaves putting back to the journal, and sets nothing that somebody else has set since.
struct Journalled {
    segments: DeviceSegments,
    netlink: Netlink,
    index: u32,
    last: LastSet,
}

impl SegmentBackend for Journalled {
    fn name(&self) -> String {
        self.segments.name()
    }

    fn set(&mut self, bytes: u32) -> Result<(), ControlError> {
        let Self { segments, netlink, index, last } = self;
        last.replace(|| Ok(sizes(netlink.gso_sizes(*index)?)), || segments.set(bytes))
    }

    fn refresh(&mut self) -> Result<(), ControlError> {
        self.segments.refresh()
    }

    fn restore(&mut self) -> Result<(), ControlError> {
        Ok(())
    }
}

/// The same for the output limit, which the loop reads itself before it sets it.
struct JournalledLimit {
    limit: OutputLimit,
    last: LastSet,
}

fn output_limit() -> Result<Value, ControlError> {
    let path = format!("/proc/sys/{OUTPUT_LIMIT}");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Value::Text(text.trim().to_owned())),
        Err(source) => Err(ControlError::System { action: format!("read {path}"), source }),
    }
}

impl BacklogBackend for JournalledLimit {
    fn name(&self) -> String {
        self.limit.name()
    }

    fn limit(&mut self, bytes: Option<u64>) -> Result<(), ControlError> {
        let Self { limit, last } = self;
        last.replace(output_limit, || limit.limit(bytes))
    }
}

impl SegmentMode {
    /// The sizes that it may set, bytes; the last is what the device has.
    fn sizes(self, largest: u32) -> Vec<u32> {
        let mut sizes = match self {
            Self::Off => Vec::new(),
            Self::Auto => SIZES.to_vec(),
            Self::Fixed(bytes) => vec![bytes],
        };
        sizes.push(largest);
        sizes
    }

    fn goal(self) -> Option<SegmentGoal> {
        match self {
            Self::Off => None,
            Self::Auto => Some(SegmentGoal::Auto { window_bytes: WINDOW_BYTES, goal: GOAL }),
            Self::Fixed(bytes) => Some(SegmentGoal::Fixed(bytes)),
        }
    }

    /// What it may do, as comments and shell lines.
    #[must_use]
    pub fn plan(self, interface: &str) -> Script {
        let mut script = Script::default();
        let sizes = match self {
            Self::Off => return script,
            Self::Auto => {
                let sizes: Vec<_> = SIZES.iter().rev().map(u32::to_string).collect();
                format!("one of {} bytes", sizes.join(", "))
            }
            Self::Fixed(bytes) => format!("{bytes} bytes"),
        };
        script.push(Line::comment(format_args!(
            "while flows share queues: gso_max_size and gso_ipv4_max_size of {interface} are {sizes},"
        )));
        script.comment("  and the route cache is flushed once for each change, so that running flows follow");
        let show = Line::new("ip -d link show {}", &[&interface]);
        script.push(Line::comment(format_args!("  undo: what `{show}` shows now")));
        script
    }
}

/// What [`limit_backlog`] may do, as comments.
pub(crate) const BACKLOG_PLAN: &str = "while flows share queues: tcp_limit_output_bytes is lower\n  \
    undo: what `sysctl net.ipv4.tcp_limit_output_bytes` shows now";

/// What the loop is to keep.
pub(crate) struct Wanted {
    pub(crate) segments: SegmentMode,
    pub(crate) weights: Option<WeightControl>,
    pub(crate) balance: Option<BalanceControl>,
    /// Line rate, bit/s, if known.
    pub(crate) rate_bps: Option<u64>,
    /// No other device is managed beside it.
    pub(crate) alone: bool,
}

/// Starts the loop, once everything that it may set is in the journal; says what it has set last.
pub(crate) fn start(
    wanted: Wanted,
    run: &mut Run,
    device: &Device,
    select: &QueueSelect,
) -> Result<(Option<Controller>, Vec<LastSet>), FairError> {
    let Wanted { segments: mode, weights, balance, rate_bps, alone } = wanted;
    let goal = mode.goal();
    if goal.is_none() && weights.is_none() && balance.is_none() {
        return Ok((None, Vec::new()));
    }
    let mut set_by_loop = Vec::new();
    let segments = DeviceSegments::new(Netlink::open()?, device.index, RouteRefresh::open()?)?;
    let GsoSizes { all, ipv4 } = segments.original();
    if goal.is_some() {
        let pair = |bytes: &u32| Value::Sizes { all: all.min(*bytes), ipv4: ipv4.min(*bytes) };
        run.allow(&Knob::GsoSizes, Ours::These(mode.sizes(ipv4).iter().map(pair).collect()))?;
    }
    // The limit is the namespace's: two devices would not agree on it.
    let shaped = goal.is_some() || weights.is_some();
    let backlog = match alone && shaped {
        true => {
            let (backlog, last) = limit_backlog(run, &device.name, rate_bps)?;
            set_by_loop.push(last);
            Some(backlog)
        }
        false => None,
    };
    let last = LastSet::new(Knob::GsoSizes, &device.name, sizes(segments.original()));
    if goal.is_some() {
        set_by_loop.push(last.clone());
    }
    let journalled = Journalled { segments, netlink: Netlink::open()?, index: device.index, last };
    let segments = goal.map(|goal| SegmentControl {
        backend: Box::new(journalled),
        options: SegmentOptions {
            goal,
            largest: ipv4,
            shrink_after_ns: SHRINK_AFTER_NS,
            grow_after_ns: GROW_AFTER_NS,
        },
    });
    let controller = Controller::start(ControlOptions {
        view: select.view()?,
        interval: INTERVAL,
        weights,
        segments,
        backlog,
        balance,
        segment_bytes: ipv4,
    })?;
    Ok((Some(controller), set_by_loop))
}

fn limit_backlog(
    run: &mut Run,
    interface: &str,
    rate_bps: Option<u64>,
) -> Result<(BacklogControl, LastSet), FairError> {
    let knob = Knob::Sysctl(OUTPUT_LIMIT.to_owned());
    let found = run.kernel().read(&knob).map_err(evenkeel_apply::ApplyError::from)?;
    let most = match &found {
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    let most = most.ok_or_else(|| {
        let error = KnobError::WrongKind { knob: OUTPUT_LIMIT.to_owned(), value: found.to_string() };
        evenkeel_apply::ApplyError::from(error)
    })?;
    run.allow(&knob, Ours::NumberBetween { least: 1, most })?;
    let last = LastSet::new(knob, interface, output_limit()?);
    let backend = JournalledLimit { limit: OutputLimit::open()?, last: last.clone() };
    Ok((BacklogControl { backend: Box::new(backend), rate_bps }, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_is_known_beforehand() {
        assert_eq!(SegmentMode::Fixed(16_384).sizes(65_536), [16_384, 65_536]);
        assert_eq!(SegmentMode::Auto.sizes(65_536), [49_152, 32_768, 24_576, 16_384, 12_288, 8192, 65_536]);
        assert_eq!(SegmentMode::Off.goal(), None);
        assert_eq!(SegmentMode::Off.plan("eth0"), Script::default());
        assert!(SegmentMode::Fixed(16_384).plan("eth0").to_string().contains("16384 bytes"));
    }
}
