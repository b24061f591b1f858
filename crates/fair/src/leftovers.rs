//! Leftovers of killed runs on the devices below an interface.
//!
//! A preflight checks the current settings, so a rollback of the leftovers must come first. For
//! example, the soft NIC of a killed run is a root qdisc that could not be restored exactly.

use std::collections::BTreeSet;

use evenkeel_apply::{
    ApplyError, Change, Header, InterfaceIdentity, KnobError, Leftover, StateDirectory, check_elsewhere,
    check_renamed, damaged, exclude_runs, journals_below,
};
use evenkeel_host::Sysfs;
use evenkeel_netlink::{Link, Netlink};

use crate::error::FairError;
use crate::preflight::{check_machine, devices_of};

/// Returns the devices below an interface that a session on it manages.
///
/// # Errors
/// Returns an error if the interface does not exist, or if the kernel refuses a request.
pub fn managed_devices(interface: &str) -> Result<Vec<String>, FairError> {
    let (_, real) = devices_of(interface, &mut Netlink::open()?, &Sysfs::of_namespace()?)?;
    Ok(real.into_iter().map(|link| link.name).collect())
}

fn identities(interface: &str) -> Result<Vec<InterfaceIdentity>, FairError> {
    check_machine(&evenkeel_host::Host::live())?;
    let (_, real) = devices_of(interface, &mut Netlink::open()?, &Sysfs::of_namespace()?)?;
    real.iter().map(identity_of).collect()
}

pub(crate) fn identity_of(link: &Link) -> Result<InterfaceIdentity, FairError> {
    let identity = InterfaceIdentity::current(link.index, &link.name).map_err(KnobError::from);
    Ok(identity.map_err(ApplyError::from)?)
}

/// Returns an error if a session manages a device below an interface, or if a killed run left a renamed or
/// damaged journal (see [`put_back_leftovers`]), or changed a device before its move to this network
/// namespace. Call this function before a plan. Otherwise the plan would be based on the settings of that
/// run.
///
/// # Errors
/// Returns an error that names the session or the journal, or if the interface does not exist.
pub fn check_unmanaged(interface: &str, state: &StateDirectory) -> Result<(), FairError> {
    for identity in identities(interface)? {
        evenkeel_apply::check_unmanaged(state, &identity).map_err(ApplyError::from)?;
        check_renamed(state, &identity)?;
        check_elsewhere(state, &identity)?;
        let journals = state.run_journals_of(&identity).map_err(ApplyError::from)?;
        if let Some(damaged) = damaged(state)?.into_iter().find(|damaged| journals.contains(&damaged.path)) {
            return Err(ApplyError::from(damaged).into());
        }
    }
    Ok(())
}

/// Rolls back killed runs on the devices below an interface of the calling thread's network namespace.
/// Call this function before a [`crate::Preflight`] for a [`crate::Session`].
///
/// # Errors
/// Returns an error if the interface does not exist, a run uses one of its devices (even with another
/// state directory), or a journal cannot be read.
pub fn put_back_leftovers(interface: &str, state: &StateDirectory) -> Result<Vec<Leftover>, FairError> {
    let mut found = Vec::new();
    for identity in identities(interface)? {
        check_renamed(state, &identity)?;
        exclude_runs(state, &identity).map_err(ApplyError::from)?;
        for journal in state.run_journals_of(&identity).map_err(ApplyError::from)? {
            found.extend(evenkeel_apply::put_back(&journal)?);
        }
    }
    // A device may have left the interface since the run.
    for journal in journals_below(state, interface).map_err(ApplyError::from)? {
        found.extend(evenkeel_apply::put_back(&journal)?);
    }
    Ok(found)
}

/// Returns the killed runs below an interface whose leftovers a revert restores completely, with the changes
/// of the revert. Omits runs for which a revert would make no change. Changes no setting.
///
/// # Errors
/// Returns an error if the interface does not exist, or a journal cannot be read.
pub fn leftovers(interface: &str, state: &StateDirectory) -> Result<Vec<(Header, Vec<Change>)>, FairError> {
    let mut found = Vec::new();
    let mut journals = BTreeSet::from_iter(journals_below(state, interface).map_err(ApplyError::from)?);
    for identity in identities(interface)? {
        journals.extend(state.run_journals_of(&identity).map_err(ApplyError::from)?);
    }
    for journal in journals {
        found.extend(evenkeel_apply::unfinished(&journal)?);
    }
    Ok(found)
}
