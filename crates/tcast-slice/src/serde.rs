//! Types, counts and places of losses in JSON and other formats: by their names.

use crate::dtype::Dtype;
use crate::kernel::{Condition, Counts, First, Firsts};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <String as Deserialize>::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Firsts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = Condition::ALL.into_iter().filter_map(|condition| Some((condition.name(), self.of(condition)?.at)));
        serializer.collect_map(known)
    }
}

impl<'de> Deserialize<'de> for Firsts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let first = |condition: Condition| {
            let at = *found.get(condition.name())?;
            Some((condition, First { at, values: Default::default() }))
        };
        Ok(Self(Condition::ALL.into_iter().filter_map(first).collect()))
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Condition::ALL.map(|condition| (condition.name(), self[condition])))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut counts = Self::default();
        for condition in Condition::ALL {
            counts[condition] = found.get(condition.name()).copied().unwrap_or(0);
        }
        Ok(counts)
    }
}
