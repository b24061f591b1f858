//! Qdiscs without classes, and `tbf`, which has one class.

use evenkeel_model::change::Handle;
use evenkeel_model::qdisc::Node;

use super::super::{CakeConfig, DEFAULT_LIMIT, FqCodelConfig, FqConfig, Kind, SfqConfig, TbfConfig, TbfPeak};
use super::options::Options;
use super::{Builder, TreeError, shape};

impl Builder<'_> {
    pub(super) fn classless(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let frame = self.frame;
        let mut options = Options::of(node);
        let kind = match node.kind.as_str() {
            "pfifo" => Kind::Pfifo { limit: options.short("limit")?.unwrap_or(DEFAULT_LIMIT) },
            "bfifo" => {
                let usual = u64::from(DEFAULT_LIMIT) * u64::from(frame);
                Kind::Bfifo { limit: options.number("limit")?.unwrap_or(usual) }
            }
            "pfifo_fast" => pfifo_fast(),
            "fq" => self.fq(&mut options)?,
            "fq_codel" => fq_codel(&mut options, frame)?,
            "sfq" => sfq(&mut options, frame)?,
            "cake" => cake(&mut options)?,
            _ => return Err(TreeError::Kind { kind: node.kind.clone(), handle: node.handle }),
        };
        options.finish()?;
        self.register_leaf(node, flows);
        Ok(kind)
    }

    fn fq(&mut self, options: &mut Options<'_>) -> Result<Kind, TreeError> {
        let usual =
            FqConfig { quantum: 2 * self.frame, initial_quantum: 10 * self.frame, ..FqConfig::default() };
        let config = FqConfig {
            limit: options.short("limit")?.unwrap_or(usual.limit),
            flow_limit: options.short("flow_limit")?.unwrap_or(usual.flow_limit),
            quantum: options.short("quantum")?.unwrap_or(usual.quantum),
            initial_quantum: options.short("initial_quantum")?.unwrap_or(usual.initial_quantum),
        };
        // The number of lookup trees only changes the time of a lookup.
        options.number("buckets")?;
        options.any(&["pacing"]);
        self.pacing = !options.any(&["nopacing"]);
        Ok(Kind::Fq(config))
    }

    pub(super) fn tbf(&mut self, node: &Node, flows: &[u32]) -> Result<Kind, TreeError> {
        let mut options = Options::of(node);
        let missing = |what: &str| shape(node, format!("it has no {what}"));
        let rate = options.number("rate")?.ok_or_else(|| missing("rate"))?;
        let burst = options.short("burst")?.ok_or_else(|| missing("burst"))?;
        let limit = options.number("limit")?;
        let peak_rate = options.number("peakrate")?;
        let peak_burst = options.short("mtu")?;
        let limit = match (limit, options.time("latency")?) {
            (Some(limit), _) => limit,
            // The bytes sent during this latency at the rate, plus a full bucket.
            (None, Some(latency)) => {
                let bytes = u128::from(rate) * u128::from(latency) / u128::from(8 * crate::time::SECOND);
                u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(u64::from(burst))
            }
            (None, None) => return Err(missing("limit")),
        };
        options.finish()?;
        let peak = peak_rate.map(|rate| TbfPeak { rate, burst: peak_burst.unwrap_or(self.frame) });
        let qdisc = self.register(node, 1, true);
        self.classify(node, qdisc, flows);
        let child = self
            .tree
            .qdiscs()
            .find(|child| child.parent.major == node.handle.major && child.parent != Handle::ROOT);
        let inner = match child {
            Some(child) => self.qdisc(child, flows)?,
            None => Kind::Bfifo { limit },
        };
        Ok(Kind::Tbf(TbfConfig { rate, burst, peak, inner: Box::new(inner) }))
    }
}

/// Returns `pfifo_fast` with three bands. Each band has the device's default queue length, as in Linux since
/// 4.16.
fn pfifo_fast() -> Kind {
    let bands = vec![Kind::Pfifo { limit: DEFAULT_LIMIT }; 3];
    Kind::Prio { classifier: super::super::Classifier::Band, bands }
}

fn fq_codel(options: &mut Options<'_>, frame: u32) -> Result<Kind, TreeError> {
    let usual = FqCodelConfig::default();
    // The simulator has no ECN, so both options have no effect.
    options.any(&["noecn", "ecn"]);
    Ok(Kind::FqCodel(FqCodelConfig {
        limit: options.short("limit")?.unwrap_or(usual.limit),
        flows: options.short("flows")?.unwrap_or(usual.flows),
        quantum: options.short("quantum")?.unwrap_or(frame),
        target: options.time("target")?.unwrap_or(usual.target),
        interval: options.time("interval")?.unwrap_or(usual.interval),
    }))
}

fn sfq(options: &mut Options<'_>, frame: u32) -> Result<Kind, TreeError> {
    let usual = SfqConfig::default();
    let limit = options.short("limit")?;
    let divisor = options.short("divisor")?;
    let depth = options.short("depth")?.unwrap_or(usual.depth);
    // Limits of `sfq_change`:
    // - at most as many flows as buckets
    // - at most as many segments as all flows hold at their depth
    // - at most as many flows as segments
    let flows = options.short("flows")?.unwrap_or(usual.flows).min(divisor.unwrap_or(u32::MAX));
    let most = limit.map(|limit| limit.min(depth.saturating_mul(flows)));
    Ok(Kind::Sfq(SfqConfig {
        depth,
        flows: flows.min(most.unwrap_or(u32::MAX)),
        limit: most.unwrap_or(usual.limit),
        divisor: divisor.unwrap_or(usual.divisor),
        quantum: options.short("quantum")?.unwrap_or(frame),
        head_drop: options.any(&["headdrop"]),
    }))
}

fn cake(options: &mut Options<'_>) -> Result<Kind, TreeError> {
    let usual = CakeConfig::default();
    // Without a bandwidth, cake does not shape. With one pair of hosts, every isolation except
    // `flowblind`, `srchost`, `dsthost` and `hosts` separates flows. The other options concern marking,
    // NAT and ACK filtering, which have no effect in the simulator.
    options.any(&["unlimited", "diffserv3", "nonat", "nowash", "egress", "no-ack-filter"]);
    options.any(&["flows", "dual-srchost", "dual-dsthost", "triple-isolate", "split-gso"]);
    let interval = options.time("rtt")?;
    Ok(Kind::Cake(CakeConfig {
        tins: !options.any(&["besteffort"]),
        split: !options.any(&["no-split-gso"]),
        memory: options.number("memlimit")?.unwrap_or(usual.memory),
        // One twentieth of the interval, as in `tc` (`q_cake.c`).
        target: interval.map_or(usual.target, |interval| interval / 20),
        interval: interval.unwrap_or(usual.interval),
    }))
}
