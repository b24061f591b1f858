//! Files that restore settings after a restart: `sysctl.d`, a systemd unit, udev rules.
//!
//! - Sysctls belong in `sysctl.d`.
//! - udev can set an interface's own settings when the interface appears.
//! - A unit can set everything that a shell command can set.
//!
//! Interrupts may have other numbers after a restart, so the commands find them by their action's name.

mod quote;

use std::collections::BTreeMap;

use evenkeel_model::change::{Knob, Value, shell, sysctl_name};
use evenkeel_model::shell::Line;

use quote::{UdevRule, file_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Sysctl,
    Systemd,
    Udev,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The path below `/etc`.
    pub path: String,
    pub text: String,
    /// The link that enables the file: its path below `/etc`, and its target.
    pub link: Option<(String, String)>,
}

/// The files for an interface, and the settings that these files cannot hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub files: Vec<File>,
    /// Settings that are lost on a restart, each with the reason.
    pub not_kept: Vec<String>,
    /// Paths below `/etc` of files and links that earlier commands wrote, and whose settings are all no
    /// longer in force.
    pub stale: Vec<String>,
}

/// An interface as named in its file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub interface: &'a str,
    /// Inode of its network namespace; `None` in the initial namespace.
    pub namespace: Option<u64>,
}

impl Place<'_> {
    /// Returns the interface's part of a file name. An interface's name cannot contain a colon
    /// (`dev_valid_name`, net/core/dev.c), so the colon is a safe separator.
    fn file_name(self) -> String {
        let name = file_name(self.interface);
        self.namespace.map_or_else(|| name.clone(), |inode| format!("{name}:{inode}"))
    }
}

/// Returns all paths below `/etc` that an interface's files and links may have.
#[must_use]
pub fn paths(place: Place<'_>) -> Vec<String> {
    let name = place.file_name();
    let files = [Kind::Sysctl, Kind::Systemd, Kind::Udev].map(|kind| path(kind, &name));
    files.into_iter().chain([wanted_by(&name)]).collect()
}

/// Returns whether a path is one of the files of a network namespace.
#[must_use]
pub fn is_of_namespace(path: &str, namespace: Option<u64>) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let of = name
        .rsplit_once('.')
        .and_then(|(stem, _)| stem.rsplit_once(':'))
        .and_then(|(_, inode)| inode.parse().ok());
    of == namespace
}

fn path(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Sysctl => format!("sysctl.d/90-evenkeel-{name}.conf"),
        Kind::Systemd => format!("systemd/system/{}", unit(name)),
        Kind::Udev => format!("udev/rules.d/90-evenkeel-{name}.rules"),
    }
}

fn unit(name: &str) -> String {
    format!("evenkeel-tune-{name}.service")
}

fn wanted_by(name: &str) -> String {
    format!("systemd/system/multi-user.target.wants/{}", unit(name))
}

/// Returns files of some kinds with the settings of an interface and its host. `actions` has the action
/// name of each interrupt, by which the files find the interrupt again.
#[must_use]
pub fn files(
    place: Place<'_>,
    settings: &[(Knob, Value)],
    kinds: &[Kind],
    actions: &BTreeMap<u32, String>,
) -> Files {
    let mut found = Files::default();
    let (interface, name) = (place.interface, place.file_name());
    let mut kinds: Vec<Kind> = kinds.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    let mut of_kind: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    // udev assigns attributes before it runs commands (udev(7), RUN). The command that changes the
    // channels runs later, and adds or resets the queues.
    let sets_channels = settings.iter().any(|(knob, _)| matches!(knob, Knob::Channels(_)));
    let comes_too_early = |kind: Kind, knob: &Knob| {
        kind == Kind::Udev && sets_channels && matches!(knob, Knob::InterfaceFile(_)) && knob.is_of_queues()
    };
    for (knob, value) in settings {
        // The most specific tool first: sysctl.d, then udev, then systemd.
        let order = [Kind::Sysctl, Kind::Udev, Kind::Systemd];
        let line = order
            .into_iter()
            .filter(|kind| kinds.contains(kind) && !comes_too_early(*kind, knob))
            .find_map(|kind| line_of(kind, interface, knob, value, actions).map(|line| (kind, line)));
        match line {
            Some((kind, line)) => of_kind.entry(kind).or_default().push(line),
            None => {
                found.not_kept.push(format!("{}: {}", knob.on(interface), why_not(&kinds, knob, actions)))
            }
        }
    }
    for (kind, lines) in of_kind {
        let link = (kind == Kind::Systemd).then(|| (wanted_by(&name), format!("../{}", unit(&name))));
        found.files.push(File { path: path(kind, &name), text: text_of(kind, interface, &lines), link });
    }
    found
}

