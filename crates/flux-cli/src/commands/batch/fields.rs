//! The fields of a line: a recipe's fields and a few more.

use std::sync::LazyLock;

use flux::engine::Recipe;
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Keys of a line that are not fields of a recipe.
pub const OUTPUT: &str = "output";
pub const COUNT: &str = "n";
pub const SIZE: &str = "size";
/// The key that is false if the file contains no recipe.
pub const RECIPE: &str = "recipe";
/// The key that is true if a language model rewrites the prompt.
pub const UPSAMPLE: &str = "upsample";
/// The key of additional values, which the manifest keeps.
pub const META: &str = "meta";
/// All keys of a line.
pub static FIELDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| [recipe_fields(), &[SIZE, OUTPUT, COUNT, RECIPE, UPSAMPLE]].concat());
/// Alternative names of keys.
pub const ALIASES: [(&str, &str); 3] =
    [("negative_prompt", "negative"), ("num_inference_steps", "steps"), ("guidance_scale", "guidance")];

/// Formats the list of fields for errors. Each field is in backticks, because a long text without backticks would be
/// shortened.
pub fn names() -> String {
    FIELDS.iter().map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the keys of a recipe, taken from its `Deserialize` implementation.
fn recipe_fields() -> &'static [&'static str] {
    struct Asked<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Asked<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("a recipe must be a structure"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields: &[&str] = &[];
    // The deserializer records the keys and fails without reading anything.
    let _ = Recipe::deserialize(Asked(&mut fields));
    fields
}
