//! The architecture of a diffusion model: named by the user, or detected by its tensors.

use crate::error::{Error, Opt, Result};
use crate::quant::gguf::{Architecture, Undetected};
use crate::text::shorten;
use std::collections::HashSet;

/// Returns the architecture that the user names, if a model with these tensors can be of it.
pub(super) fn named(name: &str, tensors: &HashSet<&str>) -> Result<&'static Architecture> {
    let architecture = Architecture::find(name).ok_or_else(|| unknown_architecture(name))?;
    let wrong = |what: String| Error::usage(what).without(Opt::ARCHITECTURE);
    architecture.check(tensors).map_err(|why| match why {
        Undetected::Diffusers(_) => undetected(why),
        Undetected::Other(other) => wrong(format!("the tensors are those of {}, not of {name}", other.name)),
        Undetected::Unknown => {
            let missing = architecture.key_names().join(" and ");
            wrong(format!("the model is not of the architecture {name}, which has tensors such as {missing}"))
        }
    })?;
    Ok(architecture)
}

fn unknown_architecture(name: &str) -> Error {
    let names: Vec<&str> = Architecture::names().collect();
    let message = format!("tcast has no rules for the architecture '{}', only for {}", shorten(name), names.join(", "));
    Error::usage(message)
}

/// Returns the error for a model whose architecture was not detected.
pub(super) fn undetected(why: Undetected) -> Error {
    match why {
        Undetected::Diffusers(architecture) | Undetected::Other(architecture) => {
            let what = format!(
                "is a model of {} in the layout of Diffusers, whose names no reader of GGUF knows",
                architecture.name
            );
            Error::new(what).remedy("convert the original checkpoint of the model")
        }
        Undetected::Unknown => {
            let names: Vec<&str> = Architecture::names().collect();
            let what =
                format!("not a recognized diffusion model ({}), and there is no GGUF metadata", names.join(", "));
            Error::new(what).with_keys()
        }
    }
}
