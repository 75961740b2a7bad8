//! Image files, masks and sizes, against the reference's results. `tests/input/README.md` describes how these were
//! made.

mod masks;

use crate::reference_mask;
use flux::input::{Mask, Region, lanczos, read_bytes};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn rows<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = crate::program::project("").join("tests/input").join(name);
    let rows: Vec<T> = serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("rows");
    assert!(!rows.is_empty());
    rows
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal")).collect()
}

fn crc(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// The noise of the script.
fn noise(count: usize, seed: usize) -> Vec<u8> {
    let of = |i: usize| {
        let x = (i + seed * 7919) as u32;
        let x = x.wrapping_mul(2_654_435_761);
        ((x ^ (x >> 15)).wrapping_mul(2_246_822_519) >> 24) as u8
    };
    (0..count).map(of).collect()
}

#[test]
fn edges_are_those_of_opencv() {
    for name in ["0", "5", "9"] {
        let project = crate::program::project("");
        let image = flux::input::read(&project.join(format!("tests/golden/default-model/{name}.png"))).unwrap();
        let expected = flux::input::read(&project.join(format!("tests/input/canny/{name}.png"))).unwrap();
        assert!(flux::input::edges(&image) == expected, "{name}");
    }
}

#[derive(Deserialize)]
struct Image {
    name: String,
    width: usize,
    height: usize,
    file: String,
    crc: u32,
    rgb: Option<String>,
}

#[test]
fn every_kind_of_file_is_read_as_the_reference_reads_it() {
    for row in rows::<Image>("images.json") {
        let name = &row.name;
        let image = read_bytes(&bytes(&row.file)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((image.width, image.height), (row.width, row.height), "{name}");
        if let Some(expected) = row.rgb {
            // Decoders of JPEG round and scale colours differently: at most 3 levels here.
            let apart = image.bytes.iter().zip(bytes(&expected)).map(|(a, b)| a.abs_diff(b)).max();
            assert!(apart <= Some(3), "{name}: {apart:?}");
        } else {
            assert_eq!(crc(&image.bytes), row.crc, "{name}");
        }
    }
}

#[derive(Deserialize)]
struct Refused {
    name: String,
    file: String,
    words: String,
}

#[test]
fn hostile_files_are_refused_with_a_hint() {
    for Refused { name, file, words } in rows("refused.json") {
        let error = read_bytes(&bytes(&file)).expect_err(&name).to_string();
        assert!(error.contains(&words) && error.contains("hint: "), "{name}: {error}");
    }
}

#[test]
fn a_file_that_is_cut_off_is_refused_unless_all_of_the_image_is_there() {
    for Image { name, file, .. } in rows::<Image>("images.json") {
        let file = bytes(&file);
        let whole = read_bytes(&file).unwrap();
        for keep in (0..file.len()).filter(|keep| keep % 5 == 0 || keep + 40 > file.len()) {
            match read_bytes(&file[..keep]) {
                // Chunks after the pixels of a PNG may be lost, and with them the orientation.
                Ok(image) => assert!(image == whole || name == "upright-6-behind.png", "{name} cut at {keep}"),
                Err(error) => assert!(error.to_string().contains("hint: "), "{name} cut at {keep}: {error}"),
            }
        }
    }
}

/// Decoders fill missing data with grey.
#[test]
fn a_jpeg_that_is_cut_in_front_of_its_end_is_refused() {
    let mut refused = 0;
    for Image { name, file, .. } in rows::<Image>("images.json") {
        let file = bytes(&file);
        if !name.ends_with(".jpg") {
            continue;
        }
        let whole = read_bytes(&file).unwrap();
        for keep in 2..file.len() - 2 {
            match read_bytes(&[&file[..keep], &[0xff, 0xd9]].concat()) {
                // The last bits of some scans are padding.
                Ok(image) => assert!(image == whole, "{name} cut at {keep}"),
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("hint: "), "{name} cut at {keep}: {error}");
                }
            }
        }
        assert!(read_bytes(&file[..file.len() - 2]).unwrap() == whole, "{name}: the end marker alone may be missing");
        assert!(read_bytes(&[&file[..], b"more"].concat()).unwrap() == whole, "{name}: what follows does not count");
    }
    assert!(refused > 1000, "{refused}");
}

/// Returns the position of a JPEG's frame header.
fn frame(file: &[u8]) -> usize {
    file.windows(4).position(|found| matches!(found, [0xff, 0xc0..=0xc2, 0, _])).expect("a frame")
}

