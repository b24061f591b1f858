//! Formats steps as lines that parse to the same steps.

use std::fmt;

use crate::change::Handle;

use super::kinds::{OptionType, kind, option_named};
use super::template::Counter;
use super::template::{
    CurveTerm, FilterTemplate, HandleTemplate, NodeTemplate, Number, PortTerm, RateTerm, SettingTemplate,
    SizeTerm, StepTemplate, Term,
};
use super::values::{show_attribute, show_handle, show_rate, show_size};
use super::{Classifier, Filter, Node, QdiscTree, Setting, SettingValue, Step};

impl fmt::Display for StepTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qdisc(node) => {
                formatter.write_str("qdisc ")?;
                match node.parent {
                    None => formatter.write_str("root")?,
                    Some(parent) => write!(formatter, "parent {}", show_handle(parent))?,
                }
                if let Some(handle) = node.handle {
                    write!(formatter, " handle {}", show_handle(handle))?;
                }
                show_kind(node, formatter)
            }
            Self::Class(node) => {
                formatter.write_str("class")?;
                if let Some(parent) = node.parent {
                    write!(formatter, " parent {}", show_handle(parent))?;
                }
                if let Some(handle) = node.handle {
                    write!(formatter, " classid {}", show_handle(handle))?;
                }
                show_kind(node, formatter)
            }
            Self::Filter { parent, filter } => {
                write!(formatter, "filter parent {} {filter}", show_handle(*parent))
            }
        }
    }
}

fn show_kind(node: &NodeTemplate, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(formatter, " {}", node.kind)?;
    node.settings.iter().try_for_each(|setting| write!(formatter, " {setting}"))
}

impl fmt::Display for SettingTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        let list = |texts: Vec<String>| texts.join(" ");
        match &self.value {
            Term::Flag => Ok(()),
            Term::Count(count) => write!(formatter, " {count}"),
            Term::Rate(rate) => write!(formatter, " {}", show_rate(*rate)),
            Term::Size(size) => write!(formatter, " {}", show_size(*size)),
            Term::Time(time) => write!(formatter, " {time}"),
            Term::Seconds(seconds) => write!(formatter, " {seconds}"),
            Term::Minor(minor) => write!(formatter, " {minor:x}"),
            Term::Bands(bands) => {
                write!(formatter, " {}", list(bands.iter().map(ToString::to_string).collect()))
            }
            Term::Sizes(sizes) => {
                write!(formatter, " {}", list(sizes.iter().copied().map(show_size).collect()))
            }
            Term::Curve(CurveTerm::Straight(rate)) => write!(formatter, " rate {}", show_rate(*rate)),
            Term::Curve(CurveTerm::Bent { m1, first, m2 }) => {
                write!(formatter, " m1 {} d {first} m2 {}", show_rate(*m1), show_rate(*m2))
            }
            Term::Curve(CurveTerm::Delay { umax, dmax, rate }) => {
                write!(formatter, " umax {} dmax {dmax} rate {}", show_size(*umax), show_rate(*rate))
            }
            Term::Attribute(attribute) => write!(formatter, " {}", show_attribute(attribute)),
        }
    }
}

impl fmt::Display for FilterTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerFlow { class, modulo, rest } => {
                write!(formatter, "flow classid {}", show_handle(*class))?;
                if let Some(modulo) = modulo {
                    write!(formatter, " modulo {modulo}")?;
                }
                rest.map_or(Ok(()), |rest| write!(formatter, " rest {}", show_handle(rest)))
            }
            Self::ByRole { probes, bulk } => {
                write!(formatter, "role probes {} bulk {}", show_handle(*probes), show_handle(*bulk))
            }
            Self::Port { classifier, port, class } => {
                let port = match port {
                    PortTerm::Fixed(port) => port.to_string(),
                    PortTerm::OfFlow => "{port}".to_owned(),
                };
                match classifier {
                    Classifier::U32 => write!(formatter, "u32 match ip dport {port} 0xffff")?,
                    Classifier::Flower => write!(formatter, "flower ip_proto tcp dst_port {port}")?,
                    Classifier::Bpf => write!(formatter, "bpf dst_port {port}")?,
                }
                write!(formatter, " classid {}", show_handle(*class))
            }
        }
    }
}

