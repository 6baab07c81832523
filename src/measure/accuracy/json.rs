//! Numbers that JSON lacks.

/// A number that may be infinite: JSON gets the text "Infinity", which other languages read as a number.
pub(super) mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) const INFINITY: &str = "Infinity";

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Read {
        Finite(f64),
        Text(String),
    }

    impl Read {
        pub(crate) fn number<E: serde::de::Error>(self) -> Result<f64, E> {
            match self {
                Self::Finite(number) => Ok(number),
                Self::Text(text) if text == INFINITY => Ok(f64::INFINITY),
                Self::Text(text) => Err(E::custom(format!("'{text}' is not a number"))),
            }
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(crate) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if number.is_infinite() { INFINITY.serialize(serializer) } else { number.serialize(serializer) }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Read::deserialize(deserializer)?.number()
    }
}

/// The same for a number that may be missing.
pub(super) mod decibels {
    use super::number::{self, Read};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "as serde calls it")]
    pub(crate) fn serialize<S: Serializer>(decibels: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match decibels {
            Some(decibels) => number::serialize(decibels, serializer),
            None => None::<f64>.serialize(serializer),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<Read>::deserialize(deserializer)?.map(Read::number).transpose()
    }
}
