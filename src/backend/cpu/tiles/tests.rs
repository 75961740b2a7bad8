//! Tests of the blocking on emulated tiles against float64, and of the tile unit itself if there is one.

use half::bf16;

use super::tile::{BF16_COLS, LineTiles};
use super::*;

/// The tile unit in software, with the order of sums of Intel's description: even and odd columns separately, then both
/// added to the sum.
struct Emulated;

impl Tiles for Emulated {
    const BLOCK_STEPS: usize = 32;
    const BYTES: usize = 2;

    fn available() -> bool {
        true
    }

    fn begin() -> Self {
        Self
    }

    fn multiply(&self, a: &[Tile], b: &[Tile], terms: usize, _: usize, add: bool, sums: &mut Sums, _: *const Tile) {
        assert!(!a.is_empty() && a.len().is_multiple_of(2) && b.len() == a.len() * terms);
        if !add {
            *sums = NO_SUMS;
        }
        for (a, b) in a.chunks_exact(2).zip(b.chunks_exact(2 * terms)) {
            for b in b.chunks_exact(2) {
                for (i, sums) in sums.0.iter_mut().enumerate() {
                    emulate_product(&a[i / 2], &b[i % 2], sums);
                }
            }
        }
    }
}

impl LineTiles for Emulated {
    fn multiply_lines(&self, a: &[Line], offsets: &Offsets, b: &[Tile], sums: &mut Sums) {
        assert!(!b.is_empty() && b.len() * offsets.terms() == 2 * offsets.bytes().len());
        *sums = NO_SUMS;
        for (b, offsets) in b.chunks_exact(2).zip(offsets.bytes().chunks_exact(offsets.terms())) {
            for offset in offsets {
                assert_eq!(offset % size_of::<Line>(), 0);
                let lines = &a[offset / size_of::<Line>()..][..PAIR];
                let a: &[Tile] = bytemuck::cast_slice(lines);
                let a = [0, 1].map(|tile| a[tile]);
                for (i, sums) in sums.0.iter_mut().enumerate() {
                    emulate_product(&a[i / 2], &b[i % 2], sums);
                }
            }
        }
    }
}

/// A unit that ignores most of X.
struct Wrong;

impl Tiles for Wrong {
    const BLOCK_STEPS: usize = 32;
    const BYTES: usize = 2;

    fn available() -> bool {
        true
    }

    fn begin() -> Self {
        Self
    }

    fn multiply(
        &self,
        a: &[Tile],
        b: &[Tile],
        terms: usize,
        x_rows: usize,
        add: bool,
        sums: &mut Sums,
        at: *const Tile,
    ) {
        Emulated.multiply(&a[2..], &b[2..], terms, x_rows, add, sums, at);
    }
}

fn emulate_product(a: &Tile, b: &Tile, sums: &mut [f32; TILE * TILE]) {
    let value = |tile: &Tile, i: usize| bf16::from_bits(bytemuck::cast_slice(&tile.0)[i]).to_f32();
    for row in 0..TILE {
        for col in 0..TILE {
            let mut parts = [0.0f32; 2];
            for i in 0..BF16_COLS {
                parts[i % 2] += value(a, row * BF16_COLS + i) * value(b, i / 2 * BF16_COLS + 2 * col + i % 2);
            }
            sums[row * TILE + col] += parts[0] + parts[1];
        }
    }
}

/// [`multiply`] on emulated tiles.
pub fn multiply_emulated(x: &Packed, weight: WeightRows<'_>, out: Output<'_>) {
    multiply_on::<Emulated>(x, weight, out);
}

/// [`multiply_windows`] on emulated tiles.
pub fn multiply_windows_emulated(
    x: &Lines,
    offsets: &Offsets,
    weight: &Packed,
    windows: Windows,
    out: &mut [f32],
    bias: &[f32],
    add: bool,
) {
    windows::multiply_on::<Emulated>(x, offsets, weight, windows, out, bias, add);
}

/// Returns reproducible pseudo-random values in -1..1.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

