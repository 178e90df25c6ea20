//! Reproducible randomness: the same seed gives the same numbers on every machine.
//!
//! A SplitMix64 generator. Good enough to choose test steps; never used where numbers must not be
//! guessed.

/// A stream of numbers that its seed determines.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        match self.number().checked_rem(bound) {
            Some(number) => number,
            None => 0,
        }
    }

    /// An index below `len`; 0 when there is none.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// One of the choices, each as likely as the others.
    pub fn pick<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.index(N)]
    }

    /// True in `per_mille` of a thousand calls.
    pub const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i23_the_same_seed_gives_the_same_numbers() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        let first: Vec<_> = (0..100).map(|_| one.below(10)).collect();
        assert_eq!(first, (0..100).map(|_| two.below(10)).collect::<Vec<_>>());
        assert!((0..10).all(|n| first.contains(&n)), "{first:?}");
        assert_eq!(one.below(0), 0);
    }
}
