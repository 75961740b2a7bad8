//! The values that the host computes: schedule, noise, embeddings of timesteps and positions.

use flux::sampler::{Schedule, empirical_shift, noise};
use flux::transformer::{TransformerConfig, position_ids, rope_tables, time_in_bf16, timestep_embedding};

use crate::support::{Golden, assert_close, golden, preset};

#[derive(serde::Deserialize)]
struct Row {
    tokens: usize,
    steps: usize,
    sigmas: Vec<f32>,
    timesteps_f32: Vec<f32>,
    timesteps_bf16: Vec<f32>,
}

#[test]
fn schedules_are_those_of_the_reference() {
    let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(golden("schedule.json")).unwrap()).unwrap();
    assert_eq!(rows.len(), 80);
    let config = TransformerConfig::read(&preset("tiny")).unwrap();
    for row in rows {
        let what = format!("{} tokens, {} steps", row.tokens, row.steps);
        let exact = Schedule::new(empirical_shift(row.tokens, row.steps), row.steps);
        assert_close(&what, &exact.sigmas, &row.sigmas, 1e-7);
        // A unit in the last place of a sigma is 6e-8, of a timestep 6e-5.
        assert_close(&what, &exact.timesteps, &row.timesteps_f32, 1e-7);
        let rounded = exact.with_times(|sigma| time_in_bf16(&config, sigma));
        assert_eq!(rounded.timesteps, row.timesteps_bf16, "{what}");
    }
}

#[test]
fn noise_is_that_of_the_reference() {
    let file = Golden::open("noise.safetensors");
    let mut checked = 0;
    for name in file.names() {
        let Some(case) = name.strip_suffix(".first") else { continue };
        let (seed, shape) = case.strip_prefix("seed-").unwrap().split_once('.').unwrap();
        let axes: Vec<usize> = shape.split('x').map(|axis| axis.parse().unwrap()).collect();
        let &[1, channels, height, width] = axes.as_slice() else { panic!("{shape}") };
        let packed = noise(seed.parse().unwrap(), channels, height, width);
        let tokens = height * width;
        let planes: Vec<f32> = (0..channels * tokens).map(|i| packed[i % tokens * channels + i / tokens]).collect();
        let (_, first) = file.get(&name);
        let (_, last) = file.get(&format!("{case}.last"));
        // The reference's own vectorised logarithm and cosine differ from libm's by a few units in the last place.
        assert_close(case, &planes[..first.len()], &first, 1e-6);
        assert_close(case, &planes[planes.len() - last.len()..], &last, 1e-6);
        checked += 1;
    }
    assert!(checked >= 13);
}

#[test]
fn timestep_embeddings_are_those_of_the_reference() {
    let file = Golden::open("embeddings.safetensors");
    let (_, timesteps) = file.get("timesteps");
    let (shape, expected) = file.get("timestep_embedding");
    for (timestep, expected) in timesteps.iter().zip(expected.chunks_exact(shape[1])) {
        // An angle near 1000 is good to 6e-5 in float32.
        assert_close(&format!("timestep {timestep}"), &timestep_embedding(*timestep, shape[1]), expected, 1.3e-4);
    }
}

#[test]
fn rope_tables_are_those_of_the_reference() {
    let file = Golden::open("embeddings.safetensors");
    let (_, ids) = file.get_ints("rope.ids");
    let ids: Vec<[f32; 4]> = ids.chunks_exact(4).map(|id| [0, 1, 2, 3].map(|axis| id[axis] as f32)).collect();
    for (axes, theta) in [([32, 32, 32, 32], 2000), ([4, 12, 12, 4], 1000)] {
        let name = format!("rope.{}-{}-{}-{}.theta-{theta}", axes[0], axes[1], axes[2], axes[3]);
        let config = TransformerConfig {
            in_channels: 128,
            out_channels: None,
            num_layers: 1,
            num_single_layers: 1,
            attention_head_dim: axes.iter().sum(),
            num_attention_heads: 1,
            joint_attention_dim: 1,
            timestep_guidance_channels: 256,
            mlp_ratio: 3.0,
            axes_dims_rope: axes.to_vec(),
            rope_theta: theta as f64,
            eps: 1e-6,
            guidance_embeds: false,
            patch_size: 1,
            flow_map: None,
            cond_in_channels: None,
        };
        let (cos, sin) = rope_tables(&config, &ids);
        // The reference repeats each angle for both columns of its pair.
        let twice = |values: Vec<f32>| -> Vec<f32> { values.into_iter().flat_map(|v| [v, v]).collect() };
        assert_close(&name, &twice(cos), &file.get(&format!("{name}.cos")).1, 1e-6);
        assert_close(&name, &twice(sin), &file.get(&format!("{name}.sin")).1, 1e-6);
    }
}

/// Positions of FLUX.2, which are whole numbers.
fn ids(txt: usize, references: &[[usize; 2]], image: [usize; 2]) -> Vec<[usize; 4]> {
    let config = TransformerConfig::read(&preset("tiny")).unwrap();
    position_ids(&config, txt, references, image).into_iter().map(|id| id.map(|axis| axis as usize)).collect()
}

#[test]
fn text_positions_come_before_the_image_row_by_row() {
    assert_eq!(
        ids(2, &[], [2, 2]),
        [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]]
    );
}

#[test]
fn every_reference_has_its_own_place_in_time_and_its_own_rows() {
    assert_eq!(
        ids(1, &[[1, 2], [2, 1]], [1, 1]),
        [[0, 0, 0, 0], [10, 0, 0, 0], [10, 0, 1, 0], [20, 0, 0, 0], [20, 1, 0, 0], [0, 0, 0, 0]]
    );
}
