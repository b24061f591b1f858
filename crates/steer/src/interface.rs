//! The properties of an interface: its addresses, the CPUs of its queues, and the support for rules and XDP.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evenkeel_apply::{ApplyError, InterfaceIdentity, KnobError, Leftover, Line, StateDirectory, steer_alone};
use evenkeel_host::{Ethtool, Host, NamespaceIdentity, QueueInterrupt, SocketName, Sysfs};
use evenkeel_netlink::ethtool::{EthtoolSocket, ReceiveRules};
use evenkeel_netlink::{Link, Netlink};
use evenkeel_receive::policy::queue_ranges;
use evenkeel_receive::{NicModel, QueueId};

use crate::error::SteerError;

/// An interface in the network namespace of the calling thread, and the CPUs for its packets.
#[derive(Clone, Debug)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    /// `None` if the driver does not report its name.
    pub driver: Option<String>,
    /// Online CPUs; empty if unknown.
    pub processors: Vec<u32>,
    /// NUMA node of each CPU, by CPU number; 0 if unknown.
    pub nodes: Vec<u32>,
    pub namespace: u64,
}

impl Interface {
    pub fn find(name: &str) -> Result<Self, SteerError> {
        let mut netlink = Netlink::open()?;
        let Some(link) = netlink.link_named(name)? else {
            let others = netlink.links()?.into_iter().map(|link| link.name).collect();
            return Err(SteerError::NoInterface { name: name.to_owned(), others });
        };
        if !link.up {
            return Err(SteerError::unable(
                format!("{name} is down"),
                format!("bring it up first: {}", Line::new("ip link set {} up", &[&name])),
            ));
        }
        let sysfs = Sysfs::of_namespace()?;
        let numbers = sysfs.processor_numbers();
        Ok(Self {
            index: link.index,
            name: link.name,
            driver: Ethtool::open().ok().and_then(|ethtool| ethtool.driver(name)),
            processors: sysfs.online_processors(),
            nodes: sysfs.node_of_processors(numbers),
            namespace: NamespaceIdentity::current()?.inode,
        })
    }

    /// Creates an interface for a NIC whose model is known, but not the CPUs of its host.
    #[must_use]
    pub fn of_model(name: Option<&str>) -> Self {
        Self {
            index: 0,
            name: name.unwrap_or("the modelled NIC").to_owned(),
            driver: None,
            processors: Vec::new(),
            nodes: Vec::new(),
            namespace: 0,
        }
    }

    /// Returns the destination addresses of received packets: the addresses of the interface and of the
    /// interfaces above it (VLANs, bridges, bonds).
    pub fn addresses(&self) -> Result<BTreeSet<IpAddr>, SteerError> {
        let mut netlink = Netlink::open()?;
        let sysfs = Sysfs::of_namespace()?;
        let (mut found, mut known) = (BTreeSet::new(), BTreeSet::from([self.name.clone()]));
        let mut open = vec![self.name.clone()];
        while let Some(name) = open.pop() {
            let Some(link) = netlink.link_named(&name)? else { continue };
            found.extend(netlink.addresses(link.index)?);
            for upper in sysfs.upper_interfaces(&name).unwrap_or_default() {
                if known.insert(upper.clone()) {
                    open.push(upper);
                }
            }
        }
        Ok(found)
    }

    /// Returns whether the driver accepts n-tuple rules at given locations. Returns false if the driver's
    /// model has no flow filters: igb has rules, but only for MAC addresses, Ethernet types and VLAN
    /// priorities.
    ///
    /// # Errors
    /// Returns an error if the driver does not report its support for rules.
    pub fn takes_rules(&self) -> Result<bool, SteerError> {
        if self.driver.as_deref().is_some_and(has_no_filters) {
            return Ok(false);
        }
        let found = self.receive_rules()?.rules().map_err(KnobError::from).map_err(ApplyError::from)?;
        Ok(found.is_some_and(|found| found.capacity > 0 && !found.places_by_itself))
    }

    /// Returns [`SteerError::Unable`] unless the driver accepts n-tuple rules at given locations.
    pub fn check_rules(&self) -> Result<(), SteerError> {
        if self.takes_rules()? { Ok(()) } else { Err(crate::ntuple::no_rules(&self.name)) }
    }