#[test]
fn a_jpeg_whose_data_do_not_fill_its_size_is_refused() {
    for Image { name, file, .. } in rows::<Image>("images.json") {
        let mut file = bytes(&file);
        if !name.ends_with(".jpg") {
            continue;
        }
        // Doubled height.
        let height = frame(&file) + 6;
        file[height] *= 2;
        let error = read_bytes(&file).map(|_| ()).expect_err(&name).to_string();
        assert!(error.contains("the JPEG") && error.contains("hint: "), "{name}: {error}");
    }
}

/// Returns the file without the Huffman tables for which `dropped` returns `true` by class and slot.
fn without_tables(file: &[u8], dropped: impl Fn(u8) -> bool) -> Vec<u8> {
    let (mut out, mut at) = (file[..2].to_vec(), 2);
    loop {
        let end = at + 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        if file[at + 1] == 0xda {
            return [&out, &file[at..]].concat();
        }
        if file[at + 1] == 0xc4 {
            let (mut tables, mut kept) = (&file[at + 4..end], Vec::new());
            while let [table, ..] = tables {
                let symbols: usize = tables[1..17].iter().map(|count| usize::from(*count)).sum();
                let (this, rest) = tables.split_at(17 + symbols);
                kept.extend(this.iter().filter(|_| !dropped(*table)));
                tables = rest;
            }
            if !kept.is_empty() {
                out.extend([&[0xff, 0xc4][..], &(kept.len() as u16 + 2).to_be_bytes(), &kept].concat());
            }
        } else {
            out.extend(&file[at..end]);
        }
        at = end;
    }
}

/// Cameras send frames without tables.
#[test]
fn a_jpeg_without_huffman_tables_is_read_with_the_standards() {
    let mut read = 0;
    for Image { name, file, .. } in rows::<Image>("images.json") {
        let file = bytes(&file);
        if !name.ends_with(".jpg") {
            continue;
        }
        let is_sequential = file[frame(&file) + 1] != 0xc2;
        match read_bytes(&without_tables(&file, |_| true)) {
            Ok(image) => {
                assert!(is_sequential && image == read_bytes(&file).unwrap(), "{name}");
                let partly = read_bytes(&without_tables(&file, |table| table == 0)).map(|_| ()).expect_err(&name);
                assert!(partly.to_string().contains("tables are missing"), "{name}: {partly}");
                read += 1;
            }
            // Its own tables were different.
            Err(error) => assert!(error.to_string().contains("hint: "), "{name}: {error}"),
        }
    }
    assert!(read > 2, "{read}");
}

/// A chunk of a PNG.
fn chunk(kind: &[u8], data: &[u8]) -> Vec<u8> {
    let summed = [kind, data].concat();
    [&(data.len() as u32).to_be_bytes()[..], &summed, &crc(&summed).to_be_bytes()].concat()
}

/// The chunks of a PNG.
fn chunks(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = &file[8..];
    let mut chunks = Vec::new();
    while let Some(length) = rest.first_chunk() {
        let (chunk, behind) = rest.split_at(12 + u32::from_be_bytes(*length) as usize);
        chunks.push(chunk);
        rest = behind;
    }
    chunks
}

#[test]
fn a_palette_that_is_not_made_of_colours_is_refused_and_no_panic() {
    let palettes = rows::<Image>("images.json").into_iter().filter(|image| image.name.starts_with("palette"));
    for Image { name, file, .. } in palettes {
        let file = bytes(&file);
        for length in [1, 2, 4, 5, 7, 767] {
            let of = |found: &&[u8]| {
                if &found[4..8] == b"PLTE" { chunk(b"PLTE", &vec![7; length]) } else { found.to_vec() }
            };
            let damaged = [file[..8].to_vec(), chunks(&file).iter().map(of).collect::<Vec<_>>().concat()].concat();
            let error = read_bytes(&damaged).map(|_| ()).expect_err(&name).to_string();
            assert!(error.contains("PNG") && error.contains("hint: "), "{name} {length}: {error}");
        }
    }
}

