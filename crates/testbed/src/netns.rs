//! The world `netns`: runs scenarios on this machine's kernel.

use std::collections::BTreeMap;

use evenkeel_datapath::{QueueSelect, SelectOptions};
use evenkeel_host::{Capability, Host, tool_version};
use evenkeel_model::scenario::{
    Knobs, Scenario, Sets, TenantPoint, Tenants, Topology, Variant, WorkloadKind,
};
use evenkeel_model::soft_nic::place;
use evenkeel_model::text::suggestion;
use evenkeel_model::units::BitRate;
use evenkeel_model::world::{Assessment, Job, Observer, RawRepeat, World};

use crate::capacity::{self, AUTO_HEADROOM, LADDER_BPS};
use crate::error::TestbedError;
use crate::kernel::{self, KernelFeatures};
use crate::process::own_processors;
use crate::repeat;
use crate::tenants::{self, Suitability};
use crate::traffic::{iperf3, sockperf};
use crate::transfers;

#[derive(Debug)]
pub struct NetnsWorld {
    host: Host,
    features: KernelFeatures,
    topology: Option<Topology>,
    suitability: Suitability,
}

const TOOLS: [&str; 2] = ["iperf3", "sockperf"];

impl NetnsWorld {
    /// Checks that this machine can run a test bed. `topology` overrides the scenario's topology.
    ///
    /// # Errors
    /// Returns an error if a program, privilege or feature is missing.
    pub fn new(topology: Option<Topology>) -> Result<Self, TestbedError> {
        let host = Host::live();
        let wanted = [Capability::SysAdmin, Capability::NetAdmin, Capability::Bpf, Capability::Perfmon];
        let missing = host.missing_capabilities(&wanted)?;
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(TestbedError::Unable {
                missing: format!("this process lacks {}", names.join(", ")),
                remedy: format!(
                    "{}: the test bed creates network namespaces and loads BPF programs",
                    host.how_to_be_privileged()
                ),
            });
        }
        if !host.has_btf() {
            return Err(TestbedError::Unable {
                missing: "this kernel has no BTF (/sys/kernel/btf/vmlinux)".to_owned(),
                remedy: "use a kernel built with CONFIG_DEBUG_INFO_BTF, as the kernels of distributions are"
                    .to_owned(),
            });
        }
        for tool in TOOLS {
            if evenkeel_host::find_tool(tool).is_none() {
                return Err(TestbedError::Unable {
                    missing: format!("{tool} is not installed, and the test bed needs it for traffic"),
                    remedy: format!("install it (Debian, Ubuntu: apt-get install {tool})"),
                });
            }
        }
        if let Err(error) = QueueSelect::load(&SelectOptions::default()) {
            return Err(TestbedError::Unable {
                missing: error.to_string(),
                remedy: "use Linux 6.6 or later, and allow this process to load BPF programs".to_owned(),
            });
        }
        Ok(Self { host, features: KernelFeatures::probe()?, topology, suitability: Suitability::default() })
    }

    fn topology(&self, scenario: &Scenario) -> Topology {
        self.topology.unwrap_or(scenario.link.topology)
    }
}

fn tenants_of<'a>(scenario: &'a Scenario, variant: &'a Variant) -> Option<(&'a Tenants, &'a TenantPoint)> {
    Some((scenario.workload.tenants()?, variant.tenants()?))
}

/// Returns the reason why a scenario cannot run on a single kernel, if any.
#[must_use]
pub fn beyond_one_kernel(scenario: &Scenario) -> Option<String> {
    match &scenario.workload.kind {
        WorkloadKind::Shuffle { .. } => Some(format!(
            "a shuffle among {} hosts needs as many machines and a switch; run the scenario with --on sim",
            scenario.hosts.count
        )),
        WorkloadKind::Fetch { .. } => Some(
            "the test bed has no server and clients that fetch values from it; run the scenario with --on sim"
                .to_owned(),
        ),
        WorkloadKind::Requests(_) => Some(
            "the test bed has no NIC whose filters steer clients' requests; run the scenario with --on sim"
                .to_owned(),
        ),
        WorkloadKind::Bulk if !scenario.link.priorities.is_empty() => Some(
            "the test bed's NIC has no priorities with queues of their own; run the scenario with --on sim"
                .to_owned(),
        ),
        WorkloadKind::Bulk | WorkloadKind::Tenants(_) | WorkloadKind::Transfers => None,
    }
}

