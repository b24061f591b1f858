//! Observes flows ten times per second, independently of the interval between samples.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_datapath::DatapathError;
use evenkeel_fair::{FairError, FlowReading, FlowWatch};

use crate::error::MonitorError;

const TICK: Duration = Duration::from_millis(100);
/// Time between an error of a device's meter and the next attempt to attach a meter to the device.
const RETRY: Duration = Duration::from_secs(10);

/// A thread with a meter on each observed device. Dropping the thread detaches the meters.
pub(crate) struct FlowThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    stop: Condvar,
}

#[derive(Default)]
struct State {
    /// Indexes of the devices to observe.
    wanted: Vec<u32>,
    watches: BTreeMap<u32, FlowWatch>,
    /// The reason why a device is not observed, and the time of the error, by device index.
    refused: BTreeMap<u32, (Instant, String)>,
    stopped: bool,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlowThread {
    pub(crate) fn start() -> Result<Self, MonitorError> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("flows".to_owned())
            .spawn(move || observe(&of_thread))
            .map_err(|source| MonitorError::Thread { source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the devices to observe. Attaches a meter to each new device at once, and detaches the meters of
    /// the other devices.
    pub(crate) fn want(&self, devices: &[u32]) {
        let mut state = lock(&self.shared);
        state.wanted = devices.to_vec();
        attach(&mut state);
    }

    /// Ends the observation of an earlier device with this index, if any. Call this for each new device: the
    /// kernel may reuse the index of a deleted device.
    pub(crate) fn forget(&self, device: u32) {
        let mut state = lock(&self.shared);
        state.watches.remove(&device);
        state.refused.remove(&device);
    }

    /// Returns the flows of a device since the last call, at most `most` of them, or the reason why the
    /// device is not observed.
    pub(crate) fn read(&self, device: u32, most: usize) -> Result<FlowReading, String> {
        let mut state = lock(&self.shared);
        if let Some(watch) = state.watches.get_mut(&device) {
            let read = watch.read(most).map_err(|error| words(&error));
            if let Err(why) = &read {
                refuse(&mut state, device, why.clone());
            }
            return read;
        }
        let refused = state.refused.get(&device).map(|(_, why)| why.clone());
        Err(refused.unwrap_or_else(|| "the device no longer exists".to_owned()))
    }
}

impl Drop for FlowThread {
    fn drop(&mut self) {
        lock(&self.shared).stopped = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn observe(shared: &Shared) {
    let mut state = lock(shared);
    while !state.stopped {
        attach(&mut state);
        let mut failed = Vec::new();
        for (device, watch) in &mut state.watches {
            if let Err(error) = watch.tick() {
                failed.push((*device, words(&error)));
            }
        }
        for (device, why) in failed {
            refuse(&mut state, device, why);
        }
        // No bin is shorter than a tick, even after a late tick: a short bin could miss a flow that
        // sends in bursts.
        let (again, _) = shared.stop.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
        state = again;
    }
    state.watches.clear();
}

/// Ends a device's observation. A later observation starts from zero, because this observation may have
/// missed packets.
fn refuse(state: &mut State, device: u32, why: String) {
    state.watches.remove(&device);
    state.refused.insert(device, (Instant::now(), why));
}

fn attach(state: &mut State) {
    let State { wanted, watches, refused, .. } = state;
    watches.retain(|device, _| wanted.contains(device));
    refused.retain(|device, (since, _)| wanted.contains(device) && since.elapsed() < RETRY);
    for device in wanted {
        if watches.contains_key(device) || refused.contains_key(device) {
            continue;
        }
        match FlowWatch::attach(*device) {
            Ok(watch) => drop(watches.insert(*device, watch)),
            Err(error) => drop(refused.insert(*device, (Instant::now(), words(&error)))),
        }
    }
}

/// Returns the first line of the error, because the verifier's log does not help the user. For a missing
/// capability, returns advice.
fn words(error: &FairError) -> String {
    if let FairError::Datapath(DatapathError::Load { source, .. }) = error
        && source.kind() == io::ErrorKind::PermissionDenied
    {
        return "the BPF meter needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run the command as root"
            .to_owned();
    }
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
