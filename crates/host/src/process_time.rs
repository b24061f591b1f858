//! CPU time of processes, from `/proc/PID/stat` (proc_pid_stat(5)).
//!
//! The kernel measures a process's time (`sum_exec_runtime`), unlike the columns of `/proc/stat`. It
//! samples only the division into user space and kernel. Softirqs that interrupt a process count as its
//! time, unless the kernel accounts for interrupts (`CONFIG_IRQ_TIME_ACCOUNTING`).

use std::collections::{HashMap, HashSet};

use evenkeel_model::host::SaturatingSum;

use crate::{Host, HostError};

/// `USER_HZ`: number of ticks of `/proc/stat` per second. It is 100 on x86, arm64, riscv, powerpc and s390.
pub const TICKS_PER_SECOND: f64 = 100.0;

/// `PF_KTHREAD` (include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTime {
    pub id: u32,
    pub parent: u32,
    pub is_kernel_thread: bool,
    pub user_ticks: u64,
    pub system_ticks: u64,
    /// Time of the ended children for which this process waited, and of the descendants for which these
    /// children waited, ticks.
    pub reaped_ticks: u64,
}

impl ProcessTime {
    fn parse(text: &str) -> Option<Self> {
        let id = text.split_ascii_whitespace().next()?.parse().ok()?;
        // The name in field 2 may contain any character, even a closing parenthesis. Field 3 follows
        // the last parenthesis.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        // Fields 16 and 17 are signed (`do_task_stat`, fs/proc/array.c). A negative time counts as 0.
        let signed = |field: usize| {
            let value = fields.get(field - 3)?.parse::<i64>().ok()?;
            Some(u64::try_from(value).unwrap_or(0))
        };
        Some(Self {
            id,
            parent: fields.get(1)?.parse().ok()?,
            is_kernel_thread: number(9)? & KERNEL_THREAD != 0,
            user_ticks: number(14)?,
            system_ticks: number(15)?,
            reaped_ticks: signed(16)?.saturating_add(signed(17)?),
        })
    }

    /// Returns the process's time plus `reaped_ticks`, ticks.
    fn all_ticks(&self) -> u64 {
        self.user_ticks.saturating_add(self.system_ticks).saturating_add(self.reaped_ticks)
    }
}

impl Host {
    /// Returns the CPU time of a process; `None` if the process does not exist or its file is invalid.
    #[must_use]
    pub fn process_time(&self, id: u32) -> Option<ProcessTime> {
        ProcessTime::parse(&self.read(&format!("/proc/{id}/stat")).ok()?)
    }

    #[must_use]
    pub fn thread_time(&self, process: u32, thread: u32) -> Option<ProcessTime> {
        ProcessTime::parse(&self.read(&format!("/proc/{process}/task/{thread}/stat")).ok()?)
    }

    /// Returns the CPU time of every process. Omits a process that ends during the call.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read.
    pub fn process_times(&self) -> Result<Vec<ProcessTime>, HostError> {
        Ok(self.process_numbers()?.into_iter().filter_map(|id| self.process_time(id)).collect())
    }
}

/// Returns the ticks of all processes except `own`, its descendants and kernel threads. The time of an
/// ended process stays in the sum, as the time of its parent. So the difference of two sums includes
/// short-lived processes, unless the parent does not wait for them.
#[must_use]
pub fn others_ticks(processes: &[ProcessTime], own: u32) -> u64 {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process.id);
    }
    let mut ours = HashSet::from([own]);
    let mut found = vec![own];
    while let Some(parent) = found.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if ours.insert(*child) {
                found.push(*child);
            }
        }
    }
    let others = processes.iter().filter(|process| !process.is_kernel_thread && !ours.contains(&process.id));
    others.map(ProcessTime::all_ticks).saturating_sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn process(id: u32, parent: u32, ticks: u64, reaped_ticks: u64) -> ProcessTime {
        ProcessTime { id, parent, user_ticks: ticks, reaped_ticks, ..ProcessTime::default() }
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        let text = "42 (a) b) R 7 42 42 0 -1 2097216 1 2 3 4 50 60 70 80 20 0 1 0 999\n";
        let found = ProcessTime::parse(text).unwrap();
        assert_eq!((found.id, found.parent, found.is_kernel_thread), (42, 7, true));
        assert_eq!((found.user_ticks, found.system_ticks, found.reaped_ticks), (50, 60, 150));
        for length in 0..text.find(" 80").unwrap() {
            assert_eq!(ProcessTime::parse(&text[..length]), None, "{length}");
        }
    }

    #[test]
    fn negative_times_of_children_do_not_hide_the_process() {
        let text = "42 (a) R 7 42 42 0 -1 0 1 2 3 4 50 60 -70 80 20 0 1 0 999\n";
        let found = ProcessTime::parse(text).unwrap();
        assert_eq!((found.user_ticks, found.system_ticks, found.reaped_ticks), (50, 60, 80));
        assert_eq!(ProcessTime::parse(&text.replace(" 50 ", " -50 ")), None, "this field is unsigned");
    }

    #[test]
    fn children_that_came_and_went_are_counted_once() {
        // The processes are a shell (2) with a compiler (3), this program (10) with its traffic (11, 12), and
        // a kernel thread (20).
        let kernel = ProcessTime { is_kernel_thread: true, ..process(20, 2, 1000, 0) };
        let ours = [process(10, 2, 500, 300), process(11, 10, 40, 0), process(12, 11, 9, 0)];
        let before = [&[process(2, 1, 100, 0), process(3, 2, 50, 0), kernel][..], &ours].concat();
        assert_eq!(others_ticks(&before, 10), 150);
        // The compiler ran for 25 ticks and ended. Another compiler ran for 7 ticks and ended.
        let after = [&[process(2, 1, 103, 75 + 7), kernel][..], &ours].concat();
        assert_eq!(others_ticks(&after, 10) - others_ticks(&before, 10), 3 + 25 + 7);
    }

    #[test]
    fn this_process_is_known() {
        let host = Host::live();
        let own = host.process_time(std::process::id()).unwrap();
        assert!(!own.is_kernel_thread && own.parent > 0);
        assert!(host.process_times().unwrap().iter().any(|process| process.id == own.id));
        assert!(host.thread_time(own.id, own.id).is_some());
        assert_eq!(host.process_time(u32::MAX), None);
    }
}
