//! The recipes by which the keys of each type of model are made.

mod computed;
mod rows;
mod table;

pub(super) use rows::{Base, KeyRow, Recipe, TokenizerKind, TokenizerRule};

impl Recipe {
    /// Finds the recipe of a type of model.
    pub(super) fn find(model_type: &str) -> Option<&'static Self> {
        table::RECIPES.iter().find(|recipe| recipe.model_types.contains(&model_type))
    }
}
