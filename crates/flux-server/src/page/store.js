// The browser's database: images, their thumbnails and files, and inputs.

/** Files that could not be stored. They last until the page is closed. */
const held = new Map();

const database = new Promise((resolve) => {
  try {
    const request = indexedDB.open('flux', 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      const db = request.result;
      for (const name of oldVersion ? ['files', 'thumbs'] : ['images', 'inputs', 'files', 'thumbs'])
        db.createObjectStore(name, { keyPath: 'id' });
      if (oldVersion === 1) migrate(request.transaction);
    };
    request.onsuccess = () => {
      // A newer page in another tab may change the database.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = request.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
});

/** Moves the files of version 1 out of their records, so that a list of thousands stays small. */
function migrate(transaction) {
  transaction.objectStore('images').openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const { blob, thumb, ...image } = cursor.value;
    transaction.objectStore('files').put({ id: image.id, blob });
    if (thumb) transaction.objectStore('thumbs').put({ id: image.id, blob: thumb });
    cursor.update({ ...image, root: image.id, bytes: blob.size, type: blob.type });
    cursor.continue();
  };
}

/** Resolves to true if images are kept after the page is closed. */
export const isKept = database.then((db) => db !== null);

/** Runs a request on object stores. Returns undefined without a database. */
async function run(names, mode, ask) {
  const db = await database;
  if (!db) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(names, mode);
    const request = ask(...[names].flat().map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

const get = (name, id) => run(name, 'readonly', (store) => store.get(id));

/** Returns all images without their files, newest first. */
export async function images() {
  const all = (await run('images', 'readonly', (store) => store.getAll())) ?? [];
  return all.sort((a, b) => b.created - a.created || a.index - b.index);
}

/** Stores an image. Throws if that fails, in which case its file stays in memory. */
export async function putImage(image, blob, thumb) {
  held.set(image.id, { blob, thumb });
  const isStored = await run(['images', 'files', 'thumbs'], 'readwrite', (images, files, thumbs) => {
    files.put({ id: image.id, blob });
    if (thumb) thumbs.put({ id: image.id, blob: thumb });
    return images.put(image);
  });
  if (isStored) held.delete(image.id);
}

export const putMeta = (image) => run('images', 'readwrite', (store) => store.put(image)).catch(() => {});

export const file = async (id) => held.get(id)?.blob ?? (await get('files', id))?.blob;

export const thumb = async (id) => held.get(id)?.thumb ?? (await get('thumbs', id))?.blob ?? file(id);

export function removeImages(ids) {
  for (const id of ids) held.delete(id);
  return run(['images', 'files', 'thumbs'], 'readwrite', (...stores) => {
    for (const store of stores) for (const id of ids) store.delete(id);
  });
}

/** Stores an input file of images. */
export async function putInput(input) {
  held.set(input.id, input);
  if (await run('inputs', 'readwrite', (store) => store.put(input)).catch(() => null)) held.delete(input.id);
}

export const input = async (id) => held.get(id) ?? (await get('inputs', id).catch(() => null));

/** Deletes the input files that are no longer used. Samples stay. */
export async function tidyInputs(used) {
  const all = (await run('inputs', 'readonly', (store) => store.getAllKeys())) ?? [];
  await run('inputs', 'readwrite', (store) =>
    all.filter((id) => !used.has(id) && !id.startsWith('sample-')).forEach((id) => store.delete(id)),
  );
}

/** Returns the used and the available bytes of the browser's store, if it says. */
export async function fullness() {
  const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
  return quota ? { usage, quota } : null;
}

/** Asks the browser not to evict the images. */
export const persist = () => navigator.storage?.persist?.().catch(() => {});