/// Returns an error if a sending core has more bulk flows than one iperf3 process supports.
fn beyond_iperf3(scenario: &Scenario, processors: usize) -> Option<TestbedError> {
    let (flows, cores) = (scenario.workload.flows, scenario.hosts.sending_cores);
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    let largest = |flows| place(flows, cores, processors).iter().map(|core| core.flows).max().unwrap_or(0);
    let wanted = largest(flows);
    if wanted <= iperf3::MAX_STREAMS {
        return None;
    }
    let most = (1..flows).rev().find(|flows| largest(*flows) <= iperf3::MAX_STREAMS).unwrap_or(1);
    Some(TestbedError::Setting {
        key: "workload.flows",
        problem: format!(
            "with {flows} flows, one sending core has {wanted} of them, but an iperf3 process sends at most {}",
            iperf3::MAX_STREAMS
        ),
        remedy: format!("use at most {most} flows, or run the scenario with --on sim"),
    })
}

impl World for NetnsWorld {
    type Error = TestbedError;

    fn name(&self) -> &'static str {
        "netns"
    }

    /// Returns the kernel release without the distribution's suffix (`-amd64` in `6.18.44-amd64`). The
    /// facts contain the whole string.
    fn kernel(&self) -> String {
        let release = self.host.kernel_release().unwrap_or_else(|_| "unknown".to_owned());
        release.split(['-', '+']).next().unwrap_or_default().to_owned()
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = self.host.facts();
        for tool in TOOLS {
            if let Some(version) = tool_version(tool) {
                facts.insert(tool.to_owned(), version);
            }
        }
        facts
    }

    fn assess(&self, scenario: &Scenario, variant: &Variant) -> Result<Assessment, String> {
        if let Some(why) = beyond_one_kernel(scenario) {
            return Err(why);
        }
        if let Some((tenants, point)) = tenants_of(scenario, variant) {
            return self.suitability.assess(scenario, tenants, point);
        }
        if let Some(knobs) = variant.transfers() {
            let processors = own_processors().map_err(|error| error.to_string())?;
            let controls = self.host.congestion_controls().map_err(|error| error.to_string())?;
            return transfers::assess(scenario, variant, knobs, &processors, &controls);
        }
        kernel::assess(variant, self.topology(scenario), self.features, scenario.link.queues)
    }

    fn settle_rate(
        &mut self,
        scenario: &Scenario,
        wanted: Option<BitRate>,
        observer: &dyn Observer,
    ) -> Result<BitRate, TestbedError> {
        if matches!(scenario.workload.kind, WorkloadKind::Transfers) {
            // Transfers use the rate of the link. `assess` has checked the congestion controls of the
            // variants.
            return Ok(scenario.link.rate);
        }
        let control = &scenario.workload.congestion_control;
        let available = self.host.congestion_controls()?;
        if !available.contains(control) {
            return Err(TestbedError::Setting {
                key: "workload.congestion-control",
                problem: format!("this kernel does not offer {control}"),
                remedy: format!(
                    "load it (modprobe tcp_{control}), or use another: {}",
                    suggestion(control, available.iter().map(String::as_str))
                ),
            });
        }
        if let Some(tenants) = scenario.workload.tenants() {
            return tenants::settle(scenario, tenants, wanted, self.features, observer);
        }
        if let Some(refusal) = beyond_iperf3(scenario, self.host.cpu_times()?.cpus()) {
            return Err(refusal);
        }
        if let Some(probe) = &scenario.workload.latency {
            let (least, most) = (u64::from(sockperf::MIN_MESSAGE), u64::from(sockperf::MAX_MESSAGE));
            if !(least..=most).contains(&probe.message.bytes()) {
                return Err(TestbedError::Setting {
                    key: "workload.latency.message",
                    problem: format!("sockperf cannot exchange messages of {}", probe.message),
                    remedy: format!("use a size from {least} B to {most} B"),
                });
            }
        }
        let Some(variant) = scenario.variants.first() else {
            return Ok(wanted.unwrap_or(scenario.link.rate));
        };
        // Measure the CPUs' limit with the first variant, and with TSO, because TSO needs the least CPU time
        // per byte.
        let mut plain = variant.clone();
        plain.sets = Sets::Transmit(Knobs { tso: true, ..variant.knobs().clone() });
        observer.progress(0.0, "finding the throughput limit of the processors");
        let capacity = capacity::measure(scenario, &plain, self.features, observer)?;
        let rate = capacity::settle(&LADDER_BPS, AUTO_HEADROOM, capacity, scenario.link.rate, wanted)?;
        observer.remark(&format!(
            "the processors carry {:.1} Gbit/s of these flows; line rate {rate}{}",
            capacity / 1e9,
            if wanted.is_none() && rate < scenario.link.rate {
                format!(
                    " instead of {}, so that the NIC is the bottleneck (--rate asks for another)",
                    scenario.link.rate
                )
            } else {
                String::new()
            }
        ));
        Ok(rate)
    }

    fn repeat(&mut self, job: &Job<'_>, observer: &dyn Observer) -> Result<RawRepeat, TestbedError> {
        if let Some((tenants, point)) = tenants_of(job.scenario, job.variant) {
            let in_front =
                tenants::in_front(point, job.scenario, tenants, job.rate).map_err(TestbedError::Qdisc)?;
            return tenants::run(job, point, &in_front, self.features, observer);
        }
        if let Some(knobs) = job.variant.transfers() {
            return transfers::run(job, knobs, self.features, observer);
        }
        let mut options = kernel::bed_options(
            job.variant,
            self.features,
            job.scenario.link.queues,
            self.topology(job.scenario),
        );
        options.rate = job.rate;
        options.mtu = u32::try_from(job.scenario.link.mtu.bytes()).unwrap_or(1500);
        repeat::run(job, options, observer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use evenkeel_model::scenario::bundled::{bundled, variant_tables};
    use evenkeel_model::scenario::parse;

    #[test]
    fn more_flows_than_iperf3_takes_are_refused_with_the_largest_number() {
        let (_, text) = bundled().iter().find(|(known, _)| *known == "titan-3-flows").unwrap();
        let mut scenario = parse(text, "test", variant_tables()).unwrap();
        let mut refusal = |flows| {
            scenario.workload.flows = flows;
            beyond_iperf3(&scenario, 2).map(|error| error.to_string())
        };
        // With eight sending cores, half of the cores have twice as many flows as the other cores.
        assert_eq!(refusal(768), None);
        assert_eq!(
            refusal(1000).unwrap(),
            "workload.flows: with 1000 flows, one sending core has 167 of them, but an iperf3 process sends \
             at most 128; use at most 768 flows, or run the scenario with --on sim"
        );
    }

    #[test]
    fn what_only_the_simulator_runs_is_refused() {
        let refusal = |name: &str| {
            let (_, text) = bundled().iter().find(|(known, _)| *known == name).unwrap();
            beyond_one_kernel(&parse(text, name, variant_tables()).unwrap())
        };
        assert_eq!(
            refusal("shuffle-12").unwrap(),
            "a shuffle among 12 hosts needs as many machines and a switch; run the scenario with --on sim"
        );
        assert_eq!(
            refusal("memcached-hol").unwrap(),
            "the test bed has no server and clients that fetch values from it; run the scenario with --on sim"
        );
        assert_eq!(refusal("titan-12-flows"), None);
        let (_, text) = bundled().iter().find(|(known, _)| *known == "titan-12-flows").unwrap();
        let mut scenario = parse(text, "test", variant_tables()).unwrap();
        scenario.link.priorities = vec![2, 6];
        assert_eq!(
            beyond_one_kernel(&scenario).unwrap(),
            "the test bed's NIC has no priorities with queues of their own; run the scenario with --on sim"
        );
    }
}
