// What the browser keeps: images, the files they were drawn from, and no more than fits.

/** The most images, and the most bytes of them. */
const MOST = { images: 500, bytes: 1 << 30 };

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

/** Whether anything is kept after the page is closed. */
export const isKept = database.then((db) => db !== null);

/** Runs a request on a store; without a database nothing comes of it. */
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

/** All images, the newest first. */
export async function images() {
  const all = (await run('images', 'readonly', (store) => store.getAll())) ?? [];
  return all.sort((a, b) => b.created - a.created || a.index - b.index);
}

/** Keeps an image. The oldest ones make room where the disk is full. */
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

/** Keeps a file that images are drawn from. */
export const putInput = (input) => run('inputs', 'readwrite', (store) => store.put(input));

export const input = (id) => run('inputs', 'readonly', (store) => store.get(id));

/** Which of the images, the newest first, are too many. */
export function surplus(all) {
  let bytes = 0;
  return all.filter((image, place) => (bytes += image.blob.size) > MOST.bytes || place >= MOST.images);
}

/** Forgets the files that nothing names any more. */
export async function tidyInputs(used) {
  const all = (await run('inputs', 'readonly', (store) => store.getAllKeys())) ?? [];
  await Promise.all(
    all.filter((id) => !used.has(id)).map((id) => run('inputs', 'readwrite', (store) => store.delete(id))),
  );
}
