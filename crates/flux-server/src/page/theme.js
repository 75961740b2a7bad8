// Applies the chosen theme before the first paint. The default is the system's.
'use strict';
const chosenTheme = (() => {
  try {
    return JSON.parse(localStorage.getItem('flux.theme'));
  } catch {
    return null;
  }
})();
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
