//! The segments of a JPEG.

use super::{Picture, any_bytes};
use crate::expect::End;
use crate::mutate;
use crate::rng::Rng;

const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;

/// A marker segment: its data with the length first, if it has one, then the coded data after a scan.
struct Segment {
    marker: u8,
    data: Vec<u8>,
    coded: Vec<u8>,
}

fn has_no_length(marker: u8) -> bool {
    matches!(marker, 0 | 1 | 0xd0..=0xd9)
}

fn parse(file: &[u8]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(&[0xff, marker]) = file.get(at..at + 2) {
        at += 2;
        let mut data = Vec::new();
        if !has_no_length(marker) {
            let Some(&[high, low]) = file.get(at..at + 2) else { break };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let Some(bytes) = file.get(at + 2..at + length) else { break };
            data = bytes.to_vec();
            at += length;
        }
        let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7);
        let coded = match marker {
            START_OF_SCAN => file[at..].windows(2).position(is_marker).unwrap_or(file.len() - at),
            _ => 0,
        };
        segments.push(Segment { marker, data, coded: file[at..at + coded].to_vec() });
        at += coded;
    }
    segments
}

fn write(segments: &[Segment]) -> Vec<u8> {
    let mut file = Vec::new();
    for Segment { marker, data, coded } in segments {
        file.extend([0xff, *marker]);
        if !has_no_length(*marker) {
            file.extend((data.len() as u16).wrapping_add(2).to_be_bytes());
        }
        file.extend(data);
        file.extend(coded);
    }
    file
}

/// Returns the segments of an image with up to three changes.
pub fn damaged(file: &[u8], rng: &mut Rng) -> Picture {
    let mut segments = parse(file);
    if rng.one_of(4) {
        return without_pixels(segments, rng);
    }
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(segments.len());
        let (name, change) = (segments[at].marker, rng.below(12));
        match change {
            0 if segments.len() > 1 => drop(segments.remove(at)),
            1 => {
                let to = rng.below(segments.len());
                segments.swap(at, to);
            }
            2 => {
                let Segment { marker, data, coded } = &segments[at];
                let copy = Segment { marker: *marker, data: data.clone(), coded: coded.clone() };
                segments.insert(rng.below(segments.len() + 1), copy);
            }
            3 => {
                let marker = [
                    0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc9, 0xcc, 0xd0, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xdf,
                    0xe1, 0xee, 0xfe, 0x01, 0xff,
                ];
                segments[at].marker = *rng.pick(&marker);
            }
            4 => {
                let length = rng.below(segments[at].data.len() + 1);
                segments[at].data.truncate(length);
            }
            5 => segments[at].data.extend(any_bytes(rng, 80)),
            6 => {
                let restart = Segment { marker: 0xdd, data: vec![0, *rng.pick(&[0, 1, 2, 7, 255])], coded: Vec::new() };
                segments.insert(at, restart);
            }
            7 => {
                // Tables of any content: impossible code counts, precisions, table numbers.
                let table = Segment { marker: *rng.pick(&[0xc4, 0xdb]), data: any_bytes(rng, 200), coded: Vec::new() };
                segments.insert(at, table);
            }
            8 => {
                let coded = &mut segments[at].coded;
                let place = rng.below(coded.len() + 1);
                coded.splice(place..place, [0xff, 0xd0 + rng.below(8) as u8]);
            }
            9 if !segments[at].data.is_empty() => {
                let place = rng.below(segments[at].data.len());
                segments[at].data[place] = *rng.pick(&[0, 1, 2, 3, 4, 0x11, 0x22, 0x41, 0x7f, 0xff]);
            }
            10 => segments[at].coded = mutate::damaged(&segments[at].coded, rng),
            _ => {
                if let Some(frame) = segments.iter_mut().find(|segment| matches!(segment.marker, 0xc0..=0xc2))
                    && frame.data.len() >= 6
                {
                    // The precision, the sides, or the number of components.
                    let place = rng.below(6);
                    frame.data[place] = *rng.pick(&[0, 1, 2, 3, 4, 8, 12, 16, 0x40, 0x80, 0xff]);
                }
            }
        }
        what.push(format!("{name:02x} {change}"));
    }
    Picture { bytes: write(&segments), what: format!("the segments of a JPEG: {}", what.join(", ")), end: End::Any }
}

/// Returns an image whose data end early although the file does not, or that is higher than its data.
fn without_pixels(mut segments: Vec<Segment>, rng: &mut Rng) -> Picture {
    let (change, eighths) = (rng.below(3), 1 + rng.below(5));
    for segment in &mut segments {
        match (change, segment.marker) {
            (0, START_OF_SCAN) => segment.coded.clear(),
            (1, START_OF_SCAN) => segment.coded.truncate(segment.coded.len() * eighths / 8),
            (2, 0xc0..=0xc2) if segment.data.len() > 2 => {
                let height = u16::from_be_bytes([segment.data[1], segment.data[2]]).saturating_mul(4);
                segment.data[1..3].copy_from_slice(&height.to_be_bytes());
            }
            _ => {}
        }
    }
    let what = ["no data", "a part of its data", "a quarter of its data"][change];
    debug_assert!(segments.iter().any(|segment| segment.marker == END_OF_IMAGE));
    Picture { bytes: write(&segments), what: format!("a JPEG with {what}"), end: End::NotSilent }
}
