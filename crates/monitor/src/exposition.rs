//! The exposition: the series of a sample as text.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::series::{Exported, Kind, SERIES, Series};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4, which node_exporter's textfile collector reads.
    Prometheus,
}

impl Form {
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Value = (Vec<(&'static str, String)>, f64);

/// The values of each metric of [`SERIES`], in the order of [`SERIES`].
#[derive(Debug)]
struct Values(Vec<Vec<Value>>);

impl Values {
    fn of(exported: &Exported) -> Self {
        let of_series = |series: &Series| {
            let mut found: Vec<Value> = Vec::new();
            (series.values)(exported, &mut |labels, value| {
                let labels =
                    series.labels.iter().copied().zip(labels.iter().map(|label| (*label).to_owned()));
                found.push((labels.collect(), value));
            });
            found
        };
        Self(SERIES.iter().map(of_series).collect())
    }
}

#[derive(Debug)]
struct Encoded(Arc<Values>);

impl Collector for Encoded {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (series, values) in SERIES.iter().zip(&self.0.0) {
            if values.is_empty() {
                continue;
            }
            let unit = match series.unit {
                "" => None,
                "bytes" => Some(Unit::Bytes),
                "seconds" => Some(Unit::Seconds),
                other => Some(Unit::Other(other.to_owned())),
            };
            let kind = match series.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(series.name, series.help, unit.as_ref(), kind)?;
            for (labels, value) in values {
                let mut one = family.encode_family(labels)?;
                match series.kind {
                    Kind::Counter => {
                        one.encode_counter::<prometheus_client::encoding::NoLabelSet, f64, f64>(value, None)?;
                    }
                    Kind::Gauge => one.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[must_use]
pub fn exposition(exported: &Exported, form: Form) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Encoded(Arc::new(Values::of(exported)))));
    let mut found = String::new();
    // Ignore the result: a write to a String cannot fail.
    let _ = text::encode(&mut found, &registry);
    match form {
        Form::OpenMetrics => found,
        Form::Prometheus => prometheus_text(&found),
    }
}

/// Converts to the text format of Prometheus. In this format, the `HELP` and `TYPE` lines of a counter have
/// the suffix `_total`, and there are no `UNIT` and `EOF` lines.
fn prometheus_text(open_metrics: &str) -> String {
    let mut found = String::with_capacity(open_metrics.len());
    let is_counter = |name: &str| {
        SERIES.iter().any(|series| {
            series.kind == Kind::Counter && series.full_name().strip_suffix("_total") == Some(name)
        })
    };
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if is_counter(name) => {
                found.push_str(&format!("# {kind} {name}_total {rest}"));
            }
            _ => found.push_str(line),
        }
        found.push('\n');
    }
    found
}

#[must_use]
pub fn reference_table() -> String {
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for series in SERIES {
        let kind = match series.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let labels: Vec<String> = series.labels.iter().map(|label| format!("`{label}`")).collect();
        table.push_str(&format!(
            "| `{}` | {kind} | {} | {} |\n",
            series.full_name(),
            labels.join(", "),
            series.help
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sample::{Interface, Interval, Loss, Management, Processor, Queue, Sample};
    use crate::series::{CheckCounts, MOST_PER_INTERFACE};

    fn exported(name: &str, queues: u32) -> Exported {
        let interval = Some(Interval { total: 100, delta: 10 });
        let queue = |index| Queue {
            index,
            busy_flows: Some(1),
            bytes: interval,
            packets: interval,
            drops: interval,
            backlog_bytes: Some(5),
            ..Queue::default()
        };
        let interface = Interface {
            name: name.to_owned(),
            speed_bps: Some(8_000_000_000),
            up: true,
            sent_bytes: Interval { total: u64::MAX / 4096, delta: 1 },
            queues: (0..queues).map(queue).collect(),
            active_flows: Some(130),
            busy_flows: Some(128),
            colliding_flows: Some(3),
            nfm_1s: Some(0.25),
            nfm_100ms: Some(0.5),
            jain_1s: Some(0.9),
            bpf_ns: interval,
            management: Some(Management { command: "fair".into(), process: 1 }),
            ..Interface::default()
        };
        let loss = |place: &str, subject: &str| Loss {
            place: place.into(),
            subject: subject.into(),
            packets: Interval { total: 7, delta: 7 },
            ..Loss::default()
        };
        Exported {
            sample: Sample {
                interfaces: vec![interface],
                losses: vec![
                    loss("qdisc", name),
                    loss("qdisc", "other0"),
                    loss("receive queue", "UDP 0.0.0.0:53"),
                ],
                ..Sample::default()
            },
            check: Some(CheckCounts {
                findings: vec![("qdisc-drops".into(), "high".into(), 2)],
                not_judged: 4,
            }),
            cpu_seconds: 1.5,
            version: "0.1.0".into(),
        }
    }

    #[test]
    fn an_exposition_has_each_metric_with_its_labels() {
        let text = exposition(&exported("eth0", 8), Form::OpenMetrics);
        for line in [
            "# TYPE evenkeel_collector_cpu_seconds counter",
            "# UNIT evenkeel_collector_cpu_seconds seconds",
            "evenkeel_collector_cpu_seconds_total 1.5",
            "evenkeel_build_info{version=\"0.1.0\"} 1.0",
            "evenkeel_findings{rule=\"qdisc-drops\",severity=\"high\"} 2.0",
            "evenkeel_lost_packets_total{place=\"qdisc\"} 14.0",
            "evenkeel_lost_packets_total{place=\"receive queue\"} 7.0",
            "evenkeel_lost_packets_total{place=\"wire\"} 0.0",
            "evenkeel_interface_lost_packets_total{interface=\"eth0\",place=\"qdisc\"} 7.0",
            "evenkeel_interface_nfm_ratio{interface=\"eth0\",window=\"100ms\"} 0.5",
            "evenkeel_interface_speed_bytes{interface=\"eth0\"} 1000000000.0",
            "evenkeel_interface_queue_largest_ratio{interface=\"eth0\"} 0.125",
            "evenkeel_interface_meter_seconds_total{interface=\"eth0\"} 1e-7",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"));
        for series in SERIES {
            assert!(text.contains(&series.full_name()), "{}", series.full_name());
        }
        let plain = exposition(&exported("eth0", 8), Form::Prometheus);
        assert!(plain.contains("# TYPE evenkeel_collector_cpu_seconds_total counter\n"), "{plain}");
        assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"), "{plain}");
        let samples = |text: &str| {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(&plain), samples(&text));
    }

    #[test]
    fn queues_do_not_add_series() {
        let of_interface = |queues| {
            let text = exposition(&exported("eth0", queues), Form::OpenMetrics);
            text.lines().filter(|line| line.contains("interface=\"eth0\"")).count()
        };
        assert_eq!(of_interface(128), of_interface(1));
        assert!(of_interface(128) <= MOST_PER_INTERFACE, "{}", of_interface(128));
    }

    #[test]
    fn a_name_from_outside_stays_within_its_label() {
        let text = exposition(&exported("a\"} 1\n# EOF\n\\", 1), Form::OpenMetrics);
        assert!(text.contains(r#"evenkeel_interface_up{interface="a\"} 1\n# EOF\n\\"} 1.0"#), "{text}");
        assert_eq!(text.matches("\n# EOF\n").count(), 1);
    }

    #[test]
    fn names_and_help_follow_the_conventions() {
        let mut names = std::collections::BTreeSet::new();
        for series in SERIES {
            let name = series.full_name();
            assert!(names.insert(name.clone()), "{name} is there twice");
            assert!(name.starts_with("evenkeel_") && !series.help.ends_with('.'), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(!series.name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn losses_that_could_not_be_read_are_not_zero() {
        let mut exported = exported("eth0", 1);
        exported.sample.losses_incomplete = true;
        let text = exposition(&exported, Form::OpenMetrics);
        assert!(text.contains("evenkeel_lost_packets_total{place=\"qdisc\"} 14.0"), "{text}");
        assert!(!text.contains("place=\"wire\""), "{text}");
        exported.sample.losses_incomplete = false;
        exported.sample.unread_places = vec!["network layer".to_owned()];
        let text = exposition(&exported, Form::OpenMetrics);
        assert!(text.contains("place=\"wire\"} 0.0") && !text.contains("place=\"network layer\""), "{text}");
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let processors = vec![Processor::default()];
        let sample = Sample { interfaces: vec![Interface::default()], processors, ..Sample::default() };
        let text = exposition(&Exported { sample, ..Exported::default() }, Form::OpenMetrics);
        let text: String = text.lines().filter(|line| !line.contains("# HELP")).collect();
        for absent in [
            "nfm",
            "jain",
            "colliding",
            "busy",
            "active",
            "speed",
            "findings",
            "rules_not_judged",
            "meter",
            "managed",
            "softnet",
        ] {
            assert!(!text.contains(&format!("evenkeel_interface_{absent}")), "{absent}: {text}");
            assert!(!text.contains(&format!("evenkeel_{absent}")), "{absent}: {text}");
        }
    }
}
