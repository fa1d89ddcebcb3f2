/* The report: cards of all figures, one horizontal axis for them, a search for objectives, a theme, and printing. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  polyfedFigures.ready = polyfedUnpacked;
  polyfedUnpacked.catch(() => {
    document.getElementById("too-old").hidden = false;
  });
  const told = JSON.parse(document.getElementById("figures-data").textContent);
  const place = document.getElementById("cards");
  const cards = told.map((figure) => polyfedFigures.card(figure));
  place.append(...cards);

  const choice = document.getElementById("axis");
  const axes = new Map(
    told
      .filter((figure) => figure.kind === "lines")
      .flatMap((figure) => figure.x || [])
      .map((axis) => [axis.key, axis.label]),
  );
  choice.append(...[...axes].map(([key, label]) => new Option(label, key)));
  choice.closest("label").hidden = axes.size < 2;
  choice.addEventListener("change", () =>
    cards.filter((card) => card.figure.kind === "lines").forEach((card) => card.change({ axis: choice.value })),
  );

  const search = document.getElementById("objective");
  const many = cards.filter((card) => card.page);
  const names = new Set(many.flatMap((card) => card.figure.panels));
  document.getElementById("objectives").append(...[...names].map((name) => new Option(name)));
  search.closest("label").hidden = !many.length;
  search.addEventListener("input", () => many.forEach((card) => card.search(search.value)));
  document.getElementById("tools").hidden = axes.size < 2 && !many.length;

  polyfedTheme.changed = polyfedFigures.redraw;
  polyfedTheme.begin();

  // Paper is light and narrow: all figures are drawn for it, and again for the screen afterwards.
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    polyfedFigures.drawAll();
    polyfedFigures.redraw();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    polyfedFigures.redraw();
  });
});