    /// Returns the CPUs of the receive queues (`wanted` queues, or all), and a remark for the user. The
    /// CPU of a queue is the CPU that handles the queue's interrupt. If the interrupt is unknown, CPUs
    /// are assigned round robin, as drivers do.
    ///
    /// # Errors
    /// Returns an error if the driver does not report its queues, or has fewer than `wanted` queues.
    pub fn queue_processors(&self, wanted: Option<u16>) -> Result<(Vec<u32>, Option<String>), SteerError> {
        let most = self.receive_rules()?.queues().map_err(KnobError::from).map_err(ApplyError::from)?;
        let queues = wanted.map_or(most, u32::from);
        if queues > most {
            return Err(SteerError::Usage(format!(
                "{} has only {most} receive queues, not {queues}; use --queues {most} or fewer",
                self.name
            )));
        }
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        let interrupts = Sysfs::of_namespace()
            .and_then(|sysfs| Host::live().queue_interrupts(&sysfs, &self.name))
            .unwrap_or_default();
        let (processors, note) = pair(queues, &interrupts, &self.processors);
        Ok((processors, note.map(|note| format!("{}: {note}", self.name))))
    }

    pub(crate) fn receive_rules(&self) -> Result<ReceiveRules<EthtoolSocket>, SteerError> {
        let open = |source| KnobError::File { action: "open a socket for ethtool".to_owned(), source };
        let socket = EthtoolSocket::open().map_err(open).map_err(ApplyError::from)?;
        Ok(ReceiveRules::new(socket, &self.name))
    }

    /// Rolls back runs that died and left settings on the interface. Leaves out runs that are alive.
    pub fn put_back_leftovers(&self, state: &StateDirectory) -> Result<Vec<Leftover>, SteerError> {
        let identity = InterfaceIdentity::current(self.index, &self.name)
            .map_err(KnobError::from)
            .map_err(ApplyError::from)?;
        evenkeel_apply::check_renamed(state, &identity)?;
        let mut found = Vec::new();
        for journal in state.run_journals_of(&identity).map_err(ApplyError::from)? {
            if evenkeel_apply::leftover(&journal)?.is_some() {
                found.extend(evenkeel_apply::put_back(&journal)?);
            }
        }
        Ok(found)
    }

    /// Claims the interface for steering until the returned name is dropped. Returns an error if another
    /// process steers it.
    pub(crate) fn steer_alone(&self) -> Result<Option<SocketName>, SteerError> {
        Ok(steer_alone(self.index, &self.name).map_err(ApplyError::from)?)
    }

    /// Returns the reason to exit if the interface was deleted, moved or renamed.
    pub(crate) fn difference(&self, link: Option<&Link>) -> Option<String> {
        match link {
            None => Some("the interface left this network namespace (deleted or moved)".to_owned()),
            Some(link) if link.name != self.name => {
                Some(format!("another program renamed the interface to {}", link.name))
            }
            Some(_) => None,
        }
    }

    /// Reads the present state of the interface from the kernel and calls [`Self::difference`].
    pub(crate) fn difference_now(&self) -> Result<Option<String>, SteerError> {
        Ok(self.difference(Netlink::open()?.link(self.index)?.as_ref()))
    }

    #[must_use]
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown")
    }

    /// Checks the privileges that programs need to redirect packets.
    pub(crate) fn check_privileges(&self) -> Result<(), SteerError> {
        use evenkeel_host::Capability;
        let host = Host::live();
        let missing =
            host.missing_capabilities(&[Capability::NetAdmin, Capability::Bpf, Capability::Perfmon])?;
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(SteerError::unable(
                format!("this process lacks {}", names.join(", ")),
                format!("{}: steering loads BPF programs", host.how_to_be_privileged()),
            ));
        }
        Ok(())
    }

    /// Returns [`SteerError::Unable`] unless XDP can redirect the interface's packets: the driver supports
    /// XDP, and no XDP program is attached.
    pub(crate) fn check_free_xdp(&self) -> Result<(), SteerError> {
        self.check_xdp()?;
        let link = Netlink::open()?.link(self.index)?;
        if let Some(program) = link.and_then(|link| link.xdp_program) {
            return Err(SteerError::unable(
                format!("{} has an XDP program already, number {program}", self.name),
                format!(
                    "end the program that attached the XDP program (`bpftool prog show id {program}`), or \
                     use another --backend"
                ),
            ));
        }
        Ok(())
    }

    /// Returns [`SteerError::Unable`] for the loopback interface, and if the kernel reports that the driver
    /// cannot redirect packets by XDP.
    pub fn check_xdp(&self) -> Result<(), SteerError> {
        // libbpf counts the CPUs in /sys/devices/system/cpu.
        Host::live().require_mounted(&["/sys"])?;
        let redirects = evenkeel_netlink::redirects_by_xdp(self.index)?;
        if self.name == "lo" || redirects == Some(false) {
            let (problem, remedy) = match self.driver_name() {
                _ if self.name == "lo" => {
                    ("has a driver without XDP", "name another interface, or use --backend rps")
                }
                // `veth_set_xdp_features` (drivers/net/veth.c).
                "veth" => (
                    "cannot use XDP while the peer has more transmit queues than this interface has receive queues",
                    "reduce the transmit queues of the peer (ethtool -L PEER tx 1), or use --backend rps",
                ),
                _ => (
                    "has a driver without XDP",
                    "use --backend rps; for a VLAN or bond, name the interface below it",
                ),
            };
            let text = format!("{} {problem} ({})", self.name, self.driver_name());
            return Err(SteerError::unable(text, remedy));
        }
        Ok(())
    }
}

