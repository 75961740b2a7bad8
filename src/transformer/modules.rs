//! The names that adapters give the layers of a transformer.

use super::TransformerConfig;
use crate::files::adapter::{Module, Modules, Place};

impl TransformerConfig {
    /// All layers and norms, by the names of diffusers and by those of the single files that Black Forest Labs publish.
    ///
    /// The latter have q, k and v as one matrix, and the two halves of the final modulation the other way round.
    /// Source: diffusers `Flux2Transformer2DModel`, and its conversion from the single file.
    pub fn adapter_modules(&self) -> Modules {
        let mut list = self.around_blocks();
        (0..self.num_layers).for_each(|block| self.double_block(block, &mut list));
        (0..self.num_single_layers).for_each(|block| self.single_block(block, &mut list));
        Modules::new(list, self.dim(), [self.num_layers, self.num_single_layers])
    }

    fn around_blocks(&self) -> Vec<Module> {
        let dim = self.dim();
        let embedder = "time_guidance_embed.timestep_embedder";
        let (linear_1, linear_2) = (format!("{embedder}.linear_1"), format!("{embedder}.linear_2"));
        let mut list = Vec::new();
        for (bfl, name, shape) in [
            ("img_in", "x_embedder", [dim, self.in_channels]),
            ("txt_in", "context_embedder", [dim, self.joint_attention_dim]),
            ("time_in.in_layer", &linear_1, [dim, self.timestep_guidance_channels]),
            ("time_in.out_layer", &linear_2, [dim, dim]),
            ("double_stream_modulation_img.lin", "double_stream_modulation_img.linear", [6 * dim, dim]),
            ("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear", [6 * dim, dim]),
            ("single_stream_modulation.lin", "single_stream_modulation.linear", [3 * dim, dim]),
            ("final_layer.linear", "proj_out", [self.out_channels(), dim]),
        ] {
            both(&mut list, bfl, name, &shape);
        }
        let key = "norm_out.linear.weight";
        list.push(Module::whole("norm_out.linear", key, &[2 * dim, dim]));
        let half = |first: usize, rows| Place { key: key.to_string(), first, rows };
        list.push(Module {
            name: "final_layer.adaLN_modulation.1".to_string(),
            shape: vec![2 * dim, dim],
            places: vec![half(dim, 0..dim), half(0, dim..2 * dim)],
        });
        list
    }

    fn double_block(&self, block: usize, list: &mut Vec<Module>) {
        let (dim, mlp, head_dim) = (self.dim(), self.mlp(), self.attention_head_dim);
        let (bfl, own) = (format!("double_blocks.{block}"), format!("transformer_blocks.{block}"));
        for (stream, qkv, out, ff, norms) in [
            ("img", ["to_q", "to_k", "to_v"], "to_out.0", "ff", ["norm_q", "norm_k"]),
            (
                "txt",
                ["add_q_proj", "add_k_proj", "add_v_proj"],
                "to_add_out",
                "ff_context",
                ["norm_added_q", "norm_added_k"],
            ),
        ] {
            let part = |index: usize, name: &str| Place {
                key: format!("{own}.attn.{name}.weight"),
                first: 0,
                rows: index * dim..(index + 1) * dim,
            };
            list.push(Module {
                name: format!("{bfl}.{stream}_attn.qkv"),
                shape: vec![3 * dim, dim],
                places: qkv.iter().enumerate().map(|(index, name)| part(index, name)).collect(),
            });
            for name in qkv {
                let name = format!("{own}.attn.{name}");
                list.push(Module::whole(&name, format!("{name}.weight"), &[dim, dim]));
            }
            both(list, &format!("{bfl}.{stream}_attn.proj"), &format!("{own}.attn.{out}"), &[dim, dim]);
            both(list, &format!("{bfl}.{stream}_mlp.0"), &format!("{own}.{ff}.linear_in"), &[2 * mlp, dim]);
            both(list, &format!("{bfl}.{stream}_mlp.2"), &format!("{own}.{ff}.linear_out"), &[dim, mlp]);
            norm(list, &format!("{bfl}.{stream}_attn.norm"), &format!("{own}.attn"), norms, head_dim);
        }
    }

