// Recipes as commands: for flux, curl, and OpenAI's Python client.

/** Quotes a word for a POSIX shell, if needed. */
const quoted = (text) => (/^(?!=)[\w./:=@%+,-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

/** Returns texts, numbers, lists and objects as Python literals. */
function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (typeof value !== 'object') return typeof value === 'bigint' ? String(value) : JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, item]) => `"${key}": ${python(item)}`)
    .join(', ')}}`;
}

/** Fields that the page passes on as they are. */
const MORE = ['extend', 'feather', 'regions', 'hires', 'variety', 'transparent', 'recipe'];

/** Returns a recipe as fields of a request. `asked` is the page's request, which names models and LoRAs. */
function fieldsOf(recipe, asked) {
  const { prompt, width, height, seed, steps, guidance, strength, negative } = recipe;
  const [format, isChange] = [asked.output_format, strength !== undefined];
  const all = {
    model: asked.model ?? recipe.model,
    prompt,
    size: width && !isChange ? `${width}x${height}` : undefined,
    seed,
    steps,
    guidance: guidance === 1 ? undefined : guidance,
    strength,
    negative_prompt: negative,
    loras: asked.loras?.length ? asked.loras : undefined,
    output_format: format === 'png' ? undefined : format,
    ...Object.fromEntries(MORE.map((name) => [name, asked[name]])),
  };
  return Object.fromEntries(
    Object.entries(all).filter(([, value]) => value !== undefined && value !== null && value !== ''),
  );
}

/** Returns commands that reproduce the image: with flux, curl, or OpenAI's Python client. */
export function commands({ recipe, asked = {}, inputs = [], mask }, origin, hasKey) {
  const fields = fieldsOf(recipe, asked);
  const files = [fields, inputs, mask && 'mask.png'];
  return { flux: asFlux(...files), curl: asCurl(...files, origin, hasKey), Python: asPython(...files, origin, hasKey) };
}

function asFlux(fields, files, mask) {
  const { model, prompt, size, seed, steps, guidance, strength, negative_prompt, loras = [], output_format } = fields;
  const { extend, feather, regions = [], hires, variety, transparent, recipe } = fields;
  const words = ['flux', '-p', prompt ?? ''];
  const add = (flag, value) => value !== undefined && words.push(flag, value);
  // The built-in model needs no name.
  add('-d', model === 'tiny' ? undefined : model);
  for (const file of files) add('-i', file.startsWith('-') ? `./${file}` : file);
  add('--mask', mask);
  add('--strength', strength);
  add('--extend', extend && ['left', 'top', 'right', 'bottom'].map((side) => extend[side]).join());
  add('--feather', feather);
  for (const { box, prompt } of regions) add('--region', `${box.join()}:${prompt}`);
  add('--hires', hires);
  add('--variety', variety);
  if (transparent) words.push('--transparent');
  if (recipe === 'false') words.push('--no-recipe');
  add('--size', size);
  add('-s', steps);
  add('-S', seed);
  add('-g', guidance);
  add('--negative', negative_prompt);
  for (const { name, weight } of loras) add('--lora', `${name}:${weight}`);
  add('-o', output_format && fileName(fields));
  const command = words.map((word) => quoted(String(word))).join(' ');
  // The flag would read the prompt from standard input.
  return prompt === '-' ? `printf %s - | ${command}` : command;
}

const endingOf = (format = 'png') => (format === 'jpeg' ? 'jpg' : format);
const fileName = ({ output_format }) => `image.${endingOf(output_format)}`;

/** Returns JSON with the seed as a number of any length. */
const asJson = (fields) => JSON.stringify(fields).replace(/"seed":"(\d+)"/, '"seed":$1');

function asCurl(fields, files, mask, origin, hasKey) {
  const isEdit = files.length > 0;
  const lines = [`curl -s --fail-with-body ${quoted(`${origin}/v1/images/${isEdit ? 'edits' : 'generations'}`)}`];
  if (hasKey) lines.push('-H "Authorization: Bearer $FLUX_API_KEY"');
  if (isEdit) {
    for (const file of files) lines.push(`-F ${quoted(`image[]=@"${file.replace(/["\\]/g, '\\$&')}"`)}`);
    if (mask) lines.push(`-F mask=@${mask}`);
    for (const [name, value] of Object.entries(fields)) {
      lines.push(`--form-string ${quoted(`${name}=${typeof value === 'object' ? JSON.stringify(value) : value}`)}`);
    }
  } else {
    lines.push('-H content-type:application/json', `-d ${quoted(asJson(fields))}`);
  }
  return `${lines.join(' \\\n  ')} |\n  jq -r '.data[0].b64_json' | base64 -d > ${fileName(fields)}`;
}

/** Arguments that the client knows. Others go into `extra_body`. */
const KNOWN = ['model', 'prompt', 'size', 'output_format'];

function asPython(fields, files, mask, origin, hasKey) {
  const known = Object.entries(fields).filter(([name]) => KNOWN.includes(name));
  const extra = Object.fromEntries(Object.entries(fields).filter(([name]) => !KNOWN.includes(name)));
  // A form contains texts only.
  for (const name of ['loras', 'regions'])
    if (files.length > 0 && extra[name]) extra[name] = JSON.stringify(extra[name]);
  if (extra.seed !== undefined) extra.seed = BigInt(extra.seed);
  const lines = known.map(([name, value]) => `${name}=${python(value)},`);
  if (files.length > 0) lines.push(`image=[${files.map((file) => `open(${JSON.stringify(file)}, "rb")`).join(', ')}],`);
  if (mask) lines.push(`mask=open("${mask}", "rb"),`);
  if (Object.keys(extra).length > 0) lines.push(`extra_body=${python(extra)},`);
  return [
    'import base64',
    ...(hasKey ? ['import os'] : []),
    '',
    'from openai import OpenAI',
    '',
    `client = OpenAI(base_url="${origin}/v1", api_key=${hasKey ? 'os.environ["FLUX_API_KEY"]' : '"none"'})`,
    `result = client.images.${files.length > 0 ? 'edit' : 'generate'}(`,
    ...lines.map((line) => `    ${line}`),
    ')',
    `with open("${fileName(fields)}", "wb") as file:`,
    '    file.write(base64.b64decode(result.data[0].b64_json))',
    '',
  ].join('\n');
}
