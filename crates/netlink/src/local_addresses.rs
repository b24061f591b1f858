//! The interface of a socket, from its local address.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::{Netlink, NetlinkError};

/// The addresses of a network namespace, and the interfaces that have each address.
#[derive(Clone, Debug, Default)]
pub struct LocalAddresses(HashMap<IpAddr, Vec<u32>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    /// Index of the interface.
    Interface(u32),
    /// Several interfaces have the address.
    Several,
    /// No interface has the address, as for a transparent proxy.
    Nowhere,
}

impl LocalAddresses {
    pub fn read() -> Result<Self, NetlinkError> {
        Ok(Netlink::open()?.all_addresses()?.into_iter().collect())
    }

    /// Returns the interface of a socket that is bound to the interface `bound`, or to none (0). If exactly
    /// one interface has the address, returns that interface, because `bound` may be a VRF.
    #[must_use]
    pub fn owner(&self, address: IpAddr, bound: u32) -> AddressOwner {
        let owners = self.0.get(&address).map_or(&[][..], Vec::as_slice);
        match (owners, bound) {
            ([owner], _) => AddressOwner::Interface(*owner),
            ([], 0) => AddressOwner::Nowhere,
            (_, 0) => AddressOwner::Several,
            _ => AddressOwner::Interface(bound),
        }
    }
}

impl FromIterator<(IpAddr, u32)> for LocalAddresses {
    fn from_iter<I: IntoIterator<Item = (IpAddr, u32)>>(addresses: I) -> Self {
        let mut found: HashMap<IpAddr, Vec<u32>> = HashMap::new();
        for (address, interface) in addresses {
            let owners = found.entry(address).or_default();
            if !owners.contains(&interface) {
                owners.push(interface);
            }
        }
        Self(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_address_of_several_interfaces_has_no_owner_without_a_bound_socket() {
        let [own, anycast, none] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last)));
        let link_local = IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
        let all = [(own, 2), (own, 2), (anycast, 2), (anycast, 3), (link_local, 2), (link_local, 3)];
        let addresses: LocalAddresses = all.into_iter().collect();
        for (address, bound, owner) in [
            (own, 0, AddressOwner::Interface(2)),
            // 9 is a VRF.
            (own, 9, AddressOwner::Interface(2)),
            (anycast, 0, AddressOwner::Several),
            (anycast, 3, AddressOwner::Interface(3)),
            (anycast, 9, AddressOwner::Interface(9)),
            (link_local, 2, AddressOwner::Interface(2)),
            (none, 0, AddressOwner::Nowhere),
            (none, 4, AddressOwner::Interface(4)),
        ] {
            assert_eq!(addresses.owner(address, bound), owner, "{address} {bound}");
        }
    }
}
