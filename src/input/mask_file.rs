//! What the file of a mask means: its brightness, its alpha, or labels.

use super::decoded::Decoded;
use crate::error::{Error, Result};

/// JPEG and lossy WebP leave such noise beside edges: from 0 up to here it counts as black, and as far below 255 as
/// white.
const NOISE: u8 = 32;

/// A mask that is nowhere brighter is told to be dim.
const DIM: u8 = 240;

/// Channels that are further apart make a colour.
const COLORED: u8 = 64;

const BY_ALPHA: &str = "the mask shows one colour, so its alpha counts: what is opaque is drawn anew. If you mean what is \
                        transparent, `magick IN -alpha extract -negate OUT.png` makes that mask";

/// The size of a mask, its values [height, width], and notes.
pub(super) type Meaning = ([usize; 2], Vec<u8>, Vec<String>);

/// Reads a mask.
///
/// Errors when its colours and its alpha say different things.
pub(super) fn meaning(decoded: Decoded) -> Result<Meaning> {
    let Decoded { rgb, alpha, form, .. } = decoded;
    let (size, mut colors, mut notes) = ([rgb.width, rgb.height], rgb.bytes, Vec::new());
    if let Some(low) = form.low {
        notes.push("the mask has 16 bits and no value above 255, so it is read as of 8 bits".to_string());
        colors = low;
    }
    if let Some(alpha) = alpha
        && is_the_mask(&alpha, &colors)?
    {
        if brightness(&colors) != alpha {
            notes.push(BY_ALPHA.to_string());
        }
        colors = alpha.iter().flat_map(|value| [*value; 3]).collect();
    }
    let values = if let Some((values, note)) = of_labels(&colors, form.palette) {
        notes.push(note.to_string());
        values
    } else {
        let mut values = brightness(&colors);
        if form.lossy {
            values.iter_mut().for_each(|value| *value = without_noise(*value));
        }
        notes.extend(note_of_colors(&colors, &values));
        values
    };
    notes.extend(note_of_extent(&values).map(str::to_string));
    Ok((size, values, notes))
}

/// Whether alpha says what is to be drawn, and not the colours.
///
/// Errors when both do, and not the same.
fn is_the_mask(alpha: &[u8], colors: &[u8]) -> Result<bool> {
    let pixels = || colors.as_chunks::<3>().0.iter().zip(alpha);
    let visible = || pixels().filter(|(_, alpha)| **alpha > 0).map(|(color, _)| color);
    let hidden = || pixels().filter(|(_, alpha)| **alpha == 0).map(|(color, _)| color);
    let Some(first) = visible().next() else { return Ok(false) };
    let is_bright = |color: &[u8; 3]| bright(color) >= 128;
    if visible().all(|color| color == first) {
        // Of what nobody sees, white beside black that is seen may be what is meant.
        if is_bright(first) || !hidden().any(|color| color != first && is_bright(color)) {
            return Ok(true);
        }
    } else if pixels().all(|(color, alpha)| *alpha == 255 || *color == [0; 3])
        && visible().all(|[red, green, blue]| red == green && green == blue)
    {
        return Ok(false);
    }
    Err(Error::new("the mask's colours and its alpha say different things, so it is unclear what is to be drawn anew")
        .hint(
            "save what you mean without alpha: `magick IN -alpha off OUT.png` makes a mask of what is bright, \
             `magick IN -alpha extract OUT.png` of what is opaque, and with `-negate` behind it of what is transparent",
        ))
}

/// The values of a mask of labels, of which there are two, and a note.
fn of_labels(colors: &[u8], palette: Option<[[u8; 3]; 2]>) -> Option<(Vec<u8>, &'static str)> {
    let pixels = || colors.as_chunks::<3>().0.iter();
    let labelled = |black: [u8; 3]| pixels().map(|color| if *color == black { 0 } else { 255 }).collect();
    if colors.iter().all(|value| *value <= 1) && colors.contains(&1) {
        return Some((labelled([0; 3]), "the mask has the values 0 and 1, as labels have them: 1 is read as white"));
    }
    let [black, other] = palette?;
    let is_color = other[0] != other[1] || other[1] != other[2];
    let has_two = pixels().all(|color| [black, other].contains(color)) && pixels().any(|color| *color == other);
    let note = "the mask has the first two colours of its palette, as labels have them: the second is read as white";
    (black == [0; 3] && is_color && has_two).then(|| (labelled(black), note))
}

fn without_noise(value: u8) -> u8 {
    match value {
        0..=NOISE => 0,
        _ if value >= 255 - NOISE => 255,
        _ => value,
    }
}

/// Says that a mask is coloured, or dim.
fn note_of_colors(colors: &[u8], values: &[u8]) -> Option<String> {
    let spread = |color: &[u8; 3]| color.iter().max().zip(color.iter().min()).map_or(0, |(most, least)| most - least);
    let colored = colors.as_chunks::<3>().0.iter().any(|color| spread(color) > COLORED);
    let most = *values.iter().max()?;
    match (colored, most) {
        (_, 0) => None,
        (true, _) => Some(format!(
            "the mask has colours, of which the brightness counts: its brightest pixel is drawn anew by {most} of 255 parts"
        )),
        (false, ..DIM) => {
            Some(format!("the mask is nowhere white: its brightest pixel is drawn anew by {most} of 255 parts"))
        }
        _ => None,
    }
}

/// Says that a mask selects nothing, or everything.
fn note_of_extent(values: &[u8]) -> Option<&'static str> {
    let (least, most) = (values.iter().min()?, values.iter().max()?);
    match (least, most) {
        (_, 0) => Some("the mask is black everywhere, so it selects nothing: paint what is to change white"),
        (255, _) => Some("the mask is white everywhere, so it selects all of the image: paint what is to stay black"),
        (1.., _) => Some("the mask is nowhere black, so all of the image is drawn anew, and mixed with what was there"),
        _ => None,
    }
}

/// How bright each pixel of [pixels, 3] is.
pub(super) fn brightness(colors: &[u8]) -> Vec<u8> {
    colors.as_chunks::<3>().0.iter().map(bright).collect()
}

/// Source: ITU-R BT.601, in the whole numbers of Pillow.
fn bright(color: &[u8; 3]) -> u8 {
    let [red, green, blue] = color.map(u32::from);
    ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16) as u8
}
