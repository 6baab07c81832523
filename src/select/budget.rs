//! Choice of one offer for each of several items, so that the sum of errors is least and the sum of sizes stays within a
//! limit: the multiple-choice knapsack problem (Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004, chapter 11).
//!
//! 1. Each item starts with its smallest offer. Offers on the lower convex hull of size and error are taken in the
//!    order of their gain per byte, as long as they fit.
//! 2. The gain per byte of the first offer that does not fit is the Lagrange multiplier: with it as the price of a byte,
//!    the best offers give a lower bound of the error that no choice can reach below.
//! 3. Partial choices that are larger and worse than another one, or whose bound is not below the best choice so far, are
//!    dropped. If the others are few, this finds the optimum; otherwise the most promising are continued.
//!
//! All steps are computed in the order of the items, so equal items give equal choices.

/// A possibility for an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offer {
    pub bytes: u64,
    /// At least 0, and finite.
    pub error: f64,
}

/// The choice for all items.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetChoice {
    /// For each item, the index of its offer.
    pub offers: Vec<usize>,
    pub bytes: u64,
    /// The sum of the errors.
    pub error: f64,
    /// An error that no choice within the limit can be below.
    pub lower_bound: f64,
}

/// Number of partial choices, over all items, that are continued.
const EFFORT: usize = 1 << 21;

/// Chooses an offer for each item. Fails with the smallest possible sum of sizes if that is beyond the limit.
///
/// # Panics
/// When an item has no offer.
pub(crate) fn choose(items: &[Vec<Offer>], limit: u64) -> Result<BudgetChoice, u64> {
    let hulls: Vec<Vec<usize>> = items.iter().map(|offers| hull(offers)).collect();
    let least = hulls.iter().zip(items).map(|(hull, offers)| offers[hull[0]].bytes).sum();
    if least > limit {
        return Err(least);
    }
    let (offers, price) = greedy(items, &hulls, (least, limit));
    let bounds = BudgetBounds::new(items, price, limit);
    let start = totals(items, offers);
    let best = improved(items, &bounds, start.error).map_or(start, |offers| totals(items, offers));
    // Both are sums, and rounded differently.
    Ok(BudgetChoice { lower_bound: bounds.of(0, 0, 0.0).clamp(0.0, best.error), ..best })
}

fn totals(items: &[Vec<Offer>], offers: Vec<usize>) -> BudgetChoice {
    let chosen = || items.iter().zip(&offers).map(|(item, at)| item[*at]);
    let (bytes, error) = (chosen().map(|offer| offer.bytes).sum(), chosen().map(|offer| offer.error).sum());
    BudgetChoice { offers, bytes, error, lower_bound: 0.0 }
}

/// Returns the offers on the lower convex hull, the smallest first.
fn hull(offers: &[Offer]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..offers.len()).collect();
    order.sort_by(|a, b| {
        let (one, other) = (offers[*a], offers[*b]);
        one.bytes.cmp(&other.bytes).then(one.error.total_cmp(&other.error))
    });
    let mut hull: Vec<usize> = Vec::new();
    for at in order {
        if hull.last().is_some_and(|last| offers[at].error >= offers[*last].error) {
            continue; // larger and no better
        }
        while let [.., before, last] = hull[..]
            && gain(offers, last, at) >= gain(offers, before, last)
        {
            hull.pop();
        }
        hull.push(at);
    }
    hull
}

/// Returns the error that each further byte of the second offer takes away.
fn gain(offers: &[Offer], from: usize, to: usize) -> f64 {
    (offers[from].error - offers[to].error) / (offers[to].bytes - offers[from].bytes) as f64
}

