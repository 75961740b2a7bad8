// Dark or light as the reader chose, before anything is painted. Without a choice the system decides.
'use strict';
const chosenTheme = (() => {
  try {
    return JSON.parse(localStorage.getItem('flux.theme'));
  } catch {
    return null;
  }
})();
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