#[test]
fn a_png_without_some_of_its_data_is_refused_and_without_its_end_read() {
    for Image { name, file, .. } in rows::<Image>("images.json") {
        let file = bytes(&file);
        if !name.ends_with(".png") || name.contains("bombs") || name.contains("behind") {
            continue;
        }
        let whole = read_bytes(&file).unwrap();
        let parts = chunks(&file);
        let data = parts.iter().position(|part| &part[4..8] == b"IDAT").expect("it has data");
        let with = |new: &[u8]| {
            let (before, behind) = (parts[..data].concat(), parts[data + 1..].concat());
            read_bytes(&[&file[..8], &before, new, &behind].concat()).map_err(|error| error.to_string())
        };
        let mut wrong_sum = parts[data].to_vec();
        *wrong_sum.last_mut().expect("a sum") ^= 1;
        let stream = &parts[data][8..parts[data].len() - 4];
        for damaged in [&[][..], &wrong_sum, &chunk(b"IDAT", &stream[..stream.len() / 2])] {
            let error = with(damaged).map(|_| ()).expect_err(&name);
            assert!(error.contains("PNG") && error.contains("hint: "), "{name}: {error}");
        }
        let end = file.len() - 12;
        assert!(read_bytes(&file[..end]).unwrap() == whole, "{name}: the last chunk alone may be missing");
    }
}

#[test]
fn damaged_files_are_refused_or_read_and_never_a_panic() {
    for (number, Image { name, file, .. }) in rows::<Image>("images.json").into_iter().enumerate() {
        let file = bytes(&file);
        for round in 0..150 {
            let mut damaged = file.clone();
            for draw in noise(12, 1000 * number + round).chunks_exact(4).take(1 + round % 3) {
                // The beginning has the headers.
                let reach = if round % 2 == 0 { 64.min(file.len()) } else { file.len() };
                let at = usize::from(u16::from_le_bytes([draw[0], draw[1]])) * 13 % reach;
                damaged[at] ^= draw[2] | 1;
            }
            if let Err(error) = read_bytes(&damaged) {
                assert!(error.to_string().contains("hint: "), "{name}: {error}");
            }
        }
    }
}

#[derive(Deserialize)]
struct Resize {
    channels: usize,
    from: [usize; 2],
    to: [usize; 2],
    crc: u32,
}

#[test]
fn the_lanczos_filter_is_that_of_pillow_in_every_bit() {
    for Resize { channels, from, to, crc: expected } in rows("resizes.json") {
        let pixels = noise(from[0] * from[1] * channels, from[0]);
        let resized = match channels {
            1 => lanczos::resize::<1>(&pixels, from, to),
            _ => lanczos::resize::<3>(&pixels, from, to),
        };
        assert_eq!(resized.len(), to[0] * to[1] * channels);
        assert_eq!(crc(&resized), expected, "{from:?} -> {to:?}, {channels} channels");
    }
}

#[derive(Deserialize)]
struct MaskFile {
    name: String,
    file: String,
    used: Vec<Used>,
}

#[derive(Deserialize)]
struct Used {
    to: [usize; 2],
    grey: u32,
    quarters: Vec<u8>,
}

/// The reference's rule, for tests that compare images with it, and ours, which includes all of it.
#[test]
fn every_cell_that_the_reference_draws_anew_is_drawn_anew() {
    for row in rows::<MaskFile>("masks.json") {
        let file = bytes(&row.file);
        let mask = Mask::read_bytes(&file).unwrap();
        for Used { to, grey: expected, quarters } in row.used {
            let grey = reference_mask::grey(&file, to);
            assert_eq!(crc(&grey), expected, "{} {to:?}", row.name);
            let cells: Vec<f32> = quarters.iter().map(|quarter| f32::from(*quarter) / 4.0).collect();
            assert_eq!(reference_mask::cells(&grey, to[0]), cells, "{} {to:?}", row.name);
            let pairs = cells.iter().zip(mask.grey(to).cells());
            for (at, (theirs, ours)) in pairs.enumerate() {
                assert!(ours == 1.0 || *theirs == 0.0, "{} {to:?} {at}", row.name);
            }
        }
    }
}

#[derive(Deserialize)]
struct Around {
    size: [usize; 2],
    boxes: Vec<[usize; 4]>,
    padding: usize,
    to: [usize; 2],
    region: [usize; 4],
}

#[test]
fn the_region_around_a_mask_is_that_of_the_reference() {
    for row in rows::<Around>("regions.json") {
        let [width, height] = row.size;
        let mut mask = vec![0; width * height];
        for [left, top, right, bottom] in &row.boxes {
            (*top..*bottom).for_each(|y| mask[y * width + left..y * width + right].fill(1));
        }
        let Region { left, top, width, height } = Region::around(&mask, width, row.padding, row.to).unwrap();
        assert_eq!([left, top, left + width, top + height], row.region, "{:?} {:?}", row.size, row.boxes);
    }
    assert_eq!(Region::around(&[0; 12], 4, 1, [16, 16]), None, "of a black mask");
}
