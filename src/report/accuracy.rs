//! The accuracy of each tensor, as a table.

use super::summary::{BROKEN, FEW_ROWS};
use super::{Report, Surroundings, TensorReport};
use crate::measure::accuracy::Accuracy;
use crate::text::{brief, columns, shorten};

impl Report {
    /// Returns the table of the accuracy, the noisiest tensors first. Rows of tensors with values that
    /// became infinite or NaN end with their numbers.
    pub(super) fn accuracy_table(&self, around: Surroundings) -> String {
        let mut measured: Vec<(&TensorReport, &Accuracy)> =
            self.tensors().filter_map(|tensor| Some((tensor, tensor.accuracy.as_deref()?))).collect();
        // Tensors without the figure come before tensors without noise.
        let sqnr = |accuracy: &Accuracy| accuracy.sqnr_db.unwrap_or(f64::MAX);
        measured.sort_by(|(_, left), (_, right)| sqnr(left).total_cmp(&sqnr(right)));
        let mark = |tensor: &TensorReport| {
            let counts = tensor.counts.as_deref();
            let broken = BROKEN.map(|loss| (loss, counts.map_or(0, |counts| counts[loss])));
            let broken = broken.into_iter().filter(|(_, count)| *count > 0);
            broken.map(|(loss, count)| format!("{count} {}", loss.describe())).collect::<Vec<_>>().join(", ")
        };
        let row = |(tensor, accuracy): &(&TensorReport, &Accuracy)| {
            let error = |error: f64, at: Option<u64>| match at.filter(|_| error > 0.0).and_then(|at| tensor.place(at)) {
                Some(place) => format!("{} at {place}", brief(error)),
                None => brief(error),
            };
            let number = |number: Option<f64>| number.map_or("-".to_owned(), brief);
            [
                shorten(&tensor.name),
                match accuracy.sqnr_db {
                    _ if accuracy.is_exact => "exact".to_owned(),
                    Some(sqnr) if sqnr.is_finite() => format!("{sqnr:.2} dB"),
                    Some(_) => "no noise".to_owned(), // but Inf or NaN became something else
                    None => "-".to_owned(),
                },
                error(accuracy.max_abs_error, accuracy.max_abs_error_at),
                error(accuracy.max_rel_error, accuracy.max_rel_error_at),
                number(accuracy.mean_error),
                number(accuracy.cosine),
                mark(tensor),
            ]
        };
        let head = ["", "SQNR", "largest error", "largest relative", "mean error", "cosine", ""].map(str::to_owned);
        let rows: Vec<[String; 7]> = std::iter::once(head).chain(measured.iter().take(FEW_ROWS).map(row)).collect();
        let more = measured.len().saturating_sub(FEW_ROWS);
        let more = match more {
            0 => String::new(),
            _ => format!("\n  ... and {more} more, less noisy; {} has all", around.all_tensors),
        };
        columns(&rows, &[], around.columns).collect::<Vec<_>>().join("\n") + &more
    }
}
