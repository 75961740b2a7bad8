// Values in local storage. Reads return the default if storage is not available.

export const kept = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`flux.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      if (value === undefined) localStorage.removeItem(`flux.${name}`);
      else localStorage.setItem(`flux.${name}`, JSON.stringify(value));
    } catch {
      // Storage is not available, so the value is not kept.
    }
  },
  /** Returns all values whose names begin with a prefix. */
  all(prefix) {
    try {
      const names = Object.keys(localStorage).filter((name) => name.startsWith(`flux.${prefix}`));
      return names.map((name) => this.get(name.slice(5))).filter(Boolean);
    } catch {
      return [];
    }
  },
};
