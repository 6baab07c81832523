//! The layout of gpt-oss: banks of experts stay banks, and nothing else is quantized.

use super::Planner;
use crate::error::{Error, Kind, Result};
use crate::select::experts::bank_of;

pub(super) const NAME: &str = "gpt-oss";

impl Planner<'_, '_> {
    /// Returns the shape of a bank with [out, in] as the last dimensions; plain models of gpt-oss store each matrix
    /// transposed. `None` if the tensor is not a bank. Fails if the model is not gpt-oss: its banks may be stored in
    /// another way.
    pub(super) fn gpt_oss_bank(&self, name: &str, shape: &[u64]) -> Result<Option<[u64; 3]>> {
        let (Some((_, "gate_up_proj" | "down_proj")), &[experts, rows, columns]) = (bank_of(name), shape) else {
            return Ok(None);
        };
        if self.layout != NAME {
            return Ok(None);
        }
        if self.model.kind.as_deref().is_some_and(|kind| kind.starts_with("gpt_oss")) {
            return Ok(Some([experts, columns, rows]));
        }
        let message = "only models of gpt-oss are stored in the layout gpt-oss: model_type in config.json is another";
        Err(Error::new(message).of(Kind::Unstorable))
    }
}
