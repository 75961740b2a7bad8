//! Decoded values equal the encoded ones, up to the steps of each format.

use half::bf16;

use super::*;
use crate::testing::{self, Random};

/// Pseudorandom values, roughly normal.
fn normal(seed: u64, len: usize, deviation: f32) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| deviation * random.normal()).collect()
}

fn view(values: &[f32], shape: &[usize]) -> TensorView {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    testing::view(bytes, Format::F32, shape, Scales::None)
}

fn encoded(values: &[f32], shape: &[usize], format: Format) -> TensorView {
    quantize(&[view(values, shape)], format).unwrap()
}

/// Returns the root mean square error relative to the root mean square of the values.
fn error(values: &[f32], decoded: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let off = squares(&mut values.iter().zip(decoded).map(|(a, b)| a - b));
    (off / squares(&mut values.iter().copied())).sqrt()
}

/// Returns all bytes that belong to a tensor.
fn bytes_of(view: &TensorView) -> (Vec<u8>, Vec<u8>, f32) {
    match view.scales() {
        Scales::None => (view.bytes().to_vec(), Vec::new(), 1.0),
        Scales::Tensor(scale) => (view.bytes().to_vec(), Vec::new(), *scale),
        Scales::Rows(scales) => (view.bytes().to_vec(), scales.bytes().to_vec(), 1.0),
        Scales::Blocks(scales) => (view.bytes().to_vec(), scales.bytes().to_vec(), scales.tensor()),
        _ => panic!("no such scales"),
    }
}

/// Bounds are a tenth above the observed errors.
#[test]
fn normal_values_come_back_with_the_error_of_the_format() {
    let bounds = [
        (Format::Bf16, 0.0019),
        (Format::E4m3, 0.03),
        (Format::Int8, 0.0095),
        (Format::Mxfp8, 0.03),
        (Format::Nvfp4, 0.1),
        (Format::Q8_0, 0.006),
        (Format::Q6K, 0.018),
        (Format::Q5K, 0.037),
        (Format::Q5_1, 0.04),
        (Format::Q5_0, 0.045),
        (Format::Q4K, 0.075),
        (Format::Q4_1, 0.08),
        (Format::Q4_0, 0.09),
    ];
    let values = normal(1, 64 * 1024, 0.02);
    for (format, bound) in bounds {
        let decoded = encoded(&values, &[64, 1024], format);
        let found = error(&values, &decoded.to_f32());
        println!("{format}: {found:.5}");
        assert!(found < bound && found > bound / 2.0, "{format}: {found}");
    }
}

#[test]
fn what_a_format_holds_is_encoded_exactly() {
    // Steps of 1/16 over the whole range of the integers, in every block.
    let steps =
        |low: i32, count: i32| -> Vec<f32> { (0..512).map(|i| (low + (i * 7) % count) as f32 / 16.0).collect() };
    for (format, values) in [
        (Format::Bf16, steps(-128, 256)),
        (
            Format::Q8_0,
            steps(-127, 255).iter().zip(0..).map(|(v, i)| if i % 32 == 0 { -127.0 / 16.0 } else { *v }).collect(),
        ),
        (Format::Q4_0, steps(-8, 16)),
        (Format::Q4_1, steps(40, 16)),
        (Format::Q5_0, steps(-16, 32)),
        (Format::Q5_1, steps(-60, 32)),
        (Format::Int8, steps(-127, 255)),
        (Format::E4m3, (0..512).map(|i| [448.0, -0.5, 13.0, 0.001953125][i % 4]).collect()),
        (Format::Mxfp8, (0..512).map(|i| [448.0, -0.5, 13.0, 0.0][i % 4] * 2f32.powi((i / 32) as i32 - 9)).collect()),
        (Format::Nvfp4, (0..512).map(|i| [6.0, -0.5, 3.0, -4.0][i % 4] * [448.0, 7.5][i / 16 % 2]).collect()),
    ] {
        let decoded = encoded(&values, &[2, 256], format).to_f32();
        assert_eq!(decoded, values, "{format}");
    }
}

/// Parts of a block of 256 whose scales and minima use the whole range of their integers.
#[test]
fn k_quants_hold_blocks_that_use_the_whole_range() {
    let part = |part: usize, levels: usize| {
        let (s, m) = ([63.0, 20.0, 40.0, 7.0][part % 4], [16.0, 63.0, 5.0, 30.0][part % 4]);
        (0..32).map(move |i| 0.125 * s * ((i * 5) % (levels + 1)) as f32 - 0.125 * m)
    };
    for (format, levels) in [(Format::Q4K, 15), (Format::Q5K, 31)] {
        let values: Vec<f32> = (0..16).flat_map(|index| part(index, levels)).collect();
        assert_eq!(encoded(&values, &[2, 256], format).to_f32(), values, "{format}");
    }
    let values: Vec<f32> = (0..512)
        .map(|i| {
            0.25 * [-128.0, 50.0, 64.0, 3.0][i / 16 % 4]
                * ((i * 5 % 16) as f32 * 2.0 - if i % 16 == 0 { 32.0 } else { 16.0 })
        })
        .collect();
    assert_eq!(encoded(&values, &[2, 256], Format::Q6K).to_f32(), values);
}

#[test]
fn encoding_what_was_decoded_changes_little() {
    let values = normal(2, 16 * 512, 0.02);
    for (_, format) in Format::made() {
        let once = encoded(&values, &[16, 512], format).to_f32();
        let twice = encoded(&once, &[16, 512], format).to_f32();
        assert!(error(&once, &twice) < 0.03, "{format}: {}", error(&once, &twice));
    }
}