/// Formats a `tc` command without `tc` and the device, except for filters that `tc` cannot express.
impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        StepTemplate::from(self).fmt(formatter)
    }
}

/// Formats one step per line.
impl fmt::Display for QdiscTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(formatter, "{step}"))
    }
}

impl From<&Step> for StepTemplate {
    fn from(step: &Step) -> Self {
        match step {
            Step::Qdisc(node) => Self::Qdisc(node_template(node, false)),
            Step::Class(node) => Self::Class(node_template(node, true)),
            Step::Filter { parent, filter } => {
                Self::Filter { parent: HandleTemplate::fixed(*parent), filter: filter_template(filter) }
            }
        }
    }
}

fn node_template(node: &Node, class: bool) -> NodeTemplate {
    let options =
        kind(&node.kind).map_or(&[][..], |kind| if class { kind.class_options } else { kind.options });
    NodeTemplate {
        parent: (node.parent != Handle::ROOT).then(|| HandleTemplate::fixed(node.parent)),
        handle: Some(HandleTemplate::fixed(node.handle)),
        kind: node.kind.clone(),
        settings: node
            .settings
            .iter()
            .map(|setting| {
                let of = option_named(options, &setting.name).map(|option| option.of);
                SettingTemplate { name: setting.name.clone(), value: term(setting, of) }
            })
            .collect(),
    }
}

fn term(setting: &Setting, of: Option<OptionType>) -> Term {
    match &setting.value {
        SettingValue::Count(count) => Term::Count(*count),
        SettingValue::Rate(rate) => Term::Rate(RateTerm::Fixed(*rate)),
        SettingValue::Size(size) => Term::Size(SizeTerm::Fixed(*size)),
        SettingValue::Time(time) if of == Some(OptionType::Seconds) => {
            Term::Seconds(u32::try_from(time.as_u64() / 1_000_000_000).unwrap_or(u32::MAX))
        }
        SettingValue::Time(time) => Term::Time(*time),
        SettingValue::Class(class) => Term::Minor(class.minor),
        SettingValue::List(list) if of == Some(OptionType::Sizes) => {
            let size = |bytes: &u64| SizeTerm::Fixed(crate::units::ByteSize::from_bytes(*bytes));
            Term::Sizes(list.iter().map(size).collect())
        }
        SettingValue::List(list) => {
            Term::Bands(list.iter().map(|band| u8::try_from(*band).unwrap_or(u8::MAX)).collect())
        }
        SettingValue::Curve(curve) if curve.first.as_u64() == 0 => {
            Term::Curve(CurveTerm::Straight(RateTerm::Fixed(curve.m2)))
        }
        SettingValue::Curve(curve) => Term::Curve(CurveTerm::Bent {
            m1: RateTerm::Fixed(curve.m1),
            first: curve.first,
            m2: RateTerm::Fixed(curve.m2),
        }),
        SettingValue::Flag => Term::Flag,
        SettingValue::Attribute(attribute) => Term::Attribute(attribute.clone()),
    }
}

fn filter_template(filter: &Filter) -> FilterTemplate {
    match *filter {
        Filter::PerFlow { first, bulk_flows, probes, classes, rest } => FilterTemplate::PerFlow {
            class: HandleTemplate {
                major: Number::fixed(first.major),
                minor: Number { base: first.minor.saturating_sub(1), counter: Some(Counter::Flow) },
            },
            modulo: (classes < bulk_flows.saturating_add(probes)).then_some(classes),
            rest: rest.map(HandleTemplate::fixed),
        },
        Filter::ByRole { probes, bulk } => FilterTemplate::ByRole {
            probes: HandleTemplate::fixed(probes),
            bulk: HandleTemplate::fixed(bulk),
        },
        Filter::Port { classifier, port, class } => FilterTemplate::Port {
            classifier,
            port: PortTerm::Fixed(port),
            class: HandleTemplate::fixed(class),
        },
    }
}
