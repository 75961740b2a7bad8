//! Tests of the memory that images take.

use std::sync::Arc;

use super::*;
use crate::backend::cpu::{Cpu, Precision};
use crate::backend::{Bands, Device};
use crate::pipeline::request::hires::Hires;
use crate::transformer::RegionMap;

const ONE: ActivationCost = ActivationCost {
    step: 100,
    early: 0,
    largest: 100,
    whole: 100,
    in_turn: false,
    kept: 0,
    is_alone: false,
    sharing: Sharing::Group,
    sharers: 1,
    evaluations: 1,
};

fn samples_of(needs: &ActivationCost, available: u64, count: usize) -> usize {
    needs.samples(available, needs.wanted(count))
}

#[test]
fn as_many_images_as_fit_but_at_least_one_and_no_more_than_asked_for() {
    let samples = |available, count| samples_of(&ONE, available, count);
    assert_eq!([samples(0, 4), samples(350, 4), samples(500, 4), samples(500, 1)], [1, 3, 4, 1]);
    let guided = ActivationCost { evaluations: 2, ..ONE };
    assert_eq!(samples_of(&guided, 500, 4), 2, "guidance evaluates twice");
    assert_eq!(samples(u64::MAX, 1000), MAX_SAMPLES);
    let large = ActivationCost { largest: 500 << 20, ..ONE };
    assert_eq!(samples_of(&large, u64::MAX, 1000), 4, "tensors have fewer than 2^31 values");
    assert_eq!(samples_of(&ActivationCost { evaluations: 2, ..large }, u64::MAX, 1000), 2, "also with guidance");
}

#[test]
fn devices_that_make_an_image_together_need_less_each() {
    let info = klein(24, [5, 20], [2560, 9728]);
    let (plan, guided) = (Plan::with_size(1024, 1024), Plan { guidance: 4.0, ..Plan::with_size(1024, 1024) });
    let of = |world: usize, plan: &Plan| {
        let devices = Cpu::group(Precision::F32, world, Cpu::GROUP_LIMIT).unwrap();
        let all: Vec<_> = devices.iter().map(|device| ActivationCost::new(&device.costs(), &info, plan)).collect();
        assert!(all.iter().all(|needs| (needs.step, needs.largest) == (all[0].step, all[0].largest)), "all agree");
        all.into_iter().next().unwrap()
    };
    let alone = of(1, &plan);
    for world in [2, 3, 4, 8] {
        let needs = of(world, &plan);
        let parts = |all: u64, own: u64| all as f64 / own as f64 / world as f64;
        assert!((0.99..=1.0).contains(&parts(alone.largest, needs.largest)), "{world}");
        assert!((0.5..0.9).contains(&parts(alone.step, needs.step)), "{world}: exchanged data is stored twice");
    }
    // Both evaluations run at the same time: two devices share none, four share each by two.
    let (two, four) = (of(2, &guided), of(4, &guided));
    assert_eq!((two.sharing, two.step, two.wanted(8)), (Sharing::Half, alone.step, alone.wanted(8)));
    assert_eq!((four.step, four.largest), (of(2, &plan).step, of(2, &plan).largest));
    assert!(!two.batched(u64::MAX, 1) && of(1, &guided).batched(u64::MAX, 1) && of(3, &guided).batched(u64::MAX, 1));
    // A size that one device refuses, and the largest size that two devices accept.
    let limit = alone.whole - 1;
    assert!(alone.check_largest(limit, &info, &plan).is_err());
    let (beyond, large) = (Plan::with_size(2048, 2048), of(2, &Plan::with_size(2048, 2048)));
    let text = large.check_largest(limit, &info, &beyond).unwrap_err().to_string();
    let mut words = text.split(' ').rev();
    let side: usize = words.find_map(|word| word.trim_end_matches('`').parse().ok()).unwrap();
    let told = Plan::with_size(side, side);
    assert!(side > 1024 && of(2, &told).check_largest(limit, &info, &told).is_ok(), "{text}");
}

