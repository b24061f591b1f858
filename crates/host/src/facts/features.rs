//! Features of a device (`ethtool -k`): their text, their names, and the features that a list lacks.

use std::collections::BTreeMap;

use evenkeel_model::host::Feature;
use serde::{Deserialize, Serialize};

/// A feature in the format of `ethtool -k`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct FeatureText(pub Feature);

impl From<FeatureText> for String {
    fn from(FeatureText(feature): FeatureText) -> Self {
        let word = if feature.on { "on" } else { "off" };
        if feature.fixed { format!("{word} [fixed]") } else { word.to_owned() }
    }
}

/// Reads this crate's format, a boolean, or an object of `ethtool --json -k`.
impl<'de> Deserialize<'de> for FeatureText {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Ethtool {
            active: bool,
            #[serde(default)]
            fixed: bool,
        }

        struct State;
        impl<'de> serde::de::Visitor<'de> for State {
            type Value = FeatureText;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a feature's state")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<FeatureText, E> {
                FeatureText::try_from(word.to_owned()).map_err(E::custom)
            }

            fn visit_bool<E>(self, on: bool) -> Result<FeatureText, E> {
                Ok(FeatureText(Feature { on, fixed: false }))
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(self, map: M) -> Result<FeatureText, M::Error> {
                let of_map = serde::de::value::MapAccessDeserializer::new(map);
                let Ethtool { active, fixed } = Ethtool::deserialize(of_map)?;
                Ok(FeatureText(Feature { on: active, fixed }))
            }
        }
        from.deserialize_any(State)
    }
}

impl TryFrom<String> for FeatureText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (word, fixed) = text
            .split_once(' ')
            .map_or((text.as_str(), false), |(word, rest)| (word, rest.contains("fixed")));
        match word {
            "on" => Ok(Self(Feature { on: true, fixed })),
            "off" => Ok(Self(Feature { on: false, fixed })),
            _ => Err(format!("'{text}' is not a feature's state: write on, off, on [fixed] or off [fixed]")),
        }
    }
}

/// Names of features or groups in ethtool(8), each with the kernel's name (`net/ethtool/common.c`, and
/// ethtool's `off_flag_def`).
const FEATURE_NAMES: &[(&str, &str)] = &[
    ("rx-checksumming", "rx-checksum"),
    ("scatter-gather", "tx-scatter-gather"),
    ("tcp-segmentation-offload", "tx-tcp-segmentation"),
    ("generic-segmentation-offload", "tx-generic-segmentation"),
    ("generic-receive-offload", "rx-gro"),
    ("large-receive-offload", "rx-lro"),
    ("receive-hashing", "rx-hashing"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("rx-vlan-offload", "rx-vlan-hw-parse"),
    ("tx-vlan-offload", "tx-vlan-hw-insert"),
    ("tx-checksumming", "tx-checksum-ip-generic"),
];

#[must_use]
pub fn feature_name(name: &str) -> &str {
    FEATURE_NAMES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, kernel)| kernel)
}

/// Names of groups in `ethtool -k`. A group is on if one of its features is on.
const GROUPS: [&str; 3] = ["scatter-gather", "tcp-segmentation-offload", "tx-checksumming"];

/// Returns the features by the kernel's name. If a file lists a group and a feature of the group, the
/// state of the feature counts.
///
/// # Errors
/// Returns two names of one feature whose states contradict each other.
pub(super) fn by_kernel_name(
    features: &BTreeMap<String, FeatureText>,
) -> Result<BTreeMap<String, Feature>, [String; 2]> {
    let mut found: BTreeMap<String, Feature> = BTreeMap::new();
    for (name, FeatureText(feature)) in features {
        let kernel = feature_name(name);
        if let Some(FeatureText(own)) = features.get(kernel).filter(|_| name != kernel) {
            let may_differ = GROUPS.contains(&name.as_str()) && (feature.on || !own.on);
            if own != feature && !may_differ {
                return Err([name.clone(), kernel.to_owned()]);
            }
        } else {
            found.insert(kernel.to_owned(), *feature);
        }
    }
    Ok(found)
}

