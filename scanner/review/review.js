// Keys for what a page offers: an element with data-key="c" is clicked, or focused if one writes in it, by the key c.
// A page that has just come up takes no decision: the key or click was meant for the one before it.
"use strict";
const html = document.documentElement, form = document.querySelector(".decide"), said = document.querySelector("#said");
if (form) {
  html.dataset.fresh = "yes";
  setTimeout(() => html.dataset.fresh = "no", 500);
  form.addEventListener("submit", event => {
    const early = html.dataset.fresh === "yes";
    if (early) event.preventDefault();
    said.textContent = early ? "Not recorded: this flag has just come up. Look at it, then decide." : "Recording…";
  });
  addEventListener("pageshow", () => { said.textContent = ""; });
}
document.addEventListener("keydown", event => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return; // a key held down decides once
  if (event.target.matches("textarea, input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const asked = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!asked) return;
  event.preventDefault();
  if (asked.matches("textarea, input, select")) asked.focus({preventScroll: true}); else asked.click();
});
