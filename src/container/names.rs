//! Finds duplicate names in a header, quickly even if it has a hundred thousand names.

use super::NewTensors;
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

/// The hashes of names, added while the names are in the cache. All names are compared only if two hashes are equal.
pub(crate) struct NameHashes {
    hashes: Vec<u64>,
    /// The random state that every hash starts from, so that a hostile file cannot choose names that collide.
    start: u64,
}

impl NameHashes {
    /// Creates an empty set with room for about `count` names.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { hashes: Vec::with_capacity(count), start: RandomState::new().hash_one(0) }
    }

    /// Creates an empty set for about `count` names, whose hashes can be appended to these.
    pub(super) fn beside(&self, count: usize) -> Self {
        Self { hashes: Vec::with_capacity(count), ..*self }
    }

    pub(crate) fn add(&mut self, name: &str) {
        self.hashes.push(hash(self.start, name.as_bytes()));
    }

    /// Appends the names of a set from [`NameHashes::beside`].
    pub(super) fn append(&mut self, mut others: Self) {
        self.hashes.append(&mut others.hashes);
    }

    /// Refuses new tensors with the same name. Their names were added.
    pub(super) fn check_new(self, tensors: &dyn NewTensors) -> Result<()> {
        match self.repeated(tensors.iter().map(|tensor| tensor.name)) {
            Some(name) => Err(Error::new("two tensors have this name").in_tensor(&name)),
            None => Ok(()),
        }
    }

    /// Returns the first of the added names that is a duplicate.
    pub(crate) fn repeated<N: Clone + Eq + Hash>(mut self, mut names: impl Iterator<Item = N>) -> Option<N> {
        self.hashes.sort_unstable();
        let has_collision = self.hashes.windows(2).any(|pair| pair[0] == pair[1]);
        let mut seen = HashSet::new();
        if has_collision { names.find(|name| !seen.insert(name.clone())) } else { None }
    }
}

impl Default for NameHashes {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

/// Hashes eight bytes per multiplication.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    /// An odd number without a pattern in its bits.
    const FACTOR: u128 = 0x2d35_8dcc_aa6c_78a5;
    let add = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * FACTOR;
        (product >> 64) as u64 ^ product as u64 ^ state.rotate_left(29)
    };
    let (words, rest) = bytes.as_chunks();
    let state = words.iter().fold(start, |state, word| add(state, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(state, u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_repeated_only_if_all_its_bytes_are() {
        let mut all: Vec<String> = (0..1000).map(|at| "n".repeat(at % 40) + &at.to_string()).collect();
        let repeated = |all: &[String]| {
            let mut names = NameHashes::default();
            for name in all {
                names.add(name);
            }
            names.repeated(all.iter().map(String::as_str)).map(str::to_owned)
        };
        assert_eq!(repeated(&all), None);
        let again = all[500].clone();
        all.push(again.clone());
        all.push("n".to_owned());
        assert_eq!(repeated(&all), Some(again));
    }

    #[test]
    fn a_collision_of_hashes_is_no_repetition() {
        let mut names = NameHashes::default();
        names.add("a");
        names.hashes.push(names.hashes[0]);
        assert_eq!(names.repeated(["a", "b"].into_iter()), None);
    }
}