struct Case {
    rows: usize,
    /// Columns of the parts that are packed as one matrix.
    cols: &'static [usize],
    weight_rows: usize,
    /// Columns of the whole weight before and after the used ones.
    around: usize,
    add: bool,
}

const CASES: [Case; 12] = [
    Case { rows: 32, cols: &[32], weight_rows: 32, around: 0, add: false },
    Case { rows: 1, cols: &[1], weight_rows: 1, around: 0, add: false },
    Case { rows: 1, cols: &[256], weight_rows: 40, around: 0, add: false },
    Case { rows: 17, cols: &[33], weight_rows: 15, around: 3, add: true },
    Case { rows: 31, cols: &[100], weight_rows: 129, around: 0, add: false },
    Case { rows: 64, cols: &[64], weight_rows: 64, around: 32, add: true },
    Case { rows: 65, cols: &[96, 40], weight_rows: 257, around: 0, add: false },
    Case { rows: 50, cols: &[7, 1, 90], weight_rows: 70, around: 1, add: false },
    // Several blocks of columns, even and ragged.
    Case { rows: 33, cols: &[2048], weight_rows: 160, around: 0, add: false },
    Case { rows: 40, cols: &[2100], weight_rows: 300, around: 5, add: true },
    // Several blocks of X's rows.
    Case { rows: 1100, cols: &[64], weight_rows: 20, around: 0, add: false },
    Case { rows: 1057, cols: &[530], weight_rows: 33, around: 0, add: true },
];

/// Runs a case and returns the largest error, relative to the lengths of the two vectors that a cell multiplies.
fn worst_error(multiply: Multiply, case: &Case, terms: usize) -> f64 {
    let Case { rows, cols, weight_rows, around, add } = *case;
    let all_cols: usize = cols.iter().sum();
    let stored: Vec<Vec<f32>> = cols.iter().enumerate().map(|(i, &cols)| noise(rows * (cols + i), i as u32)).collect();
    let parts: Vec<Rows<'_>> = stored
        .iter()
        .zip(cols)
        .enumerate()
        .map(|(i, (values, &cols))| Rows { values, rows, cols, stride: cols + i })
        .collect();
    let packed = Packed::new(&parts, terms);
    assert_eq!((packed.rows(), packed.row_bytes()), (rows, 2 * all_cols));

    // NaN around the weight and past its end must not be read; the first byte makes the address odd.
    let width = all_cols + 2 * around;
    let weight = noise(weight_rows * width, 77).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let used = |row: usize| &weight[row * width + around..][..all_cols];
    let mut bytes = vec![0xffu8; 1 + 2 * around];
    for row in 0..weight_rows {
        bytes.extend(used(row).iter().flat_map(|w| w.to_le_bytes()));
        bytes.resize(bytes.len() + 4 * around, 0xff);
    }
    let stride = weight_rows + 3;
    let before = noise(rows * stride, 5);
    let mut values = before.clone();
    multiply(
        &packed,
        WeightRows { bytes: &bytes[1 + 2 * around..], rows: weight_rows, stride: 2 * width },
        Output { values: &mut values, stride, add, integers: None },
    );

    let mut worst = 0.0f64;
    for row in 0..rows {
        let x: Vec<f64> = parts
            .iter()
            .flat_map(|part| &part.values[row * part.stride..][..part.cols])
            .map(|&x| if terms == 1 { bf16::from_f32(x).to_f64() } else { f64::from(x) })
            .collect();
        let x_length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        for col in 0..stride {
            let got = f64::from(values[row * stride + col]);
            let old = f64::from(before[row * stride + col]);
            if col >= weight_rows {
                assert_eq!(got, old, "wrote past row {row}");
                continue;
            }
            let w = used(col).iter().map(|w| w.to_f64());
            let w_length = w.clone().map(|w| w * w).sum::<f64>().sqrt();
            let expected = x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + if add { old } else { 0.0 };
            // The sum with the old value is rounded too.
            let unit = x_length * w_length + if add { old.abs() } else { 0.0 };
            worst = worst.max((got - expected).abs() / unit.max(1e-30));
        }
    }
    worst
}

