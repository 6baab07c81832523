//! Rules that choose a scheme by the name of a weight.

use crate::error::{Error, Result};
use crate::quant::Scheme;
use crate::select::Pattern;
use crate::text::shorten;

/// `GLOB=SCHEME` quantizes the weights that match to a scheme; `GLOB=keep` leaves them as they are.
#[derive(Clone, Debug)]
pub struct SchemeRule {
    pub(super) pattern: Pattern,
    pub(super) scheme: Option<&'static Scheme>,
}

impl std::str::FromStr for SchemeRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pattern, scheme) =
            text.rsplit_once('=').ok_or_else(|| Error::new("a rule is GLOB=SCHEME or GLOB=keep"))?;
        let scheme = match scheme {
            "keep" => None,
            name => {
                Some(Scheme::find(name).ok_or_else(|| Error::new(format!("there is no scheme '{}'", shorten(name))))?)
            }
        };
        Ok(Self { pattern: pattern.parse()?, scheme })
    }
}

impl std::fmt::Display for SchemeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.scheme.map_or("keep", |scheme| scheme.name))
    }
}

impl SchemeRule {
    /// Returns the scheme for weights that match; `None` if the rule keeps them.
    #[must_use]
    pub fn scheme(&self) -> Option<&'static Scheme> {
        self.scheme
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    pub(crate) fn matches_one<T: AsRef<str>>(&self, names: &[T]) -> bool {
        names.iter().any(|name| self.pattern.matches(name.as_ref()))
    }
}
