//! The names that adapters give the layers of a transformer.

use super::TransformerConfig;
use crate::files::adapter::{Module, ModuleRows, Modules};
use crate::files::names::{Rows, transformer_layers};

impl TransformerConfig {
    /// All layers and norms, by the names of diffusers and by those of the single files that Black Forest Labs publish.
    ///
    /// The latter have q, k and v as one matrix, and the two halves of the final modulation the other way round.
    /// Source: diffusers `Flux2Transformer2DModel`, and its conversion from the single file.
    pub fn adapter_modules(&self) -> Modules {
        let mut list: Vec<Module> = Vec::new();
        for (bfl, own, rows) in transformer_layers([self.num_layers, self.num_single_layers]) {
            let Some(shape) = self.layer_shape(&own) else { continue };
            let key = format!("{own}.weight");
            list.push(Module::whole(&own, &key, &shape));
            let count = shape[0];
            let place = |first, rows| ModuleRows { key: key.clone(), first, rows };
            match rows {
                Rows::Same => {
                    list.push(Module::whole(&bfl, &key, &shape));
                    // Some writers name norms with their last part.
                    if shape.len() == 1 {
                        list.push(Module::whole(format!("{bfl}.scale"), &key, &shape));
                    }
                }
                Rows::Third(part) => {
                    let place = place(0, part * count..(part + 1) * count);
                    match list.iter_mut().find(|module| module.name == bfl) {
                        Some(fused) => fused.places.push(place),
                        None => list.push(Module { name: bfl, shape: vec![3 * count, shape[1]], places: vec![place] }),
                    }
                }
                Rows::SwappedHalves => {
                    let places = vec![place(count / 2, 0..count / 2), place(0, count / 2..count)];
                    list.push(Module { name: bfl, shape, places });
                }
            }
        }
        Modules::new(list, self.dim(), [self.num_layers, self.num_single_layers])
    }

    /// The shape of the weight of a layer; none of those that this model has not.
    fn layer_shape(&self, name: &str) -> Option<Vec<usize>> {
        let (dim, mlp) = (self.dim(), self.mlp());
        let matrix = match name {
            "x_embedder" => [dim, self.in_channels],
            "context_embedder" => [dim, self.joint_attention_dim],
            "time_guidance_embed.timestep_embedder.linear_1" => [dim, self.timestep_guidance_channels],
            "time_guidance_embed.timestep_embedder.linear_2" => [dim, dim],
            "double_stream_modulation_img.linear" | "double_stream_modulation_txt.linear" => [6 * dim, dim],
            "single_stream_modulation.linear" => [3 * dim, dim],
            "norm_out.linear" => [2 * dim, dim],
            "proj_out" => [self.out_channels(), dim],
            _ => {
                let mut parts = name.splitn(3, '.');
                let (block, layer) = (parts.next()?, parts.nth(1)?);
                match (block, layer) {
                    (_, "attn.norm_q" | "attn.norm_k" | "attn.norm_added_q" | "attn.norm_added_k") => {
                        return Some(vec![self.attention_head_dim]);
                    }
                    ("single_transformer_blocks", "attn.to_qkv_mlp_proj") => [3 * dim + 2 * mlp, dim],
                    ("single_transformer_blocks", "attn.to_out") => [dim, dim + mlp],
                    ("transformer_blocks", "ff.linear_in" | "ff_context.linear_in") => [2 * mlp, dim],
                    ("transformer_blocks", "ff.linear_out" | "ff_context.linear_out") => [dim, mlp],
                    ("transformer_blocks", _) => [dim, dim],
                    _ => return None,
                }
            }
        };
        Some(matrix.to_vec())
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
