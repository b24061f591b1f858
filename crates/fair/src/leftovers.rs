//! What runs that died have left on the devices below an interface.
//!
//! A preflight judges what it finds, so what a run that died had made of a device has to go first: its soft NIC, for
//! one, is a root qdisc that could not be put back exactly.

use std::path::PathBuf;

use evenkeel_apply::{
    ApplyError, Header, InterfaceIdentity, JournalError, KnobError, Leftover, RevertOutcome, StateDirectory,
};
use evenkeel_host::Sysfs;
use evenkeel_netlink::Netlink;

use crate::error::FairError;
use crate::preflight::{check_machine, devices_of};

fn journals(interface: &str, state: &StateDirectory) -> Result<Vec<PathBuf>, FairError> {
    check_machine(&evenkeel_host::Host::live())?;
    let (_, real) = devices_of(interface, &mut Netlink::open()?, &Sysfs::of_namespace()?)?;
    real.iter()
        .map(|link| {
            let identity = InterfaceIdentity::current(link.index, &link.name).map_err(KnobError::from);
            Ok(state.journal_of(&identity.map_err(ApplyError::from)?))
        })
        .collect()
}

/// Puts back what runs that died have left on the devices below an interface of the calling thread's network
/// namespace. To be called before a [`crate::Preflight`] for a [`crate::Session`].
///
/// # Errors
/// When there is no such interface, when a run is at work on one of its devices, or a journal cannot be read.
pub fn put_back_leftovers(interface: &str, state: &StateDirectory) -> Result<Vec<Leftover>, FairError> {
    let mut found = Vec::new();
    for journal in journals(interface, state)? {
        let damaged = match evenkeel_apply::revert(&journal)? {
            RevertOutcome::Unreadable(damaged) => Some(damaged),
            RevertOutcome::RolledBack(mut leftover) => {
                let damaged = leftover.damaged.take();
                found.push(*leftover);
                damaged
            }
            _ => None,
        };
        // What cannot be read of it may still be set, and would pass for the administrator's.
        if let Some(damaged) = damaged {
            return Err(ApplyError::from(JournalError::from(damaged)).into());
        }
    }
    Ok(found)
}

/// The runs that died and have left something on the devices below an interface; nothing is changed.
///
/// # Errors
/// When there is no such interface, or a journal cannot be read.
pub fn leftovers(interface: &str, state: &StateDirectory) -> Result<Vec<Header>, FairError> {
    let mut found = Vec::new();
    for journal in journals(interface, state)? {
        found.extend(evenkeel_apply::leftover(&journal)?);
    }
    Ok(found)
}
