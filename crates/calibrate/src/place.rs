//! Chooses the processors of the measurement.

use evenkeel_model::host::Processor;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::CalibrateError;

/// Processors and memory nodes of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Processor of all measurements.
    pub core: u32,
    /// Processor of the thread that is woken; `None` if the process may use only one processor.
    pub other: Option<u32>,
    /// Memory node of `core`.
    pub node: u32,
    /// The other memory nodes with processors.
    pub remote_nodes: Vec<u32>,
}

/// Returns the processors that this process may use.
pub(crate) fn allowed() -> Result<Vec<u32>, CalibrateError> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|error| CalibrateError::system("read the processors of this process")(error.into()))?;
    let is_allowed = |number: &u32| set.is_set(*number as usize) == Ok(true);
    Ok((0..CpuSet::count() as u32).filter(is_allowed).collect())
}

/// Returns the places of a measurement on the `wanted` processors. Without `wanted`, chooses two processors
/// that the process may use, if possible of one memory node and of different cores.
///
/// # Errors
/// Returns an error if the process may not use a wanted processor, or may use no processor.
pub fn choose(processors: &[Processor], wanted: Option<(u32, u32)>) -> Result<Places, CalibrateError> {
    choose_from(&allowed()?, processors, wanted)
}

fn choose_from(
    allowed: &[u32],
    processors: &[Processor],
    wanted: Option<(u32, u32)>,
) -> Result<Places, CalibrateError> {
    let of = |number: u32| processors.iter().find(|processor| processor.number == number);
    let (core, other) = match wanted {
        Some((core, other)) => {
            let refused = [core, other].into_iter().find(|number| !allowed.contains(number));
            if let Some(number) = refused {
                let why = match of(number) {
                    None if !processors.is_empty() => "is not online",
                    _ => "is not among the processors of this process (taskset, cpuset)",
                };
                return Err(CalibrateError::Cores(format!("processor {number} {why}")));
            }
            (core, Some(other))
        }
        None => {
            let core = *allowed
                .first()
                .ok_or_else(|| CalibrateError::Cores("this process may use no processor".to_owned()))?;
            let nearness = |number: &&u32| match (of(core), of(**number)) {
                (Some(first), Some(second)) => {
                    let is_thread = first.siblings.contains(number);
                    (first.node == second.node, !is_thread)
                }
                _ => (false, false),
            };
            // Of equally near processors, choose the first.
            let rest = allowed.iter().filter(|number| **number != core).rev();
            (core, rest.max_by_key(nearness).copied())
        }
    };
    let node = of(core).map_or(0, |processor| processor.node);
    let mut remote_nodes: Vec<u32> = processors.iter().map(|processor| processor.node).collect();
    remote_nodes.sort_unstable();
    remote_nodes.dedup();
    remote_nodes.retain(|other| *other != node);
    Ok(Places { core, other, node, remote_nodes })
}

/// Pins the calling thread to a processor.
pub(crate) fn pin(processor: u32) -> Result<(), CalibrateError> {
    let mut set = CpuSet::new();
    set.set(processor as usize)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| CalibrateError::system("pin a thread to a processor")(error.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns a host with two nodes of two cores with two threads each; the second threads come last.
    fn processors() -> Vec<Processor> {
        let processor = |number: u32| Processor {
            number,
            node: number % 4 / 2,
            package: number % 4 / 2,
            core: number % 2,
            siblings: vec![number % 4, number % 4 + 4],
            ..Processor::default()
        };
        (0..8).map(processor).collect()
    }

    #[test]
    fn the_second_processor_is_another_core_of_the_node() {
        let all: Vec<u32> = (0..8).collect();
        let found = choose_from(&all, &processors(), None).unwrap();
        assert_eq!(found, Places { core: 0, other: Some(1), node: 0, remote_nodes: vec![1] });
        let found = choose_from(&[2, 6, 4], &processors(), None).unwrap();
        assert_eq!((found.core, found.other, found.node), (2, Some(6), 1));
        assert_eq!(choose_from(&[3], &processors(), None).unwrap().other, None);
        let found = choose_from(&all, &processors(), Some((5, 2))).unwrap();
        assert_eq!((found.core, found.other, found.remote_nodes), (5, Some(2), vec![1]));
    }

    #[test]
    fn processors_that_the_process_may_not_use_are_refused() {
        let refused = |wanted| choose_from(&[0, 1], &processors(), Some(wanted)).unwrap_err().to_string();
        assert_eq!(refused((0, 99)), "--cores: processor 99 is not online");
        assert!(refused((3, 0)).starts_with("--cores: processor 3 is not among the processors"));
        assert!(choose_from(&[], &processors(), None).is_err());
    }
}
