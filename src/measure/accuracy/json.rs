//! A number that may be infinite or missing: JSON gets the text "Infinity", which other languages read as a number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const INFINITY: &str = "Infinity";

#[derive(Deserialize)]
#[serde(untagged)]
enum Figure {
    Finite(f64),
    Text(String),
}

pub(super) fn serialize<S: Serializer>(
    figure: &(impl Into<Option<f64>> + Copy),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match (*figure).into() {
        Some(f64::INFINITY) => INFINITY.serialize(serializer),
        number => number.serialize(serializer),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>, T: From<f64> + Default>(deserializer: D) -> Result<T, D::Error> {
    match Option::deserialize(deserializer)? {
        None => Ok(T::default()),
        Some(Figure::Finite(number)) => Ok(number.into()),
        Some(Figure::Text(text)) if text == INFINITY => Ok(f64::INFINITY.into()),
        Some(Figure::Text(text)) => Err(serde::de::Error::custom(format!("'{text}' is not a number"))),
    }
}