/// Takes offers by their gain per byte; returns them, and the gain of the first that does not fit, or 0.
fn greedy(items: &[Vec<Offer>], hulls: &[Vec<usize>], (least, limit): (u64, u64)) -> (Vec<usize>, f64) {
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (item, hull) in hulls.iter().enumerate() {
        let pairs = hull.windows(2).enumerate();
        steps.extend(pairs.map(|(level, pair)| (gain(&items[item], pair[0], pair[1]), item, level)));
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut levels, mut bytes, mut price) = (vec![0; items.len()], least, None);
    for (gain, item, level) in steps {
        let [from, to] = [level, level + 1].map(|level| items[item][hulls[item][level]].bytes);
        if levels[item] == level && bytes + (to - from) <= limit {
            levels[item] = level + 1;
            bytes += to - from;
        } else {
            price.get_or_insert(gain);
        }
    }
    let offers = levels.iter().zip(hulls).map(|(level, hull)| hull[*level]).collect();
    (offers, price.unwrap_or_default())
}

/// Lower bounds of the error of complete choices that begin with a partial one.
struct BudgetBounds {
    /// The price of a byte.
    price: f64,
    limit: u64,
    /// From each item on: the least sum of error and price, and the least number of bytes.
    rest: Vec<(f64, u64)>,
}

impl BudgetBounds {
    fn new(items: &[Vec<Offer>], price: f64, limit: u64) -> Self {
        let mut rest = vec![(0.0, 0); items.len() + 1];
        for (at, offers) in items.iter().enumerate().rev() {
            let costs = offers.iter().map(|offer| offer.error + price * offer.bytes as f64);
            let cost = costs.min_by(f64::total_cmp).expect("every item has an offer");
            let bytes = offers.iter().map(|offer| offer.bytes).min().expect("every item has an offer");
            rest[at] = (rest[at + 1].0 + cost, rest[at + 1].1 + bytes);
        }
        Self { price, limit, rest }
    }

    /// Returns the bound for a choice of the offers before an item.
    fn of(&self, item: usize, bytes: u64, error: f64) -> f64 {
        error + self.rest[item].0 - self.price * (self.limit as f64 - bytes as f64)
    }
}

/// A choice for the first items.
#[derive(Clone, Copy)]
struct Partial {
    bytes: u64,
    error: f64,
    /// The index of the choice for the items before the last, and the offer for the last.
    last: (u32, u32),
}