fn check_all_cases(multiply: Multiply) {
    // The reference of one term is the bf16 value. Two terms have an error of up to 2^-16 of each value; three are
    // exact.
    for (terms, bound) in [(1, 5e-7), (2, 1.6e-5), (3, 5e-7)] {
        for case in &CASES {
            let worst = worst_error(multiply, case, terms);
            println!("[{}, {:?}] x [{}], {terms} terms: {worst:.1e}", case.rows, case.cols, case.weight_rows);
            assert!(
                worst < bound,
                "[{}, {:?}] x [{}], {terms} terms: {worst:e}",
                case.rows,
                case.cols,
                case.weight_rows
            );
        }
    }
}

#[test]
fn blocking_matches_float64_with_emulated_tiles() {
    check_all_cases(multiply_emulated);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(7).build().unwrap();
    pool.install(|| check_all_cases(multiply_emulated));
}

#[test]
fn terms_compare_with_a_float32_product_as_the_head_says() {
    let (rows, cols, weight_rows) = (64, 3072, 128);
    let x: Vec<f32> = noise(rows * cols, 1).iter().zip(noise(rows * cols, 2)).map(|(a, b)| a * b.abs() * 3.0).collect();
    let weight: Vec<bf16> = noise(weight_rows * cols, 3).into_iter().map(bf16::from_f32).collect();
    let wide: Vec<f32> = weight.iter().map(|w| w.to_f32()).collect();
    let exact: Vec<f64> = (0..rows * weight_rows)
        .map(|i| {
            (0..cols)
                .map(|k| f64::from(x[i / weight_rows * cols + k]) * f64::from(wide[i % weight_rows * cols + k]))
                .sum()
        })
        .collect();
    let error = |values: &[f32]| {
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let rest = squares(&mut values.iter().zip(&exact).map(|(&got, exact)| f64::from(got) - exact));
        (rest / squares(&mut exact.iter().copied())).sqrt()
    };
    let mut float32 = vec![0.0f32; rows * weight_rows];
    let (m, n, k) = (rows, weight_rows, cols);
    super::super::gemm::small((m, n, k), (&mut float32, n), false, (&x, k), (&wide, k), true, 1.0);
    let float32 = error(&float32);
    let bytes: Vec<u8> = weight.iter().flat_map(|w| w.to_le_bytes()).collect();
    let of_terms = [1, 2, 3].map(|terms| {
        let mut values = vec![0.0f32; rows * weight_rows];
        let packed = Packed::new(&[Rows { values: &x, rows, cols, stride: cols }], terms);
        let weight = WeightRows { bytes: &bytes, rows: weight_rows, stride: 2 * cols };
        multiply_on::<Emulated>(
            &packed,
            weight,
            Output { values: &mut values, stride: weight_rows, add: false, integers: None },
        );
        error(&values)
    });
    println!(
        "relative error with 1, 2, 3 terms: {:.1e}, {:.1e}, {:.1e}; with a float32 GEMM: {float32:.1e}",
        of_terms[0], of_terms[1], of_terms[2]
    );
    assert!(of_terms[0] < 3e-3 && of_terms[1] < 8e-6 && of_terms[2] < float32);
}

#[test]
fn units_match_float64() {
    let units: Vec<_> = BF16.iter().filter(|unit| (unit.is_available)()).collect();
    println!("units: {:?}", units.iter().map(|unit| unit.name).collect::<Vec<_>>());
    let has_amx = units.iter().any(|unit| unit.name == "AMX-BF16");
    assert!(has_amx || std::env::var_os("FLUX_REQUIRE_AMX").is_none(), "FLUX_REQUIRE_AMX is set, but there is no AMX");
    units.iter().for_each(|unit| check_all_cases(unit.multiply));
}