/// Features of every device (`NETIF_F_SOFT_FEATURES`, net/core/dev.c).
const SOFT_FEATURES: [&str; 2] = ["rx-gro", "tx-generic-segmentation"];
/// Features that rules use. Each kernel from 4.16 on lists them (`netdev_features_strings`,
/// net/ethtool/common.c).
const LISTED_FEATURES: [&str; 15] = [
    "rx-checksum",
    "rx-gro-hw",
    "rx-hashing",
    "rx-lro",
    "rx-ntuple-filter",
    "rx-vlan-hw-parse",
    "tx-checksum-ip-generic",
    "tx-checksum-ipv4",
    "tx-checksum-ipv6",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-vlan-hw-insert",
];
/// A feature of no NIC. A list with this feature has all names of the kernel.
const OF_WHOLE_LIST: &str = "vlan-challenged";

/// Returns a feature that a recorded list lacks, although the kernel listed it. In an incomplete list, a
/// missing feature is off and cannot be changed.
pub(super) fn lost_feature(features: &BTreeMap<String, Feature>) -> Option<&'static str> {
    let is_whole = features.contains_key(OF_WHOLE_LIST);
    let listed = LISTED_FEATURES.into_iter().filter(|_| is_whole);
    let lost = SOFT_FEATURES.into_iter().chain(listed).find(|name| !features.contains_key(*name));
    lost.filter(|_| !features.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn features_are_written_in_several_ways() {
        let text =
            r#"{"a": "off [fixed]", "b": true, "c": {"active": false, "fixed": true, "requested": false}}"#;
        let read: BTreeMap<String, FeatureText> = serde_json::from_str(text).unwrap();
        let state = |name: &str| (read[name].0.on, read[name].0.fixed);
        assert_eq!((state("a"), state("b"), state("c")), ((false, true), (true, false), (false, true)));
    }

    #[test]
    fn two_names_of_a_feature_agree() {
        let read = |text: &str| by_kernel_name(&serde_json::from_str(text).unwrap());
        let state = |text: &str, name: &str| read(text).unwrap()[name].on;
        assert!(state(r#"{"rx-gro": "on", "generic-receive-offload": "on"}"#, "rx-gro"));
        for (text, names) in [
            (r#"{"rx-gro": "on", "generic-receive-offload": "off"}"#, ["generic-receive-offload", "rx-gro"]),
            (
                r#"{"rx-lro": "off", "large-receive-offload": "off [fixed]"}"#,
                ["large-receive-offload", "rx-lro"],
            ),
            (
                r#"{"tx-tcp-segmentation": "on", "tcp-segmentation-offload": "off"}"#,
                ["tcp-segmentation-offload", "tx-tcp-segmentation"],
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), names, "{text}");
        }
        // Another feature of the group is on.
        let group = r#"{"tx-checksum-ip-generic": "off [fixed]", "tx-checksumming": "on"}"#;
        assert!(!state(group, "tx-checksum-ip-generic"));
    }

    /// A list with all names of the kernel lacks a name only if the recording lost it.
    #[test]
    fn a_feature_is_lost_only_in_a_whole_list() {
        let feature = Feature { on: true, fixed: false };
        let list = |names: &[&[&str]]| -> BTreeMap<String, Feature> {
            names.iter().copied().flatten().map(|name| ((*name).to_owned(), feature)).collect()
        };
        assert_eq!(lost_feature(&list(&[])), None);
        assert_eq!(lost_feature(&list(&[&["rx-lro"]])), Some("rx-gro"));
        assert_eq!(lost_feature(&list(&[&SOFT_FEATURES])), None);
        let whole = list(&[&SOFT_FEATURES, &LISTED_FEATURES, &[OF_WHOLE_LIST]]);
        assert_eq!(lost_feature(&whole), None);
        for lost in SOFT_FEATURES.into_iter().chain(LISTED_FEATURES) {
            let mut rest = whole.clone();
            rest.remove(lost);
            assert_eq!(lost_feature(&rest), Some(lost));
        }
    }
}
