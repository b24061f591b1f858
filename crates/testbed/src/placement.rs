//! Which sending core carries how many bulk flows, and on which processor it runs.
//!
//! Titan's two-server experiments distribute flows "such that half of the cores have twice as many
//! active flows as the other half" (section 5), because unfairness arises from asymmetry.

/// One sending core: one iperf3 client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendingCore {
    /// Bulk flows.
    pub(crate) flows: u32,
    /// Processor of this machine.
    pub(crate) cpu: usize,
}

/// Spreads `flows` over at most `cores` sending cores, and those over `cpus` processors.
///
/// The largest even number of cores on which the 2:1 pattern comes out exactly is used, as 6 flows
/// on 4 cores (2, 2, 1, 1); if there is none, all cores carry what is nearest to it.
pub(crate) fn place(flows: u32, cores: u32, cpus: usize) -> Vec<SendingCore> {
    let exact = (1..=cores / 2).rev().map(|half| half * 2).find(|count| flows.is_multiple_of(count / 2 * 3));
    let count = exact.unwrap_or(cores).min(flows).max(1);
    let share = |core: u32| if core < count / 2 { 2_u64 } else { 1 };
    let total: u64 = (0..count).map(share).sum();
    let mut placed = 0;
    let mut passed = 0;
    (0..count)
        .map(|core| {
            // Cumulative rounding: the sum is exact, and each core within one of its share.
            passed += share(core);
            let until = (u64::from(flows) * passed).div_ceil(total) as u32;
            let flows = until - placed;
            placed = until;
            SendingCore { flows, cpu: core as usize * cpus.max(1) / count as usize }
        })
        .filter(|core| core.flows > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(flows: u32, cores: u32) -> Vec<u32> {
        place(flows, cores, 8).iter().map(|core| core.flows).collect()
    }

    #[test]
    fn the_papers_placements() {
        assert_eq!(flows(3, 8), [2, 1]);
        assert_eq!(flows(6, 8), [2, 2, 1, 1]);
        assert_eq!(flows(12, 8), [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!(flows(48, 8), [8, 8, 8, 8, 4, 4, 4, 4]);
        assert_eq!(flows(192, 8), [32, 32, 32, 32, 16, 16, 16, 16]);
    }

    #[test]
    fn odd_numbers_still_add_up() {
        for count in 1..300 {
            for cores in 1..12 {
                let placed = place(count, cores, 2);
                assert_eq!(placed.iter().map(|core| core.flows).sum::<u32>(), count, "{count} on {cores}");
                assert!(placed.iter().all(|core| core.cpu < 2));
            }
        }
    }

    #[test]
    fn on_two_processors_the_heavy_half_is_one() {
        let cpus: Vec<usize> = place(12, 8, 2).iter().map(|core| core.cpu).collect();
        assert_eq!(cpus, [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
