// Recipes of images: read from a file, and described.

import { number, t } from './words.js';

/** Returns the recipe in an image file's metadata, or a falsy value if there is none. */
export async function readRecipe(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const texts = bytes[0] === 0x89 ? await pngTexts(bytes) : {};
  const xmp = texts['XML:com.adobe.xmp'] ?? (bytes[0] === 0x89 ? '' : new TextDecoder().decode(bytes));
  const between = xmp.match(/<flux:Recipe>(.*?)<\/flux:Recipe>/s)?.[1];
  const own = texts.flux ?? (between && unescaped(between));
  try {
    return own ? parseRecipe(own) : texts['flux-upscale'] ? parseEnlarged(texts['flux-upscale']) : null;
  } catch {
    return null;
  }
}

const unescaped = (text) => text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&');

const SEED = /"seed":\s*(\d+)/;

/** Parses a recipe. The seed becomes a text, since it may exceed the precision of a number. */
function parseRecipe(text) {
  const { recipe, model } = JSON.parse(text.replace(SEED, '"seed":"$1"'));
  return recipe && { ...recipe, model: model?.name };
}

/** Parses the recipe of the image that was enlarged. */
const parseEnlarged = (text) => parseRecipe(JSON.stringify(JSON.parse(text.replace(SEED, '"seed":"$1"')).recipe ?? {}));

/** Returns the text chunks of a PNG by keyword. */
async function pngTexts(bytes) {
  const view = new DataView(bytes.buffer);
  const texts = {};
  for (let at = 8; at + 12 <= bytes.length;) {
    const length = view.getUint32(at);
    const kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const data = bytes.subarray(at + 8, at + 8 + length);
    const zero = data.indexOf(0);
    if (/^(tEXt|zTXt|iTXt)$/.test(kind) && zero > 0) {
      const keyword = new TextDecoder('latin1').decode(data.subarray(0, zero));
      const text = await pngText(kind, data.subarray(zero + 1)).catch(() => null);
      if (text !== null) texts[keyword] = text;
    }
    at += 12 + length;
  }
  return texts;
}

async function pngText(kind, rest) {
  if (kind === 'tEXt') return new TextDecoder('latin1').decode(rest);
  if (kind === 'zTXt') return new TextDecoder('latin1').decode(await inflated(rest.subarray(1)));
  // The flags are followed by a language tag and a translated keyword.
  const language = rest.indexOf(0, 2);
  const text = rest.subarray(rest.indexOf(0, language + 1) + 1);
  return new TextDecoder().decode(rest[0] ? await inflated(text) : text);
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}

/** Returns names and values of a recipe for display. */
export function described(recipe) {
  const { prompt, negative, width, height, seed, steps, guidance, strength, model, inputs, mask, adapters } = recipe;
  const { regions, hires, variety, transparent } = recipe;
  const all = {
    prompt,
    negative_prompt: negative,
    size: width && `${number(width)} × ${number(height)}`,
    seed,
    steps,
    guidance: guidance === 1 ? undefined : guidance,
    strength,
    model,
    references: inputs?.length || undefined,
    mask: mask && '✓',
    regions: regions?.map(({ prompt }) => prompt).join(' · '),
    hires: hires?.by && t('hires_by', { by: hires.by }),
    variety,
    transparent: transparent && '✓',
    loras: adapters?.map((used) => `${used.file} × ${used.strength}`).join(', '),
  };
  const shown = Object.entries(all).filter(([, value]) => value !== undefined && value !== '' && value !== null);
  return shown.map(([name, value]) => [t(`field_${name}`), value]);
}