/// Returns the kinds of files that an interface has, with the path of each file below `/etc`.
#[must_use]
pub fn paths_by_kind(place: Place<'_>) -> [(Kind, String); 3] {
    [Kind::Sysctl, Kind::Systemd, Kind::Udev].map(|kind| (kind, path(kind, &place.file_name())))
}

/// Returns the paths below `/etc` of the file and the link of a kind.
#[must_use]
pub fn paths_of(place: Place<'_>, kind: Kind) -> Vec<String> {
    let name = place.file_name();
    let link = (kind == Kind::Systemd).then(|| wanted_by(&name));
    link.into_iter().chain([path(kind, &name)]).collect()
}

fn why_not(kinds: &[Kind], knob: &Knob, actions: &BTreeMap<u32, String>) -> String {
    match knob {
        Knob::InterruptAffinity(interrupt) if !actions.contains_key(interrupt) => {
            "interrupt numbers change at a reboot, and this interrupt has no unique name to find it by"
                .to_owned()
        }
        Knob::Sysctl(_) if !kinds.contains(&Kind::Sysctl) => {
            "a file in sysctl.d can hold it; add --persist sysctl".to_owned()
        }
        Knob::Sysctl(_) => "sysctl.d would read the name of this setting as a pattern".to_owned(),
        _ if kinds.contains(&Kind::Systemd) => "no shell command sets this setting".to_owned(),
        _ => "a systemd unit can hold it; add --persist systemd".to_owned(),
    }
}

fn line_of(
    kind: Kind,
    interface: &str,
    knob: &Knob,
    value: &Value,
    actions: &BTreeMap<u32, String>,
) -> Option<String> {
    let attribute =
        |file: &str, value: &str| UdevRule::attribute(interface, file, value).map(UdevRule::into_line);
    match (kind, knob, value) {
        (Kind::Sysctl, Knob::Sysctl(path), Value::Text(text)) => quote::sysctl(&sysctl_name(path), text),
        (Kind::Sysctl, ..) => None,
        (Kind::Udev, Knob::Mtu, Value::Bytes(bytes)) => attribute("mtu", &bytes.to_string()),
        (Kind::Udev, Knob::TransmitQueueLength, Value::Number(packets)) => {
            attribute("tx_queue_len", &packets.to_string())
        }
        (Kind::Udev, Knob::InterfaceFile(file), Value::Text(text)) => attribute(file, text),
        (
            Kind::Udev,
            Knob::Ring(_)
            | Knob::Channels(_)
            | Knob::Coalescing(_)
            | Knob::Feature(_)
            | Knob::FlowHash(_)
            | Knob::RssTable,
            _,
        ) => UdevRule::run(interface, &shell(interface, knob, value)).map(UdevRule::into_line),
        (Kind::Udev, ..) => None,
        (Kind::Systemd, Knob::InterruptAffinity(interrupt), Value::Text(list)) => {
            let action = actions.get(interrupt)?;
            quote::unit_command(&Line::new(
                "for irq in /sys/kernel/irq/*; do if [ \"$(cat \"$irq/actions\")\" = {} ]; then \
                 echo {} > \"/proc/irq/${irq##*/}/smp_affinity_list\"; fi; done",
                &[action, list],
            ))
        }
        (Kind::Systemd, ..) => quote::unit_command(&shell(interface, knob, value)),
    }
}

