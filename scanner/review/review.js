// Keys for what a page offers: an element with data-key="c" is clicked, or focused if one writes in it, by the key c.
"use strict";
document.addEventListener("keydown", event => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return; // a key held down decides once
  if (event.target.matches("textarea, input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const asked = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!asked) return;
  event.preventDefault();
  if (asked.matches("textarea, input, select")) asked.focus(); else asked.click();
});
