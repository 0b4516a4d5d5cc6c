// Keys for what a page offers: an element with data-key="c" is clicked, or focused if one writes in it, by the key c.
// A page takes no decision while it has just come up, nor once it is being left: the key was meant for another flag.
"use strict";
const html = document.documentElement, form = document.querySelector(".decide"), said = document.querySelector("#said");
const WHY_NOT = {
  yes: "Not recorded: this flag has just come up. Look at it, then decide.",
  left: "Not recorded: this flag is being left.",
};
function leave() {
  html.dataset.fresh = "left";
  // later than now: a button that is off sends nothing, the one that was just pressed included
  setTimeout(() => form?.querySelectorAll("button").forEach(button => { button.disabled = true; }));
}
if (form) {
  html.dataset.fresh = "yes";
  setTimeout(() => { if (html.dataset.fresh === "yes") html.dataset.fresh = "no"; }, 500);
  form.addEventListener("submit", event => {
    const why = WHY_NOT[html.dataset.fresh];
    said.textContent = why ?? "Recording…";
    if (why) event.preventDefault(); else leave();
  });
  document.addEventListener("click", event => {
    const link = event.target.closest("a[href]");
    if (link && !link.getAttribute("href").startsWith("#") && !event.ctrlKey && !event.metaKey && !event.shiftKey) leave();
  });
  addEventListener("beforeunload", leave);
  addEventListener("pageshow", event => { if (event.persisted) location.reload(); });
}
document.addEventListener("keydown", event => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return; // a key held down decides once
  if (event.target.matches("textarea, input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const asked = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!asked || html.dataset.fresh === "left") return;
  event.preventDefault();
  if (asked.matches("textarea, input, select")) asked.focus({preventScroll: true}); else asked.click();
});
