//! An interface as it is found, and which flows come in over it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evenkeel_apply::{ApplyError, KnobError};
use evenkeel_host::{Ethtool, Host, NamespaceIdentity, Sysfs};
use evenkeel_netlink::Netlink;
use evenkeel_netlink::ethtool::{EthtoolSocket, ReceiveRules};

use crate::error::SteerError;

/// An interface of the calling thread's network namespace, and the processors that can take what it receives.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its driver; none if that does not tell.
    pub driver: Option<String>,
    /// Processors that are online.
    pub processors: Vec<u32>,
    /// The NUMA node of each processor, by number.
    pub nodes: Vec<u32>,
    /// Inode of its network namespace.
    pub namespace: u64,
}

impl Interface {
    /// Finds an interface.
    ///
    /// # Errors
    /// When there is none of this name, or the kernel refuses to tell.
    pub fn find(name: &str) -> Result<Self, SteerError> {
        let mut netlink = Netlink::open()?;
        let Some(link) = netlink.link_named(name)? else {
            let others = netlink.links()?.into_iter().map(|link| link.name).filter(|name| name != "lo");
            return Err(SteerError::NoInterface { name: name.to_owned(), others: others.collect() });
        };
        if !link.up {
            return Err(SteerError::unable(
                format!("{name} is down"),
                format!("set it up first: ip link set {name} up"),
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

    /// Addresses to which packets come in over it: its own, and those of the interfaces on top of it (VLANs,
    /// bridges, bonds), which are this host's, too.
    ///
    /// # Errors
    /// When the kernel refuses to tell.
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

    /// Whether its driver takes n-tuple rules, and places them where it is told to.
    ///
    /// # Errors
    /// When it refuses to say.
    pub fn takes_rules(&self) -> Result<bool, SteerError> {
        let found = self.receive_rules()?.rules().map_err(KnobError::from).map_err(ApplyError::from)?;
        Ok(found.is_some_and(|found| found.capacity > 0 && !found.places_by_itself))
    }

    pub(crate) fn receive_rules(&self) -> Result<ReceiveRules<EthtoolSocket>, SteerError> {
        let open = |source| KnobError::File { action: "open a socket for ethtool".to_owned(), source };
        let socket = EthtoolSocket::open().map_err(open).map_err(ApplyError::from)?;
        Ok(ReceiveRules::new(socket, &self.name))
    }

    /// Its driver, in words.
    #[must_use]
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown")
    }

    /// What is missing for programs that redirect packets, if anything is.
    pub(crate) fn check_programs(&self) -> Result<(), SteerError> {
        use evenkeel_host::Capability;
        let host = Host::live();
        let missing = host.missing_capabilities(&[Capability::NetAdmin, Capability::Bpf])?;
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(SteerError::unable(
                format!("this process lacks {}", names.join(", ")),
                "run it as root: it loads BPF programs",
            ));
        }
        if self.name == "lo" {
            return Err(SteerError::unable("lo has no XDP in its driver", "name another interface"));
        }
        Ok(())
    }
}
