//! The metadata that a GGUF file would get from a folder, in `tcast inspect`.

use crate::commands::notes;
use crate::commands::remedies::remedy;
use crate::container::gguf::metadata::{MetadataFacts, TokenizerFacts};
use crate::error::Result;
use serde_json::{Value, json};

/// Describes the metadata in a line, or the first thing that it lacks with its remedy.
pub(super) fn text(metadata: &Result<MetadataFacts>) -> String {
    match metadata {
        Ok(facts) => format!("GGUF metadata is complete: {}\n", notes::metadata(facts)),
        Err(error) => {
            let remedy = remedy(error).map(|remedy| format!("; {remedy}")).unwrap_or_default();
            format!("GGUF metadata is incomplete: {error}{remedy}\n")
        }
    }
}

/// Returns the same as JSON.
pub(super) fn json(metadata: &Result<MetadataFacts>) -> Value {
    match metadata {
        Ok(MetadataFacts { architecture, layers, tokenizer }) => {
            let TokenizerFacts { kind, tokens, pre_tokenizer, has_template } = tokenizer;
            json!({
                "is_complete": true,
                "architecture": architecture,
                "layers": layers,
                "tokenizer": kind,
                "tokens": tokens,
                "pre_tokenizer": pre_tokenizer.as_ref().map(|pre| &pre.name),
                "has_chat_template": has_template,
            })
        }
        Err(error) => json!({ "is_complete": false, "error": error.to_string(), "remedy": remedy(error) }),
    }
}
