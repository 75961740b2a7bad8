//! Names that adapters use for the layers of a transformer.

use super::{TransformerConfig, flux2, flux3};
use crate::error::{Error, Result};
use crate::files::adapter::{Module, ModuleRows, Modules};
use crate::files::names::Rows;
use crate::files::own_models::Architecture;

impl TransformerConfig {
    /// Returns all layers and norms, by the names of diffusers and of the single files from Black Forest Labs.
    ///
    /// Single files may have q, k and v as one matrix, and the two halves of the final modulation in the other order.
    ///
    /// Errors if the shape of a layer is not known.
    /// Source: diffusers `Flux2Transformer2DModel`, `Flux3Transformer2DModel`, and their conversions from the single
    /// file.
    pub fn adapter_modules(&self) -> Result<Modules> {
        let mut list: Vec<Module> = Vec::new();
        let (names, counts) = (self.architecture().model().layers, self.block_counts());
        for (bfl, own, rows) in names.layers(&counts).into_iter().chain(names.fused_layers(&counts)) {
            let shape = match self.layer_shape(&own) {
                Some(shape) => shape,
                None if names.is_optional(&bfl) => continue,
                None => return Err(Error::new(format!("the shape of layer `{own}` is unknown"))),
            };
            let key = format!("{own}.weight");
            if !list.iter().any(|module| module.name == own) {
                list.push(Module::whole(&own, &key, &shape));
            }
            let count = shape[0];
            let place = |first, rows| ModuleRows { key: key.clone(), first, rows };
            match rows {
                Rows::Same => {
                    list.push(Module::whole(&bfl, &key, &shape));
                    // Some programs write `.scale` for the weight of a norm.
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
        Ok(Modules::new(list, self.architecture(), self.dim(), [self.num_layers, self.num_single_layers]))
    }

    /// Returns the shape of a layer's weight; `None` if this model has no such layer.
    fn layer_shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.architecture() {
            Architecture::Flux2 => flux2::layer_shape(self, name),
            Architecture::Flux3 => flux3::layer_shape(self, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::files::ModelFiles;

    /// The modules of a model and the shapes in its file describe the same layers independently.
    #[test]
    fn every_tensor_of_a_model_has_a_name_in_each_style_and_its_shape() {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let config = TransformerConfig::read(&dir).unwrap();
        let files = super::super::open(&dir).unwrap();
        let modules = config.adapter_modules().unwrap();
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
        let modules = TransformerConfig::read(&dir).unwrap().adapter_modules().unwrap();
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

    #[test]
    fn every_layer_of_both_architectures_has_a_shape_and_no_other() {
        for (dir, flow_maps) in
            [("models/tiny", vec![None]), ("tests/golden/flux3/model", vec![Some(true), Some(false)])]
        {
            let config = TransformerConfig::read(&ModelFiles::open(dir.as_ref()).unwrap()).unwrap();
            for flow_map in flow_maps {
                let config = TransformerConfig { flow_map, ..config.clone() };
                let modules = config.adapter_modules().unwrap();
                let reads_next = modules.iter().any(|module| module.name == "target_timestep_embedder.linear_1");
                assert_eq!(reads_next, flow_map == Some(true), "{dir}");
                for unknown in [
                    "transformer_blocks.0.attn.to_x",
                    "single_transformer_blocks.0.attn.norm_added_q",
                    "mode_blocks.image.0.attn.to_x",
                    "single_stream_modulations.video.linear",
                ] {
                    assert_eq!(config.layer_shape(unknown), None, "{dir}: {unknown}");
                }
            }
        }
    }
}
