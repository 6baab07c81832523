//! A tensor of a listing, as a row and as JSON.

use crate::container::{Form, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::measure::distribution::{self, Distribution};
use crate::plan;
use crate::progress::Reading;
use crate::quant::{FoundWeight, Grid, Group, Role};
use crate::read::{Model, ModelTensor};
use crate::text::{shorten, size, visible};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Tensor with its type.
pub(super) struct InspectedTensor<'a> {
    pub(super) tensor: ModelTensor<'a>,
    /// Form of its elements, considering `--from`; `None` if unknown, and for quantized weights.
    pub(super) form: Option<Form>,
    /// Grid of a quantized weight.
    pub(super) grid: Option<Grid>,
}

impl<'a> InspectedTensor<'a> {
    pub(super) fn new(tensor: ModelTensor<'a>, from: Option<Dtype>) -> Self {
        let form = tensor.stored().and_then(|stored| plan::source_form(stored.tensor, from).ok());
        let grid = tensor.weight.and_then(|weight| weight.grid(&tensor.model.tensors).ok());
        Self { tensor, form, grid }
    }

    /// Returns the type, or the grid.
    pub(super) fn dtype(&self) -> String {
        match (self.tensor.stored(), &self.grid) {
            (_, Some(grid)) => grid.to_string(),
            (Some(stored), _) => {
                self.form.map_or_else(|| stored.tensor.type_name(), |form| form.dtype().name().into()).into_owned()
            }
            (None, None) => "unsupported".to_owned(),
        }
    }

    /// Returns the layout of a quantized weight.
    pub(super) fn layout(&self) -> Option<&'static str> {
        self.tensor.weight.map(|weight| weight.layout.name)
    }

    pub(super) fn count(&self) -> u64 {
        self.tensor.shape().iter().product() // checked when the file was read
    }

    /// Returns the uncompressed bytes of the elements; for a quantized weight, of all its parts.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |at| bytes_of(self.tensor.model.stored(at).tensor);
        let of_parts = |weight: &FoundWeight| weight.parts.iter().map(|(_, at)| bytes(*at)).sum();
        self.tensor.weight.map_or_else(|| bytes(self.tensor.at), of_parts)
    }

    /// True if nothing says what its elements are.
    pub(super) fn has_unknown_type(&self) -> bool {
        self.form.is_none() && self.tensor.weight.is_none()
    }

    pub(super) fn is_float(&self) -> bool {
        self.layout().is_some() || self.form.is_some_and(|form| form.dtype().is_floating())
    }

    /// Computes its statistics; `None` if it has no numbers, or the file does not give their type.
    pub(super) fn measure(&self, reading: Reading) -> Result<Option<Distribution>> {
        distribution::of_model(self.tensor, self.form, reading)
    }

    pub(super) fn cells(&self) -> [String; 5] {
        let shape = shorten(&format!("{:?}", self.tensor.shape()));
        let Tensor { fortran_order, stored, .. } = self.tensor.model.stored(self.tensor.at).tensor;
        let (order, stored) = match self.tensor.weight {
            None => (if *fortran_order { " column-major" } else { "" }, shorten(stored)),
            Some(weight) => ("", self.how_stored(weight)),
        };
        [shorten(self.tensor.name()), self.dtype(), shape + order, size(self.bytes()), stored]
    }

    /// Describes the storage: `hf-fp8, 8.03 bits per weight`, and the files, if there are several.
    fn how_stored(&self, weight: &FoundWeight) -> String {
        let mut text = weight.layout.name.to_owned();
        if let Some(bits) = self.bits_per_weight() {
            let _ = write!(text, ", {bits:.2} bits per weight");
        }
        let model = self.tensor.model;
        let shards: BTreeSet<usize> = weight.parts.iter().map(|(_, at)| model.places[*at].0).collect();
        let shown = &model.source.shards;
        for shard in shards.iter().filter(|_| shown.len() > 1) {
            let _ = write!(text, ", {}", visible(&model.source.shard_name(&shown[*shard])));
        }
        text
    }

    fn bits_per_weight(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.bytes() as f64 * 8.0 / self.count() as f64)
    }

    pub(super) fn parts(&self) -> Vec<[String; 5]> {
        let ModelTensor { model, weight: Some(weight), .. } = self.tensor else { return Vec::new() };
        let row = |&(role, at): &(Role, usize)| {
            let tensor = model.stored(at).tensor;
            let name = format!("  {}: {}", role.describe(), shorten(model.tensors[at].name));
            let (dtype, shape) = (tensor.type_name(), shorten(&format!("{:?}", tensor.shape)));
            [name, dtype.into_owned(), shape, size(bytes_of(tensor)), shorten(&tensor.stored)]
        };
        weight.parts.iter().map(row).collect()
    }

    pub(super) fn json(&self, stats: Option<&Result<Option<Distribution>, Error>>) -> Value {
        let ModelTensor { model, at, .. } = self.tensor;
        let stored = model.stored(at).tensor;
        let dtype = match &self.grid {
            Some(grid) => Some(grid.codes.to_string()),
            None => self.form.map(|form| form.dtype().to_string()),
        };
        let mut value = json!({
            "name": self.tensor.name(),
            "file": model.places[at].0,
            "dtype": dtype,
            "shape": self.tensor.shape(),
            "elements": self.count(),
            "bytes": self.bytes(),
            "stored": &*stored.stored,
            "fortran_order": stored.fortran_order,
        });
        if let Some(weight) = self.tensor.weight {
            value["layout"] = json!(weight.layout.name);
            value["library"] = json!(weight.layout.library);
            value["grid"] = json!(self.grid.as_ref().map(grid_json));
            value["bits_per_weight"] = json!(self.bits_per_weight());
            value["parts"] = weight.parts.iter().map(|&(role, at)| part_json(model, role, at)).collect();
        }
        match stats {
            Some(Ok(Some(stats))) => {
                value["stats"] = stats.json(self.tensor.shape());
                if let Some(weight) = self.tensor.weight {
                    value["decoded_to"] = json!(model.target_of(weight).name());
                }
            }
            Some(Err(error)) => value["error"] = json!(error.to_string()),
            _ => {}
        }
        value
    }
}

fn part_json(model: &Model, role: Role, at: usize) -> Value {
    let tensor = model.stored(at).tensor;
    json!({
        "role": role.describe(),
        "name": model.tensors[at].name,
        "file": model.places[at].0,
        "dtype": model.tensors[at].dtype.map(Dtype::name),
        "shape": &*tensor.shape,
        "bytes": bytes_of(tensor),
        "stored": &*tensor.stored,
    })
}

fn grid_json(grid: &Grid) -> Value {
    let group = match grid.group {
        Some(Group::Tensor) => json!("tensor"),
        Some(Group::Channel) => json!("channel"),
        Some(Group::Block(block)) => json!(block),
        Some(Group::Neighbours(columns)) => json!([1, columns]),
        None => Value::Null,
    };
    json!({
        "codes": grid.codes.to_string(),
        "group": group,
        "indexed": grid.is_indexed,
        "scale": grid.scale.name(),
        "global_scale": grid.global_scale.map(Dtype::name),
        "zero_points": grid.has_zero_points,
    })
}

fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.elements.bytes(tensor.count).unwrap_or(tensor.data.stored_len())
}