    fn single_block(&self, block: usize, list: &mut Vec<Module>) {
        let (dim, mlp, head_dim) = (self.dim(), self.mlp(), self.attention_head_dim);
        let (bfl, own) = (format!("single_blocks.{block}"), format!("single_transformer_blocks.{block}.attn"));
        both(list, &format!("{bfl}.linear1"), &format!("{own}.to_qkv_mlp_proj"), &[3 * dim + 2 * mlp, dim]);
        both(list, &format!("{bfl}.linear2"), &format!("{own}.to_out"), &[dim, dim + mlp]);
        norm(list, &format!("{bfl}.norm"), &own, ["norm_q", "norm_k"], head_dim);
    }
}

/// A layer that has the same rows under both names.
fn both(list: &mut Vec<Module>, bfl: &str, name: &str, shape: &[usize]) {
    let key = format!("{name}.weight");
    list.extend([bfl, name].map(|name| Module::whole(name, &key, shape)));
}

/// The norms of q and k, which some writers name with their last part, `.scale`.
fn norm(list: &mut Vec<Module>, bfl: &str, own: &str, names: [&str; 2], head_dim: usize) {
    for (bfl, name) in [format!("{bfl}.query_norm"), format!("{bfl}.key_norm")].iter().zip(names) {
        let name = format!("{own}.{name}");
        both(list, bfl, &name, &[head_dim]);
        list.push(Module::whole(format!("{bfl}.scale"), format!("{name}.weight"), &[head_dim]));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::files::ModelFiles;

    /// The modules of a model and the shapes in its file are two accounts of the same layers.
    #[test]
    fn every_tensor_of_a_model_has_a_name_in_each_style_and_its_shape() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let config = TransformerConfig::read(&dir).unwrap();
        let files = super::super::open(&dir).unwrap();
        let modules = config.adapter_modules();
        let mut covered: BTreeMap<String, usize> = BTreeMap::new();
        for file in files.files() {
            for key in file.names() {
                let module = modules.get(modules.find(key.strip_suffix(".weight").unwrap()).expect(key));
                assert_eq!(file.tensor(key).unwrap().shape(), module.shape, "{key}");
                covered.insert(key.to_string(), module.rows());
            }
        }
        for name in ["double_blocks.0.img_attn.qkv", "double_blocks.0.txt_attn.qkv", "final_layer.adaLN_modulation.1"] {
            let module = modules.get(modules.find(name).expect(name));
            let rows: usize = module.places.iter().map(|place| place.rows.len()).sum();
            assert_eq!(rows, module.rows(), "{name}");
            for place in &module.places {
                assert!(place.first + place.rows.len() <= covered[&place.key], "{name}: {place:?}");
            }
        }
        let swapped = modules.get(modules.find("final_layer.adaLN_modulation.1").unwrap());
        assert_eq!(swapped.places.iter().map(|place| place.first).collect::<Vec<_>>(), [config.dim(), 0]);
    }

    #[test]
    fn a_name_may_have_any_prefix_and_underscores_for_dots() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let modules = TransformerConfig::read(&dir).unwrap().adapter_modules();
        let own = modules.find("transformer_blocks.0.attn.to_out.0").unwrap();
        for same in [
            "transformer.transformer_blocks.0.attn.to_out.0",
            "base_model.model.transformer_blocks.0.attn.to_out.0",
            "diffusion_model.transformer_blocks.0.attn.to_out.0",
            "lora_transformer_transformer_blocks_0_attn_to_out_0",
            "lycoris_transformer_blocks_0_attn_to_out_0",
            "base_model.model.diffusion_model.transformer_blocks.0.attn.to_out.0",
        ] {
            assert_eq!(modules.find(same), Some(own), "{same}");
        }
        let bfl = modules.find("lora_unet_double_blocks_0_img_attn_proj").unwrap();
        assert_eq!(modules.get(bfl).places, modules.get(own).places);
        for bfl in ["model.diffusion_model.img_in", "lora_unet_time_in_in_layer", "lora_unet_final_layer_linear"] {
            assert!(modules.find(bfl).is_some(), "{bfl}");
        }
        for none in ["", "lora_unet_", "transformer_blocks.99.attn.to_q", "lora_unet_double_blocks_0_img_attn"] {
            assert_eq!(modules.find(none), None, "{none}");
        }
    }
}
