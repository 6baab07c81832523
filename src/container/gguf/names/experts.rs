//! The number of experts of a model.

use super::complete::unmapped;
use super::values::ModelNumbers;
use crate::error::Result;

/// Maximum number of experts in a layer. It bounds the number of names, and is eight times llama.cpp's maximum.
const MAX_EXPERTS: u64 = 4096;

/// The number of experts as soon as it is known, and in words where it comes from.
#[derive(Debug, Default)]
pub(super) struct ExpertCount(Option<(u64, String)>);

impl ExpertCount {
    /// Returns the number that one of some keys has. A model without experts may have 0 there.
    pub(super) fn find(numbers: &ModelNumbers, keys: &[&str]) -> Result<Self> {
        for key in keys {
            if let Some(count) = numbers.find(key)?.filter(|count| *count != 0) {
                return Ok(Self(Some((count, format!("'{key}' is {count}")))));
            }
        }
        Ok(Self::default())
    }

    /// Checks that all layers have the same number of experts.
    pub(super) fn check(&mut self, count: u64, name: &str) -> Result<()> {
        let (expected, origin) = self.0.get_or_insert_with(|| (count, format!("'{name}' has {count}")));
        if count != *expected {
            return Err(unmapped(format!("has {count} experts, but {origin}")));
        }
        if count == 0 || count > MAX_EXPERTS {
            return Err(unmapped(format!("has {count} experts; the supported number is 1 to {MAX_EXPERTS}")));
        }
        Ok(())
    }
}
