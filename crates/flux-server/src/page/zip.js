// ZIP archives: written without compression, since images are compressed, and read.

const TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc(bytes) {
  let value = ~0;
  for (const byte of bytes) value = (value >>> 8) ^ TABLE[(value ^ byte) & 255];
  return ~value >>> 0;
}

/** Returns a header of little-endian fields [bytes, value]. */
function header(...fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [size]) => sum + size, 0)));
  let at = 0;
  for (const [size, value] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return view.buffer;
}

/** Returns an archive of files, whose names become unique. `told` is called after each file. */
export async function zip(files, told = () => {}) {
  const [parts, list, names] = [[], [], new Set()];
  let offset = 0;
  for await (const { name: wanted, blob } of files) {
    let name = wanted;
    for (let next = 2; names.has(name); next++) name = wanted.replace(/(\.\w+)?$/, `-${next}$1`);
    names.add(name);
    const encoded = new TextEncoder().encode(name);
    const sum = crc(new Uint8Array(await blob.arrayBuffer()));
    // Version 2.0, UTF-8 names, stored, the first day of 1980.
    const common = [
      [2, 20],
      [2, 0x800],
      [2, 0],
      [2, 0],
      [2, 33],
      [4, sum],
      [4, blob.size],
      [4, blob.size],
      [2, encoded.length],
      [2, 0],
    ];
    parts.push(header([4, 0x04034b50], ...common), encoded, blob);
    list.push(header([4, 0x02014b50], [2, 20], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), encoded);
    offset += 30 + encoded.length + blob.size;
    told(names.size);
  }
  const size = list.reduce((sum, part) => sum + part.byteLength, 0);
  const count = names.size;
  const end = header([4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, size], [4, offset], [2, 0]);
  return new Blob([...parts, ...list, end], { type: 'application/zip' });
}

/** Returns the files of an archive as a map of names. Throws if it is not one. */
export async function unzip(blob) {
  const bytes = (from, to) =>
    blob
      .slice(from, to)
      .arrayBuffer()
      .then((buffer) => new DataView(buffer));
  const tailFrom = Math.max(0, blob.size - 65557);
  const tail = await bytes(tailFrom, blob.size);
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error('not a ZIP archive');
  const from = tail.getUint32(end + 16, true);
  const list = await bytes(from, from + tail.getUint32(end + 12, true));
  const files = new Map();
  for (let at = 0; at + 46 <= list.byteLength && list.getUint32(at, true) === 0x02014b50;) {
    const [method, size, length] = [
      list.getUint16(at + 10, true),
      list.getUint32(at + 20, true),
      list.getUint16(at + 28, true),
    ];
    const offset = list.getUint32(at + 42, true);
    const name = new TextDecoder().decode(new Uint8Array(list.buffer, at + 46, length));
    const local = await bytes(offset, offset + 30);
    const start = offset + 30 + local.getUint16(26, true) + local.getUint16(28, true);
    const data = blob.slice(start, start + size);
    const inflated = () => new Response(data.stream().pipeThrough(new DecompressionStream('deflate-raw'))).blob();
    if (method === 0 || method === 8) files.set(name, method === 0 ? data : await inflated());
    at += 46 + length + list.getUint16(at + 30, true) + list.getUint16(at + 32, true);
  }
  return files;
}