/// Returns the best choice found whose error is below this one.
fn improved(items: &[Vec<Offer>], bounds: &BudgetBounds, error: f64) -> Option<Vec<usize>> {
    let most = (EFFORT / items.len().max(1)).clamp(1 << 6, 1 << 16);
    let mut front = vec![Partial { bytes: 0, error: 0.0, last: (0, 0) }];
    let mut trail: Vec<Vec<(u32, u32)>> = Vec::with_capacity(items.len());
    for (at, offers) in items.iter().enumerate() {
        let bound = |partial: &Partial| bounds.of(at + 1, partial.bytes, partial.error);
        let mut next: Vec<Partial> = Vec::with_capacity(front.len() * offers.len());
        for (before, partial) in (0..).zip(&front) {
            next.extend((0..).zip(offers).map(|(number, offer)| Partial {
                bytes: partial.bytes + offer.bytes,
                error: partial.error + offer.error,
                last: (before, number),
            }));
        }
        // A bound that equals the best choice up to the rounding of the sums may still lead below it.
        let highest = error + error.abs() * 1e-12;
        next.retain(|partial| partial.bytes + bounds.rest[at + 1].1 <= bounds.limit && bound(partial) <= highest);
        next.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)).then(a.last.cmp(&b.last)));
        let mut lowest = f64::INFINITY;
        next.retain(|partial| {
            let is_better = partial.error < lowest;
            lowest = lowest.min(partial.error);
            is_better
        });
        if next.len() > most {
            let mut order: Vec<(f64, usize)> = next.iter().map(bound).zip(0..).collect();
            order.select_nth_unstable_by(most, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let mut kept: Vec<usize> = order[..most].iter().map(|(_, at)| *at).collect();
            kept.sort_unstable();
            next = kept.into_iter().map(|at| next[at]).collect();
        }
        trail.push(next.iter().map(|partial| partial.last).collect());
        front = next;
    }
    // The last choice of the front is the largest and best.
    let mut at = front.last().filter(|best| best.error < error).map(|_| front.len() - 1)?;
    let mut offers = vec![0; items.len()];
    for (offer, lasts) in offers.iter_mut().zip(&trail).rev() {
        let (before, number) = lasts[at];
        (*offer, at) = (number as usize, before as usize);
    }
    Some(offers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    /// Random items; with larger offers usually better.
    fn items(seed: u64, count: usize, offers: u64) -> Vec<Vec<Offer>> {
        let mut next = random(seed);
        let mut unit = move || (next() >> 11) as f64 / (1_u64 << 53) as f64;
        let item = |_| {
            let (size, scale) = (1.0 + 99.0 * unit(), 0.001 + unit());
            let count = 1 + (unit() * offers as f64) as u64;
            (0..count)
                .map(|at| Offer {
                    bytes: (size * (4.0 + 4.0 * at as f64 + 3.0 * unit())) as u64,
                    error: scale * 0.1_f64.powi(at as i32) * (0.5 + unit()),
                })
                .collect()
        };
        (0..count).map(item).collect()
    }

    /// Tries all choices; returns the least error within the limit.
    fn by_trying_all(items: &[Vec<Offer>], limit: u64) -> Option<f64> {
        let mut best: Option<f64> = None;
        let mut offers = vec![0; items.len()];
        loop {
            let total = totals(items, offers.clone());
            if total.bytes <= limit && best.is_none_or(|best| total.error < best) {
                best = Some(total.error);
            }
            let Some(at) = (0..items.len()).find(|at| offers[*at] + 1 < items[*at].len()) else { return best };
            offers[..at].fill(0);
            offers[at] += 1;
        }
    }

    #[test]
    fn the_choice_for_a_few_items_is_the_optimum_of_all() {
        for seed in 0..60 {
            let items = items(seed, 2 + seed as usize % 7, 4);
            let sizes = |pick: fn(&Vec<Offer>) -> u64| items.iter().map(pick).sum::<u64>();
            let least = sizes(|offers| offers.iter().map(|offer| offer.bytes).min().unwrap());
            let most = sizes(|offers| offers.iter().map(|offer| offer.bytes).max().unwrap());
            for part in 0..12 {
                let limit = least + (most - least) * part / 10;
                let found = choose(&items, limit).unwrap();
                assert_eq!(Some(found.error), by_trying_all(&items, limit), "seed {seed}, limit {limit}");
                assert_eq!(
                    found,
                    BudgetChoice { lower_bound: found.lower_bound, ..totals(&items, found.offers.clone()) }
                );
                assert!(found.bytes <= limit && found.lower_bound <= found.error * (1.0 + 1e-12), "{found:?}");
            }
            assert_eq!(choose(&items, least - 1), Err(least));
        }
    }

    #[test]
    fn the_choice_for_many_items_is_within_a_hundredth_of_the_bound() {
        for (seed, count) in [(1, 200), (2, 600), (3, 3000)] {
            let items = items(seed, count, 4);
            let least = items.iter().map(|offers| offers.iter().map(|offer| offer.bytes).min().unwrap()).sum::<u64>();
            for limit in [least * 11 / 10, least * 14 / 10, least * 2] {
                let found = choose(&items, limit).unwrap();
                assert!(
                    found.error <= found.lower_bound * 1.01,
                    "{count} items: {} of {}",
                    found.error,
                    found.lower_bound
                );
                assert!(found.error >= found.lower_bound * (1.0 - 1e-12));
            }
        }
    }

    #[test]
    fn everything_fits_into_a_large_limit_and_equal_items_have_equal_choices() {
        let items = items(7, 50, 4);
        let found = choose(&items, u64::MAX / 4).unwrap();
        let least = |offers: &Vec<Offer>| offers.iter().map(|offer| offer.error).fold(f64::INFINITY, f64::min);
        let least: f64 = items.iter().map(least).sum();
        assert!((found.error - least).abs() <= 1e-12 * least && found.lower_bound >= found.error * (1.0 - 1e-12));
        assert_eq!(choose(&items, 9000), choose(&items, 9000));
        assert_eq!(choose(&[], 0).map(|choice| choice.error), Ok(0.0));
    }
}
