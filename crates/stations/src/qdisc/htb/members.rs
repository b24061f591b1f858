//! Sets of classes in the order of their numbers, like the kernel's trees of class identifiers.

use super::super::queue::NONE;

#[derive(Clone, Debug)]
pub(super) struct Members {
    words: Vec<u64>,
    count: u32,
}

impl Members {
    /// Creates an empty set for the classes 0 to `classes` - 1.
    pub(super) fn new(classes: usize) -> Self {
        Self { words: vec![0; classes.div_ceil(64)], count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn insert(&mut self, class: u32) {
        let word = &mut self.words[class as usize / 64];
        let bit = 1 << (class % 64);
        self.count += u32::from(*word & bit == 0);
        *word |= bit;
    }

    pub(super) fn remove(&mut self, class: u32) {
        let word = &mut self.words[class as usize / 64];
        let bit = 1 << (class % 64);
        self.count -= u32::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Returns the first member that is at least `class`, or [`NONE`] if there is no such member.
    pub(super) fn first_from(&self, class: u32) -> u32 {
        let start = class as usize / 64;
        let Some(word) = self.words.get(start) else { return NONE };
        let masked = word & (u64::MAX << (class % 64));
        if masked != 0 {
            return (start * 64) as u32 + masked.trailing_zeros();
        }
        let further = self.words[start + 1..].iter().position(|word| *word != 0);
        further.map_or(NONE, |offset| {
            let index = start + 1 + offset;
            (index * 64) as u32 + self.words[index].trailing_zeros()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order() {
        let mut members = Members::new(130);
        for class in [129, 3, 64, 3, 63] {
            members.insert(class);
        }
        let found: Vec<u32> = std::iter::successors(Some(members.first_from(0)), |class| {
            Some(members.first_from(class + 1)).filter(|next| *next != NONE)
        })
        .collect();
        assert_eq!(found, [3, 63, 64, 129]);
        members.remove(64);
        members.remove(64);
        assert_eq!((members.first_from(64), members.first_from(130)), (129, NONE));
        for class in found {
            members.remove(class);
        }
        assert!(members.is_empty() && members.first_from(0) == NONE);
    }
}
