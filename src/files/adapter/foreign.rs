//! Adapters of other models, told by the shapes and the names in them.

use std::collections::BTreeSet;

use super::change::{Change, Tensors};
use super::modules::{Module, Modules};
use crate::error::{Error, Result};

const HINT: &str = "use it with the model that it is made for, or an adapter made for this one";
/// Parts of names, with underscores, that layers of FLUX.1 have and no FLUX.2 model.
const FIRST_FLUX: [&str; 6] =
    ["_img_mod_lin", "_txt_mod_lin", "_modulation_lin", "_norm1_linear", "_norm1_context_linear", "_proj_mlp"];

/// The model of so many features, if it is a known one.
fn model_name(dim: usize) -> String {
    match dim {
        3072 => "FLUX.2 klein 4B (3072 features)".to_string(),
        4096 => "FLUX.2 klein 9B (4096 features)".to_string(),
        6144 => "FLUX.2 dev (6144 features)".to_string(),
        _ => format!("a model of {dim} features"),
    }
}

fn made_for(what: &str, modules: &Modules) -> Error {
    let [double, single] = modules.blocks();
    let own = format!("{}, with {double} double and {single} single blocks", model_name(modules.dim()));
    Error::new(format!("the adapter is made for {what}, not for {own}")).hint(HINT)
}

/// Errors when the names in an adapter are those of another model. `names` are those of all modules in the file, of
/// which `unknown` are in no layer of this model.
pub(super) fn check_names<'a>(
    names: impl Iterator<Item = &'a str>,
    unknown: impl Iterator<Item = &'a str>,
    modules: &Modules,
) -> Result<()> {
    let is_flux_1 = |name: &str| {
        let name = name.replace('.', "_");
        let stream = name.contains("_stream_modulation_");
        !stream && FIRST_FLUX.iter().any(|part| name.contains(part)) && name.contains("_blocks_")
    };
    let mut flux_1 = false;
    let outside: BTreeSet<Block> = unknown.inspect(|name| flux_1 |= is_flux_1(name)).filter_map(Block::of).collect();
    if flux_1 {
        return Err(made_for("FLUX.1", modules));
    }
    let blocks: BTreeSet<Block> = names.filter_map(Block::of).collect();
    let beyond = outside.iter().filter(|block| block.index >= modules.blocks()[usize::from(block.single)]).count();
    // A few strange names are told and left out; where most blocks are not there, the adapter is another model's.
    if 2 * beyond > blocks.len() {
        let count = |single: bool| {
            blocks.iter().filter(|block| block.single == single).map(|block| block.index + 1).max().unwrap_or(0)
        };
        let what = match (count(false), count(true)) {
            (19, 38) | (19, 0) | (0, 38) => "FLUX.1".to_string(),
            (double, single) => format!("a model with at least {double} double and {single} single blocks"),
        };
        return Err(made_for(&what, modules));
    }
    Ok(())
}

/// Errors when the tensors for `module` are of the shapes of another model.
pub(super) fn check_shape(tensors: &Tensors, module: &Module, modules: &Modules) -> Result<()> {
    let &[rows, cols] = &*module.shape else { return Ok(()) };
    let Some([own_rows, own_cols]) = Change::implied_shape(tensors) else { return Ok(()) };
    if [own_rows, own_cols] == [rows, cols] {
        return Ok(());
    }
    let dim = modules.dim();
    let what = if cols == dim && own_cols != dim {
        model_name(own_cols)
    } else if rows == dim && own_rows != dim {
        model_name(own_rows)
    } else if own_cols == dim && is_flux_1(&module.name, own_rows, dim) {
        "FLUX.1".to_string()
    } else {
        format!("a model whose `{}` is [{own_rows}, {own_cols}] instead of [{rows}, {cols}]", module.name)
    };
    Err(made_for(&what, modules))
}

/// Whether a layer of so many rows is that of FLUX.1, whose MLP has four times the features and no gate.
fn is_flux_1(name: &str, rows: usize, dim: usize) -> bool {
    (name.ends_with(".linear1") && rows == 7 * dim) || (name.ends_with("_mlp.0") && rows == 4 * dim)
}

/// A block that a name is of.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    single: bool,
    index: usize,
}

impl Block {
    fn of(name: &str) -> Option<Self> {
        let name = name.replace('.', "_");
        let (front, behind) = name.split_once("blocks_")?;
        let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
        Some(Self { single: front.contains("single_"), index: digits.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_from_every_style_of_name() {
        let block = |single, index| Some(Block { single, index });
        assert_eq!(Block::of("transformer.single_transformer_blocks.3.attn.to_out"), block(true, 3));
        assert_eq!(Block::of("lora_unet_double_blocks_18_img_attn_qkv"), block(false, 18));
        assert_eq!(Block::of("transformer_blocks.0.ff"), block(false, 0));
        assert_eq!((Block::of("img_in"), Block::of("blocks_x"), Block::of("double_blocks.")), (None, None, None));
    }

    #[test]
    fn names_of_another_model_are_refused_and_a_stray_one_is_not() {
        let modules = Modules::new(Vec::new(), 3072, [5, 20]);
        let check = |names: &[&str], unknown: &[&str]| {
            check_names(names.iter().copied(), unknown.iter().copied(), &modules).map_err(|e| e.to_string())
        };
        let flux_1 = check(&["a"], &["lora_unet_double_blocks_0_img_mod_lin"]).unwrap_err();
        assert!(flux_1.contains("made for FLUX.1, not for FLUX.2 klein 4B") && flux_1.contains("hint: "), "{flux_1}");
        assert!(check(&["a"], &["single_blocks.3.modulation.lin"]).unwrap_err().contains("FLUX.1"));
        let all: Vec<String> = (0..19).map(|i| format!("double_blocks.{i}.img_attn.proj")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(check(&all, &all[5..]).unwrap_err().contains("FLUX.1"));
        let nine = check(&all[..12], &all[5..12]).unwrap_err();
        assert!(nine.contains("at least 12 double and 0 single blocks"), "{nine}");
        assert!(check(&all[..6], &all[5..6]).is_ok(), "one of six");
        assert!(check(&["double_stream_modulation_img.lin"], &["what_is_this"]).is_ok());
    }
}
