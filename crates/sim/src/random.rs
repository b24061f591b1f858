//! Seeded random number generators. Each component has its own generator, so that a change in one
//! component does not affect another component.

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Purpose of a generator. The numbers determine the random streams of a seed: never change a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// Hashes of sockets (`sk_txhash`), which are also the hashes of their packets (`skb->hash`).
    SocketHashes = 1,
    /// Perturbation of hashing qdiscs.
    QdiscHashes = 2,
    Starts = 3,
    /// Receive-side scaling: the receive queue of each flow.
    ReceiveHashes = 4,
    Probe = 5,
    Paths = 7,
    Hosts = 8,
    Requests = 9,
    /// Measured costs of a machine.
    MachineCosts = 10,
}

#[derive(Clone, Debug)]
pub struct Generator(Xoshiro256PlusPlus);

impl Generator {
    #[must_use]
    pub fn new(seed: u64, component: Component) -> Self {
        // `seed_from_u64` makes the streams of adjacent seeds independent (SplitMix64). The multiplier
        // separates the components of adjacent seeds.
        Self(Xoshiro256PlusPlus::seed_from_u64(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(component as u64),
        ))
    }

    pub fn bits(&mut self) -> u32 {
        self.0.next_u32()
    }

    pub fn long_bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from the standard normal distribution (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        // From 2^-53 to 1: the logarithm is finite.
        let mut unit = || ((self.long_bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let (radius, angle) = ((-2.0 * unit().ln()).sqrt(), std::f64::consts::TAU * unit());
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_their_mean_and_variance() {
        let mut generator = Generator::new(3, Component::MachineCosts);
        let numbers: Vec<f64> = (0..10_000).map(|_| generator.normal()).collect();
        let moment = |power| numbers.iter().map(|number| number.powi(power)).sum::<f64>() / 10_000.0;
        assert!(moment(1).abs() < 0.04 && (moment(2) - 1.0).abs() < 0.06, "{} {}", moment(1), moment(2));
    }

    #[test]
    fn components_and_seeds_differ_and_repeat() {
        let first = |seed, component| Generator::new(seed, component).long_bits();
        assert_eq!(first(1, Component::Starts), first(1, Component::Starts));
        assert_ne!(first(1, Component::Starts), first(2, Component::Starts));
        assert_ne!(first(1, Component::Starts), first(1, Component::Probe));
    }

    #[test]
    fn numbers_stay_below_their_bound() {
        let mut generator = Generator::new(7, Component::Paths);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[generator.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(generator.below(0), 0);
    }
}
