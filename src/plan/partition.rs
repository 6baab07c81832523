//! Choice of the shards that a run writes, if several runs share the work.

use crate::container::Input;
use crate::container::checkpoint::Checkpoint;
use std::cmp::Reverse;

/// `I/N`: one of N parts of the shards, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub number: u64,
    /// The number of parts.
    pub of: u64,
}

impl std::str::FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("a part is I/N, from 1/N to N/N".to_owned()),
        }
    }
}

/// Returns the shards that this run writes, given the sizes of all shards.
pub(crate) fn chosen_shards(sizes: &[u64], partition: Option<Partition>) -> Vec<usize> {
    match partition {
        // If there are more parts than shards, the last have nothing to do.
        Some(Partition { number, of }) => {
            let [of, before] = [of, number - 1].map(|count| count.min(sizes.len() as u64) as usize);
            shares(sizes, of).into_iter().nth(before).unwrap_or_default()
        }
        None => (0..sizes.len()).collect(),
    }
}

/// Returns the sizes of the input's shards, which are available before the conversion is planned.
pub(crate) fn shard_sizes(source: &Checkpoint) -> Vec<u64> {
    source.shards.iter().map(Input::len).collect()
}

/// Distributes the shards over several runs: the largest first, each to the run with the least work, so that all runs
/// end at about the same time. The result depends only on sizes, so every run computes the same.
fn shares(sizes: &[u64], runs: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&at| (Reverse(sizes[at]), at));
    let mut shares = vec![(0, Vec::new()); runs];
    for at in order {
        let least = shares.iter_mut().min_by_key(|(sum, _)| *sum).expect("there is a run");
        least.0 += sizes[at];
        least.1.push(at);
    }
    let in_order = |(_, mut share): (u64, Vec<usize>)| {
        share.sort_unstable();
        share
    };
    shares.into_iter().map(in_order).collect()
}