/// A unit that fails its check at the start is not used, and so not tested above.
#[test]
fn instructions_of_this_cpu_pass_the_check_at_the_start() {
    #[cfg(target_arch = "x86_64")]
    let instructions = [
        ("AVX512-BF16", is_x86_feature_detected!("avx512bf16")),
        ("AVX512-VNNI", is_x86_feature_detected!("avx512vnni")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
        ("AVX2", is_x86_feature_detected!("avx2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let instructions = [
        ("BFMMLA", std::arch::is_aarch64_feature_detected!("bf16")),
        ("USMMLA", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("SDOT", std::arch::is_aarch64_feature_detected!("dotprod")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let instructions: [(&str, bool); 0] = [];
    let floats = BF16.iter().filter(|unit| (unit.is_available)()).map(|unit| unit.name);
    let integers = INT8.iter().filter(|unit| (unit.is_available)()).map(|unit| unit.name);
    let available: Vec<_> = floats.chain(integers).collect();
    println!("{available:?}");
    for (name, has) in instructions {
        assert_eq!(available.contains(&name), has, "{name} of {available:?}");
    }
}

#[test]
fn the_check_at_the_start_notices_errors() {
    assert!(tile::is_usable::<Emulated>() && tile::is_usable::<portable::Portable>());
    assert!(!tile::is_usable::<Wrong>());
}

/// Every unit for integers, compared with the definition to the last bit.
#[test]
fn integers_are_multiplied_exactly() {
    let byte = |seed: usize| move |i: usize| ((i * 2_654_435_761 + seed) >> 11) as i8;
    for unit in INT8.iter().filter(|unit| (unit.is_available)()) {
        println!("{}", unit.name);
        for [rows, cols, weight_rows, around] in
            [[1, 1, 1, 0], [4, 64, 32, 0], [16, 63, 33, 1], [17, 65, 31, 3], [33, 1025, 70, 5], [70, 2300, 129, 0]]
        {
            let width = cols + 2 * around;
            // Weights of files may be -128.
            let x: Vec<i8> = (0..rows * cols).map(byte(1)).map(|x| x.max(-127)).collect();
            let weight: Vec<i8> = (0..weight_rows * width).map(byte(77)).collect();
            let used = |row: usize| &weight[row * width + around..][..cols];
            let sums: Vec<i32> = (0..weight_rows).map(|row| used(row).iter().map(|w| i32::from(*w)).sum()).collect();
            let scales: Vec<f32> = noise(weight_rows, 5);
            let (packed, x_scales) = Packed::quantize(
                rows,
                cols,
                || (),
                |row, (), integers| {
                    integers.copy_from_slice(&x[row * cols..][..cols]);
                    0.25 + row as f32
                },
            );
            let stride = weight_rows + 3;
            let mut values = vec![f32::NAN; rows * stride];
            let bytes = &bytemuck::cast_slice(&weight)[around..];
            let integers = Some(Integers { x: &x_scales, weight: &scales, weight_sums: &sums });
            (unit.multiply)(
                &packed,
                WeightRows { bytes, rows: weight_rows, stride: width },
                Output { values: &mut values, stride, add: false, integers },
            );
            for (row, values) in values.chunks_exact(stride).enumerate() {
                for (col, value) in values[..weight_rows].iter().enumerate() {
                    let x = &x[row * cols..][..cols];
                    let sum: i32 = x.iter().zip(used(col)).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                    let expected = sum as f32 * ((0.25 + row as f32) * scales[col]);
                    assert_eq!(*value, expected, "{}: {rows} x {cols} x {weight_rows}", unit.name);
                }
                assert!(values[weight_rows..].iter().all(|value| value.is_nan()));
            }
        }
    }
}

#[test]
fn nothing_in_gives_zeros_out() {
    let packed = Packed::new(&[Rows { values: &[], rows: 2, cols: 0, stride: 0 }], 1);
    let mut values = [1.0; 6];
    multiply_on::<Emulated>(
        &packed,
        WeightRows { bytes: &[], rows: 2, stride: 0 },
        Output { values: &mut values, stride: 3, add: false, integers: None },
    );
    assert_eq!(values, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    let packed = Packed::new(&[Rows { values: &[], rows: 0, cols: 4, stride: 4 }], 3);
    multiply_on::<Emulated>(
        &packed,
        WeightRows { bytes: &[], rows: 0, stride: 8 },
        Output { values: &mut [], stride: 0, add: false, integers: None },
    );
}
