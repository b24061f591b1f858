//! Picks the NIC model for a device, from the facts that the kernel reports.

use crate::nic::NicModel;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    pub driver: Option<String>,
    pub queues: u32,
    /// Whether the device accepts n-tuple rules.
    pub takes_rules: bool,
    /// Number of rule locations, if the driver reports it.
    pub rule_places: Option<u32>,
    pub rules_are_on: bool,
    pub rss_entries: Option<u32>,
    /// Whether the kernel reports that the driver cannot redirect packets by XDP.
    pub lacks_xdp: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// `None` if the device and its driver have no feature that a model needs.
    pub model: Option<String>,
    /// Whether the model names the device's driver. Otherwise the features of the device select the
    /// model.
    pub is_named: bool,
    pub reasons: Vec<String>,
    /// Differences between device and model, and preparations that the device needs.
    pub remarks: Vec<String>,
}

const RULES: &str = "ntuple";
const HASH: &str = "rss-only";
const SOFTWARE: &str = "xdp-cpumap";

#[must_use]
pub fn probe(facts: &DeviceFacts, models: &[NicModel]) -> Probed {
    let driver = facts.driver.as_deref();
    let named =
        models.iter().find(|model| model.drivers().iter().any(|known| Some(known.as_str()) == driver));
    let mut reasons = vec![match driver {
        Some(driver) => format!("its driver is {driver}"),
        None => "it has no driver that reports its name".to_owned(),
    }];
    reasons.push(match (facts.takes_rules, facts.rule_places) {
        (true, Some(places)) => format!("it takes n-tuple rules, at most {places}"),
        (true, None) => "it takes n-tuple rules".to_owned(),
        (false, _) => "it takes no n-tuple rules".to_owned(),
    });
    reasons.push(match facts.rss_entries {
        Some(entries) => format!("its RSS table has {entries} entries"),
        None => "it has no RSS table that can be set".to_owned(),
    });
    let mut remarks = Vec::new();
    let fitting = if facts.takes_rules {
        Some(RULES)
    } else if facts.rss_entries.is_some() && facts.queues > 1 {
        Some(HASH)
    } else if facts.lacks_xdp {
        reasons.push("its driver cannot redirect packets by XDP".to_owned());
        None
    } else {
        Some(SOFTWARE)
    };
    let (name, is_named) = match named {
        // A model with filter tables fits only if the driver accepts rules.
        Some(model) if facts.takes_rules || model.tables().is_empty() && facts.rss_entries.is_some() => {
            reasons.push(format!("{} is the model for this driver", model.name()));
            (Some(model.name()), true)
        }
        Some(model) => {
            let name = model.name();
            remarks.push(format!(
                "{name} is the model for this driver, but the device or the kernel lacks a feature that the model needs"
            ));
            (fitting, false)
        }
        None => {
            let words = match fitting {
                Some(_) => "no model names this driver: this model needs only features that the device has",
                None => "no model names this driver",
            };
            reasons.push(words.to_owned());
            (fitting, false)
        }
    };
    if name.is_none() {
        remarks.push(
            "RPS can spread received packets: evenkeel steer IFACE --policy balance --backend rps".to_owned(),
        );
    }
    if name != Some(SOFTWARE) && facts.takes_rules && !facts.rules_are_on {
        remarks.push("n-tuple filters are switched off: ethtool -K IFACE ntuple on".to_owned());
    }
    if let Some(model) = models.iter().find(|model| Some(model.name()) == name) {
        if let (Some(rss), Some(entries)) = (model.rss(), facts.rss_entries)
            && rss.entries != entries as usize
            && name != Some(SOFTWARE)
        {
            remarks.push(format!(
                "the model's RSS table has {} entries, the device's table has {entries}",
                rss.entries
            ));
        }
        if facts.queues > u32::from(model.queues()) && name != Some(SOFTWARE) {
            remarks.push(format!("it has {} queues in use, and the model {}", facts.queues, model.queues()));
        }
    }
    Probed { model: name.map(str::to_owned), is_named, reasons, remarks }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn probed(facts: DeviceFacts) -> Probed {
        let models: Vec<NicModel> =
            NicModel::built_in_names().map(|name| NicModel::built_in(name).unwrap()).collect();
        probe(&facts, &models)
    }

    fn facts(driver: &str, rules: Option<u32>, entries: Option<u32>) -> DeviceFacts {
        DeviceFacts {
            driver: Some(driver.to_owned()),
            queues: 8,
            takes_rules: rules.is_some(),
            rule_places: rules,
            rules_are_on: true,
            rss_entries: entries,
            lacks_xdp: false,
        }
    }

    #[test]
    fn a_driver_that_a_model_names_decides() {
        let ixgbe = probed(facts("ixgbe", Some(8190), Some(128)));
        assert_eq!((ixgbe.model.as_deref(), ixgbe.is_named), (Some("i82599"), true));
        assert_eq!(ixgbe.remarks, Vec::<String>::new());
        assert_eq!(probed(facts("mlx5_core", Some(1024), Some(256))).model.as_deref(), Some("ntuple"));
        assert_eq!(probed(facts("virtio_net", None, Some(128))).model.as_deref(), Some("rss-only"));
    }

    #[test]
    fn without_what_the_model_needs_a_lesser_one_is_taken() {
        let ixgbe = probed(facts("ixgbe", None, Some(128)));
        assert_eq!((ixgbe.model.as_deref(), ixgbe.is_named), (Some("rss-only"), false));
        assert!(ixgbe.remarks[0].starts_with("i82599 is the model for this driver"));
        assert_eq!(probed(facts("virtio_net", None, None)).model.as_deref(), Some("xdp-cpumap"));
    }

    #[test]
    fn what_an_unknown_device_offers_decides() {
        assert_eq!(probed(facts("veth", None, None)).model.as_deref(), Some("xdp-cpumap"));
        assert_eq!(probed(facts("new", Some(64), None)).model.as_deref(), Some("ntuple"));
        let hash = probed(facts("new", None, Some(512)));
        assert_eq!((hash.model.as_deref(), hash.is_named), (Some("rss-only"), false));
        assert_eq!(hash.remarks, ["the model's RSS table has 128 entries, the device's table has 512"]);
        assert_eq!(
            probed(DeviceFacts { queues: 1, ..facts("new", None, Some(128)) }).model.as_deref(),
            Some("xdp-cpumap")
        );
        assert_eq!(probed(DeviceFacts::default()).model.as_deref(), Some("xdp-cpumap"));
        let bridge = probed(DeviceFacts { lacks_xdp: true, ..facts("bridge", None, None) });
        assert_eq!(bridge.model, None);
        assert!(bridge.reasons.iter().any(|reason| reason.contains("XDP")), "{bridge:?}");
        assert!(bridge.remarks.iter().any(|remark| remark.contains("--backend rps")), "{bridge:?}");
    }

    #[test]
    fn filters_that_are_switched_off_are_told() {
        let off = probed(DeviceFacts { rules_are_on: false, ..facts("ice", Some(512), Some(256)) });
        assert_eq!(off.remarks, ["n-tuple filters are switched off: ethtool -K IFACE ntuple on"]);
    }
}