#[test]
fn devices_that_share_an_image_have_bands_of_it_in_the_vae() {
    let info = klein(24, [5, 20], [2560, 9728]);
    let sizes = |world: usize, side: usize| {
        let devices = Cpu::group(Precision::F32, world, Cpu::GROUP_LIMIT).unwrap();
        let plan = Plan { references: vec![[side, side], [16, 16]], ..Plan::with_size(side, side) };
        let sizes = MemorySizes::new(&devices[0].costs(), &info, &plan, false);
        [sizes.decode.wide, sizes.encode.wide]
    };
    for side in [1024, 2048] {
        let alone = sizes(1, side);
        for world in [2, 3, 4, 8] {
            let parts = [0, 1].map(|i| alone[i] as f64 / sizes(world, side)[i] as f64 / world as f64);
            assert!(parts.iter().all(|parts| (0.85..1.0).contains(parts)), "{world} of {side}: {parts:?}");
        }
    }
    assert_eq!(sizes(4, 48), sizes(1, 48), "an image with fewer pieces than devices is not split");
}

#[test]
fn a_size_beyond_the_largest_tensor_is_refused_and_the_largest_square_is_told() {
    let info = ModelInfo::read(&crate::files::ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
    let of = |side: usize| {
        let plan = Plan::with_size(side, side);
        (ActivationCost::new(&Costs::host(Storage::Native, 1), &info, &plan), plan)
    };
    let (largest, plan) = of(160);
    assert!(largest.check_largest(largest.whole, &info, &plan).is_ok());
    let limit = largest.whole - 1;
    let error = largest.check_largest(limit, &info, &plan).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), crate::error::ErrorKind::Failure);
    assert!(text.contains("160 x 160") && text.contains(&limit.to_string()), "{text}");
    assert!(text.contains("`width 144 height 144`"), "{text}");
    let (smaller, plan) = of(144);
    assert!(smaller.check_largest(limit, &info, &plan).is_ok(), "the suggested size works");
    assert!(!smaller.check_largest(1, &info, &plan).unwrap_err().to_string().contains("hint"), "no size works");
}

#[test]
fn guidance_is_one_batch_where_memory_and_libraries_allow_it() {
    let needs = ActivationCost { largest: 500 << 20, ..ONE };
    assert_eq!(
        [needs.batched(200, 1), needs.batched(201, 1), needs.batched(400, 2), needs.batched(401, 2)],
        [false, true, false, true]
    );
    assert!(!needs.batched(u64::MAX, 3), "tensors have fewer than 2^31 values");
    assert!(!ActivationCost { largest: 1500 << 20, ..needs }.batched(u64::MAX, 1), "not even for one image");
}