#[test]
fn parts_are_rows_of_one_tensor_and_rows_of_blocks_depend_on_no_others() {
    let values = normal(3, 9 * 512, 0.02);
    for (_, format) in Format::made() {
        let whole = encoded(&values, &[9, 512], format);
        let parts = [
            view(&values[..512], &[1, 512]),
            view(&values[512..3 * 512], &[2, 512]),
            view(&values[3 * 512..], &[6, 512]),
        ];
        assert_eq!(bytes_of(&quantize(&parts, format).unwrap()), bytes_of(&whole), "{format}");
        if !matches!(format, Format::E4m3 | Format::Nvfp4) {
            let alone = encoded(&values[512..1024], &[1, 512], format).to_f32();
            assert_eq!(alone, whole.row_range(1..2).to_f32(), "{format}");
        }
    }
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    let values = normal(4, 600 * 1024, 0.02);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for format in [Format::E4m3, Format::Int8, Format::Nvfp4, Format::Q4K] {
        let one = encoded(&values, &[600, 1024], format);
        let other = pool.install(|| encoded(&values, &[600, 1024], format));
        assert_eq!(bytes_of(&one), bytes_of(&other), "{format}");
    }
}

#[test]
fn what_is_in_the_format_already_is_copied() {
    let values = normal(5, 4 * 256, 1.0);
    for format in [Format::Q4K, Format::Q6K, Format::Q4_0, Format::Bf16] {
        let once = encoded(&values, &[4, 256], format);
        let twice = quantize(&[once.row_range(0..1), once.row_range(1..4)], format).unwrap();
        assert_eq!(bytes_of(&once), bytes_of(&twice), "{format}");
    }
}

#[test]
fn zeros_are_zeros_and_the_least_magnitudes_are_held_or_refused() {
    for (_, format) in Format::made() {
        assert_eq!(encoded(&[0.0; 512], &[2, 256], format).to_f32(), [0.0; 512], "{format}");
        for tiny in [1e-45, f32::MIN_POSITIVE, 1e-30, 1e-9, 1e-6, 1e-4, 1e-2] {
            let values: Vec<f32> = (0..512).map(|i| tiny * (i % 5) as f32).collect();
            match quantize(&[view(&values, &[2, 256])], format) {
                Ok(made) => {
                    let decoded = made.to_f32();
                    assert!(decoded.iter().all(|value| value.abs() <= 8.0 * tiny), "{format}: {tiny}: {decoded:?}");
                    assert!(error(&values, &decoded) <= 0.5, "{format}: {tiny}: {decoded:?}");
                }
                Err(why) => assert!(tiny < 1e-4 && why.contains("distinguish from zero"), "{format}: {tiny}: {why}"),
            }
        }
    }
}

#[test]
fn large_magnitudes_are_held_or_refused() {
    for (_, format) in Format::made() {
        for large in [6e4, 1e9, 1e38] {
            let values: Vec<f32> = normal(6, 512, large / 10.0);
            match quantize(&[view(&values, &[2, 256])], format) {
                Ok(made) => assert!(error(&values, &made.to_f32()) < 0.1, "{format}: {large}"),
                Err(why) => assert!(large > 65504.0 && why.contains("6.5504e4"), "{format}: {large}: {why}"),
            }
        }
    }
}

#[test]
fn values_that_are_no_numbers_are_refused() {
    for (_, format) in Format::made() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = normal(7, 512, 1.0);
            values[300] = bad;
            let refused = quantize(&[view(&values, &[2, 256])], format).err().expect("refused");
            assert!(refused.contains("NaN"), "{format}: {refused}");
        }
    }
}

#[test]
fn rows_that_are_no_whole_blocks_take_smaller_ones_or_none() {
    assert_eq!(fitting(Format::Q4K, 512), Some(Format::Q4K));
    assert_eq!(
        [Format::Q4K, Format::Q5K, Format::Q6K].map(|f| fitting(f, 96)),
        [Format::Q5_0, Format::Q5_1, Format::Q8_0].map(Some)
    );
    assert_eq!(
        (fitting(Format::Q4K, 40), fitting(Format::Nvfp4, 40), fitting(Format::Int8, 40)),
        (None, None, Some(Format::Int8))
    );
    assert!(quantize(&[view(&[0.0; 40], &[1, 40])], Format::Q8_0).is_err_and(|why| why.contains("[1, 40]")));
    assert!(quantize(&[view(&[0.0; 512], &[2, 256])], Format::Q2K).is_err_and(|why| why.contains("Q2_K")));
}

#[test]
fn vectors_become_floats() {
    let values = [1.0, -2.5, 3.333333];
    let rounded = values.map(|value| bf16::from_f32(value).to_f32());
    assert_eq!(encoded(&values, &[3], Format::Bf16).to_f32(), rounded);
    assert_eq!(quantize(&[encoded(&values, &[3], Format::Bf16)], Format::F32).unwrap().to_f32(), rounded);
}

#[test]
fn a_tensor_in_fp8_without_a_scale_gets_one() {
    let bytes = vec![0x38, 0xb8, 0x30, 0x40];
    let plain = testing::view(bytes.clone(), Format::E4m3, &[2, 2], Scales::None);
    let made = quantize(&[plain], Format::E4m3).unwrap();
    assert_eq!(bytes_of(&made), (bytes, Vec::new(), 1.0));
    assert!(matches!(made.scales(), Scales::Tensor(1.0)));
    assert_eq!(made.to_f32(), [1.0, -1.0, 0.5, 2.0]);
}
