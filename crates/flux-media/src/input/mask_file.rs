//! The meaning of a mask file: by its brightness, its alpha, or labels.

use super::decoded::Decoded;
use flux_base::error::{Error, Result};
use flux_base::memory;

/// Noise that JPEG and lossy WebP leave next to edges: values up to this count as black, and values within the same
/// distance of 255 as white.
const NOISE: u8 = 32;

/// A mask with no brighter value gets a note that it is dim.
const DIM: u8 = 240;

/// Channels that differ by more make a colour.
const COLORED: u8 = 64;

const BY_ALPHA: &str = "the mask has a single colour, so its alpha is used: opaque pixels are regenerated. To \
                        select transparent pixels, create the mask with `magick IN -alpha extract -negate OUT.png`";

/// The size of a mask, its values [height, width], and notes.
pub(super) type Meaning = ([usize; 2], Vec<u8>, Vec<String>);

/// Reads a mask.
///
/// Errors if its colours and its alpha contradict each other.
pub(super) fn meaning(decoded: Decoded) -> Result<Meaning> {
    let Decoded { rgb, alpha, form, .. } = decoded;
    let _reserved = memory::reserve(3 * rgb.bytes.len())?;
    let (size, mut colors, mut notes) = ([rgb.width, rgb.height], rgb.bytes, Vec::new());
    if let Some(low) = form.low {
        notes.push("the mask has 16 bits and no value above 255, so it is read as 8 bits".to_string());
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
    let values = if let Some((values, note)) = label_values(&colors, form.palette) {
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

/// Returns `true` if the alpha is the mask, not the colours.
///
/// Errors if both could be, and they differ.
fn is_the_mask(alpha: &[u8], colors: &[u8]) -> Result<bool> {
    let pixels = || colors.as_chunks::<3>().0.iter().zip(alpha);
    let visible = || pixels().filter(|(_, alpha)| **alpha > 0).map(|(color, _)| color);
    let hidden = || pixels().filter(|(_, alpha)| **alpha == 0).map(|(color, _)| color);
    let Some(first) = visible().next() else { return Ok(false) };
    let is_bright = |color: &[u8; 3]| bright(color) >= 128;
    if visible().all(|color| color == first) {
        // Invisible white next to visible black may be the intended mask.
        if is_bright(first) || !hidden().any(|color| color != first && is_bright(color)) {
            return Ok(true);
        }
    } else if pixels().all(|(color, alpha)| *alpha == 255 || *color == [0; 3])
        && visible().all(|[red, green, blue]| red == green && green == blue)
    {
        return Ok(false);
    }
    Err(Error::new("the mask's colours and its alpha select different areas, so the area to regenerate is ambiguous")
        .hint(
            "save the mask without alpha: `magick IN -alpha off OUT.png` selects bright pixels, \
             `magick IN -alpha extract OUT.png` opaque ones, \
             `magick IN -alpha extract -negate OUT.png` transparent ones",
        ))
}

/// Returns the values of a mask with two labels, and a note.
fn label_values(colors: &[u8], palette: Option<[[u8; 3]; 2]>) -> Option<(Vec<u8>, &'static str)> {
    let pixels = || colors.as_chunks::<3>().0.iter();
    let labelled = |black: [u8; 3]| pixels().map(|color| if *color == black { 0 } else { 255 }).collect();
    if colors.iter().all(|value| *value <= 1) && colors.contains(&1) {
        return Some((labelled([0; 3]), "the mask has the values 0 and 1, like a label image: 1 is read as white"));
    }
    let [black, other] = palette?;
    let is_color = other[0] != other[1] || other[1] != other[2];
    let has_two = pixels().all(|color| [black, other].contains(color)) && pixels().any(|color| *color == other);
    let note = "the mask has the first two colours of its palette, like a label image: the second is read as white";
    (black == [0; 3] && is_color && has_two).then(|| (labelled(black), note))
}

fn without_noise(value: u8) -> u8 {
    match value {
        0..=NOISE => 0,
        _ if value >= 255 - NOISE => 255,
        _ => value,
    }
}

/// Returns a note if the mask is coloured, or dim.
fn note_of_colors(colors: &[u8], values: &[u8]) -> Option<String> {
    let spread = |color: &[u8; 3]| color.iter().max().zip(color.iter().min()).map_or(0, |(most, least)| most - least);
    let colored = colors.as_chunks::<3>().0.iter().any(|color| spread(color) > COLORED);
    let most = *values.iter().max()?;
    match (colored, most) {
        (_, 0) => None,
        (true, _) => {
            Some(format!("the mask has colours, so their brightness is used: the brightest pixel is {most} of 255"))
        }
        (false, ..DIM) => {
            Some(format!("the mask has no white pixels, so the edit is mixed: the brightest pixel is {most} of 255"))
        }
        _ => None,
    }
}

/// Returns a note if the mask selects nothing, or everything.
fn note_of_extent(values: &[u8]) -> Option<&'static str> {
    let (least, most) = (values.iter().min()?, values.iter().max()?);
    match (least, most) {
        (_, 0) => Some("the mask is black everywhere, so it selects nothing: paint the area to change white"),
        (255, _) => Some("the mask is white everywhere, so it selects the whole image: paint the area to keep black"),
        (1.., _) => Some("the mask has no black pixels, so the whole image is regenerated and mixed with the input"),
        _ => None,
    }
}

/// Returns the brightness of each pixel of [pixels, 3].
pub(super) fn brightness(colors: &[u8]) -> Vec<u8> {
    colors.as_chunks::<3>().0.iter().map(bright).collect()
}

/// The brightness of a pixel. Source: ITU-R BT.601, in the integer arithmetic of Pillow.
fn bright(color: &[u8; 3]) -> u8 {
    let [red, green, blue] = color.map(u32::from);
    ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16) as u8
}
