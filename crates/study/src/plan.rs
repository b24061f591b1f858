use std::collections::BTreeMap;

use evenkeel_model::scenario::{Scenario, TenantPoint, Variant};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

#[derive(Clone, Debug)]
pub struct StudyScenario {
    /// The scenario, with its times adapted by [`timed`].
    pub scenario: Scenario,
    pub text: String,
    /// Text of each file in the scenario's `qdisc-files`, by name.
    pub qdisc_files: BTreeMap<String, String>,
}

/// How much of each scenario to run.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    /// Only the quick points, with the quick times.
    pub quick: bool,
    /// Repeats of every point. If `None`, each scenario has its own number.
    pub repeats: Option<u32>,
    /// Run only these setups; empty: all.
    pub setups: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Planned<'s> {
    pub scenario: usize,
    pub variant: &'s Variant,
    pub point: &'s TenantPoint,
    pub repeats: u32,
}

/// Adapts the scenarios' times to the extent: a quick study has quick times.
#[must_use]
pub fn timed(scenarios: Vec<StudyScenario>, extent: &Extent) -> Vec<StudyScenario> {
    let timed = |study: StudyScenario| {
        if extent.quick { StudyScenario { scenario: study.scenario.quickened(), ..study } } else { study }
    };
    scenarios.into_iter().map(timed).collect()
}

/// Returns the points of all scenarios, in order. `scenarios` must come from [`timed`].
#[must_use]
pub fn points<'s>(scenarios: &'s [StudyScenario], extent: &Extent) -> Vec<Planned<'s>> {
    let wanted = |point: &TenantPoint| extent.setups.is_empty() || extent.setups.contains(&point.qdisc.name);
    scenarios
        .iter()
        .enumerate()
        .flat_map(|(number, StudyScenario { scenario, .. })| {
            let further = if extent.quick { &[][..] } else { &scenario.further_variants };
            let repeats = extent.repeats.unwrap_or(scenario.measure.repeats);
            scenario.variants.iter().chain(further).filter_map(move |variant| {
                let point = variant.tenants().filter(|point| wanted(point))?;
                Some(Planned { scenario: number, variant, point, repeats })
            })
        })
        .collect()
}

impl<'s> Planned<'s> {
    #[must_use]
    pub fn names(&self, scenarios: &'s [StudyScenario]) -> (&'s str, &'s str) {
        (&scenarios[self.scenario].scenario.name, &self.variant.name)
    }

    fn is_of_cell_of(&self, other: &Self) -> bool {
        let axes = |planned: &Self| planned.point.coordinates.get(1..).map(<[_]>::to_vec);
        self.scenario == other.scenario && axes(self) == axes(other)
    }
}

/// Returns the cells: indices of points that differ only by their setup.
#[must_use]
pub fn cells(points: &[Planned<'_>]) -> Vec<Vec<usize>> {
    let mut cells: Vec<Vec<usize>> = Vec::new();
    for (number, planned) in points.iter().enumerate() {
        match cells.iter_mut().find(|cell| planned.is_of_cell_of(&points[cell[0]])) {
            Some(cell) => cell.push(number),
            None => cells.push(vec![number]),
        }
    }
    cells
}

/// Returns the order of repeats as indices into `repeats`:
///
/// - Each round has one repeat of every point that has repeats left, so that changes of the machine affect
///   all points alike.
/// - The points of a cell run consecutively, because the study compares them.
/// - Cells are shuffled, and so are the points within a cell. The same seed gives the same order.
#[must_use]
pub fn rounds(repeats: &[u32], cells: &[Vec<usize>], seed: u64) -> Vec<Vec<usize>> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let most = repeats.iter().copied().max().unwrap_or(0);
    (0..most)
        .map(|round| {
            let mut cells = cells.to_vec();
            shuffle(&mut cells, &mut random);
            cells.iter_mut().for_each(|cell| shuffle(cell, &mut random));
            cells.into_iter().flatten().filter(|number| repeats[*number] > round).collect()
        })
        .collect()
}

/// Shuffles by the Fisher-Yates method. With 64-bit random numbers, the modulo bias is negligible.
fn shuffle<T>(items: &mut [T], random: &mut Xoshiro256PlusPlus) {
    for last in (1..items.len()).rev() {
        items.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn every_round_has_each_point_once_in_an_order_of_its_own() {
        let repeats = [3, 3, 1, 3, 3, 3, 3, 3];
        let cells = [vec![0, 1, 2], vec![3, 6], vec![4, 5, 7]];
        let order = rounds(&repeats, &cells, 7);
        let sorted = |round: &[usize]| {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            sorted
        };
        assert_eq!(sorted(&order[0]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sorted(&order[2]), [0, 1, 3, 4, 5, 6, 7]);
        assert_ne!(order[1], order[2]);
        assert_ne!(order[0], sorted(&order[0]));
        assert_eq!(order, rounds(&repeats, &cells, 7));
        assert_ne!(order, rounds(&repeats, &cells, 8));
        assert!(rounds(&[], &[], 1).is_empty());
        for round in &order {
            // Each cell is contiguous in the round.
            let of = |number: &usize| cells.iter().position(|cell| cell.contains(number));
            let changes = round.windows(2).filter(|pair| of(&pair[0]) != of(&pair[1])).count();
            assert_eq!(changes, cells.len() - 1, "{round:?}");
        }
    }
}