/// The sizes of klein 4B and 9B, with `heads` heads and `blocks` double and single blocks.
fn klein(heads: usize, blocks: [usize; 2], [hidden, mlp]: [usize; 2]) -> ModelInfo {
    let mut info = ModelInfo::read(&crate::files::ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
    let transformer = &mut info.transformer;
    (transformer.num_attention_heads, transformer.attention_head_dim) = (heads, 128);
    [transformer.num_layers, transformer.num_single_layers] = blocks;
    (transformer.in_channels, transformer.mlp_ratio) = (128, 3.0);
    transformer.joint_attention_dim = 3 * hidden;
    let text_encoder = &mut info.text_encoder;
    [text_encoder.hidden_size, text_encoder.intermediate_size] = [hidden, mlp];
    (text_encoder.num_attention_heads, text_encoder.num_key_value_heads, text_encoder.head_dim) = (32, 8, 128);
    info.out_layers = vec![9, 18, 27];
    info.vae.latent_channels = 32;
    (info.vae.block_out_channels, info.vae.layers_per_block) = (vec![128, 256, 512, 512], 2);
    info.max_sequence_length = 512;
    info
}

#[test]
fn what_is_kept_counts_and_is_made_alone() {
    let info = klein(24, [5, 20], [2560, 9728]);
    let plan = Plan { kept_tokens: 4608, ..Plan::with_size(1024, 1024) };
    let sizes = MemorySizes::new(&Costs::hopper(), &info, &plan, true);
    assert_eq!(sizes.kept, 25 * 4608 * 2 * 3072 * 2, "blocks, tokens, keys and values, columns, bytes");
    let none = MemorySizes::new(&Costs::hopper(), &info, &Plan::with_size(1024, 1024), true);
    assert_eq!(none.kept, 0);
    assert!(none.levels().iter().zip(sizes.levels()).all(|(none, with)| with.1 == none.1 + sizes.kept));
    assert_eq!(ActivationCost::new(&Costs::hopper(), &info, &plan).wanted(8), 1);
}

/// `flux --size 1024 --hires 4` with klein 4B.
#[test]
fn a_second_pass_in_tiles_of_4096_pixels_fits_in_12_gib() {
    let info = klein(24, [5, 20], [2560, 9728]);
    let hires = Some(Hires { by: Some(4.0), ..Hires::default() });
    let request = Request { width: Some(1024), height: Some(1024), hires, ..Request::new("x", 1) };
    let plan = Plan::new(&request, &info).unwrap();
    let tiled = plan.second_pass().unwrap();
    assert_eq!((tiled.tile_count(), &tiled.references), (25, &vec![[4096, 4096]]));
    let whole = Plan { tiles: None, ..tiled.clone() };
    for products in [Storage::Native, Storage::Int8] {
        let costs = Costs::gpu(products, true, 1);
        let needs = [tiled, &whole].map(|plan| ActivationCost::new(&costs, &info, plan));
        assert!(needs[0].check_largest(costs.max_tensor_values, &info, tiled).is_ok());
        assert!(MemorySizes::new(&costs, &info, tiled, true).plan(12 << 30, || u64::MAX, tiled).is_ok());
        assert!(4 * needs[0].step < needs[1].step);
        // The context of each tile: the text, and its part of the reference.
        let contexts = 25 * (512 + 4096) * 3072 * 2;
        assert_eq!(needs[0].largest, (512 + 2 * 4096) * widest(&info));
        assert!((contexts..2 << 30).contains(&needs[0].step) && needs[0].wanted(8) == 1, "{}", needs[0].step);
    }
}

#[test]
fn texts_of_regions_count_and_are_encoded_one_by_one() {
    let info = klein(24, [5, 20], [2560, 9728]);
    let plain = Plan::with_size(1024, 1024);
    let regions = Some(Arc::new(RegionMap { texts: vec![64, 128], tokens: vec![1; 4096] }));
    let plan = Plan { regions, text_tokens: 512 + 192, ..plain.clone() };
    let [none, with] = [&plain, &plan].map(|plan| MemorySizes::new(&Costs::hopper(), &info, plan, true));
    assert_eq!(none.encode_text, with.encode_text);
    let [none, with] = [&plain, &plan].map(|plan| ActivationCost::new(&Costs::hopper(), &info, plan));
    assert_eq!(with.largest * (4096 + 512), none.largest * (4096 + 704));
    assert!(with.step > none.step && (with.wanted(8), none.wanted(8)) == (1, 8));
    assert!(with.in_turn && !with.batched(u64::MAX, 1));
}

#[test]
fn klein_fits_in_small_memories() {
    const GIB: f64 = (1 << 30) as f64;
    let (small, large) = (klein(24, [5, 20], [2560, 9728]), klein(32, [8, 24], [4096, 12288]));
    let sizes = small.memory_sizes(&Costs::hopper(), Some([1024, 1024])).unwrap();
    let gb = |bytes: u64| (bytes as f64 / 1e8).round() / 10.0;
    assert_eq!(gb(sizes.transformer.all() - sizes.transformer.rest), 7.4);
    assert_eq!([gb(sizes.transformer.rest), gb(sizes.text_encoder.all())], [0.4, 5.5]);
    for (info, side, gib) in [(&small, 512, 2.5), (&small, 1024, 3.5), (&large, 1024, 5.0)] {
        let sizes = info.memory_sizes(&Costs::hopper(), Some([side, side])).unwrap();
        let plan = MemoryPlan::new(&sizes, (gib * GIB) as u64);
        assert!(plan.is_some_and(|plan| plan.together), "{side} x {side} in {gib} GiB: {:?}", sizes.levels());
    }
    let all = small.memory_sizes(&Costs::hopper(), Some([1024, 1024])).unwrap().levels()[0].1 as f64 / GIB;
    assert!((13.0..16.0).contains(&all), "{all} GiB hold everything");
    assert!(small.memory_sizes(&Costs::hopper(), Some([9000, 64])).is_err());
}

#[test]
fn large_images_are_in_host_memory_only_if_the_device_has_too_little() {
    let info = klein(24, [5, 20], [2560, 9728]);
    for im2col in [false, true] {
        let costs = Costs::gpu(Storage::Native, im2col, 1);
        let plan = |[height, width]: [usize; 2], gib: u64| {
            let sizes = info.memory_sizes(&costs, Some([height, width])).unwrap();
            let plan = MemoryPlan::new(&sizes, gib << 30)?;
            assert!(plan.peak <= gib << 30 && !(plan.host > 0 && plan.graphs), "{plan:?}");
            Some((plan.bands, plan.host >> 30))
        };
        assert_eq!([8, 12].map(|gib| plan([4096, 4096], gib)), [Some((Bands::Host, 12)); 2]);
        assert_eq!([16, 24].map(|gib| plan([4096, 4096], gib).map(|plan| plan.1)), [Some(0); 2]);
        assert_eq!(plan([4096, 8192], 12), Some((Bands::Host, 24)));
        for gib in [4, 8] {
            assert_eq!(plan([1024, 1024], gib).map(|plan| plan.1), Some(0), "{gib} GiB");
        }
        let sizes = info.memory_sizes(&costs, Some([4096, 4096])).unwrap();
        assert!(sizes.decode.host <= 4_000_000_000, "{}", sizes.decode.host);
        assert!(sizes.decode.host < sizes.step, "the transformer needs most");
    }
}

/// The largest squares of the table in docs/gpus.md.
#[test]
fn cards_make_the_images_of_the_table() {
    let (small, large) = (klein(24, [5, 20], [2560, 9728]), klein(32, [8, 24], [4096, 12288]));
    let largest = |info: &ModelInfo, products: Storage, gib: f64| {
        let costs = Costs::gpu(products, true, 1);
        let fits = |side: usize| {
            let (plan, sizes) = (Plan::with_size(side, side), info.memory_sizes(&costs, Some([side; 2])).unwrap());
            let needs = ActivationCost::new(&costs, info, &plan);
            needs.check_largest(costs.max_tensor_values, info, &plan).is_ok()
                && MemoryPlan::new(&sizes, (gib * f64::from(1 << 30)) as u64).is_some()
        };
        let sides: Vec<usize> = (1..=8192 / 16).map(|patches| 16 * patches).collect();
        sides[sides.partition_point(|side| fits(*side)) - 1]
    };
    let cards = |info: &ModelInfo, products| [5.9, 9.0, 12.3, 18.5].map(|gib| largest(info, products, gib));
    let made = [(&small, Storage::Native), (&small, Storage::Int8), (&large, Storage::Native), (&large, Storage::Int8)]
        .map(|(info, products)| cards(info, products));
    assert_eq!(
        made,
        [[3792, 4960, 5968, 6672], [3984, 5104, 6080, 6672], [2880, 4000, 4912, 5776], [3184, 4224, 5104, 5776]]
    );
}

#[test]
fn a_gpu_projects_the_largest_images_in_pieces() {
    let (small, large) = (klein(24, [5, 20], [2560, 9728]), klein(32, [8, 24], [4096, 12288]));
    for (info, [height, width], fits) in
        [(&small, [4096, 8192], true), (&large, [4096, 4096], true), (&large, [4096, 8192], false)]
    {
        let (costs, plan) = (Costs::hopper(), Plan::with_size(width, height));
        let needs = ActivationCost::new(&costs, info, &plan);
        assert!(needs.largest > costs.max_tensor_values && needs.wanted(8) == 1);
        assert_eq!(needs.check_largest(costs.max_tensor_values, info, &plan).is_ok(), fits, "{height} x {width}");
    }
}

#[test]
fn too_little_host_memory_is_found_before_the_first_step() {
    let (info, plan) = (klein(24, [5, 20], [2560, 9728]), Plan::with_size(4096, 4096));
    let sizes = MemorySizes::new(&Costs::hopper(), &info, &plan, true);
    assert_eq!(sizes.plan(8 << 30, || 12 << 30, &plan).unwrap().host, 12 << 30);
    let error = sizes.plan(8 << 30, || (12 << 30) - 1, &plan).unwrap_err().to_string();
    assert!(error.contains("12288 MiB") && error.contains("hint"), "{error}");
    assert!(sizes.plan(24 << 30, || 0, &plan).is_ok(), "the device has enough");
}