fn text_of(kind: Kind, interface: &str, lines: &[String]) -> String {
    let lines = lines.join("\n");
    match kind {
        Kind::Sysctl | Kind::Udev => lines + "\n",
        Kind::Systemd => {
            let device = format!("sys-subsystem-net-devices-{}.device", quote::unit_name(interface));
            let interface = quote::unit_text(interface);
            format!(
                "[Unit]\nDescription=Settings for {interface} that evenkeel tune found\nAfter={device} \
                 systemd-sysctl.service\nRequires={device}\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
                 Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin\n{lines}\n\n[Install]\nWantedBy=multi-user.target\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use evenkeel_model::change::{Channels, Ring, root_qdisc};

    const ETH0: Place<'_> = Place { interface: "eth0", namespace: None };

    fn text(value: &str) -> Value {
        Value::Text(value.to_owned())
    }

    fn settings() -> Vec<(Knob, Value)> {
        vec![
            (Knob::Sysctl("net/ipv4/tcp_rmem".to_owned()), text("4096\t131072\t9000000")),
            (Knob::Ring(Ring::Rx), Value::Number(4096)),
            (Knob::Mtu, Value::Bytes(9000)),
            (Knob::InterfaceFile("queues/tx-0/xps_cpus".to_owned()), text("3")),
            (Knob::InterruptAffinity(45), text("4-5")),
            (Knob::RootQdisc, Value::Qdiscs(root_qdisc("fq", 2))),
        ]
    }

    #[test]
    fn each_kind_holds_what_it_can() {
        let actions = BTreeMap::from([(45, "eth0-TxRx-0".to_owned())]);
        let all = files(ETH0, &settings(), &[Kind::Udev, Kind::Sysctl, Kind::Systemd], &actions);
        assert_eq!(all.not_kept, Vec::<String>::new());
        let [sysctl, systemd, udev] = all.files.try_into().unwrap();
        assert_eq!(sysctl.path, "sysctl.d/90-evenkeel-eth0.conf");
        assert_eq!(sysctl.text, "net.ipv4.tcp_rmem = 4096 131072 9000000\n");
        assert_eq!(
            udev.text.lines().next().unwrap(),
            r#"ACTION=="add|move", SUBSYSTEM=="net", NAME=="eth0", RUN+="/bin/sh -c 'PATH=/usr/sbin:/usr/bin:/sbin:/bin; ethtool -G eth0 rx 4096'""#
        );
        assert!(
            udev.text.contains(r#"ATTR{mtu}="9000""#)
                && udev.text.contains(r#"ATTR{queues/tx-0/xps_cpus}="3""#)
        );
        let irq = systemd.text.lines().find(|line| line.contains("/sys/kernel/irq")).unwrap();
        assert!(irq.contains(r#"= eth0-TxRx-0 ]; then echo 4-5 > \"/proc/irq/$${irq##*/}/"#), "{irq}");
        assert!(
            systemd.text.contains("tc qdisc replace dev eth0 root handle 4e00: mq && "),
            "{}",
            systemd.text
        );
        assert_eq!(systemd.link.unwrap().1, "../evenkeel-tune-eth0.service");
        let known = paths(ETH0);
        for path in [sysctl.path, systemd.path, udev.path, systemd_link()] {
            assert!(known.contains(&path), "{path}");
        }
    }

    /// The queues of a number of channels exist only after the command that sets the number.
    #[test]
    fn maps_of_queues_follow_their_channels() {
        let channels = (Knob::Channels(Channels::Combined), Value::Number(4));
        let map = (Knob::InterfaceFile("queues/tx-3/xps_cpus".to_owned()), text("8"));
        let settings = [channels, map];
        let found = files(ETH0, &settings, &[Kind::Udev, Kind::Systemd], &BTreeMap::new());
        let [systemd, udev] = found.files.try_into().unwrap();
        assert!(udev.text.contains("ethtool -L") && !udev.text.contains("tx-3"), "{}", udev.text);
        assert!(
            systemd.text.contains("echo 8 > /sys/class/net/eth0/queues/tx-3/xps_cpus"),
            "{}",
            systemd.text
        );
        let found = files(ETH0, &settings, &[Kind::Udev], &BTreeMap::new());
        assert!(found.not_kept[0].contains("tx-3/xps_cpus") && found.not_kept.len() == 1, "{found:?}");
        assert!(
            found.not_kept[0].ends_with("a systemd unit can hold it; add --persist systemd"),
            "{found:?}"
        );
    }

    fn systemd_link() -> String {
        "systemd/system/multi-user.target.wants/evenkeel-tune-eth0.service".to_owned()
    }

    #[test]
    fn what_no_file_can_hold_is_said() {
        let found = files(ETH0, &settings(), &[Kind::Udev], &BTreeMap::new());
        let why = found.not_kept.join("\n");
        for words in [
            "sysctl net.ipv4.tcp_rmem: a file in sysctl.d can hold it",
            "interrupt 45: interrupt numbers change",
            "root qdisc of eth0: a systemd unit",
        ] {
            assert!(why.contains(words), "{words}: {why}");
        }
        assert_eq!(found.files.len(), 1);
        assert_eq!(files(ETH0, &[], &[Kind::Systemd], &BTreeMap::new()), Files::default());
    }

    #[test]
    fn namespaces_have_files_of_their_own() {
        let elsewhere = paths(Place { interface: "eth0", namespace: Some(4_026_532_345) });
        for path in &elsewhere {
            assert!(is_of_namespace(path, Some(4_026_532_345)) && !is_of_namespace(path, None), "{path}");
            assert!(!paths(ETH0).contains(path), "{path}");
        }
        assert!(paths(ETH0).iter().all(|path| is_of_namespace(path, None)));
    }
}