/// Returns whether the kernel reports that an interface's driver cannot redirect packets by XDP.
#[must_use]
pub fn lacks_xdp(interface: &str) -> bool {
    let index = Netlink::open().and_then(|mut netlink| netlink.link_index(interface));
    index.and_then(evenkeel_netlink::redirects_by_xdp).is_ok_and(|redirects| redirects == Some(false))
}

fn has_no_filters(driver: &str) -> bool {
    let models = NicModel::built_in_names().filter_map(NicModel::built_in);
    models
        .filter(|model| model.drivers().iter().any(|name| name == driver))
        .any(|model| model.tables().is_empty())
}

fn pair(queues: u16, interrupts: &[QueueInterrupt], online: &[u32]) -> (Vec<u32>, Option<String>) {
    let (mut unknown, mut shared) = (Vec::new(), Vec::new());
    let mut in_turn = online.iter().copied().cycle();
    let processors = (0..queues).map(|queue| {
        let next = in_turn.next().unwrap_or(0);
        let interrupt = interrupts.iter().find(|interrupt| interrupt.queue == u32::from(queue));
        let takers = interrupt.map_or(&[][..], |interrupt| &interrupt.processors);
        match takers {
            [] => unknown.push(QueueId(queue)),
            [_] => {}
            _ => shared.push(QueueId(queue)),
        }
        takers.first().copied().unwrap_or(next)
    });
    let processors = processors.collect();
    let told = |queues: &[QueueId], what: &str| {
        (!queues.is_empty()).then(|| format!("queues {}: {what}", queue_ranges(queues)))
    };
    let notes = [
        told(
            &unknown,
            "their interrupts are unknown, so evenkeel assumes that the processors serve the queues round \
             robin",
        ),
        told(&shared, "several processors may serve their interrupts; evenkeel counts only the first"),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    (processors, (!notes.is_empty()).then(|| notes.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_whose_rules_are_not_for_flows_takes_none() {
        assert!(has_no_filters("igb") && has_no_filters("virtio_net"));
        assert!(!has_no_filters("ice") && !has_no_filters("ixgbe") && !has_no_filters("none-such"));
    }

    #[test]
    fn a_queue_is_paired_with_the_processor_of_its_interrupt_else_round_robin() {
        let interrupt = |queue, processors: &[u32]| QueueInterrupt {
            queue,
            number: 70 + queue,
            name: format!("eth0-TxRx-{queue}"),
            processors: processors.to_vec(),
        };
        let known = [interrupt(0, &[5]), interrupt(1, &[2]), interrupt(3, &[1, 3])];
        assert_eq!(pair(2, &known, &[0, 1]), (vec![5, 2], None));
        let (processors, note) = pair(5, &known, &[0, 1, 2]);
        assert_eq!(processors, [5, 2, 2, 1, 1]);
        assert_eq!(
            note.as_deref(),
            Some(
                "queues 2, 4: their interrupts are unknown, so evenkeel assumes that the processors serve \
                 the queues round robin; queues 3: several processors may serve their interrupts; evenkeel \
                 counts only the first"
            )
        );
        assert_eq!(pair(3, &[], &[0, 4]).0, [0, 4, 0]);
    }
}
