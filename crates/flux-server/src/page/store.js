// Images and their inputs in the browser's database, within limits.

/** Max images, and max bytes of all of them. */
const MAX = { images: 500, bytes: 1 << 30 };

const database = new Promise((resolve) => {
  try {
    const request = indexedDB.open('flux', 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('images', { keyPath: 'id' });
      request.result.createObjectStore('inputs', { keyPath: 'id' });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
});

/** Resolves to true if images are kept after the page is closed. */
export const isKept = database.then((db) => db !== null);

/** Runs a request on an object store. Returns undefined without a database. */
async function run(store, mode, ask) {
  const db = await database;
  if (!db) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(store, mode);
    const request = ask(transaction.objectStore(store));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Returns all images, newest first. */
export async function images() {
  const all = (await run('images', 'readonly', (store) => store.getAll())) ?? [];
  return all.sort((a, b) => b.created - a.created || a.index - b.index);
}

/** Stores an image. If the disk is full, the oldest images are deleted to make room. */
export async function putImage(image, oldest) {
  for (;;) {
    try {
      return await run('images', 'readwrite', (store) => store.put(image));
    } catch (error) {
      const id = error?.name === 'QuotaExceededError' && oldest();
      if (!id) throw error;
      await removeImage(id);
    }
  }
}

export const removeImage = (id) => run('images', 'readwrite', (store) => store.delete(id));

/** Stores an input file of images. */
export const putInput = (input) => run('inputs', 'readwrite', (store) => store.put(input));

export const input = (id) => run('inputs', 'readonly', (store) => store.get(id));

/** Returns the images beyond the limits. `all` is sorted newest first. */
export function surplus(all) {
  let bytes = 0;
  return all.filter((image, place) => (bytes += image.blob.size) > MAX.bytes || place >= MAX.images);
}

/** Deletes the input files that are no longer used. */
export async function tidyInputs(used) {
  const all = (await run('inputs', 'readonly', (store) => store.getAllKeys())) ?? [];
  await Promise.all(
    all.filter((id) => !used.has(id)).map((id) => run('inputs', 'readwrite', (store) => store.delete(id))),
  );
}
